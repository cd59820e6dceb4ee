"""The result of a run as one JSON document: counts, rates, measures, audit, status.

Built from merged events (the tables are the truth) and from what only the driver saw: accounts,
failures, the machines. Counts and latencies are about messages of the measured phase whenever they
arrived; rates are about the seconds of the measured phase whatever they carried.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from bench_spark.agent.recorder import CONSUMER, PRODUCER
from bench_spark.agent.timeline import MEASURE
from bench_spark.collector.accounts import Accounts, completed
from bench_spark.collector.control import Failure
from bench_spark.collector.evidence import AgentSamples, Counted
from bench_spark.errors import (
    EXIT_DATA_LOST,
    EXIT_DEGRADED,
    EXIT_GATE_MISSED,
    EXIT_VALID,
)
from bench_spark.load_course import has_open_end, mean_rate_per_second
from bench_spark.measure.hdr import SparseHistogram
from bench_spark.plan import Plan
from bench_spark.scenario.ends_section import Egress, Ingress
from bench_spark.scenario.models import Scenario
from bench_spark.summary.audit import audit
from bench_spark.summary.checks import AuditInput, Check, Ends, verdict_of
from bench_spark.summary.objectives import MissedWhileRunning, judged_objectives
from bench_spark.summary.sampling import throughput_section
from bench_spark.summary.statistics import statistics
from bench_spark.summary.totals import Tick, TickTotals
from bench_spark.summary.trace import TraceFacts, trace_findings, trace_section
from bench_spark.tables import COUNTERS

Document = dict[str, Any]

VALID, DEGRADED, FAILED, ABORTED = "valid", "degraded", "failed", "aborted"

_FROM_INTENDED = ("delivery_latency", "send_lag")
"""Measures that begin at the intended time, and so contain what sending in batches adds."""

_SENDING_COUNTS = ("due", "unsent", "sent", "refused", "returned", "bytes_sent")
_RECEIVING_COUNTS = (
    "received",
    "acked",
    "redelivered",
    "out_of_order",
    "corrupted",
    "malformed",
    "foreign",
    "bytes_received",
)
_JUDGED_BY_ENVELOPE = ("out_of_order", "malformed", "foreign")
"""Counts that a run which takes messages of any origin cannot make."""

_CENSORED_MEASURES = ("latency", "delivery_latency")

_LIMITS = {
    "amqp": ("x-max-length", "x-max-length-bytes", "x-message-ttl", "x-expires"),
    "kafka": ("retention.bytes", "retention.ms"),
}

_EDGE_SECONDS = 2e-6
"""How far apart the start of a tick and that of its phase may seem: tables cut to microseconds,
and seconds since the epoch are exact to a quarter of one."""


@dataclass(frozen=True)
class RunFacts:
    """What the driver saw of a run beside its events."""

    plan: Plan
    broker: dict[str, Any]
    """Masked, as `brokers`."""
    measured_from: float | None
    """Seconds since the epoch; None when the load never started."""
    measured_until: float | None
    accounts: Accounts | None
    confirms: bool
    failures: tuple[Failure, ...]
    interrupted_by: int | None
    """Exit code of the signal that ended the run early."""
    busiest_agent_share: float | None
    busiest_host_share: float | None
    spark_cores: float | None
    """What Spark and the driver used in the measured phase, in cores."""
    clock_bound_ns: int
    environment: dict[str, Any]
    brokers: Sequence[Mapping[str, Any]] = ()
    """All of them with their roles, where there are several."""
    agents: list[dict[str, Any]] = field(default_factory=list)
    counted: Counted | None = None
    """Messages of a measured phase that had an open end."""
    samples: tuple[AgentSamples, ...] | None = None
    """Of the throughput at the consumers; None where none were to be taken."""
    notes: tuple[Check, ...] = ()
    """What else the reader should know."""
    broker_resources: Mapping[str, Any] = field(default_factory=dict)
    """The broker's own use of its machine and whether it held producers back."""
    trace: TraceFacts | None = None
    """All messages joined by their IDs, where every one was traced."""
    stopped_by: MissedWhileRunning | None = None
    """The objective whose miss ended the run early, if one did."""
    is_partial: bool = False
    """The run goes on, or nobody knows how it ended."""


