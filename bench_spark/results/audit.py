"""Audits a run: whether its numbers can be trusted, and what was the limit: the broker, the
generator, or a host that they share.

Each check is a verdict with a sentence that explains it. `fail` makes the run degraded, `warn` only
informs. Here are the checks of rates, time and CPU, the list of all checks (`CHECKS`), and `judge`,
which derives status, reasons and exit code. What checks read (`Evidence`), and the checks of what
became of the messages, are in `checks.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench_spark.errors import EXIT_DATA_LOST, EXIT_DEGRADED, EXIT_VALID
from bench_spark.results.checks import (
    Check,
    Evidence,
    LimitedBy,
    ReceivedAgainstSent,
    account_checks,
    body_checks,
    content_checks,
    failing,
    given_up_checks,
    message_checks,
    passing,
    refusal_checks,
    silence_checks,
    trace_checks,
    warning,
)
from bench_spark.results.counts import is_late, per_second
from bench_spark.results.facts import CENSORED_MEASURES, RunFacts

VALID, DEGRADED, FAILED, ABORTED = "valid", "degraded", "failed", "aborted"


def judge(facts: RunFacts, checks: list[Check]) -> tuple[str, list[str], int]:
    reasons = [failure.named for failure in facts.end.failures]
    reasons += [check.text for check in checks if check.verdict == "fail"]
    if facts.end.interrupted_by is not None:
        return ABORTED, ["interrupted", *reasons], facts.end.interrupted_by
    if facts.measured_from is None:
        return FAILED, reasons or ["the load never started"], EXIT_DEGRADED
    is_lost = any(check.name == "loss" and check.verdict == "fail" for check in checks)
    if is_lost and facts.messages.confirms:
        return DEGRADED, reasons, EXIT_DATA_LOST
    if reasons:
        return DEGRADED, reasons, EXIT_DEGRADED
    return VALID, [], EXIT_VALID


MOST_UNSENT = 0.001
"""Share of due messages that may stay unsent before the schedule counts as missed."""
BUSY_CORE = 0.9
"""Share of one core from which on an agent's single thread may be the limit."""
BUSY_HOST = 0.9
"""Share of a host's CPU from which on everything that runs there competes for it."""
NOTICEABLE_CORES = 0.2
"""CPU use of Spark itself, in cores, from which on the audit names it on a busy host."""
RECOMMENDED_WARMUP_SECONDS = 5.0
NEAR_LINK_SPEED = 0.8
"""Share of the link's speed from which on bodies alone nearly fill it."""
PILED_UP_US = 1_000_000
"""A median latency from which on there must be a backlog: no broker that keeps up has it."""
MOST_STALLED = 0.05
"""The check fails if an agent did not run for a larger share of the measured phase."""
MOST_NAMED = 3
"""The most agents, connections or hosts that one sentence names."""
LARGEST_DIFFERENCE = 0.02
"""Between the rates of sending and receiving, as a share of the first: up to this it passes."""
MOST_ABOVE = 0.1
"""Share by which the receive rate may exceed the send rate; beyond it the check fails, because the
throughput is that of a backlog or of repeats."""
AT_THE_EDGES_SECONDS = 0.25
"""The check does not fail if the excess is at most what is sent in this time: so much may be on its
way when the phase begins, and of a short phase that is a large share."""


def audit(run: Evidence) -> list[Check]:
    """All checks of a run, in the order in which reports list them."""
    return [check for checks in CHECKS for check in checks(run)]


def _schedule(run: Evidence) -> Iterator[Check]:
    due, sent = run.count("due"), run.count("sent")
    if not run.has_schedule or not (due or run.lacks_drain):
        return
    unsent, late = due - sent, run.count("late")
    agents = len(run.facts.plan.assignments)
    is_kept = not is_late(due, sent - late, run.facts.measured_seconds, agents)
    if due and unsent <= MOST_UNSENT * due and is_kept:
        yield passing("schedule", f"sent {sent} of {due} messages due, {unsent} unsent")
        return
    limited_by, reason = _who_was_slow(run)
    fell_short = (
        f"{sent - late} of {due} messages due were sent in time, {late} after the measured phase, "
        f"and {unsent} not at all"
    )
    if not due:
        fell_short = "the run ended before a message was due"
    yield failing("schedule", f"the rate was not kept: {fell_short}; {reason}", limited_by)


