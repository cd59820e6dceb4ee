"""Trials of a search for a rate or a window: what may be searched, and runs on one engine."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bench_spark.config.broker import Broker
from bench_spark.config.ends import Ends, scenario_at
from bench_spark.config.models import Scenario, at_whole_rate
from bench_spark.config.objectives import UNIT_OF_PATH, parse_objective
from bench_spark.config.sections import Load
from bench_spark.config.suite import RATE
from bench_spark.core.throughput import F64
from bench_spark.errors import EXIT_INTERRUPTED, ConfigurationError, RunError
from bench_spark.plan import make_plan
from bench_spark.report.formatting import count, rate, seconds
from bench_spark.report.live import Steps, display_for_trials, silent_display
from bench_spark.results.document import TrialOf
from bench_spark.runs import RunConfig, launched, with_remedy
from bench_spark.store.delta import Store
from bench_spark.suites.rate import Kept, judge_rate, received_per_second
from bench_spark.suites.window import (
    WindowLimits,
    WindowRun,
    WindowThroughput,
    first_step,
    measured_ticks,
    rates_of_ticks,
    search_time,
    throughput_of,
)

if TYPE_CHECKING:
    from bench_spark.results.document import RunSummary
    from bench_spark.spark.merge import TickRows

HIGHEST_WINDOW = 10_000_000
"""What `load.in_flight` may be at most."""


def announcement(what: str, scenario: Scenario, most_trials: int) -> str:
    """What is searched, and how long that will take."""
    estimated = search_time(scenario.phases, scenario.sampling, most_trials)
    return (
        f"searching {what}: probably {estimated.trials} trials in about "
        f"{seconds(round(estimated.seconds))}, at most {estimated.most_trials} in "
        f"{seconds(round(estimated.most_seconds))}"
    )


def refuse_keys_of_search(overrides: Sequence[str], keys: Sequence[str]) -> None:
    for text in overrides:
        key = text.partition("=")[0].strip()
        if key in keys:
            raise ConfigurationError(f"--set {key}: the search sets this itself; leave it out")


# -- trials ----------------------------------------------------------------------------------------


class SearchTrials:
    """Runs trials one after another on one engine, each a run of its own in the store."""

    def __init__(
        self, config: RunConfig, spark: Any, store: Store, display: Steps, of_trials: Steps
    ) -> None:
        from bench_spark.spark.engine import Engine

        self._config = config
        self._store = store
        self._display = display
        self._of_trials = of_trials
        self._engine = Engine(spark, store, of_trials)
        self.runs: list[WindowRun] = []
        self.exit_codes: list[int] = []

    @property
    def scenario(self) -> Scenario:
        """As it was planned: agents are settled, and `per_agent` counts are multiplied out."""
        return self._config.scenario

    def close(self) -> None:
        self._engine.close()

    def run(self, scenario: Scenario, parameters: Mapping[str, str], name: str) -> RunSummary:
        """Carry out the next trial; a signal ends the whole program."""
        number = len(self.runs) + 1
        search_id = self._config.plan.run_id
        trial = replace(
            self._config,
            plan=make_plan(scenario, f"{search_id}-{number:02}"),
            trial=TrialOf(search_id, number, parameters),
        )
        self._of_trials.name_next(name)
        with with_remedy(trial.ends):
            summary = self._engine.run(trial)
        if summary.exit_code >= EXIT_INTERRUPTED:
            self._display.step(f"interrupted; {len(self.runs)} whole trials are in the store")
            raise SystemExit(summary.exit_code)
        self.runs.append(WindowRun(trial.plan.run_id, summary.document["status"]))
        self.exit_codes.append(summary.exit_code)
        return summary

    def ticks(self, run_id: str) -> list[TickRows]:
        from bench_spark.spark.merge import merged_ticks_here

        return merged_ticks_here(self._store, run_id)

    def report(self, text: str) -> None:
        """What became of the newest trial."""
        status = self.runs[-1].status
        doubt = "" if status == "valid" else f", {status}"
        self._display.step(f"trial {len(self.runs)}: {text}{doubt}")

    # -- of rates --------------------------------------------------------------------------------

    def run_unthrottled(self) -> RunSummary:
        summary = self.run(self.scenario, {RATE: "max"}, "unthrottled")
        found = received_per_second(summary.document)
        if not found:
            raise RunError(
                "the unthrottled run received nothing, so there is no rate to begin with; "
                f"bench-spark show {self.runs[-1].run_id}"
            )
        self.report(f"unthrottled, {rate(found)} msg/s received")
        return summary

    def run_at_rate(self, rate_per_second: float) -> Kept:
        shown = f"{rate(rate_per_second)} msg/s"
        scenario = at_whole_rate(self.scenario, rate_per_second)
        document = self.run(scenario, {RATE: f"{rate_per_second:.10g}"}, shown).document
        ticks = measured_ticks(self.ticks(document["run_id"]))
        verdict = judge_rate(document, ticks, rate_per_second)
        self.report(f"{shown} kept" if verdict.kept else f"{shown} not kept, {verdict.why}")
        return verdict

    # -- of windows ------------------------------------------------------------------------------

    def run_windowed(self, in_flight: int) -> WindowThroughput:
        summary = self.run(
            windowed(self.scenario, in_flight),
            {"load.in_flight": str(in_flight)},
            f"{count(in_flight)} in flight",
        )
        run_id = self.runs[-1].run_id
        sampled = summary.document.get("throughput")
        if sampled is not None:
            pairs = self._samples(run_id, len(sampled["pairs"]))
        else:
            pairs = [rates_of_ticks(measured_ticks(self.ticks(run_id)))]
        found = throughput_of(in_flight, pairs)
        self.report(
            f"{count(found.in_flight)} in flight, {rate(found.median_per_second)} msg/s "
            f"({rate(found.low_per_second)} to {rate(found.high_per_second)})"
        )
        return found

    def _samples(self, run_id: str, pairs: int) -> list[F64]:
        """Of each pair, as its consumer took them: messages per second."""
        stored = self._store.read("samples", columns=["pair", "messages", "seconds"], run_id=run_id)
        pair, messages, taken = (column.to_numpy() for column in stored.columns)
        return [(messages / taken)[pair == number] for number in range(pairs)]


@contextmanager
def search_trials(
    config: RunConfig, store: Store, master: str | None, display: Steps, quiet: bool
) -> Iterator[SearchTrials]:
    """A session and an engine for the trials of one search, whose id is that of `config`."""
    with launched(config, store, master, display, is_run=False) as (spark, planned):
        of_trials = silent_display() if quiet else display_for_trials(sys.stderr)
        trials = SearchTrials(planned, spark, store, display, of_trials)
        try:
            yield trials
        finally:
            trials.close()


# -- what has a rate to be found -------------------------------------------------------------------


def refuse_what_has_no_rate(scenario: Scenario) -> None:
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


def refuse_objectives_of_rates(scenario: Scenario) -> None:
    """They hold above some rate and not below: the search would go the wrong way."""
    for text in scenario.slo:
        if UNIT_OF_PATH[parse_objective(text).paths[0]] == "per_second":
            raise ConfigurationError(
                f"slo: {text}: is about the rate, which the search sets itself; leave it out"
            )


# -- windows ---------------------------------------------------------------------------------------


def window_limits(scenario: Scenario, ends: Ends, base: float, highest: int | None) -> WindowLimits:
    """Which windows are tried; `highest` unset: as many messages as `load.backlog_limit_bytes`
    holds."""
    transaction = max(
        transaction_messages(scenario_at(scenario, end), end.broker) for end in ends.ingress
    )
    lowest = max(1, transaction)
    first = first_step(lowest, base)
    if highest is None:
        bytes_each = scenario.message.largest_bytes * scenario.producers
        held = scenario.load.backlog_limit_bytes // bytes_each
        highest = max(first, min(HIGHEST_WINDOW, held))
    if first > min(highest, HIGHEST_WINDOW):
        holds = f"and hold a transaction of {transaction} messages" if transaction else ""
        raise ConfigurationError(
            f"--highest: {highest} is below {first}, the first window to try: windows begin with a "
            f"power of {base:g} {holds}".rstrip()
        )
    return WindowLimits(lowest, min(highest, HIGHEST_WINDOW), base)


def transaction_messages(scenario: Scenario, broker: Broker) -> int:
    """Messages that a producer sends before any of them can arrive; 0 without transactions."""
    by_kind = {
        "amqp": scenario.amqp.producer_transaction,
        "kafka": scenario.kafka.transaction_messages,
    }
    return by_kind.get(broker.kind, 0)


def windowed(scenario: Scenario, in_flight: int) -> Scenario:
    load: Load = scenario.load.model_copy(update={"in_flight": in_flight})
    return scenario.model_copy(update={"load": load})
