"""`bench-spark search-rate`: the highest rate that is sustained."""

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
from bench_spark.config.loader import load_scenario
from bench_spark.config.models import Scenario, at_whole_rate
from bench_spark.config.objectives import UNIT_OF_PATH, parse_objective
from bench_spark.errors import ConfigurationError, RunError
from bench_spark.report.formatting import rate
from bench_spark.report.searches import RateSearchReport
from bench_spark.results.document import RunSummary
from bench_spark.suites.rate_trials import (
    RateRun,
    RateTrials,
    exit_code_of,
    rate_document,
    received_per_second,
)
from bench_spark.suites.sustained import CLOSE_ENOUGH, Bounds

DEFAULT_TRIALS = 16
"""Enough to settle a rate from a twentieth of the unthrottled throughput to three times as much."""
FINEST, COARSEST = 0.001, 0.5
SHORTEST_MEASURED_SECONDS = 2.0
"""Ticks are a second long, and it takes two to see whether a backlog grows."""

_RATE = "load.rate_per_second"
_OWN_KEYS = ("load.mode", _RATE)


def search_rate(
    scenario: ScenarioArgument,
    broker: BrokerOption = DEFAULT_BROKER,
    overrides: SetOption = None,
    store: StoreOption = DEFAULT_STORE,
    master: MasterOption = None,
    packages: PackagesOption = None,
    jars: JarsOption = None,
    slo: Annotated[
        list[str] | None,
        typer.Option(
            "--slo",
            metavar="OBJECTIVE",
            help='What must hold at a rate that counts as kept, as in "p99 < 50ms"; repeatable, '
            "beside the scenario's own.",
        ),
    ] = None,
    precision: Annotated[
        float,
        typer.Option(
            "--precision",
            metavar="SHARE",
            help="How close the lowest rate that was not kept has to come to the answer.",
        ),
    ] = round(CLOSE_ENOUGH - 1, 6),
    most_trials: Annotated[
        int,
        typer.Option(
            "--trials", metavar="N", min=2, max=100, help="Most runs, the unthrottled one included."
        ),
    ] = DEFAULT_TRIALS,
    formats: FormatsOption = None,
    plot: PlotOption = None,
    tags: SearchTagsOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Find the highest rate that SCENARIO sustains on a broker.

    Runs the scenario once as fast as it can, then at fixed rates: up or down until one is kept and
    one is not, then between them. Each trial is a run of its own in the store.
    """
    outputs = parse_formats(formats)
    plotted = Plot(plot)
    if not FINEST <= precision <= COARSEST:
        raise ConfigurationError(
            f"--precision: {precision:g} is no share to come close to; allowed: {FINEST:g} to "
            f"{COARSEST:g}"
        )
    asked = _load(scenario, broker, overrides or [], tags or [], slo or [])
    display = display_of(quiet, verbose, live=False)
    display.step(announcement("the highest rate", asked.scenario, most_trials))
    if asked.scenario.phases.measure_seconds < SHORTEST_MEASURED_SECONDS:
        display.step(
            "phases.measure_seconds: too short to see whether a backlog grows; it takes "
            f"{SHORTEST_MEASURED_SECONDS:g} s"
        )
    started = time.monotonic()
    with search_trials(asked, store, master, display, quiet) as trials:
        unthrottled = _run_unthrottled(trials)
        rates = RateTrials(partial(_run, trials), trials.ticks, partial(_tell, trials))
        bounds = Bounds(close_enough=1 + precision, most_trials=most_trials - 1, is_open=True)
        found = rates.find(received_per_second(unthrottled.document), bounds)
    standing = rates.standing_for(found)
    document = rate_document(
        found,
        unthrottled.document,
        rates.runs,
        standing,
        trials.scenario.dump(),
        asked.ends.shown,
        time.monotonic() - started,
    )
    report = RateSearchReport(document)
    plotted.draw(report.chart)
    outputs.write(report)
    raise typer.Exit(exit_code_of(found, standing, trials.exit_codes))


# -- what has a rate to be found -------------------------------------------------------------------


def _load(
    scenario: str,
    broker: str,
    overrides: Sequence[str],
    tags: Sequence[str],
    objectives: Sequence[str],
) -> Asked:
    """The scenario as the unthrottled load that the search begins with."""
    refuse_keys_of_search(overrides, _OWN_KEYS)
    _refuse_what_has_no_rate(load_scenario(scenario, overrides))
    load_scenario(
        scenario, [*overrides, "load.mode=rate"]
    )  # refuses what only that mode does not do
    asked = load(scenario, broker, [*overrides, "load.mode=maximum"], tags, objectives=objectives)
    _refuse_objectives_of_rates(asked.scenario)
    return asked


def _refuse_what_has_no_rate(scenario: Scenario) -> None:
    for role in ("producers", "consumers"):
        if not getattr(scenario, role):
            raise ConfigurationError(
                f"{role}: 0, but a rate is kept when all that is sent arrives; the search needs "
                "both ends"
            )
    if scenario.load.mode == "request":
        raise ConfigurationError(
            "load.mode: request has senders that wait for their own messages, so that what they "
            "keep is decided by their number; the search needs a load that does not wait"
        )
    if scenario.load.steps:
        raise ConfigurationError(
            "load.steps: the rate that is searched for does not change; leave them out by "
            "--set load.steps=[]"
        )
    if scenario.dataset.is_recorded:
        raise ConfigurationError(
            "dataset.columns.interval: the records have a pace of their own, and the search needs "
            "to set it; leave it out"
        )


def _refuse_objectives_of_rates(scenario: Scenario) -> None:
    """They hold above some rate and not below: the search would go the wrong way."""
    for text in scenario.slo:
        if UNIT_OF_PATH[parse_objective(text).paths[0]] == "per_second":
            raise ConfigurationError(
                f"slo: {text}: is about the rate, which the search sets itself; leave it out"
            )


# -- trials ----------------------------------------------------------------------------------------


def _run_unthrottled(trials: SearchTrials) -> RunSummary:
    summary = trials.run(trials.scenario, {_RATE: "max"}, "unthrottled")
    found = received_per_second(summary.document)
    if not found:
        run_id = trials.runs[-1].run_id
        raise RunError(
            f"the unthrottled run received nothing, so there is no rate to begin with; "
            f"bench-spark show {run_id}"
        )
    trials.tell(f"unthrottled, {rate(found)} msg/s received")
    return summary


def _run(trials: SearchTrials, rate_per_second: float) -> RunSummary:
    return trials.run(
        at_whole_rate(trials.scenario, rate_per_second),
        {_RATE: f"{rate_per_second:.10g}"},
        f"{rate(rate_per_second)} msg/s",
    )


def _tell(trials: SearchTrials, run: RateRun) -> None:
    verdict = "kept" if run.verdict.kept else f"not kept, {run.verdict.why}"
    trials.tell(f"{rate(run.rate_per_second)} msg/s {verdict}")
