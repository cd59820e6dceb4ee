"""What is known of a run beside its events: what the driver saw, objectives, joined messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bench_spark.agent.timeline import Timeline
from bench_spark.config.objectives import Judged, Objective, parse_objective
from bench_spark.config.sections import OFF
from bench_spark.core.hdr import SparseHistogram
from bench_spark.plan import Plan
from bench_spark.results.totals import statistics

if TYPE_CHECKING:
    from bench_spark.driver.accounts import Accounts, AgentSamples, Counted
    from bench_spark.driver.control import Failure
    from bench_spark.results.checks import Check
    from bench_spark.trace.joining import JoinedMessages


@dataclass(frozen=True)
class MissedWhileRunning:
    """The objective that a rolling window missed, and with that ended the run."""

    objective: str
    value: float
    after_seconds: float
    """Of the measured phase."""


def judged_objectives(
    texts: Sequence[str], document: Mapping[str, Any], stopped_by: MissedWhileRunning | None = None
) -> list[dict[str, Any]]:
    """The section `slo` of a result."""
    return [_entry(parse_objective(text), document, stopped_by) for text in texts]


def _entry(
    objective: Objective, document: Mapping[str, Any], stopped_by: MissedWhileRunning | None
) -> dict[str, Any]:
    judged = objective.judge(document)
    entry = {
        "objective": objective.text,
        "path": judged.path,
        "value": judged.value,
        "met": judged.is_met,
        "note": _note(judged),
    }
    if stopped_by is not None and stopped_by.objective == objective.text:
        entry |= {
            "value": stopped_by.value,
            "met": False,
            "note": f"in the rolling window after {stopped_by.after_seconds:.0f} s; the run was "
            "ended there",
        }
    return entry


def _note(judged: Judged) -> str | None:
    if judged.value is None:
        return "not known of this run"
    return "a lower bound" if judged.is_lower_bound else None


def missed_in_window(
    texts: Sequence[str], window: Mapping[str, Any], after_seconds: float
) -> MissedWhileRunning | None:
    """The first objective that a rolling window misses; `window` has the paths of a result that
    can be known while a run goes on, and what it has not is not judged."""
    for objective in map(parse_objective, texts):
        judged = objective.judge(window)
        if judged.value is not None and not judged.is_met:
            return MissedWhileRunning(objective.text, judged.value, after_seconds)
    return None


def is_judged_live(text: str) -> bool:
    """Whether an objective is about numbers that rolling windows have."""
    paths = parse_objective(text).paths
    return any(path.startswith(("measures.", "rates.")) for path in paths)


MOST_PRODUCERS_LISTED = 20


@dataclass(frozen=True)
class TraceFindings:
    """What came of joining all messages by their IDs."""

    messages: int
    disagreements: Mapping[str, tuple[int, int]]
    """Counts that differ: by the join, and by the agents' own sets and counters."""
    corrupted: int
    unexpected: int


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
    """None where nothing is traced; of a sample only that it is one."""
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


def trace_findings(facts: RunFacts, counts: Mapping[str, int | None]) -> TraceFindings | None:
    """What the join and the agents' own counting say of the same messages."""
    trace, accounts = facts.messages.trace, facts.messages.accounts
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
        pairs["missing"] = (joined.missing(facts.plan.copies), unreceived)
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


CENSORED_MEASURES = ("latency", "delivery_latency")
"""Measures of messages that may have arrived too late, or nowhere, to have a value."""


@dataclass(frozen=True)
class RunEnd:
    """How a run ended."""

    failures: tuple[Failure, ...] = ()
    interrupted_by: int | None = None
    """Exit code of the signal that ended the run early."""
    stopped_by: MissedWhileRunning | None = None
    """The objective whose miss ended the run early, if one did."""
    is_partial: bool = False
    """The run goes on, or how it ended is unknown."""


@dataclass(frozen=True)
class GeneratorFacts:
    """What made the load: agents, Spark, and their machines."""

    busiest_agent_share: float | None = None
    """Highest share of one core that any agent used in a measured second."""
    busiest_host_share: float | None = None
    """How busy the busiest agent's machine was in the measured phase, all cores and programs."""
    spark_cores: float | None = None
    """What Spark and the driver used in the measured phase, in cores."""
    clock_bound_ns: int = 0
    agents: Sequence[dict[str, Any]] = ()
    environment: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class MessageFacts:
    """What became of the messages, as the agents reported it."""

    accounts: Accounts | None = None
    confirms: bool = False
    counted: Counted | None = None
    """Messages of a measured phase that had an open end."""
    samples: tuple[AgentSamples, ...] | None = None
    """Of the throughput at the consumers; None where none were to be taken."""
    silences: tuple[Mapping[str, Any], ...] = ()
    """Consumers that got nothing for too long while their producers were confirmed: `consumers`,
    `after_seconds` of the measured phase, `seconds`."""
    trace: TraceFacts | None = None
    """All messages joined by their IDs, where every one was traced."""


@dataclass(frozen=True)
class RunFacts:
    """Of one run, once its agents have ended."""

    plan: Plan
    broker: dict[str, Any]
    """Masked, as `brokers`."""
    measured: tuple[float | None, float | None]
    """The ends of the measured phase in seconds since the epoch; None when the load never
    started."""
    messages: MessageFacts
    generator: GeneratorFacts = field(default_factory=GeneratorFacts)
    end: RunEnd = field(default_factory=RunEnd)
    brokers: Sequence[Mapping[str, Any]] = ()
    """All of them with their roles, where there are several."""
    broker_resources: Mapping[str, Any] = field(default_factory=dict)
    """The broker's own use of its machine and whether it held producers back."""
    notes: tuple[Check, ...] = ()
    """What else the reader should know."""

    @property
    def measured_from(self) -> float | None:
        return self.measured[0]

    @property
    def measured_until(self) -> float | None:
        return self.measured[1]

    @property
    def measured_seconds(self) -> float:
        if self.measured_from is None or self.measured_until is None:
            return 0.0
        # Seconds since the epoch are exact to a quarter of a microsecond: without rounding, 1000
        # messages in 2 s could be 500.0001 a second, which is more than was asked for.
        return max(0.0, round(self.measured_until - self.measured_from, 6))

    @property
    def ended_early(self) -> bool:
        """Whether fewer messages were due than planned, for a reason that is no failure."""
        end = self.end
        return end.interrupted_by is not None or end.stopped_by is not None or end.is_partial

    @property
    def supplied_by_join(self) -> tuple[str, ...]:
        """Measures that the receiving agents could not take of every message, but the join can."""
        trace = self.messages.trace
        if trace is None or not trace.joined.total("untimed"):
            return ()
        return tuple(name for name in CENSORED_MEASURES if name in trace.joined.ticks)
