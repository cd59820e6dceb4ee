"""Audits a run: whether its numbers can be trusted, and whether broker or generator was the limit.

Each check is a sentence with a verdict. `fail` makes the run degraded, `warn` only informs.
`checks.py` has the checks of what became of the messages; here are those of rates, time and CPU.
`audit_input` gathers what they need, `judge` makes status, reasons and exit code of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from bench_spark.agent.timeline import CONSUMER, PRODUCER
from bench_spark.config.models import Scenario
from bench_spark.config.sections import Egress, Ingress
from bench_spark.core.clock import NANOSECONDS
from bench_spark.errors import EXIT_DATA_LOST, EXIT_DEGRADED, EXIT_VALID
from bench_spark.plan import Plan, mean_rate_per_second
from bench_spark.results.checks import (
    AuditInput,
    Check,
    Ends,
    LimitedBy,
    Throughput,
    account_checks,
    body_checks,
    content_checks,
    failing,
    message_checks,
    passing,
    refusal_checks,
    silence_checks,
    trace_checks,
    warning,
)
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
    is_judged = scenario.is_paced and seconds > 0 and not was_cut_short
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


MOST_UNSENT = 0.001
"""Share of due messages that may stay unsent before the schedule counts as missed."""
LEAST_RATE = 0.99
"""Share of the wanted rate that must be sent at least."""
BUSY_CORE = 0.9
"""Share of one core above which an agent's single thread may be what was slow."""
BUSY_HOST = 0.9
"""Share of all cores of a host above which what runs there competes for them."""
NOTICEABLE_CORES = 0.2
"""CPU use of Spark itself from which on it is named as a load of a busy host."""
RECOMMENDED_WARMUP_SECONDS = 5.0
NEAR_LINK_SPEED = 0.8
PILED_UP_US = 1_000_000
"""A median latency from which on there is a backlog: no broker that keeps up has it."""
MOST_STALLED = 0.05
"""Share of the measured phase for which an agent may have stood still."""
MOST_NAMED = 3
"""Agents, connections or hosts that one sentence names."""
LARGEST_DIFFERENCE = 0.02
"""Between the rates of sending and receiving, as a share: up to this, the check passes."""
MOST_ABOVE = 0.1
"""Share by which the receive rate may exceed the send rate; beyond it the check fails, because the
throughput is that of a backlog or of repeats."""
AT_THE_EDGES_SECONDS = 0.25
"""An excess of no more than what is sent in this time does not fail the check: so much may be under
way when the phase begins, and of a short phase that is a large share."""


def audit(run: AuditInput) -> list[Check]:
    """All checks of a run, in the order in which they are shown."""
    return [check for part in _PARTS for check in part(run)]


def _schedule(run: AuditInput) -> Iterator[Check]:
    if run.wanted_rate_per_second is None or not (run.due or run.is_cut_short):
        return
    unsent = run.due - run.sent
    kept = run.send_rate_per_second >= LEAST_RATE * run.wanted_rate_per_second
    if run.due and unsent <= MOST_UNSENT * run.due and kept:
        yield passing("schedule", f"sent {run.sent} of {run.due} messages due, {unsent} unsent")
        return
    limited_by, reason = _who_was_slow(run)
    fell_short = f"{unsent} of {run.due} messages stayed unsent"
    if not run.due:
        fell_short = "and the run ended before a message was due"
    elif unsent <= 0:
        fell_short = f"all {run.due} messages due went out, but not all within the measured seconds"
    yield failing(
        "schedule",
        f"the rate was not kept: {run.send_rate_per_second:.0f} of "
        f"{run.wanted_rate_per_second:.0f} msg/s, {fell_short}; {reason}",
        limited_by,
    )


def _backlog(run: AuditInput) -> Iterator[Check]:
    """A median latency of seconds at a steady rate means that messages queue up somewhere."""
    if run.mode == "rate" and (run.latency_p50_us or 0) >= PILED_UP_US:
        yield warning(
            "backlog",
            f"half of the messages took {(run.latency_p50_us or 0) / 1e6:.1f} s or longer: the "
            "broker delivered less than was sent, and the latencies are those of its backlog",
            "broker",
        )