@dataclass(frozen=True)
class RunSummary:
    document: Document
    exit_code: int
    histograms: Mapping[str, SparseHistogram]

    def with_overhead(self, seconds: float | None) -> RunSummary:
        """With how long the run took beside its load; that is known only at its end."""
        return replace(self, document=self.document | {"overhead_seconds": seconds})


def summarise(ticks: Iterable[Tick], facts: RunFacts) -> RunSummary:
    """`ticks` in order of time; they are taken as they come, however many there are."""
    totals = _totals(ticks, facts)
    facts = replace(facts, accounts=_accounts(totals, facts))
    scenario = facts.plan.scenario
    highest_us = scenario.histogram.highest_us
    counts = _counts(totals, facts)
    rates = _rates(totals, facts)
    histograms = totals.histograms()
    never_seen = _never_seen(counts, facts)
    measures = {
        measure: statistics(histogram, highest_us, never_seen.get(measure, 0))
        for measure, histogram in histograms.items()
    }
    for measure in measures.keys() & _FROM_INTENDED:
        measures[measure]["resolution_us"] = facts.plan.resolution_us
    for measure in _supplied_by_join(facts):
        measures[measure]["source"] = "join"
    percentiles: dict[str, dict[str, Any]] = {"run": {}, "interval_max": {}, "interval_mean": {}}
    for measure, found in measures.items():
        percentiles["run"][measure] = {k: v for k, v in found.items() if k.startswith("p")}
        worst, mean = totals.interval_statistics(measure)
        percentiles["interval_max"][measure] = worst
        percentiles["interval_mean"][measure] = mean
    throughput = throughput_section(scenario.wiring.subscriptions, facts.samples)
    judged = _audit_input(totals, facts, counts, rates, measures, throughput)
    checks = [*audit(judged), *facts.notes]
    status, reasons, exit_code = _judge(facts, checks)
    expected = _expected(facts, counts)
    delivery_rate = None
    if expected and scenario.has_both_ends:
        delivery_rate = (counts["received_once"] or 0) / expected
    document: Document = {
        "run_id": facts.plan.run_id,
        "status": status,
        "exit_code": exit_code,
        "reasons": reasons,
        "scenario": scenario.dump(),
        "broker": facts.broker,
        "brokers": [*facts.brokers] or [{"role": "both", **facts.broker}],
        "measured_seconds": _measured_seconds(facts),
        "counts": counts,
        "rates": rates,
        "copies": facts.plan.copies,
        "expected": expected,
        "delivery_rate": delivery_rate,
        "throughput": throughput,
        "measures": measures,
        "percentiles": percentiles,
        "trace": trace_section(facts.plan, facts.trace),
        "spec": _spec(facts, counts, rates, measures.get("latency"), delivery_rate),
        "audit": verdict_of(checks),
        "connections": _connections(facts),
        "agents": facts.agents,
        "start_spread_us": _start_spread_us(facts),
        "resources": {
            "busiest_agent_share_of_core": facts.busiest_agent_share,
            "busiest_host_share": facts.busiest_host_share,
            "spark_cores": facts.spark_cores,
            **facts.broker_resources,
        },
        "environment": facts.environment,
    }
    objectives = judged_objectives(scenario.slo, document, facts.stopped_by)
    document["slo"] = objectives
    if exit_code == EXIT_VALID and not all(one["met"] for one in objectives):
        exit_code = document["exit_code"] = EXIT_GATE_MISSED
    return RunSummary(document, exit_code, histograms)


def _connections(facts: RunFacts) -> dict[str, int] | None:
    """By role, of all agents; None if one has never said."""
    told = [agent.get("connections") for agent in facts.agents]
    if not told or None in told:
        return None
    return {role: sum(one[role] for one in told if one) for role in ("producers", "consumers")}


def _start_spread_us(facts: RunFacts) -> float | None:
    """Between the first agent's beginning and the last one's; None if one has never said."""
    late_us = [agent.get("started_late_us") for agent in facts.agents]
    known = [one for one in late_us if one is not None]
    return max(known) - min(known) if known and len(known) == len(late_us) else None


