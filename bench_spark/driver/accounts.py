"""Adds up the agents' reports: where every message went, and how the agents themselves fared.

The unit is the expected delivery: one message for one subscription. In a fan-out a message has
several, and each has its own fate:

    sent x copies = received_once + failed + left_in_broker + lost + indeterminate
    received = received_once + duplicates

Agents report the sets of sequence numbers that they received, and the driver unites them, so a
duplicate in one agent cannot hide a loss in another. *Lost* is a claim about the broker and made
only where it holds: the message was confirmed (or confirms were not used), it was not received, and
nothing is left for its subscription. Where that cannot be known the message is *indeterminate*.

The agents' CPU use, hosts and clocks are gathered from the event rows that they send, because a
result is worth only as much as its generator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from bench_spark.agent.protocol import EventRow
from bench_spark.agent.sampler import SAMPLE_DTYPE, Samples
from bench_spark.agent.timeline import MEASURE
from bench_spark.config.topologies import Wiring
from bench_spark.core.clock import NANOSECONDS
from bench_spark.core.sequences import SEQUENCE_LIMIT, SequencePages, SequenceSets
from bench_spark.driver.control import RunControl
from bench_spark.plan import Plan, has_open_end


@dataclass(frozen=True)
class Sent:
    """What one producer sent; sequence numbers of the measured phase follow those of warm-up."""

    producer: int
    warmup: int
    measured: int


@dataclass(frozen=True)
class Accounts:
    """Of the measured phase. `sent` counts messages, the other counts are of deliveries."""

    sent: int = 0
    """Messages."""
    received_once: int = 0
    failed: int = 0
    """Of messages that were refused or returned, and did not arrive all the same."""
    left_in_broker: int = 0
    lost: int = 0
    indeterminate: int = 0
    missing: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    """By producer, the first ranges of sequence numbers that one of its subscriptions never
    received."""
    copies: int = 1
    unexpected: int = 0
    """Received sequence numbers that their producers have not sent, without those that an agent
    recognised as such on arrival."""
    is_reported: bool = True
    """Whether every agent has reported which numbers it received. A killed agent has not."""

    @property
    def settled(self) -> int:
        return (
            self.received_once + self.failed + self.left_in_broker + self.lost + self.indeterminate
        )

    @property
    def closes(self) -> bool:
        return self.sent * self.copies == self.settled


def completed(known: Accounts, sent: int, received: int, duplicates: int) -> Accounts:
    """Complete the accounts where agents ended without a report, by the counts in `events`.

    Each agent has excluded its own duplicates. A message that two agents received is counted twice
    here, but the sum never exceeds what was sent. All other deliveries are indeterminate.
    """
    others = known.failed + known.left_in_broker + known.lost
    open_deliveries = max(0, sent * known.copies - others)
    received_once = min(received - duplicates, open_deliveries)
    return replace(
        known,
        sent=sent,
        received_once=received_once,
        indeterminate=open_deliveries - received_once,
    )


class Ledger:
    """Unites what all agents report, then draws up the accounts."""

    def __init__(self, wiring: Wiring, confirms: bool) -> None:
        self._wiring = wiring
        self._streams = wiring.streams
        self._stream_of = wiring.stream_of_producer
        self._confirms = confirms
        self._received = SequenceSets(wiring.subscriptions * self._streams)
        self._confirmed = SequenceSets(wiring.producers)
        self._failed = SequenceSets(wiring.producers)
        self._sent: dict[int, Sent] = {}

    def add_sent(self, sent: Sequence[Sent]) -> None:
        self._sent |= {entry.producer: entry for entry in sent}

    def add_pages(self, received: bytes, confirmed: bytes, failed: bytes) -> None:
        """Raises ValueError when the bytes are not what an agent sends."""
        self._received.absorb(SequencePages.from_bytes(received))
        self._confirmed.absorb(SequencePages.from_bytes(confirmed))
        self._failed.absorb(SequencePages.from_bytes(failed))

    def accounts(
        self,
        depths: Mapping[int, int | None],
        is_complete: bool,
        before: Mapping[int, int | None] | None = None,
    ) -> Accounts:
        """`depths`: messages left per subscription (None or absent: unknown). `before`: how many of
        them were there before the load. `is_complete`: every consumer reported, and all that was on
        its way has arrived, so a message that is in no report was not received."""
        of_others = before or {}
        parts = [
            self._subscription(
                index, depths.get(index) if is_complete else None, of_others.get(index) or 0
            )
            for index in range(self._wiring.subscriptions)
        ]
        return Accounts(
            sent=sum(entry.measured for entry in self._sent.values()),
            received_once=sum(part.received_once for part in parts),
            failed=sum(part.failed for part in parts),
            left_in_broker=sum(part.left_in_broker for part in parts),
            lost=sum(part.lost for part in parts),
            indeterminate=sum(part.indeterminate for part in parts),
            missing={key: value for part in parts for key, value in part.missing.items()},
            copies=self._wiring.copies,
            unexpected=self._unexpected(),
        )

    def _unexpected(self) -> int:
        return sum(
            self._received.count(
                index * self._streams + int(self._stream_of[sent.producer]),
                sent.warmup + sent.measured,
                SEQUENCE_LIMIT,
            )
            for index in range(self._wiring.subscriptions)
            for sent in self._senders_to(index)
        )

    def _senders_to(self, subscription: int) -> Iterator[Sent]:
        group = self._wiring.group_of_subscription(subscription)
        for producer in self._wiring.producers_of_group(group):
            sent = self._sent.get(producer)
            if sent is not None and sent.measured:
                yield sent

    def _subscription(self, index: int, depth: int | None, of_others: int) -> Accounts:
        received_once = failed = sure = unsure = 0
        missing: dict[int, list[tuple[int, int]]] = {}
        for sent in self._senders_to(index):
            group = index * self._streams + int(self._stream_of[sent.producer])
            first, end = sent.warmup, sent.warmup + sent.measured
            arrived = self._received.count(group, first, end)
            received_once += arrived
            if arrived == sent.measured:
                continue
            absent = ~self._received.members(group, first, end)
            has_failed = self._failed.members(sent.producer, first, end) & absent
            is_open = absent & ~has_failed
            failed += int(np.count_nonzero(has_failed))
            is_sure = is_open
            if self._confirms:
                is_sure = is_open & self._confirmed.members(sent.producer, first, end)
            sure += int(np.count_nonzero(is_sure))
            unsure += int(np.count_nonzero(is_open)) - int(np.count_nonzero(is_sure))
            missing[sent.producer] = self._received.missing(group, first, end)
        if depth is None:
            return Accounts(0, received_once, failed, 0, 0, sure + unsure, missing)
        # What is still in the broker is not lost: it is set against confirmed messages first. Of
        # messages that were there before, it is unknown whether they were received or are left.
        most_left = min(depth, sure + unsure)
        left = min(max(0, depth - of_others), sure + unsure)
        lost = max(0, sure - most_left)
        return Accounts(
            sent=0,
            received_once=received_once,
            failed=failed,
            left_in_broker=left,
            lost=lost,
            indeterminate=sure + unsure - left - lost,
            missing=missing,
        )


SHORTEST_TICK_SECONDS = 0.5
"""Shorter ticks, which were cut off, say little about CPU use."""


@dataclass
class ClockError:
    """How wrong an agent's clock may be: its tightest bound, and the most drift beyond a bound."""

    bound_ns: int
    drift_ns: int = 0

    def add(self, offset_ns: int, bound_ns: int) -> None:
        self.bound_ns = min(self.bound_ns, bound_ns)
        self.drift_ns = max(self.drift_ns, abs(offset_ns) - bound_ns)