def _who_was_slow(run: AuditInput) -> tuple[LimitedBy, str]:
    if run.outages:
        down = f"connections to the broker were down, the longest for {_down_seconds(run):.1f} s"
        return "broker", down
    if run.blocked_seconds > 0:
        mean = f"{run.blocked_seconds:.1f} s on average"
        return "broker", f"the broker blocked its producers, each for {mean}"
    if run.busiest_agent_share is not None and run.busiest_agent_share >= BUSY_CORE:
        return (
            "generator",
            "an agent used a whole core, so the generator was the limit: use more agents",
        )
    if _is_host_busy(run) and run.shares_host:
        return (
            "host",
            f"broker and generator shared a host that was {run.busiest_host_share:.0%} busy, so "
            "either may have lacked CPU: give it more, or keep them apart",
        )
    if _is_host_busy(run):
        return (
            "generator",
            f"an agent's host was {run.busiest_host_share:.0%} busy, so the generator may have "
            "lacked CPU: give it more, or keep broker and generator apart",
        )
    return "broker", "the agents had time to spare, so the broker (or the network) took no more"


def _is_host_busy(run: AuditInput) -> bool:
    return run.busiest_host_share is not None and run.busiest_host_share >= BUSY_HOST


def _generator(run: AuditInput) -> Iterator[Check]:
    share = run.busiest_agent_share
    if share is None:
        yield warning("generator_cpu", "the agents' CPU use is not known")
    elif share >= BUSY_CORE and run.mode in ("rate", "request"):
        yield warning(
            "generator_cpu",
            f"an agent used {share:.0%} of a core: latencies may contain its own queueing",
            "generator",
        )
    elif share >= BUSY_CORE:
        yield warning(
            "generator_cpu",
            f"an agent used {share:.0%} of a core: the maximum may be the generator's; "
            "compare with more agents",
            "generator",
        )
    else:
        yield passing("generator_cpu", f"the busiest agent used {share:.0%} of a core")


def _stalls(run: AuditInput) -> Iterator[Check]:
    """An agent whose loop does not run sends and receives late, whatever the broker does."""
    if not run.stalled_seconds:
        return
    longest = sorted(run.stalled_seconds.items(), key=lambda one: -one[1])
    named = [f"agent {agent} for {seconds:.1f} s" for agent, seconds in longest[:MOST_NAMED]]
    if len(longest) > MOST_NAMED:
        named.append(f"and {len(longest) - MOST_NAMED} more")
    yield Check(
        "generator_stall",
        "fail" if longest[0][1] > MOST_STALLED * run.measured_seconds else "warn",
        f"agents stood still in the {run.measured_seconds:.0f} s measured: {', '.join(named)}; "
        "they were stopped or had no CPU, and latencies contain it",
        "generator",
    )


def _connections(run: AuditInput) -> Iterator[Check]:
    if not run.outages:
        return
    losses = sum(outage["losses"] for outage in run.outages)
    reopened = sum(outage["reopened"] for outage in run.outages)
    longest = sorted(run.outages, key=lambda outage: -float(outage["down_seconds"]))
    named = [
        f"agent {outage['agent']} {outage['role']} {outage['member']} for "
        f"{outage['down_seconds']:.1f} s ({outage['reason']})"
        for outage in longest[:MOST_NAMED]
    ]
    if len(longest) > MOST_NAMED:
        named.append(f"and {len(longest) - MOST_NAMED} more")
    yield failing(
        "connections",
        f"{losses} connections were lost while the load ran and {reopened} opened again: "
        f"{', '.join(named)}",
    )


def _down_seconds(run: AuditInput) -> float:
    """Of the connection that was down longest."""
    return max(float(outage["down_seconds"]) for outage in run.outages)


def _clocks(run: AuditInput) -> Iterator[Check]:
    bound_us = run.clock_bound_ns / 1000
    error = f"the clocks' error of {bound_us:.0f} us"
    if run.negative and run.ends == "consumers":
        yield warning(
            "clocks",
            f"{run.negative} latencies were negative, taken as 0: the clock of whoever sent those "
            "messages is ahead of ours",
        )
    elif run.negative and run.clock_bound_ns == 0:
        yield failing("clocks", f"{run.negative} latencies were negative on one clock")
    elif run.negative:
        yield warning("clocks", f"{run.negative} latencies were negative, taken as 0; {error}")
    elif run.latency_p50_us is not None and bound_us > run.latency_p50_us:
        yield warning(
            "clocks", f"{error} exceeds the median latency: one-way latency is unreliable"
        )
    else:
        yield passing("clocks", f"clocks agree within {bound_us:.0f} us")