def _measured_seconds(facts: RunFacts) -> float:
    if facts.measured_from is None or facts.measured_until is None:
        return 0.0
    return max(0.0, facts.measured_until - facts.measured_from)


def _accounts(totals: TickTotals, facts: RunFacts) -> Accounts | None:
    """As the agents reported them; where one was killed, with what its events say."""
    accounts = facts.accounts
    if accounts is None or accounts.is_reported:
        return accounts
    return completed(
        accounts,
        sent=totals.of_measured(PRODUCER, "sent"),
        received=totals.of_measured(CONSUMER, "received"),
        duplicates=totals.of_measured(CONSUMER, "duplicates"),
    )


def _counts(totals: TickTotals, facts: RunFacts) -> dict[str, int | None]:
    measured, in_all = totals.of_measured, totals.of_all
    due, sent = measured(PRODUCER, "due"), measured(PRODUCER, "sent")
    received = measured(CONSUMER, "received")
    counts: dict[str, int | None] = {
        "due": due,
        "unsent": max(0, due - sent),
        "sent": sent,
        "confirmed": measured(PRODUCER, "confirmed") if facts.confirms else None,
        "unconfirmed": _unconfirmed(totals) if facts.confirms else None,
        "refused": measured(PRODUCER, "refused"),
        "returned": measured(PRODUCER, "returned"),
        "received": received,
        "acked": measured(CONSUMER, "acked"),
        "redelivered": measured(CONSUMER, "redelivered"),
        "out_of_order": measured(CONSUMER, "out_of_order"),
        "corrupted": _corrupted(totals, facts),
        "malformed": in_all(CONSUMER, "malformed"),
        "foreign": in_all(CONSUMER, "foreign"),
        "errors": in_all(PRODUCER, "errors") + in_all(CONSUMER, "errors"),
        "reconnects": in_all(PRODUCER, "reconnects") + in_all(CONSUMER, "reconnects"),
        "bytes_sent": measured(PRODUCER, "bytes"),
        "bytes_received": measured(CONSUMER, "bytes"),
    }
    accounts = facts.accounts
    if accounts is None:
        scenario = facts.plan.scenario
        absent = [] if scenario.has_both_ends else ["received_once"]
        absent += _RECEIVING_COUNTS if scenario.only_publishes else ()
        absent += _SENDING_COUNTS + _JUDGED_BY_ENVELOPE if scenario.only_consumes else ()
        unknown = ("duplicates", "left_in_broker", "lost", "indeterminate", *absent)
        return counts | {"received_once": received} | dict.fromkeys(unknown)
    return counts | {
        "received_once": accounts.received_once,
        "duplicates": received - accounts.received_once,
        "left_in_broker": accounts.left_in_broker,
        "lost": accounts.lost,
        "indeterminate": accounts.indeterminate,
    }


def _corrupted(totals: TickTotals, facts: RunFacts) -> int | None:
    """Known where whoever received a message had also sent it, or where all were joined."""
    if not facts.plan.scenario.identity.content_hash:
        return None
    if facts.trace is not None:
        return facts.trace.joined.total("corrupted")
    return totals.of_measured(CONSUMER, "corrupted") if facts.plan.is_paired else None


def _unconfirmed(totals: TickTotals) -> int:
    """Sent, and the broker has said neither yes nor no."""
    measured = totals.of_measured
    answered = sum(measured(PRODUCER, name) for name in ("confirmed", "refused", "returned"))
    return max(0, measured(PRODUCER, "sent") - answered)


def _totals(ticks: Iterable[Tick], facts: RunFacts) -> TickTotals:
    supplied = _supplied_by_join(facts)
    totals = TickTotals(
        COUNTERS,
        is_in_window=lambda tick: _in_window(tick, facts),
        interval_of=lambda start_seconds: _interval_of(start_seconds, facts),
        highest_us=facts.plan.scenario.histogram.highest_us,
        left_out=supplied,
    )
    for tick in ticks:
        totals.add(tick)
    if supplied and facts.trace is not None:
        for measure in supplied:
            for start_seconds, histogram in facts.trace.by_time(measure):
                totals.add_measured(measure, start_seconds, histogram)
    return totals


