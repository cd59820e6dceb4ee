"""The result of a run as one JSON document: counts, rates, measures, audit, status; and its rows.

Built from merged events (the tables are the truth) and from what only the driver saw: accounts,
failures, the machines. `partial_document` is the result so far of a run that goes on, or whose
driver was killed: only the accounts are missing, which agents report at the end, so nothing is said
of losses, and nothing is judged. `run_row` and `summary_rows` are for `runs` and `summary`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from bench_spark import __version__
from bench_spark.agent.timeline import Timeline
from bench_spark.config.models import Scenario
from bench_spark.core.clock import NANOSECONDS
from bench_spark.core.hdr import SparseHistogram
from bench_spark.driver_process import RUNNING, this_process
from bench_spark.errors import EXIT_DEGRADED, EXIT_GATE_MISSED, EXIT_VALID, BenchError
from bench_spark.plan import Plan, has_to_settle, make_plan, timeline_of
from bench_spark.results.audit import DEGRADED, FAILED, VALID, audit, judge
from bench_spark.results.checks import Check, Evidence, verdict_of
from bench_spark.results.counts import (
    Counts,
    Rates,
    completed_accounts,
    counts_of,
    delivered_share,
    expected_deliveries,
    in_window,
    interval_of,
    intervals_of,
    never_seen,
    quotients_of,
    rates_of,
    throughput_section,
)
from bench_spark.results.facts import (
    MessageFacts,
    RunEnd,
    RunFacts,
    judged_objectives,
    trace_section,
)
from bench_spark.results.totals import Tick, TickTotals, statistics
from bench_spark.store.arrow import SUMMARY
from bench_spark.store.schema import COUNTERS, PERCENTILES

Document = dict[str, Any]

_FROM_INTENDED = ("delivery_latency", "send_lag")
"""Measures that begin at the intended time, and so contain what sending in batches adds."""


@dataclass(frozen=True)
class RunSummary:
    document: Document
    exit_code: int
    histograms: Mapping[str, SparseHistogram]

    def not_stored(self, reason: str, instead_of: str | None = None) -> RunSummary:
        """The same result, which its store has not taken in whole: no valid one any more.

        `instead_of`: the reason that this one completes.
        """
        others = [one for one in self.document["reasons"] if one != instead_of]
        status, exit_code = self.document["status"], self.exit_code
        changed: Document = {
            "status": DEGRADED if status == VALID else status,
            "reasons": [*others, reason],
            "exit_code": EXIT_DEGRADED
            if exit_code in (EXIT_VALID, EXIT_GATE_MISSED)
            else exit_code,
        }
        return replace(self, document=self.document | changed, exit_code=changed["exit_code"])

    def with_overhead(self, seconds: float | None) -> RunSummary:
        """With how long the run took beside its load; that is known only at its end."""
        return replace(self, document=self.document | {"overhead_seconds": seconds})


def summarise(ticks: Iterable[Tick], facts: RunFacts) -> RunSummary:
    """`ticks` in order of time; they are taken as they come, however many there are."""
    totals = _totals(ticks, facts)
    accounts = completed_accounts(totals, facts)
    facts = replace(facts, messages=replace(facts.messages, accounts=accounts))
    scenario = facts.plan.scenario
    counts = counts_of(totals, facts)
    rates = rates_of(totals, facts)
    histograms = totals.histograms()
    answered = histograms.get("round_trip")
    unseen = never_seen(counts, facts, 0 if answered is None else answered.count)
    measures = _measures(histograms, unseen, facts)
    throughput = throughput_section(scenario.wiring.subscriptions, facts.messages.samples)
    sampled = [pair["samples"] for pair in (throughput or {}).get("pairs", ())]
    evidence = Evidence(facts, totals, counts, rates, measures, sampled)
    checks = [*audit(evidence), *facts.notes]
    status, reasons, exit_code = judge(facts, checks)
    expected = expected_deliveries(facts, counts)
    delivery_rate = delivered_share(facts, counts, expected)
    document: Document = {
        "run_id": facts.plan.run_id,
        "status": status,
        "exit_code": exit_code,
        "reasons": reasons,
        "scenario": scenario.dump(),
        "broker": facts.broker,
        "brokers": [*facts.brokers] or [{"role": "both", **facts.broker}],
        "measured_seconds": facts.measured_seconds,
        "counts": counts,
        "rates": rates,
        "copies": facts.plan.copies,
        "expected": expected,
        "delivery_rate": delivery_rate,
        "throughput": throughput,
        "measures": measures,
        "percentiles": _percentiles(measures, totals, unseen),
        "trace": trace_section(facts.plan, facts.messages.trace),
        "spec": _spec(counts, quotients_of(counts, facts), measures.get("latency"), delivery_rate),
        "audit": verdict_of(checks),
        "connections": _connections(facts),
        "agents": list(facts.generator.agents),
        "start_spread_us": _start_spread_us(facts),
        "resources": {
            "busiest_agent_share_of_core": facts.generator.busiest_agent_share,
            "busiest_host_share": facts.generator.busiest_host_share,
            "spark_cores": facts.generator.spark_cores,
            **facts.broker_resources,
        },
        "environment": facts.generator.environment,
    }
    objectives = judged_objectives(scenario.slo, document, facts.end.stopped_by)
    document["slo"] = objectives
    if exit_code == EXIT_VALID and not all(one["met"] for one in objectives):
        exit_code = document["exit_code"] = EXIT_GATE_MISSED
    return RunSummary(document, exit_code, histograms)


def _totals(ticks: Iterable[Tick], facts: RunFacts) -> TickTotals:
    supplied = facts.supplied_by_join
    totals = TickTotals(
        COUNTERS,
        is_in_window=lambda tick: in_window(tick, facts),
        interval_of=lambda start_seconds: interval_of(start_seconds, facts),
        intervals=intervals_of(facts),
        highest_us=facts.plan.scenario.histogram.highest_us,
        left_out=supplied,
    )
    for tick in ticks:
        totals.add(tick)
    if supplied and facts.messages.trace is not None:
        for measure in supplied:
            for start_seconds, histogram in facts.messages.trace.by_time(measure):
                totals.add_measured(measure, start_seconds, histogram)
    return totals


def _measures(
    histograms: Mapping[str, SparseHistogram], unseen: Mapping[str, int], facts: RunFacts
) -> dict[str, dict[str, Any]]:
    highest_us = facts.plan.scenario.histogram.highest_us
    measures = {
        measure: statistics(histogram, highest_us, unseen.get(measure, 0))
        for measure, histogram in histograms.items()
    }
    for measure in measures.keys() & _FROM_INTENDED:
        measures[measure]["resolution_us"] = facts.plan.resolution_us
    for measure in facts.supplied_by_join:
        measures[measure]["source"] = "join"
    return measures


def _percentiles(
    measures: Mapping[str, dict[str, Any]], totals: TickTotals, unseen: Mapping[str, int]
) -> dict[str, dict[str, Any]]:
    """Of the whole run, and of its intervals in two ways."""
    percentiles: dict[str, dict[str, Any]] = {"run": {}, "interval_max": {}, "interval_mean": {}}
    for measure, found in measures.items():
        percentiles["run"][measure] = {k: v for k, v in found.items() if k.startswith("p")}
        worst, mean = totals.interval_statistics(measure, found, unseen.get(measure, 0))
        percentiles["interval_max"][measure] = worst
        percentiles["interval_mean"][measure] = mean
    return percentiles


def _spec(
    counts: Counts,
    quotients: Rates,
    latency: dict[str, Any] | None,
    delivery_rate: float | None,
) -> dict[str, Any]:
    """The fields of the metrics specification under its own names."""
    names = ("min_us", "max_us", "mean_us", "p50_us", "p95_us", "p99_us", "p999_us")
    return {
        **{f"latency_{name}": latency[name] if latency else None for name in names},
        "messages_sent": counts["sent"],
        "messages_received": counts["received"],
        "messages_acked": counts["confirmed"],
        "bytes_sent": counts["bytes_sent"],
        "bytes_received": counts["bytes_received"],
        "errors": sum(counts[name] or 0 for name in ("errors", "refused", "returned")),
        **quotients,
        "delivery_rate": delivery_rate,
    }


def _connections(facts: RunFacts) -> dict[str, int] | None:
    """By role, of all agents; None if one has never said."""
    found = [agent.get("connections") for agent in facts.generator.agents]
    if not found or None in found:
        return None
    return {role: sum(one[role] for one in found if one) for role in ("producers", "consumers")}


def _start_spread_us(facts: RunFacts) -> float | None:
    """Between the first agent's beginning and the last one's; None if one has never said."""
    late_us = [agent.get("started_late_us") for agent in facts.generator.agents]
    known = [one for one in late_us if one is not None]
    return max(known) - min(known) if known and len(known) == len(late_us) else None


MILLISECOND_NS = 1_000_000


@dataclass(frozen=True)
class Reached:
    """How far the events of a run go."""

    tick: int
    """Some tick, and when it started, on the run's clock."""
    tick_start_ns: int
    newest_tick: int
    has_confirms: bool
    measured_from_ns: int | None = None
    """When the measured phase began, where the driver has said so."""


