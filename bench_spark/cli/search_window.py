"""`bench-spark search-window`: how many messages in flight give the highest throughput."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Annotated

import typer

from bench_spark.cli.options import (
    DEFAULT_BROKER,
    DEFAULT_STORE,
    BrokerOption,
    FormatsOption,
    JarsOption,
    MasterOption,
    PackagesOption,
    ScenarioArgument,
    SetOption,
    StoreOption,
)
from bench_spark.cli.output import parse_formats
from bench_spark.cli.preparing import Asked, load
from bench_spark.cli.progress import QuietOption, VerboseOption, display_of
from bench_spark.cli.searching import (
    Plot,
    PlotOption,
    SearchTagsOption,
    SearchTrials,
    announcement,
    refuse_keys_of_search,
    search_trials,
)
from bench_spark.config.broker import Broker
from bench_spark.config.ends import scenario_at
from bench_spark.config.models import Scenario
from bench_spark.config.sections import Load
from bench_spark.errors import EXIT_DATA_LOST, ConfigurationError
from bench_spark.report.formatting import count, rate
from bench_spark.report.searches import WindowSearchReport
from bench_spark.suites.throughput import Throughput, measured_ticks, rates_of_ticks, throughput_of
from bench_spark.suites.window import MOST_TRIALS, Limits, find_window, first_step, window_document

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
    packages: PackagesOption = None,
    jars: JarsOption = None,
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
    formats: FormatsOption = None,
    plot: PlotOption = None,
    tags: SearchTagsOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Find the number of messages in flight that gives SCENARIO the highest throughput.

    Runs the scenario as a closed loop, at most 20 times: with the powers of the base until
    throughput falls, then between them. Each trial is a run of its own in the store.
    """
    outputs = parse_formats(formats)
    plotted = Plot(plot)
    asked = _load(scenario, broker, overrides or [], tags or [])
    limits = _limits(asked, base, highest)
    asked = Asked(_windowed(asked.scenario, limits.first), asked.ends)
    display = display_of(quiet, verbose, live=False)
    display.step(announcement("the best window", asked.scenario, MOST_TRIALS))
    started = time.monotonic()
    with search_trials(asked, store, master, display, quiet) as trials:
        found = find_window(partial(_run, trials), limits)
    document = window_document(
        found,
        trials.runs,
        trials.scenario.dump(),
        asked.ends.shown,
        time.monotonic() - started,
    )
    report = WindowSearchReport(document)
    plotted.draw(report.chart)
    outputs.write(report)
    raise typer.Exit(min(max(trials.exit_codes), EXIT_DATA_LOST))


def _run(trials: SearchTrials, in_flight: int) -> Throughput:
    summary = trials.run(
        _windowed(trials.scenario, in_flight),
        {"load.in_flight": str(in_flight)},
        f"{count(in_flight)} in flight",
    )
    run_id = trials.runs[-1].run_id
    sampled = summary.document.get("throughput")
    if sampled is not None:
        pairs = trials.samples(run_id, len(sampled["pairs"]))
    else:
        pairs = [rates_of_ticks(measured_ticks(trials.ticks(run_id)))]
    found = throughput_of(in_flight, pairs)
    trials.tell(
        f"{count(found.in_flight)} in flight, {rate(found.median_per_second)} msg/s "
        f"({rate(found.low_per_second)} to {rate(found.high_per_second)})"
    )
    return found


def _load(scenario: str, broker: str, overrides: Sequence[str], tags: Sequence[str]) -> Asked:
    """The scenario as a closed loop, with the largest window: any transaction fits into it."""
    refuse_keys_of_search(overrides, _OWN_KEYS)
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


def _windowed(scenario: Scenario, in_flight: int) -> Scenario:
    load: Load = scenario.load.model_copy(update={"in_flight": in_flight})
    return scenario.model_copy(update={"load": load})