def _backlog(run: Evidence) -> Iterator[Check]:
    """At a steady rate a median latency of seconds means that messages queue up somewhere."""
    median_us = _median_us(run) or 0
    if run.scenario.load.mode == "rate" and median_us >= PILED_UP_US:
        yield warning(
            "backlog",
            f"half of the messages took {median_us / 1e6:.1f} s or longer: the broker delivered "
            "less than was sent, and the latencies are those of its backlog",
            "broker",
        )


def _who_was_slow(run: Evidence) -> tuple[LimitedBy, str]:
    if run.outages:
        longest = max(float(outage["down_seconds"]) for outage in run.outages)
        return "broker", f"connections to the broker were down, the longest for {longest:.1f} s"
    if run.blocked_seconds > 0:
        mean = f"{run.blocked_seconds:.1f} s on average"
        return "broker", f"the broker blocked its producers, each for {mean}"
    if (run.generator.busiest_agent_share or 0.0) >= BUSY_CORE:
        return (
            "generator",
            "an agent used a whole core, so the generator was the limit: use more agents",
        )
    busy = run.generator.busiest_host_share or 0.0
    if busy >= BUSY_HOST and run.shares_host:
        return (
            "host",
            f"broker and generator shared a host that was {busy:.0%} busy, so either may have "
            "lacked CPU: give it more, or keep them apart",
        )
    if busy >= BUSY_HOST:
        return (
            "generator",
            f"an agent's host was {busy:.0%} busy, so the generator may have lacked CPU: give it "
            "more, or keep broker and generator apart",
        )
    return "broker", "the agents had time to spare, so the broker (or the network) took no more"


def _generator(run: Evidence) -> Iterator[Check]:
    share = run.generator.busiest_agent_share
    if share is None:
        yield warning("generator_cpu", "the agents' CPU use is not known")
    elif share < BUSY_CORE:
        yield passing("generator_cpu", f"the busiest agent used {share:.0%} of a core")
    else:
        doubt = "the maximum may be the generator's; compare with more agents"
        if run.scenario.load.has_schedule:
            doubt = "latencies may contain its own queueing"
        yield warning("generator_cpu", f"an agent used {share:.0%} of a core: {doubt}", "generator")


def _stalls(run: Evidence) -> Iterator[Check]:
    """An agent whose loop did not run sent and received late, whatever the broker did."""
    stalled = [(one["agent"], one.get("stalled_seconds") or 0.0) for one in run.generator.agents]
    longest = sorted((one for one in stalled if one[1]), key=lambda one: -one[1])
    if not longest:
        return
    measured = run.facts.measured_seconds
    named = [f"agent {agent} for {seconds:.1f} s" for agent, seconds in longest[:MOST_NAMED]]
    if len(longest) > MOST_NAMED:
        named.append(f"and {len(longest) - MOST_NAMED} more")
    yield Check(
        "generator_stall",
        "fail" if longest[0][1] > MOST_STALLED * measured else "warn",
        f"agents stood still in the {measured:.0f} s measured: {', '.join(named)}; "
        "they were stopped or had no CPU, and latencies contain it",
        "generator",
    )


def _connections(run: Evidence) -> Iterator[Check]:
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


def _median_us(run: Evidence) -> int | None:
    return run.measures.get("latency", {}).get("p50_us")


def _clocks(run: Evidence) -> Iterator[Check]:
    negative, median_us = run.measures.get("latency", {}).get("negative", 0), _median_us(run)
    bound_us = run.generator.clock_bound_ns / 1000
    error = f"the clocks' error of {bound_us:.0f} us"
    if negative and run.scenario.only_consumes:
        yield warning(
            "clocks",
            f"{negative} latencies were negative, taken as 0: the clock of whoever sent those "
            "messages is ahead of ours",
        )
    elif negative and run.generator.clock_bound_ns == 0:
        yield failing("clocks", f"{negative} latencies were negative on one clock")
    elif negative:
        yield warning("clocks", f"{negative} latencies were negative, taken as 0; {error}")
    elif median_us is not None and bound_us > median_us:
        yield warning(
            "clocks", f"{error} exceeds the median latency: one-way latency is unreliable"
        )
    else:
        yield passing("clocks", f"clocks agree within {bound_us:.0f} us")


