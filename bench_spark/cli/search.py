"""`bench-spark search-rate` and `search-window`: the highest rate, and the best window."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from bench_spark import runs
from bench_spark.cli.options import (
    FormatsOption,
    LoadOptions,
    SessionOptions,
    Text,
    Texts,
    option,
    with_options,
)
from bench_spark.cli.output import file_to_write, parse_formats, write_bytes
from bench_spark.config.loader import load_scenario
from bench_spark.config.problems import shown_path
from bench_spark.config.suite import RATE
from bench_spark.errors import EXIT_DATA_LOST, ConfigurationError
from bench_spark.report.charts import DRAWN_AS, Spec, drawn
from bench_spark.report.searches import RateSearchReport, WindowSearchReport
from bench_spark.suites.rate import (
    CLOSE_ENOUGH,
    Bounds,
    exit_code_of,
    find_sustained,
    rate_document,
    received_per_second,
)
from bench_spark.suites.searches import (
    HIGHEST_WINDOW,
    announcement,
    refuse_keys_of_search,
    refuse_objectives_of_rates,
    refuse_what_has_no_rate,
    search_trials,
    window_limits,
    windowed,
)
from bench_spark.suites.window import MOST_TRIALS, find_window, window_document

DEFAULT_TRIALS = 16
"""Enough to settle a rate from a twentieth of the unthrottled throughput to three times as much."""
FINEST, COARSEST = 0.001, 0.5
LOWEST_BASE, HIGHEST_BASE = 1.1, 1000.0
SHORTEST_MEASURED_SECONDS = 2.0
"""Ticks are a second long, and it takes two to see whether a backlog grows."""

PlotOption = Annotated[Text, option("--plot FILE", "Draw the curve into a file, .svg or .png.")]


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


@with_options
def search_rate(
    load: LoadOptions,
    session: SessionOptions,
    slo: Annotated[
        Texts,
        option(
            "--slo OBJECTIVE",
            'What must hold at a rate that counts as kept, as in "p99 < 50ms"; repeatable, '
            "beside the scenario's own.",
        ),
    ] = None,
    precision: Annotated[
        float,
        option(
            "--precision SHARE",
            "How close the lowest rate that was not kept has to come to the answer.",
        ),
    ] = round(CLOSE_ENOUGH - 1, 6),
    most_trials: Annotated[
        int, option("--trials N", "Most runs, the unthrottled one included.", min=2, max=100)
    ] = DEFAULT_TRIALS,
    formats: FormatsOption = None,
    plot: PlotOption = None,
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
    overrides = load.overrides or []
    refuse_keys_of_search(overrides, ("load.mode", RATE))
    refuse_what_has_no_rate(load_scenario(load.scenario, overrides))
    # Refuses what only that mode does not do.
    load_scenario(load.scenario, [*overrides, "load.mode=rate"])
    scenario, ends = load.load(["load.mode=maximum"], slo or [])
    refuse_objectives_of_rates(scenario)
    display = session.display(live=False)
    display.step(announcement("the highest rate", scenario, most_trials))
    if scenario.phases.measure_seconds < SHORTEST_MEASURED_SECONDS:
        display.step(
            "phases.measure_seconds: too short to see whether a backlog grows; it takes "
            f"{SHORTEST_MEASURED_SECONDS:g} s"
        )
    started = time.monotonic()
    config = runs.prepare(scenario, ends, master=session.master, live=False)
    store = runs.open_store(session.store, session.master)
    with search_trials(config, store, session.master, display, session.quiet) as trials:
        unthrottled = trials.run_unthrottled()
        bounds = Bounds(close_enough=1 + precision, most_trials=most_trials - 1, is_open=True)
        start = received_per_second(unthrottled.document)
        found = find_sustained(start, trials.run_at_rate, bounds)
    taken = time.monotonic() - started
    dumped = trials.scenario.dump()
    document = rate_document(found, unthrottled.document, dumped, ends.shown, taken)
    report = RateSearchReport(document)
    plotted.draw(report.chart)
    outputs.write(report)
    raise typer.Exit(exit_code_of(found, trials.exit_codes))


@with_options
def search_window(
    load: LoadOptions,
    session: SessionOptions,
    base: Annotated[float, option("--base BASE", "The first windows tried are its powers.")] = 10.0,
    highest: Annotated[
        int | None,
        option(
            "--highest MESSAGES",
            "The largest window to try; unset: what load.backlog_limit_bytes holds.",
            min=1,
            max=HIGHEST_WINDOW,
        ),
    ] = None,
    formats: FormatsOption = None,
    plot: PlotOption = None,
) -> None:
    """Find the number of messages in flight that gives SCENARIO the highest throughput.

    Runs the scenario as a closed loop, at most 20 times: with the powers of the base until
    throughput falls, then between them. Each trial is a run of its own in the store.
    """
    outputs = parse_formats(formats)
    plotted = Plot(plot)
    refuse_keys_of_search(load.overrides or [], ("load.mode", "load.in_flight"))
    # The scenario as a closed loop, with the largest window: any transaction fits into it.
    scenario, ends = load.load(["load.mode=window", f"load.in_flight={HIGHEST_WINDOW}"])
    if not LOWEST_BASE <= base <= HIGHEST_BASE:
        allowed = f"{LOWEST_BASE:g} to {HIGHEST_BASE:g}"
        raise ConfigurationError(f"--base: {base:g} is no step to take; allowed: {allowed}")
    limits = window_limits(scenario, ends, base, highest)
    scenario = windowed(scenario, limits.first)
    display = session.display(live=False)
    display.step(announcement("the best window", scenario, MOST_TRIALS))
    started = time.monotonic()
    config = runs.prepare(scenario, ends, master=session.master, live=False)
    store = runs.open_store(session.store, session.master)
    with search_trials(config, store, session.master, display, session.quiet) as trials:
        found = find_window(trials.run_windowed, limits)
    taken = time.monotonic() - started
    document = window_document(found, trials.runs, trials.scenario.dump(), ends.shown, taken)
    report = WindowSearchReport(document)
    plotted.draw(report.chart)
    outputs.write(report)
    raise typer.Exit(min(max(trials.exit_codes), EXIT_DATA_LOST))