def _surroundings(run: AuditInput) -> Iterator[Check]:
    if run.warmup_seconds < RECOMMENDED_WARMUP_SECONDS:
        yield warning(
            "warmup",
            f"a warm-up of {run.warmup_seconds:g} s is short: 5 s at least, 10-30 s at high rates",
        )
    if _is_host_busy(run):
        yield warning(
            "host_cpu",
            f"an agent's host was {run.busiest_host_share:.0%} busy: latencies may contain waiting "
            "for CPU",
            "host",
        )
    if _is_host_busy(run) and run.shares_host and (run.spark_cores or 0.0) >= NOTICEABLE_CORES:
        yield warning(
            "spark_cpu",
            f"Spark itself used {run.spark_cores:.1f} cores of a busy machine that is the broker's "
            "too: --no-live leaves them to the broker",
        )
    if run.shares_host:
        yield warning("host", "broker and generator share a host and compete for its CPU")
    elif run.link_speed_mbit:
        used = run.bytes_per_second * 8 / (run.link_speed_mbit * 1_000_000)
        if used >= NEAR_LINK_SPEED:
            yield warning(
                "link", f"bodies alone used {used:.0%} of the {run.link_speed_mbit} Mbit/s link"
            )


def _samples(run: AuditInput) -> Iterator[Check]:
    if not run.samples_wanted:
        return
    short = [pair for pair, taken in enumerate(run.samples_by_pair) if taken < run.samples_wanted]
    if not short:
        yield passing(
            "samples", f"every pair has its {run.samples_wanted} samples of the throughput"
        )
        return
    fewest = min(run.samples_by_pair)
    pairs = len(run.samples_by_pair)
    why = "phases.measure_seconds were over before"
    if run.is_cut_short:
        why = "the run was cut short"
    yield Check(
        "samples",
        "warn" if fewest else "fail",
        f"{len(short)} of {pairs} pairs have fewer than {run.samples_wanted} samples of the "
        f"throughput, the fewest {fewest}: {why}",
    )


def _bounds(run: AuditInput) -> Iterator[Check]:
    for measure, names in run.lower_bounds.items():
        if names:
            shown = ", ".join(name.removesuffix("_us") for name in names)
            yield warning(
                "lower_bounds",
                f"{measure}: {shown} are lower bounds; slower messages were unsent, still on their "
                "way, or above the histogram's range",
            )


def _rates(run: AuditInput) -> Iterator[Check]:
    """Compare the rates of sending and receiving, and explain a difference."""
    found = run.throughput
    if found is None or not found.send_rate:
        return
    rates = f"{found.receive_rate:.0f} of {found.send_rate:.0f} msg/s sent"
    off = found.receive_rate / found.send_rate - 1
    if abs(off) <= LARGEST_DIFFERENCE:
        yield passing("rates", f"received {rates}")
    elif off > 0:
        excess = (found.receive_rate - found.send_rate) * found.seconds
        is_too_much = off > MOST_ABOVE and excess > AT_THE_EDGES_SECONDS * found.send_rate
        yield Check(
            "rates",
            "fail" if is_too_much else "warn",
            f"received {rates}, {off:.1%} more: " + _where_more_came_from(found),
        )
    else:
        yield warning(
            "rates",
            f"received {rates}, {-off:.1%} less: the broker was behind; {found.after_the_end} "
            "messages arrived after the measured phase",
        )


def _repeats(run: AuditInput) -> Iterator[Check]:
    """Without sequence numbers only the totals show that messages came more than once."""
    if run.accounts is None and run.ends == "both" and run.sent:
        more = run.received - run.sent * run.copies
        if more > 0:
            yield warning(
                "repeats",
                f"{more} messages more were received than sent: bodies below 32 bytes do not tell "
                "which of them came again",
            )


def _kernels(run: AuditInput) -> Iterator[Check]:
    if run.uncompiled_hosts:
        named = ", ".join(run.uncompiled_hosts[:MOST_NAMED])
        yield warning(
            "kernels",
            f"the agents on {named} ran their inner loops uncompiled (NUMBA_DISABLE_JIT): they are "
            "some hundred times slower, and so are latencies and rates",
        )


def _where_more_came_from(found: Throughput) -> str:
    if found.left_of_warmup > found.after_the_end:
        return (
            f"{found.left_of_warmup} messages of the warm-up arrived in the measured seconds, so "
            "the broker worked off a backlog: lengthen the warm-up, or lower the rate"
        )
    return "messages came more than once"


_PARTS = (
    message_checks,
    _schedule,
    _rates,
    _repeats,
    _backlog,
    _connections,
    account_checks,
    refusal_checks,
    trace_checks,
    content_checks,
    silence_checks,
    body_checks,
    _generator,
    _kernels,
    _stalls,
    _clocks,
    _bounds,
    _samples,
    _surroundings,
)