@dataclass
class AgentHealth:
    """What event rows say of the agents that sent them: CPU use, hosts, clocks."""

    busiest_share: float | None = None
    cpu_seconds: dict[int, float] = field(default_factory=dict)
    _clocks: dict[int, ClockError] = field(default_factory=dict)
    _hosts: dict[int, list[float]] = field(default_factory=dict)

    def add(self, agent: int, rows: list[EventRow]) -> None:
        for row in rows:
            if row.cpu_seconds is None:
                continue
            self.cpu_seconds[agent] = self.cpu_seconds.get(agent, 0.0) + row.cpu_seconds
            bound_ns = row.clock_bound_ns or 0
            clock = self._clocks.setdefault(agent, ClockError(bound_ns))
            clock.add(row.clock_offset_ns or 0, bound_ns)
            if row.phase == MEASURE and row.tick_seconds >= SHORTEST_TICK_SECONDS:
                share = row.cpu_seconds / row.tick_seconds
                self.busiest_share = max(self.busiest_share or 0.0, share)
                if row.host_busy_share is not None:
                    self._hosts.setdefault(agent, []).append(row.host_busy_share)

    @property
    def busiest_host_share(self) -> float | None:
        """How busy the busiest agent's host was, on average over the measured phase."""
        return max((sum(found) / len(found) for found in self._hosts.values()), default=None)

    def clock_error_ns(self, agent: int) -> int:
        clock = self._clocks.get(agent)
        return clock.bound_ns + clock.drift_ns if clock is not None else 0

    @property
    def clock_bound_ns(self) -> int:
        return max((self.clock_error_ns(agent) for agent in self._clocks), default=0)