def _supplied_by_join(facts: RunFacts) -> tuple[str, ...]:
    """Measures that the receiving agents could not take of every message, but the join can."""
    if facts.trace is None or not facts.trace.joined.total("untimed"):
        return ()
    return tuple(name for name in _CENSORED_MEASURES if name in facts.trace.joined.ticks)


def _in_window(tick: Tick, facts: RunFacts) -> bool:
    if facts.measured_from is None or facts.measured_until is None:
        return False
    if _lasts_from_first_to_last(facts):
        return tick.phase == MEASURE
    return _starts_in_window(tick.start_seconds, facts)


def _lasts_from_first_to_last(facts: RunFacts) -> bool:
    """Whether the phase lasts from the first message to the last, whatever ticks they were in."""
    scenario = facts.plan.scenario
    return not scenario.has_both_ends and has_open_end(scenario)


def _starts_in_window(start_seconds: float, facts: RunFacts) -> bool:
    if facts.measured_from is None or facts.measured_until is None:
        return False
    if _lasts_from_first_to_last(facts):
        return True
    return facts.measured_from <= start_seconds + _EDGE_SECONDS < facts.measured_until


def _rates(totals: TickTotals, facts: RunFacts) -> dict[str, float | None]:
    scenario, seconds = facts.plan.scenario, _measured_seconds(facts)
    if facts.counted is not None:
        sent, received = facts.counted
    else:
        sent = totals.of_window(PRODUCER, "sent")
        received = totals.of_window(CONSUMER, "received")
    return {
        "send_rate": None if scenario.only_consumes else _per_second(sent, seconds),
        "receive_rate": None if scenario.only_publishes else _per_second(received, seconds),
    }


def _per_second(messages: int, seconds: float) -> float:
    return messages / seconds if seconds else 0.0


