"""What the commands that search have in common: their options, and trials on one engine."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench_spark.cli.output import file_to_write, write_bytes
from bench_spark.cli.preflight import with_remedy
from bench_spark.cli.preparing import Asked, choose_run_id
from bench_spark.cli.run import Launch, launched
from bench_spark.config.models import Scenario
from bench_spark.config.problems import shown_path
from bench_spark.core.throughput import F64
from bench_spark.errors import EXIT_INTERRUPTED, ConfigurationError
from bench_spark.plan import make_plan
from bench_spark.report.chart_files import DRAWN_AS, drawn
from bench_spark.report.charts import Spec
from bench_spark.report.formatting import seconds
from bench_spark.report.live import Steps, display_for_trials, silent_display
from bench_spark.results.rows import TrialOf
from bench_spark.suites.window import TrialRun, TrialTime, estimate

if TYPE_CHECKING:
    from bench_spark.results.document import RunSummary
    from bench_spark.spark.merge import TickRows

PlotOption = Annotated[
    str | None,
    typer.Option("--plot", metavar="FILE", help="Draw the curve into a file, .svg or .png."),
]
SearchTagsOption = Annotated[
    list[str] | None,
    typer.Option("--tag", metavar="KEY=VALUE", help="Stored with each run; repeatable."),
]


class Plot:
    """The file of `--plot`; without one, nothing is drawn. Refused before the search starts."""

    def __init__(self, file: str | None) -> None:
        self._path: Path | None = None
        if file is None:
            return
        self._path = file_to_write("--plot", file)
        if self._path.suffix not in DRAWN_AS:
            allowed = " or ".join(DRAWN_AS)
            raise ConfigurationError(
                f"--plot: {shown_path(file)}: allowed: a file that ends in {allowed}"
            )

    def draw(self, chart: Spec) -> None:
        if self._path is not None:
            write_bytes(self._path, drawn(chart, self._path.suffix))


def refuse_keys_of_search(overrides: Sequence[str], keys: Sequence[str]) -> None:
    for text in overrides:
        key = text.partition("=")[0].strip()
        if key in keys:
            raise ConfigurationError(f"--set {key}: the search sets this itself; leave it out")


def announcement(what: str, scenario: Scenario, most_trials: int) -> str:
    """What is searched, and how long that will take."""
    phases = scenario.phases
    sampling = scenario.sampling
    time_of_one = TrialTime(
        phases.warmup_seconds,
        phases.measure_seconds,
        phases.drain_seconds,
        sampling.samples * sampling.threshold_seconds if sampling.samples else None,
    )
    told = estimate(time_of_one, most_trials)
    return (
        f"searching {what}: probably {told.trials} trials in about "
        f"{seconds(round(told.seconds))}, at most {told.most_trials} in "
        f"{seconds(round(told.most_seconds))}"
    )


class SearchTrials:
    """Runs trials one after another on one engine, each a run of its own in the store."""

    def __init__(
        self, launch: Launch, asked: Asked, search_id: str, display: Steps, of_trials: Steps
    ) -> None:
        from bench_spark.spark.engine import Engine

        self._launch = launch
        self._asked = asked
        self._search_id = search_id
        self._display = display
        self._of_trials = of_trials
        self._engine = Engine(launch.spark, launch.store, of_trials)
        self.runs: list[TrialRun] = []
        self.exit_codes: list[int] = []

    @property
    def scenario(self) -> Scenario:
        """As it was planned: agents are settled, and `per_agent` counts are multiplied out."""
        return self._launch.plan.scenario

    def close(self) -> None:
        self._engine.close()

    def run(self, scenario: Scenario, parameters: Mapping[str, str], name: str) -> RunSummary:
        """Carry out the next trial; a signal ends the whole program."""
        from bench_spark.spark.request import RunRequest

        number = len(self.runs) + 1
        plan = make_plan(scenario, f"{self._search_id}-{number:02}")
        trial = TrialOf(self._search_id, number, parameters)
        self._of_trials.name_next(name)
        with with_remedy(self._asked.ends):
            summary = self._engine.run(RunRequest(plan, self._asked.ends, live=False, trial=trial))
        if summary.exit_code >= EXIT_INTERRUPTED:
            self._display.step(f"interrupted; {len(self.runs)} whole trials are in the store")
            raise typer.Exit(summary.exit_code)
        self.runs.append(TrialRun(plan.run_id, summary.document["status"]))
        self.exit_codes.append(summary.exit_code)
        return summary

    def ticks(self, run_id: str) -> list[TickRows]:
        from bench_spark.spark.ticks import merged_ticks_here

        return merged_ticks_here(self._launch.store, run_id)

    def samples(self, run_id: str, pairs: int) -> list[F64]:
        """Of each pair, as its consumer took them: messages per second."""
        stored = self._launch.store.read(
            "samples", columns=["pair", "messages", "seconds"], run_id=run_id
        )
        pair, messages, seconds = (column.to_numpy() for column in stored.columns)
        return [(messages / seconds)[pair == number] for number in range(pairs)]

    def tell(self, text: str) -> None:
        """What became of the newest trial."""
        status = self.runs[-1].status
        doubt = "" if status == "valid" else f", {status}"
        self._display.step(f"trial {len(self.runs)}: {text}{doubt}")


@contextmanager
def search_trials(
    asked: Asked, store: str, master: str | None, display: Steps, quiet: bool
) -> Iterator[SearchTrials]:
    """A session, a store and an engine for the trials of one search."""
    search_id = choose_run_id(None, asked.scenario, asked.ends)
    with launched(asked, search_id, store, master, display, is_run=False) as launch:
        of_trials = silent_display() if quiet else display_for_trials(sys.stderr)
        trials = SearchTrials(launch, asked, search_id, display, of_trials)
        try:
            yield trials
        finally:
            trials.close()
