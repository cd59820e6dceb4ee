"""`bench-spark search-window`: how many messages in flight give the highest throughput."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from bench_spark.cli.options import (
    DEFAULT_BROKER,
    DEFAULT_STORE,
    BrokerOption,
    MasterOption,
    ScenarioArgument,
    SetOption,
    StoreOption,
)
from bench_spark.cli.output import Formats, file_to_write, parse_formats_of, write_bytes
from bench_spark.cli.preflight import start_of_broker_hinted
from bench_spark.cli.preparing import Asked, choose_run_id, load
from bench_spark.cli.progress import QuietOption, VerboseOption, display_of
from bench_spark.cli.run import Launch, launched
from bench_spark.errors import (
    EXIT_DATA_LOST,
    EXIT_INTERRUPTED,
    EXIT_VALID,
    ConfigurationError,
)
from bench_spark.plan import Plan, make_plan
from bench_spark.report.chart_files import DRAWN_AS, drawn
from bench_spark.report.formatting import count, rate, seconds
from bench_spark.report.json import write_json
from bench_spark.report.live import Quiet, Steps, display_for_trials
from bench_spark.report.window_search import (
    curve_chart,
    write_search_csv,
    write_search_terminal,
)
from bench_spark.scenario.broker import Broker
from bench_spark.scenario.ends import scenario_at
from bench_spark.scenario.load_sections import Load
from bench_spark.scenario.models import Scenario
from bench_spark.scenario.shown import shown_path
from bench_spark.search.document import TrialRun, search_document
from bench_spark.search.estimate import TrialTime, estimate
from bench_spark.search.throughput import throughput_of
from bench_spark.search.ticks import Second, measured_ticks
from bench_spark.search.window import (
    MOST_TRIALS,
    Limits,
    Throughput,
    find_window,
    first_step,
)
from bench_spark.summary.rows import TrialOf

FORMATS = Formats({"terminal": write_search_terminal, "json": write_json, "csv": write_search_csv})
HIGHEST_WINDOW = 10_000_000
"""What `load.in_flight` may be at most."""
LOWEST_BASE, HIGHEST_BASE = 1.1, 1000.0

_OWN_KEYS = ("load.mode", "load.in_flight")


def search_window(
    scenario: ScenarioArgument,
    broker: BrokerOption = DEFAULT_BROKER,
    overrides: SetOption = None,
    store: StoreOption = DEFAULT_STORE,
    master: MasterOption = None,
    base: Annotated[
        float,
        typer.Option("--base", metavar="BASE", help="The first windows tried are its powers."),
    ] = 10.0,
    highest: Annotated[
        int | None,
        typer.Option(
            "--highest",
            metavar="MESSAGES",
            min=1,
            max=HIGHEST_WINDOW,
            help="The largest window to try; unset: what load.backlog_limit_bytes holds.",
        ),
    ] = None,
    formats: Annotated[
        list[str] | None,
        typer.Option(
            "--format",
            metavar="FORMAT[=FILE]",
            help="terminal (the default), json or csv; repeatable.",
        ),
    ] = None,
    plot: Annotated[
        str | None,
        typer.Option("--plot", metavar="FILE", help="Draw the curve into a file, .svg or .png."),
    ] = None,
    tags: Annotated[
        list[str] | None,
        typer.Option("--tag", metavar="KEY=VALUE", help="Stored with each run; repeatable."),
    ] = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Find the number of messages in flight that gives SCENARIO the highest throughput.

    Runs the scenario as a closed loop, at most 20 times: with the powers of the base until
    throughput falls, then between them. Each trial is a run of its own in the store.
    """
    outputs = parse_formats_of(FORMATS, formats or ["terminal"])
    plot_file = None if plot is None else _plot_file(plot)
    asked = _load(scenario, broker, overrides or [], tags or [])
    limits = _limits(asked, base, highest)
    asked = _with_window(asked, limits.first)
    search_id = choose_run_id(None, asked.scenario, asked.ends)
    display = display_of(quiet, verbose, live=False)
    display.step(_announcement(asked.scenario))
    started = time.monotonic()
    with launched(asked, search_id, store, master, display) as launch:
        of_trials = Quiet(sys.stderr) if quiet else display_for_trials(sys.stderr)
        trials = _Trials(launch, asked, search_id, display, of_trials)
        try:
            found = find_window(trials.run, limits)
        finally:
            trials.close()
    document = search_document(
        found,
        trials.runs,
        launch.plan.scenario.dump(),
        asked.ends.shown,
        time.monotonic() - started,
    )
    if plot_file is not None:
        write_bytes(plot_file, drawn(curve_chart(document), plot_file.suffix))
    outputs.write(document)
    raise typer.Exit(trials.exit_code)


def _plot_file(file: str) -> Path:
    path = file_to_write("--plot", file)
    if path.suffix not in DRAWN_AS:
        raise ConfigurationError(
            f"--plot: {shown_path(file)}: allowed: a file that ends in {' or '.join(DRAWN_AS)}"
        )
    return path


