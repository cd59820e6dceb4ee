"""`bench-spark suite`: grids of trials, planned, run until complete, and reported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, TextIO

import typer

from bench_spark.cache import DEFAULT_STORE
from bench_spark.cli.files import write_list
from bench_spark.cli.options import (
    BROKER_VARIABLE,
    DEFAULT_BROKER,
    EgressOption,
    FormatsOption,
    IngressOption,
    SessionOptions,
    SetOption,
    StoreOption,
    complete,
    suite_displays,
    with_options,
)
from bench_spark.cli.output import parse_formats, to_stdout, write_bytes
from bench_spark.config.loader import described
from bench_spark.config.problems import shown_path
from bench_spark.config.suite import estimated_seconds, suite_digest, trials_of
from bench_spark.config.suite_loader import load_suite
from bench_spark.driver_process import end_abandoned
from bench_spark.errors import ConfigurationError
from bench_spark.plan import SLOTS_FOR_STREAMING
from bench_spark.report.chart_files import DRAWN_AS, drawn
from bench_spark.report.charts import SeriesColours
from bench_spark.report.formatting import count, seconds
from bench_spark.report.suite import SuiteReport, suite_figures
from bench_spark.report.suite_table import SuiteTable, TrialResult, suite_table
from bench_spark.runs import open_store, refuse_idle_broker, session_master
from bench_spark.spark.launch import refuse_unshared_store, runs_agents_here, spark_session
from bench_spark.store.delta import Store
from bench_spark.suites.runner import (
    OVERHEAD_SECONDS,
    TrialRun,
    is_finished,
    refuse_if_changed,
    runs_of_suite,
)
from bench_spark.suites.suite_config import SuiteConfig, agents_of

app = typer.Typer(
    help="Grids of trials around a scenario.", no_args_is_help=True, rich_markup_mode=None
)

START_SECONDS = 12.0
"""What Spark takes to start."""


SuiteArgument = Annotated[
    str,
    typer.Argument(
        metavar="SUITE",
        help="A suite file, or the name of a shipped one.",
        show_default=False,
        autocompletion=lambda incomplete: complete("suites", incomplete),
    ),
]
SuiteBrokerOption = Annotated[
    str | None,
    typer.Option(
        "--broker",
        metavar="BROKER",
        envvar=BROKER_VARIABLE,
        show_default=f"the suite's, else {DEFAULT_BROKER}",
        help="A broker file, or the name of a shipped one.",
        autocompletion=lambda incomplete: complete("brokers", incomplete),
    ),
]
QuickOption = Annotated[
    bool, typer.Option("--quick", help="The suite in small: every axis with two or three values.")
]
VariantOption = Annotated[
    str | None,
    typer.Option(
        "--variant",
        metavar="NAME",
        show_default=False,
        help="The suite with the settings that it has under this name.",
    ),
]


@dataclass(frozen=True)
class SuiteOptions:
    """A suite, the broker that it runs on, and what of it is wanted."""

    suite: SuiteArgument
    broker: SuiteBrokerOption = None
    ingress: IngressOption = None
    egress: EgressOption = None
    quick: QuickOption = False
    variant: VariantOption = None
    given_by: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    """Where the value of each option comes from: COMMANDLINE, ENVIRONMENT or DEFAULT."""

    def load(self, overrides: Sequence[str] | None = None) -> SuiteConfig:
        loaded = load_suite(self.suite, self.quick, overrides or [], self.variant)
        if self.given_by.get("broker") == "COMMANDLINE":
            refuse_idle_broker(loaded.base, self.ingress, self.egress)
        broker = self.broker or loaded.broker or DEFAULT_BROKER
        return SuiteConfig.checked(loaded, broker, self.ingress or [], self.egress or [])


@app.command("list")
def list_suites() -> None:
    """List the shipped suites."""
    write_list(described("suites"))


@app.command("plan")
@with_options
def plan(options: SuiteOptions, overrides: SetOption = None) -> None:
    """List the trials of SUITE and how long they take."""
    config = options.load(overrides)
    to_stdout(lambda writer: _write_plan(config, writer))


def _write_plan(config: SuiteConfig, writer: TextIO) -> None:
    trials = trials_of(config.suite)
    for trial in trials:
        skipped = f"  (skipped: {trial.skipped_because})" if trial.skipped_because else ""
        writer.write(f"{trial.number:5d}  {trial.key}{skipped}\n")
    running = sum(trial.skipped_because is None for trial in trials)
    taken = START_SECONDS + estimated_seconds(config.suite, OVERHEAD_SECONDS)
    writer.write(
        f"\n{count(running)} trials on {config.ends.name}, about {seconds(round(taken))}\n"
    )


@app.command("run")
@with_options
def run(
    options: SuiteOptions,
    session: SessionOptions,
    overrides: SetOption = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Go on although the suite has changed since some trials were run."
        ),
    ] = False,
    live: Annotated[
        bool, typer.Option("--live/--no-live", help="Rolling metrics while the loads run.")
    ] = True,
    formats: FormatsOption = None,
) -> None:
    """Run the trials of SUITE that its store lacks, and print its table.

    A suite that was killed goes on where it was: trials that finished are kept.
    """
    config = options.load(overrides)
    outputs = parse_formats(formats, "markdown")
    store, master = session.store, session.master
    display, of_trials = suite_displays(session.quiet, session.verbose)
    opened = open_store(store, master)
    done = runs_of_suite(opened, config.stored_name, config.ends.name)
    if not force:
        refuse_if_changed(config.stored_name, suite_digest(config.suite), done)
    trials = trials_of(config.suite)
    missing = [
        trial
        for trial in trials
        if trial.skipped_because is None and not is_finished(trial.key, done)
    ]
    display.step(
        f"{config.stored_name} on {config.ends.name}: {len(missing)} trials to run, "
        f"{len(trials) - len(missing)} done or skipped"
    )
    display.detail(f"results go into {opened.uri}\n" + "\n".join(t.key for t in missing))
    exit_code = 0
    if missing:
        for run_id in end_abandoned(opened):
            display.step(f"run {run_id} is abandoned: its driver has vanished")
        for refusal in config.ask_broker(missing, runs_agents_here(master), display):
            display.step(f"will fail: {refusal}")
        from bench_spark.spark.engine import Engine

        agents = max(agents_of(trial.scenario) for trial in missing)
        slots = agents + SLOTS_FOR_STREAMING
        with spark_session(session_master(master, agents), display, slots) as spark:
            refuse_unshared_store(store, spark.sparkContext.master)
            with closing(Engine(spark, opened, of_trials)) as engine:
                display.step("starting workers" + (" and the rolling metrics" if live else ""))
                engine.warm_up(max(1, agents), live)
                displays = (display, of_trials)
                result = config.run_trials(spark, engine, opened, done, displays, live)
            exit_code = result.exit_code
    outputs.write(_report(config, _table(config, opened), store))
    raise typer.Exit(exit_code)


@app.command("report")
@with_options
def report(
    options: SuiteOptions,
    store: StoreOption = DEFAULT_STORE,
    formats: FormatsOption = None,
    figures: Annotated[
        Path | None,
        typer.Option(
            "--figures",
            metavar="DIRECTORY",
            help="Draw each number against the swept parameter, as SVG and PNG files there.",
        ),
    ] = None,
) -> None:
    """Print the table of SUITE from what its store has."""
    config = options.load()
    outputs = parse_formats(formats, "markdown")
    if figures is not None:
        _make_directory(figures)
    table = _table(config, Store(store).open())
    outputs.write(_report(config, table, store))
    if figures is not None:
        _write_figures(table, figures)


# -- reporting -------------------------------------------------------------------------------------


def _report(config: SuiteConfig, table: SuiteTable, store: str) -> SuiteReport:
    return SuiteReport(table, config.stored_name, config.ends.name, store)


def _table(config: SuiteConfig, store: Store) -> SuiteTable:
    runs = runs_of_suite(store, config.stored_name, config.ends.name)
    return suite_table(config.suite, {key: _outcome(known) for key, known in runs.items()})


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        shown = shown_path(str(directory))
        raise ConfigurationError(f"--figures: {shown}: {error.strerror}") from error


def _write_figures(table: SuiteTable, directory: Path) -> None:
    colours = SeriesColours()
    for figure in suite_figures(table):
        for ending in DRAWN_AS:
            write_bytes(directory / f"{figure.name}{ending}", drawn(figure.spec, ending, colours))


def _outcome(known: TrialRun) -> TrialResult:
    if known.is_finished:
        return TrialResult(document=known.document, note=known.note, search_end=known.search_end)
    return TrialResult(failure="; ".join(known.reasons) or known.status)