def uses_confirms(control: RunControl) -> bool:
    return any(state.reports.get("ready", {}).get("confirms") for state in control.agents)


def accounts_of(plan: Plan, control: RunControl) -> Accounts | None:
    """Where every message went; None if the load never began, if the run has one end only, or if
    bodies carry no sequence number."""
    if not plan.scenario.has_accounts or control.start_at_ns is None:
        return None
    ledger = Ledger(plan.scenario.wiring, uses_confirms(control))
    depths: dict[int, int | None] = {}
    before: dict[int, int | None] = {}
    for state in control.agents:
        closed = state.reports.get("closed")
        if closed is None:
            continue
        ledger.add_sent([Sent(*entry) for entry in closed["sent_by_producer"]])
        ends = [sum(closed["page_bytes"][: part + 1]) for part in range(3)]
        ledger.add_pages(
            received=state.pages[: ends[0]],
            confirmed=state.pages[ends[0] : ends[1]],
            failed=state.pages[ends[1] : ends[2]],
        )
        found = state.reports.get("inspected", {}).get("depths", {})
        depths |= {int(index): depth for index, depth in found.items()}
        found = state.reports.get("declared", {}).get("depths", {})
        before |= {int(index): depth for index, depth in found.items()}
    closed_by = [state.reports.get("closed") for state in control.agents]
    is_complete = all(
        closed["is_settled"] if closed is not None else not plan.assignments[agent].consumers
        for agent, closed in enumerate(closed_by)
    )
    is_reported = all(closed is not None for closed in closed_by)
    return replace(ledger.accounts(depths, is_complete, before), is_reported=is_reported)


def measured_span(plan: Plan, control: RunControl) -> tuple[float, float] | tuple[None, None]:
    """Start and end of the measured phase in seconds since the epoch; both None if it never began.

    It ends early when all messages are sent. Where a run has one end only, and ends after a number
    of messages, the phase lasts from the first of them to the last: waiting before and after is no
    part of it.
    """
    timeline = control.timeline
    if timeline is None:
        return None, None
    start_ns = timeline.measure_start_ns
    ended = [
        int(state.reports["produced"]["ended_ns"])
        for agent, state in enumerate(control.agents)
        if "produced" in state.reports
        and (plan.assignments[agent].producers or plan.scenario.only_consumes)
    ]
    # Killed agents have not reported when they ended: by the time at which that was noticed.
    latest_ns = timeline.measure_end_ns if control.stopped_at_ns is None else control.stopped_at_ns
    until_ns = min(timeline.measure_end_ns, max(ended, default=latest_ns))
    if plan.scenario.only_publishes:
        firsts = [
            state.reports.get("produced", {}).get("first_measured_ns") for state in control.agents
        ]
        start_ns = min((first for first in firsts if first is not None), default=start_ns)
    elif plan.scenario.only_consumes and has_open_end(plan.scenario):
        spans = [
            span
            for state in control.agents
            if (span := state.reports.get("closed", {}).get("received_span_ns")) is not None
        ]
        if spans:
            until_ns = max(last for _, last in spans)
            first_ns = min(first for first, _ in spans)
            # Received all at once they span no time: then the wait for them counts.
            start_ns = first_ns if first_ns < until_ns else start_ns
    return start_ns / NANOSECONDS, max(until_ns, start_ns) / NANOSECONDS


