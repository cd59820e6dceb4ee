"""The run audits itself (F4): can its numbers be trusted, and was it the broker or the generator?

Each check is a sentence with a verdict. `fail` makes the run degraded, `warn` is for the reader.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench_spark.summary.checks import AuditInput, Check
from bench_spark.summary.message_checks import account_checks, content_checks, trace_checks

MOST_UNSENT = 0.001
"""Share of due messages that may stay unsent before the schedule counts as missed."""
LEAST_RATE = 0.99
BUSY_CORE = 0.9
"""Share of one core above which an agent's single thread may be what was slow."""
BUSY_HOST = 0.9
"""Share of all cores of a host above which what runs there competes for them."""
NOTICEABLE_CORES = 0.2
RECOMMENDED_WARMUP_SECONDS = 5.0
NEAR_LINK_SPEED = 0.8
PILED_UP_US = 1_000_000
"""A median latency that no broker has which keeps up with what it is sent."""
MOST_OUTAGES_NAMED = 3


def audit(run: AuditInput) -> list[Check]:
    return [check for part in _PARTS for check in part(run)]


def _schedule(run: AuditInput) -> Iterator[Check]:
    if run.wanted_rate_per_second is None:
        return
    unsent = run.due - run.sent
    kept = run.send_rate_per_second >= LEAST_RATE * run.wanted_rate_per_second
    if run.due and unsent <= MOST_UNSENT * run.due and kept:
        yield Check(
            "schedule", "pass", f"sent {run.sent} of {run.due} messages due, {unsent} unsent"
        )
        return
    yield Check(
        "schedule",
        "fail",
        f"the rate was not kept: {run.send_rate_per_second:.0f} of "
        f"{run.wanted_rate_per_second:.0f} msg/s, {unsent} of {run.due} messages stayed unsent; "
        + _who_was_slow(run),
    )


def _backlog(run: AuditInput) -> Iterator[Check]:
    """An even stream that arrives seconds later is one that piles up somewhere."""
    if run.mode == "rate" and (run.latency_p50_us or 0) >= PILED_UP_US:
        yield Check(
            "backlog",
            "warn",
            f"half of the messages took {(run.latency_p50_us or 0) / 1e6:.1f} s or longer: the "
            "broker delivered less than was sent, and the latencies are those of its backlog",
        )


def _who_was_slow(run: AuditInput) -> str:
    if run.outages:
        return f"connections to the broker were down for {_down_seconds(run):.1f} s in all"
    if run.blocked_seconds > 0:
        return f"the broker blocked its producers for {run.blocked_seconds:.1f} s"
    if run.busiest_agent_share is not None and run.busiest_agent_share >= BUSY_CORE:
        return "an agent used a whole core, so the generator was the limit: use more agents"
    if _is_host_busy(run) and run.shares_host:
        return (
            f"broker and generator shared a host that was {run.busiest_host_share:.0%} busy, so "
            "either may have lacked CPU: give it more, or keep them apart"
        )
    if _is_host_busy(run):
        return (
            f"an agent's host was {run.busiest_host_share:.0%} busy, so the generator may have "
            "lacked CPU: give it more, or keep broker and generator apart"
        )
    return "the agents had time to spare, so the broker (or the network) took no more"


def _is_host_busy(run: AuditInput) -> bool:
    return run.busiest_host_share is not None and run.busiest_host_share >= BUSY_HOST


def _generator(run: AuditInput) -> Iterator[Check]:
    share = run.busiest_agent_share
    if share is None:
        yield Check("generator_cpu", "warn", "the agents' CPU use is not known")
    elif share >= BUSY_CORE and run.mode in ("rate", "request"):
        yield Check(
            "generator_cpu",
            "warn",
            f"an agent used {share:.0%} of a core: latencies may contain its own queueing",
        )
    elif share >= BUSY_CORE:
        yield Check(
            "generator_cpu",
            "warn",
            f"an agent used {share:.0%} of a core: the maximum may be the generator's; "
            "compare with more agents",
        )
    else:
        yield Check("generator_cpu", "pass", f"the busiest agent used {share:.0%} of a core")