def timeline_at(
    scenario: Scenario, tick: int, tick_start_ns: int, measured_from_ns: int | None = None
) -> Timeline:
    """The timeline on which this tick starts at this moment.

    `measured_from_ns`: from when on a load that had to settle was measured, where that is known.
    Then a tick of the warm-up shows when the run started, and a later one to within a second.
    """
    if measured_from_ns is not None and has_to_settle(scenario):
        start_ns = tick_start_ns - tick * NANOSECONDS
        # Such a warm-up lasts whole milliseconds; times in tables are cut or rounded.
        warmup_ns = round((measured_from_ns - start_ns) / MILLISECOND_NS) * MILLISECOND_NS
        return timeline_of(scenario, start_ns, start_ns + warmup_ns)
    from_zero = timeline_of(scenario, start_ns=0)
    return timeline_of(scenario, tick_start_ns - from_zero.tick_start_ns(tick))


def partial_document(
    run_id: str,
    scenario: Scenario,
    broker: dict[str, Any],
    reached: Reached,
    ticks: Iterable[Tick],
) -> Document:
    """As a result document, with the status `running` and what is not known left open."""
    timeline = timeline_at(scenario, reached.tick, reached.tick_start_ns, reached.measured_from_ns)
    until_ns = min(timeline.tick_end_ns(reached.newest_tick), timeline.measure_end_ns)
    until_ns = max(until_ns, timeline.measure_start_ns)
    facts = RunFacts(
        plan=make_plan(scenario, run_id),
        broker=broker,
        measured=(timeline.measure_start_ns / NANOSECONDS, until_ns / NANOSECONDS),
        messages=MessageFacts(confirms=reached.has_confirms),
        end=RunEnd(is_partial=True),
    )
    measured = (until_ns - timeline.measure_start_ns) / NANOSECONDS
    planned = timeline.measure_ns / NANOSECONDS
    note = (
        f"partial: {measured:.0f} of {planned:.0f} s measured; the run goes on, or its driver was "
        "killed"
    )
    document = summarise(ticks, facts).document
    return document | {
        "status": "running",
        "exit_code": None,
        "reasons": [note],
        "is_partial": True,
        "audit": verdict_of([Check("partial", "warn", note)]),
    }