class Counted(NamedTuple):
    """Messages of the measured phase."""

    sent: int
    received: int


def counted_while_measured(plan: Plan, control: RunControl) -> Counted | None:
    """Messages sent and received by the end of a measured phase with an open end.

    Agents count these at that moment, because events count by the second, and the last second goes
    on into the drain. None where the phase has its planned length, or where an agent has not
    reported.
    """
    if not plan.scenario.has_both_ends or not has_open_end(plan.scenario):
        return None
    reports = [state.reports.get("produced") for state in control.agents]
    told = [report for report in reports if report is not None]
    if len(told) < len(reports):
        return None
    return Counted(
        sent=sum(int(report["sent_measured"]) for report in told),
        received=sum(int(report["received_measured"]) for report in told),
    )


class AgentSamples(NamedTuple):
    agent: int
    attempt: int
    samples: Samples


def samples_of(plan: Plan, control: RunControl) -> tuple[AgentSamples, ...] | None:
    """The samples of every agent that has closed its lanes; None where none were wanted."""
    if not plan.scenario.sampling.samples:
        return None
    return tuple(
        AgentSamples(
            agent,
            state.attempt,
            np.frombuffer(state.pages[sum(closed["page_bytes"][:3]) :], dtype=SAMPLE_DTYPE),
        )
        for agent, state in enumerate(control.agents)
        if (closed := state.reports.get("closed")) is not None
    )


def stalled_seconds(
    stalls: Sequence[tuple[int, int]], measured: tuple[float | None, float | None]
) -> float:
    """How long an agent did not run within the measured phase, by its own report of stalls."""
    measured_from, measured_until = measured
    if measured_from is None or measured_until is None:
        return 0.0
    return sum(
        max(0.0, min(until / NANOSECONDS, measured_until) - max(since / NANOSECONDS, measured_from))
        for since, until in stalls
    )


def silences_of(control: RunControl, measured_from: float | None) -> tuple[dict[str, Any], ...]:
    """Consumers that received nothing for too long: which, when in the measured phase, how long."""
    return tuple(
        {
            "consumers": list(silence.consumers),
            "after_seconds": silence.since_ns / NANOSECONDS - (measured_from or 0.0),
            "seconds": silence.length_ns / NANOSECONDS,
        }
        for silence in control.silence.silences()
    )


def agent_entry(
    control: RunControl,
    agent: int,
    health: AgentHealth,
    measured: tuple[float | None, float | None],
) -> dict[str, Any]:
    """One agent in the result: where it ran, what it sent and received, how well it kept time."""
    state = control.agents[agent]
    probed = state.reports.get("probed", {})
    closed = state.reports.get("closed", {})
    began_ns = state.reports.get("produced", {}).get("began_ns")
    late_us = None
    if began_ns is not None and control.start_at_ns is not None:
        late_us = (int(began_ns) - control.start_at_ns) / 1000
    return {
        "agent": agent,
        "host": probed.get("host", {}).get("host"),
        "executor": probed.get("executor"),
        "connections": state.reports.get("ready", {}).get("connections"),
        "sent": state.progress.get("sent"),
        "received_once": state.progress.get("received_once"),
        "cpu_seconds": health.cpu_seconds.get(agent),
        "turns_per_second": closed.get("turns_per_second"),
        "started_late_us": late_us,
        "clock_error_us": health.clock_error_ns(agent) / 1000,
        "stalled_seconds": stalled_seconds(closed.get("stalls", ()), measured),
        "outages": closed.get("outages", []),
        "answers_by_status": closed.get("answers_by_status", {}),
        "trace": closed.get("trace"),
    }