def _load(scenario: str, broker: str, overrides: Sequence[str], tags: Sequence[str]) -> Asked:
    """The scenario as a closed loop, with the largest window: any transaction fits into it."""
    for text in overrides:
        key = text.partition("=")[0].strip()
        if key in _OWN_KEYS:
            raise ConfigurationError(f"--set {key}: the search sets this itself; leave it out")
    own = ["load.mode=window", f"load.in_flight={HIGHEST_WINDOW}"]
    return load(scenario, broker, [*overrides, *own], tags)


def _limits(asked: Asked, base: float, highest: int | None) -> Limits:
    if not LOWEST_BASE <= base <= HIGHEST_BASE:
        allowed = f"{LOWEST_BASE:g} to {HIGHEST_BASE:g}"
        raise ConfigurationError(f"--base: {base:g} is no step to take; allowed: {allowed}")
    transaction = max(
        transaction_messages(scenario_at(asked.scenario, end), end.broker)
        for end in asked.ends.ingress
    )
    lowest = max(1, transaction)
    first = first_step(lowest, base)
    if highest is None:
        highest = max(first, _most_in_flight(asked.scenario))
    if first > min(highest, HIGHEST_WINDOW):
        held = f"and hold a transaction of {transaction} messages" if transaction else ""
        raise ConfigurationError(
            f"--highest: {highest} is below {first}, the first window to try: windows begin with a "
            f"power of {base:g} {held}".rstrip()
        )
    return Limits(lowest, min(highest, HIGHEST_WINDOW), base)


def transaction_messages(scenario: Scenario, broker: Broker) -> int:
    """Messages that a producer sends before any of them can arrive; 0 without transactions."""
    by_kind = {
        "amqp": scenario.amqp.producer_transaction,
        "kafka": scenario.kafka.transaction_messages,
    }
    return by_kind.get(broker.kind, 0)


def _most_in_flight(scenario: Scenario) -> int:
    """As many as may be on their way by the bound that unpaced loads have."""
    bytes_each = scenario.message.largest_bytes * scenario.producers
    return min(HIGHEST_WINDOW, scenario.load.backlog_limit_bytes // bytes_each)


def _with_window(asked: Asked, in_flight: int) -> Asked:
    return Asked(_windowed(asked.scenario, in_flight), asked.ends)


def _windowed(scenario: Scenario, in_flight: int) -> Scenario:
    load: Load = scenario.load.model_copy(update={"in_flight": in_flight})
    return scenario.model_copy(update={"load": load})


def _announcement(scenario: Scenario) -> str:
    phases = scenario.phases
    sampling = scenario.sampling
    time_of_one = TrialTime(
        phases.warmup_seconds,
        phases.measure_seconds,
        phases.drain_seconds,
        sampling.samples * sampling.threshold_seconds if sampling.samples else None,
    )
    told = estimate(time_of_one, MOST_TRIALS)
    return (
        f"searching the best window: probably {told.trials} trials in about "
        f"{seconds(round(told.seconds))}, at most {told.most_trials} in "
        f"{seconds(round(told.most_seconds))}"
    )


class _Trials:
    """Runs trials one after another on one engine, and remembers them."""

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
        self.exit_code = EXIT_VALID

    def close(self) -> None:
        self._engine.close()

    def run(self, in_flight: int) -> Throughput:
        from bench_spark.spark.request import RunRequest

        number = len(self.runs) + 1
        plan = self._plan(in_flight, number)
        request = RunRequest(
            plan,
            self._asked.ends,
            live=False,
            trial=TrialOf(self._search_id, number, {"load.in_flight": str(in_flight)}),
        )
        self._of_trials.name_next(f"{count(in_flight)} in flight")
        with start_of_broker_hinted(self._asked.ends):
            summary = self._engine.run(request)
        if summary.exit_code >= EXIT_INTERRUPTED:
            self._display.step(f"interrupted; {len(self.runs)} whole trials are in the store")
            raise typer.Exit(summary.exit_code)
        status = summary.document["status"]
        self.runs.append(TrialRun(plan.run_id, status))
        self.exit_code = max(self.exit_code, min(summary.exit_code, EXIT_DATA_LOST))
        found = throughput_of(summary.document, in_flight, partial(self._ticks, plan.run_id))
        self._say(found, status)
        return found

    def _plan(self, in_flight: int, number: int) -> Plan:
        """Like the first plan, whose agents are settled, with another window."""
        scenario = _windowed(self._launch.plan.scenario, in_flight)
        return make_plan(scenario, f"{self._search_id}-{number:02}")

    def _ticks(self, run_id: str) -> list[Second]:
        from bench_spark.spark.ticks import merged_ticks_here

        return measured_ticks(merged_ticks_here(self._launch.store, run_id))

    def _say(self, found: Throughput, status: str) -> None:
        doubt = "" if status == "valid" else f", {status}"
        self._display.step(
            f"trial {len(self.runs)}: {count(found.in_flight)} in flight, "
            f"{rate(found.median_per_second)} msg/s ({rate(found.low_per_second)} to "
            f"{rate(found.high_per_second)}){doubt}"
        )