def _surroundings(run: Evidence) -> Iterator[Check]:
    warmup = run.scenario.phases.warmup_seconds
    if warmup < RECOMMENDED_WARMUP_SECONDS:
        yield warning(
            "warmup", f"a warm-up of {warmup:g} s is short: 5 s at least, 10-30 s at high rates"
        )
    busy, of_spark = run.generator.busiest_host_share or 0.0, run.generator.spark_cores or 0.0
    if busy >= BUSY_HOST:
        text = f"an agent's host was {busy:.0%} busy: latencies may contain waiting for CPU"
        yield warning("host_cpu", text, "host")
    if busy >= BUSY_HOST and run.shares_host and of_spark >= NOTICEABLE_CORES:
        yield warning(
            "spark_cpu",
            f"Spark itself used {of_spark:.1f} cores of a busy machine that is the broker's too: "
            "--no-live leaves them to the broker",
        )
    if run.shares_host:
        yield warning("host", "broker and generator share a host and compete for its CPU")
    elif speeds := [host["link_speed_mbit"] for host in run.hosts if host.get("link_speed_mbit")]:
        moved = max(run.count("bytes_sent"), run.count("bytes_received"))
        used = per_second(moved, run.facts.measured_seconds) * 8 / (min(speeds) * 1_000_000)
        if used >= NEAR_LINK_SPEED:
            yield warning("link", f"bodies alone used {used:.0%} of the {min(speeds)} Mbit/s link")


def _samples(run: Evidence) -> Iterator[Check]:
    wanted, taken = run.scenario.sampling.samples, run.samples_by_pair
    if not wanted:
        return
    short = sum(samples < wanted for samples in taken)
    if not short:
        yield passing("samples", f"every pair has its {wanted} samples of the throughput")
        return
    why = "phases.measure_seconds were over before"
    if run.lacks_drain:
        why = "the run was cut short"
    yield Check(
        "samples",
        "warn" if min(taken) else "fail",
        f"{short} of {len(taken)} pairs have fewer than {wanted} samples of the throughput, the "
        f"fewest {min(taken)}: {why}",
    )


def _bounds(run: Evidence) -> Iterator[Check]:
    for measure, found in run.measures.items():
        if measure in CENSORED_MEASURES and (names := found["lower_bounds"]):
            shown = ", ".join(name.removesuffix("_us") for name in names)
            yield warning(
                "lower_bounds",
                f"{measure}: {shown} are lower bounds; slower messages were unsent, still on their "
                "way, or above the histogram's range",
            )


def _rates(run: Evidence) -> Iterator[Check]:
    """Compare the rates of sending and receiving, and explain a difference."""
    found = run.received_against_sent
    if found is None or not found.send_rate:
        return
    rates = f"{found.receive_rate:.0f} of {found.send_rate:.0f} msg/s sent"
    off = found.receive_rate / found.send_rate - 1
    if abs(off) <= LARGEST_DIFFERENCE:
        yield passing("rates", f"received {rates}")
    elif off > 0:
        excess = (found.receive_rate - found.send_rate) * run.facts.measured_seconds
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


def _repeats(run: Evidence) -> Iterator[Check]:
    """Warn of duplicates. Without sequence numbers only the totals show them."""
    duplicates = run.count("duplicates")
    if run.is_too_much(duplicates, run.expected):
        yield warning("repeats", f"{duplicates} messages came more than once")
    if run.accounts is None and run.scenario.has_both_ends and run.count("sent"):
        more = run.count("received") - run.count("sent") * run.facts.plan.copies
        if more > 0:
            yield warning(
                "repeats",
                f"{more} messages more were received than sent: bodies below 32 bytes do not tell "
                "which of them came again",
            )


def _kernels(run: Evidence) -> Iterator[Check]:
    # Runs that were stored before kernels were compiled lack the key.
    hosts = [host for host in run.hosts if not host.get("has_compiled_kernels", True)]
    if hosts:
        named = ", ".join(str(host.get("host")) for host in hosts[:MOST_NAMED])
        yield warning(
            "kernels",
            f"the agents on {named} ran their inner loops uncompiled (NUMBA_DISABLE_JIT): they are "
            "some hundred times slower, and so are latencies and rates",
        )


def _where_more_came_from(found: ReceivedAgainstSent) -> str:
    if found.left_of_warmup > found.after_the_end:
        return (
            f"{found.left_of_warmup} messages of the warm-up arrived in the measured seconds, so "
            "the broker worked off a backlog: lengthen the warm-up, or lower the rate"
        )
    return "messages came more than once"


CHECKS = (
    message_checks,
    _schedule,
    _rates,
    _repeats,
    _backlog,
    _connections,
    account_checks,
    refusal_checks,
    given_up_checks,
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