@dataclass(frozen=True)
class TrialOf:
    """What a run is a part of."""

    suite: str
    trial: int
    """Its number there, from 1."""
    parameters: Mapping[str, str]
    """What sets it apart from the other trials: keys of the scenario and their values."""


def run_row(
    plan: Plan,
    broker: dict[str, Any],
    started_at: datetime,
    *,
    brokers: Sequence[Mapping[str, Any]] | None = None,
    summary: RunSummary | None = None,
    measured: tuple[float | None, float | None] = (None, None),
    failure: BenchError | None = None,
    trial: TrialOf | None = None,
) -> dict[str, Any]:
    """The row of a run that is running, has ended with a summary, or has failed to start.

    `broker` and `brokers` are masked; unset: there is only that one.
    """
    document = summary.document if summary is not None else {}
    status, reasons = RUNNING, list[str]()
    exit_code: int | None = None
    if summary is not None:
        status, reasons = document["status"], document["reasons"]
        exit_code = summary.exit_code
    elif failure is not None:
        status, reasons, exit_code = FAILED, [str(failure)], failure.exit_code
    return {
        "run_id": plan.run_id,
        "scenario": plan.scenario.name,
        "broker": broker.get("name"),
        "brokers": [str(one.get("name")) for one in brokers or [broker]],
        "status": status,
        "reasons": reasons,
        "exit_code": exit_code,
        "started_at": started_at,
        "measured_from": _moment(measured[0]),
        "measured_until": _moment(measured[1]),
        "ended_at": None if status == RUNNING else datetime.now(UTC),
        "suite": trial.suite if trial is not None else None,
        "trial": trial.trial if trial is not None else None,
        "parameters": sorted(trial.parameters.items()) if trial is not None else [],
        "tags": sorted(plan.scenario.tags.items()),
        "counts": [item for item in document.get("counts", {}).items() if item[1] is not None],
        "rates": [item for item in document.get("rates", {}).items() if item[1] is not None],
        "expected": document.get("expected"),
        "delivery_rate": document.get("delivery_rate"),
        "scenario_json": json.dumps(plan.scenario.dump()),
        "broker_json": json.dumps(broker),
        "brokers_json": json.dumps(list(brokers or [{"role": "both", **broker}])),
        "environment_json": json.dumps(document.get("environment", {})),
        "result_json": json.dumps(document) if document else None,
        "bench_spark_version": __version__,
        "slo": [
            {name: one[name] for name in ("objective", "value", "met")}
            for one in document.get("slo", ())
        ],
        "driver_json": this_process(),
    }


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def summary_rows(plan: Plan, summary: RunSummary) -> pa.Table:
    highest_us = plan.scenario.histogram.highest_us
    rows = []
    for measure, found in summary.document["measures"].items():
        rows.append(
            _row(plan.run_id, "run", measure, found)
            | {"hdr_encoded": summary.histograms[measure].encode(highest_us)}
        )
        for aggregation in ("interval_max", "interval_mean"):
            entry = summary.document["percentiles"][aggregation][measure]
            rows.append(_row(plan.run_id, aggregation, measure, entry))
    return pa.Table.from_pylist(rows, schema=SUMMARY)


def _row(run_id: str, aggregation: str, measure: str, found: dict[str, Any]) -> dict[str, Any]:
    names = ["mean_us", *(name for name, _ in PERCENTILES)]
    row = {name: None if found[name] is None else float(found[name]) for name in names}
    # Whole numbers in the table, means of whole numbers in `interval_mean`: rounded outwards, so
    # that no percentile lies outside of them.
    extremes = {
        name: None if found[name] is None else outwards(found[name])
        for name, outwards in (("min_us", math.floor), ("max_us", math.ceil))
    }
    return (
        row
        | extremes
        | {name: found.get(name) for name in ("count", "negative", "overflow", "lower_bounds")}
        | {"run_id": run_id, "aggregation": aggregation, "measure": measure}
    )
