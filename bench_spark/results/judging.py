"""What a run is judged by, and what comes of it: its status, the reasons, the exit code."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

from bench_spark.agent.timeline import CONSUMER, PRODUCER
from bench_spark.config.models import Scenario
from bench_spark.config.sections import Egress, Ingress
from bench_spark.core.clock import NANOSECONDS
from bench_spark.errors import EXIT_DATA_LOST, EXIT_DEGRADED, EXIT_VALID
from bench_spark.plan import Plan, mean_rate_per_second
from bench_spark.results.checks import AuditInput, Check, Ends, Throughput
from bench_spark.results.counts import Counts, Rates, expected_deliveries, per_second
from bench_spark.results.facts import CENSORED_MEASURES, RunFacts, trace_findings
from bench_spark.results.totals import TickTotals

VALID, DEGRADED, FAILED, ABORTED = "valid", "degraded", "failed", "aborted"

_LIMITS = {
    "amqp": ("x-max-length", "x-max-length-bytes", "x-message-ttl", "x-expires"),
    "kafka": ("retention.bytes", "retention.ms"),
}


def judge(facts: RunFacts, checks: list[Check]) -> tuple[str, list[str], int]:
    reasons = [failure.named for failure in facts.failures]
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


def audit_input(
    totals: TickTotals,
    facts: RunFacts,
    counts: Counts,
    rates: Rates,
    measures: dict[str, dict[str, Any]],
    throughput: dict[str, Any] | None,
) -> AuditInput:
    scenario = facts.plan.scenario
    seconds = facts.measured_seconds
    hosts = facts.environment.get("hosts", [])
    latency = measures.get("latency", {})
    # A run that was cut short says so; its last moments are no measure of the schedule.
    was_cut_short = bool(facts.failures) or facts.ended_early
    has_schedule = scenario.load.has_schedule and not scenario.only_consumes
    is_judged = has_schedule and seconds > 0 and not was_cut_short
    return AuditInput(
        mode=scenario.load.mode,
        due=counts["due"] or 0,
        sent=counts["sent"] or 0,
        wanted_rate_per_second=mean_rate_per_second(scenario) if is_judged else None,
        send_rate_per_second=rates["send_rate"] or 0.0,
        blocked_seconds=_blocked_seconds(totals, facts),
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
        bytes_per_second=per_second(
            max(counts["bytes_sent"] or 0, counts["bytes_received"] or 0), seconds
        ),
        link_speed_mbit=min(
            (host["link_speed_mbit"] for host in hosts if host.get("link_speed_mbit")),
            default=None,
        ),
        lower_bounds={
            measure: found["lower_bounds"]
            for measure, found in measures.items()
            if measure in CENSORED_MEASURES
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
        expected=expected_deliveries(facts, counts),
        undelivered_share=scenario.audit.undelivered_share,
        refused=counts["refused"] or 0,
        is_cut_short=was_cut_short or facts.measured_from is None,
        has_other_verdict=bool(facts.failures)
        or facts.interrupted_by is not None
        or facts.is_partial
        or facts.measured_from is None,
        measured_seconds=seconds,
        stalled_seconds={
            agent["agent"]: agent["stalled_seconds"]
            for agent in facts.agents
            if agent.get("stalled_seconds")
        },
        silences=facts.silences,
        throughput=None if was_cut_short else _throughput(totals, facts, rates),
        copies=facts.plan.copies,
        malformed=counts["malformed"] or 0,
        uncompiled_hosts=tuple(
            # Runs stored before kernels were compiled do not say.
            str(host.get("host"))
            for host in hosts
            if not host.get("has_compiled_kernels", True)
        ),
        unexpected=counts["unexpected"] or 0,
    )


def _throughput(totals: TickTotals, facts: RunFacts, rates: Rates) -> Throughput | None:
    sent, received = rates["send_rate"], rates["receive_rate"]
    if sent is None or received is None or facts.plan.scenario.only_consumes:
        return None
    in_time = totals.of_measured_in_window(CONSUMER, "received")
    return Throughput(
        send_rate=sent * facts.plan.copies,
        receive_rate=received,
        seconds=facts.measured_seconds,
        left_of_warmup=totals.of_window(CONSUMER, "received") - in_time,
        after_the_end=totals.of_measured(CONSUMER, "received") - in_time,
    )


def _blocked_seconds(totals: TickTotals, facts: RunFacts) -> float:
    """Events add up the time of all connections; what they show is never longer than the phase."""
    added_up = totals.of_window(PRODUCER, "blocked_ns") / NANOSECONDS
    return min(added_up / max(1, facts.plan.scenario.producers), facts.measured_seconds)


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