def _interval_of(start_seconds: float, facts: RunFacts) -> int | None:
    """Which interval of the measured phase a tick lies in; a last one below half length is left
    out, and so is what comes after the phase."""
    if facts.measured_from is None or not _starts_in_window(start_seconds, facts):
        return None
    length = facts.plan.scenario.interval_seconds
    since = max(0.0, start_seconds - facts.measured_from + _EDGE_SECONDS)
    interval = int(since // length)
    whole, rest = divmod(_measured_seconds(facts) + _EDGE_SECONDS, length)
    kept = int(whole) + (1 if rest >= length / 2 else 0)
    return interval if interval < max(1, kept) else None


def _expected(facts: RunFacts, counts: dict[str, int | None]) -> int | None:
    """Deliveries the load asked for; those of what was sent where the load finds its own speed;
    None where it is to receive whatever is there."""
    planned = facts.plan.expected_deliveries
    if facts.plan.scenario.only_consumes:
        return planned
    if planned is None or _ended_early(facts):
        return (counts["sent"] or 0) * facts.plan.copies
    return planned


def _ended_early(facts: RunFacts) -> bool:
    """Whether fewer messages were due than planned, for a reason that is no failure."""
    return facts.interrupted_by is not None or facts.stopped_by is not None or facts.is_partial


def _never_seen(counts: dict[str, int | None], facts: RunFacts) -> dict[str, int]:
    """Messages that belong to a measure but have no value in it."""
    accounts = facts.accounts
    if accounts is None:
        return {}
    on_their_way = accounts.left_in_broker + accounts.indeterminate
    unsent = (counts["unsent"] or 0) * facts.plan.copies
    return {"latency": on_their_way, "delivery_latency": on_their_way + unsent}


def _spec(
    facts: RunFacts,
    counts: dict[str, int | None],
    rates: dict[str, float | None],
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
        "send_rate": rates["send_rate"],
        "receive_rate": rates["receive_rate"],
        "delivery_rate": delivery_rate,
    }


def _audit_input(
    totals: TickTotals,
    facts: RunFacts,
    counts: dict[str, int | None],
    rates: dict[str, float | None],
    measures: dict[str, dict[str, Any]],
    throughput: dict[str, Any] | None,
) -> AuditInput:
    scenario = facts.plan.scenario
    seconds = _measured_seconds(facts)
    hosts = facts.environment.get("hosts", [])
    latency = measures.get("latency", {})
    # A run that was cut short says so; its last moments are no measure of the schedule.
    was_cut_short = bool(facts.failures) or _ended_early(facts)
    has_schedule = scenario.load.has_schedule and not scenario.only_consumes
    is_judged = has_schedule and seconds > 0 and not was_cut_short
    return AuditInput(
        mode=scenario.load.mode,
        due=counts["due"] or 0,
        sent=counts["sent"] or 0,
        wanted_rate_per_second=mean_rate_per_second(scenario) if is_judged else None,
        send_rate_per_second=rates["send_rate"] or 0.0,
        blocked_seconds=totals.of_all(PRODUCER, "blocked_ns") / 1e9,
        busiest_agent_share=facts.busiest_agent_share,
        busiest_host_share=facts.busiest_host_share,
        spark_cores=facts.spark_cores,
        accounts=facts.accounts,
        received=counts["received"] or 0,
        ends=_ends(scenario),
        asked_for=facts.plan.expected_messages,
        unconfirmed=counts["unconfirmed"],
        lost_is_explained_by=_limit(facts),
        confirms=facts.confirms,
        clock_bound_ns=facts.clock_bound_ns,
        negative=latency.get("negative", 0),
        latency_p50_us=latency.get("p50_us"),
        warmup_seconds=scenario.phases.warmup_seconds,
        shares_host=any(host.get("shares_host_with_broker") for host in hosts),
        bytes_per_second=_per_second(
            max(counts["bytes_sent"] or 0, counts["bytes_received"] or 0), seconds
        ),
        link_speed_mbit=min(
            (host["link_speed_mbit"] for host in hosts if host.get("link_speed_mbit")),
            default=None,
        ),
        lower_bounds={
            measure: found["lower_bounds"]
            for measure, found in measures.items()
            if measure in _CENSORED_MEASURES
        },
        trace=trace_findings(facts.plan, facts.trace, counts, facts.accounts),
        corrupted=counts["corrupted"],
        samples_wanted=scenario.sampling.samples,
        samples_by_pair=tuple(pair["samples"] for pair in (throughput or {}).get("pairs", ())),
        outages=tuple(
            {"agent": agent["agent"], **outage}
            for agent in facts.agents
            for outage in agent.get("outages", ())
        ),
    )


def _ends(scenario: Scenario) -> Ends:
    if scenario.only_publishes:
        return "producers"
    return "consumers" if scenario.only_consumes else "both"


def _limit(facts: RunFacts) -> str | None:
    kinds = {str(broker.get("kind")) for broker in (facts.broker, *facts.brokers)}
    return declared_limit(facts.plan, sorted(kinds))


def declared_limit(plan: Plan, broker_kinds: Sequence[str]) -> str | None:
    """A limit in the scenario that lets a healthy broker drop messages; None if there is none.

    Only sections of the brokers' own protocols count: the others were ignored.
    """
    scenario = plan.scenario
    places: list[Scenario | Ingress | Egress] = [scenario, *scenario.ingress, *scenario.egress]
    for kind, sections in product(broker_kinds, places):
        declared = {
            "amqp": sections.amqp and sections.amqp.queue.arguments,
            "kafka": sections.kafka and sections.kafka.topic.properties,
        }.get(kind)
        for name in _LIMITS.get(kind, ()):
            if declared and name in declared:
                return f"{name}={declared[name]}"
    return None


def _judge(facts: RunFacts, checks: list[Check]) -> tuple[str, list[str], int]:
    reasons = [f"agent {failure.agent}: {failure.text}" for failure in facts.failures]
    reasons += [check.text for check in checks if check.verdict == "fail"]
    accounts = facts.accounts
    lost_confirmed = (
        accounts is not None and accounts.lost > 0 and facts.confirms and _limit(facts) is None
    )
    if facts.interrupted_by is not None:
        return ABORTED, ["interrupted", *reasons], facts.interrupted_by
    if facts.measured_from is None:
        return FAILED, reasons or ["the load never started"], EXIT_DEGRADED
    if lost_confirmed:
        return DEGRADED, reasons, EXIT_DATA_LOST
    if reasons:
        return DEGRADED, reasons, EXIT_DEGRADED
    return VALID, [], EXIT_VALID
