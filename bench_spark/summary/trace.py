"""Messages joined one by one: the section `trace` of a result, and whether the accounts agree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bench_spark.agent.timeline import Timeline
from bench_spark.collector.accounts import Accounts
from bench_spark.core.hdr import SparseHistogram
from bench_spark.messages.joining import JoinedMessages
from bench_spark.plan import Plan
from bench_spark.scenario.trace_section import OFF
from bench_spark.summary.checks import TraceFindings
from bench_spark.summary.statistics import statistics

MOST_PRODUCERS_LISTED = 20


@dataclass(frozen=True)
class TraceFacts:
    joined: JoinedMessages
    timeline: Timeline
    seconds: float
    """How long the join took."""

    def by_time(self, measure: str) -> Iterator[tuple[float, SparseHistogram]]:
        """The measure's ticks, each by its start in seconds since the epoch, in order."""
        for tick, histogram in sorted(self.joined.ticks.get(measure, {}).items()):
            # As tables hold it: in whole microseconds.
            yield self.timeline.tick_start_ns(tick) // 1000 / 1_000_000, histogram


def trace_section(plan: Plan, trace: TraceFacts | None) -> dict[str, Any] | None:
    """None where nothing is traced; of a sample there is no more to tell than that."""
    scenario = plan.scenario
    if scenario.trace == OFF:
        return None
    section: dict[str, Any] = {"mode": scenario.trace}
    if trace is None:
        return section | {"joined": False}
    joined = trace.joined
    names = ("sent", "confirmed", "received", "received_once")
    return section | {
        "joined": True,
        "join_seconds": round(trace.seconds, 3),
        **{name: joined.total(name) for name in names},
        "missing": joined.missing(plan.copies) if scenario.has_both_ends else None,
        "duplicates": joined.duplicates,
        "out_of_order": sum(joined.out_of_order.values()),
        "corrupted": joined.total("corrupted"),
        "unexpected": joined.total("unexpected"),
        "untimed_by_agents": joined.total("untimed"),
        "measures": {
            measure: statistics(joined.histogram(measure), scenario.histogram.highest_us)
            for measure in joined.ticks
        },
        "producers": _worst_producers(joined, plan.copies if scenario.has_both_ends else None),
    }


def _worst_producers(joined: JoinedMessages, copies: int | None) -> list[dict[str, Any]]:
    """Producers whose messages did not all arrive once, in order and whole; the worst first."""
    entries: list[dict[str, Any]] = []
    for producer, counts in joined.by_producer.items():
        missing = 0 if copies is None else counts["sent"] * copies - counts["received_once"]
        troubles: dict[str, int] = {
            "missing": missing,
            "duplicates": counts["received"] - counts["received_once"],
            "out_of_order": 0 if producer is None else joined.out_of_order.get(producer, 0),
            "corrupted": counts["corrupted"],
            "unexpected": counts["unexpected"],
        }
        if any(troubles.values()):
            entries.append({"producer": producer, **troubles, "all": sum(troubles.values())})
    entries.sort(key=lambda entry: -entry["all"])
    return entries[:MOST_PRODUCERS_LISTED]


def trace_findings(
    plan: Plan,
    trace: TraceFacts | None,
    counts: Mapping[str, int | None],
    accounts: Accounts | None,
) -> TraceFindings | None:
    """What the join and the agents' own counting say of the same messages."""
    if trace is None:
        return None
    joined = trace.joined
    pairs: dict[str, tuple[int, int | None]] = {
        name: (joined.total(name), counts[name]) for name in ("sent", "confirmed", "received")
    }
    pairs["out of order"] = (sum(joined.out_of_order.values()), counts["out_of_order"])
    if accounts is not None:
        unreceived = accounts.sent * accounts.copies - accounts.received_once
        pairs["received once"] = (joined.total("received_once"), accounts.received_once)
        pairs["missing"] = (joined.missing(plan.copies), unreceived)
    return TraceFindings(
        messages=joined.total("sent"),
        disagreements={
            name: (by_join, by_agents)
            for name, (by_join, by_agents) in pairs.items()
            if by_agents is not None and by_join != by_agents
        },
        corrupted=joined.total("corrupted"),
        unexpected=joined.total("unexpected"),
    )