def _connections(run: AuditInput) -> Iterator[Check]:
    if not run.outages:
        return
    losses = sum(outage["losses"] for outage in run.outages)
    reopened = sum(outage["reopened"] for outage in run.outages)
    longest = sorted(run.outages, key=lambda outage: -float(outage["down_seconds"]))
    named = [
        f"agent {outage['agent']} {outage['role']} {outage['member']} for "
        f"{outage['down_seconds']:.1f} s ({outage['reason']})"
        for outage in longest[:MOST_OUTAGES_NAMED]
    ]
    if len(longest) > MOST_OUTAGES_NAMED:
        named.append(f"and {len(longest) - MOST_OUTAGES_NAMED} more")
    yield Check(
        "connections",
        "fail",
        f"{losses} connections were lost while the load ran and {reopened} opened again, down for "
        f"{_down_seconds(run):.1f} s in all: {', '.join(named)}",
    )


def _down_seconds(run: AuditInput) -> float:
    return sum(float(outage["down_seconds"]) for outage in run.outages)


def _clocks(run: AuditInput) -> Iterator[Check]:
    bound_us = run.clock_bound_ns / 1000
    error = f"the clocks' error of {bound_us:.0f} us"
    if run.negative and run.clock_bound_ns == 0:
        yield Check("clocks", "fail", f"{run.negative} latencies were negative on one clock")
    elif run.negative:
        yield Check(
            "clocks", "warn", f"{run.negative} latencies were negative, taken as 0; {error}"
        )
    elif run.latency_p50_us is not None and bound_us > run.latency_p50_us:
        yield Check(
            "clocks", "warn", f"{error} exceeds the median latency: one-way latency is unreliable"
        )
    else:
        yield Check("clocks", "pass", f"clocks agree within {bound_us:.0f} us")


def _surroundings(run: AuditInput) -> Iterator[Check]:
    if run.warmup_seconds < RECOMMENDED_WARMUP_SECONDS:
        yield Check(
            "warmup",
            "warn",
            f"a warm-up of {run.warmup_seconds:g} s is short: 5 s at least, 10-30 s at high rates",
        )
    if _is_host_busy(run):
        yield Check(
            "host_cpu",
            "warn",
            f"an agent's host was {run.busiest_host_share:.0%} busy: latencies may contain waiting "
            "for CPU",
        )
    if _is_host_busy(run) and run.shares_host and (run.spark_cores or 0.0) >= NOTICEABLE_CORES:
        yield Check(
            "spark_cpu",
            "warn",
            f"Spark itself used {run.spark_cores:.1f} cores of a busy machine that is the broker's "
            "too: --no-live leaves them to the broker",
        )
    if run.shares_host:
        yield Check("host", "warn", "broker and generator share a host and compete for its CPU")
    elif run.link_speed_mbit:
        used = run.bytes_per_second * 8 / (run.link_speed_mbit * 1_000_000)
        if used >= NEAR_LINK_SPEED:
            yield Check(
                "link",
                "warn",
                f"bodies alone used {used:.0%} of the {run.link_speed_mbit} Mbit/s link",
            )


def _samples(run: AuditInput) -> Iterator[Check]:
    if not run.samples_wanted:
        return
    short = [pair for pair, taken in enumerate(run.samples_by_pair) if taken < run.samples_wanted]
    if not short:
        yield Check(
            "samples", "pass", f"every pair has its {run.samples_wanted} samples of the throughput"
        )
        return
    fewest = min(run.samples_by_pair)
    pairs = len(run.samples_by_pair)
    yield Check(
        "samples",
        "warn" if fewest else "fail",
        f"{len(short)} of {pairs} pairs have fewer than {run.samples_wanted} samples of the "
        f"throughput, the fewest {fewest}: the run ended before (phases.measure_seconds is the "
        "longest it may take)",
    )


def _bounds(run: AuditInput) -> Iterator[Check]:
    for measure, names in run.lower_bounds.items():
        if names:
            shown = ", ".join(name.removesuffix("_us") for name in names)
            yield Check(
                "lower_bounds",
                "warn",
                f"{measure}: {shown} are lower bounds; slower messages were unsent, still on their "
                "way, or above the histogram's range",
            )


_PARTS = (
    _schedule,
    _backlog,
    _connections,
    account_checks,
    trace_checks,
    content_checks,
    _generator,
    _clocks,
    _bounds,
    _samples,
    _surroundings,
)
