"""What happens to connections, whom that concerns, and the time it cost.

`ConnectionEvents` books lanes that are blocked, lost and reopened, and `Outages` keeps the record
of who was down for how long. `Backpressure` holds back lanes that are full: a transport accepts a
batch from its front, up to the first message whose lane has no room, and one slow lane would make a
thousand others late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bench_spark.agent.flow import Flow
from bench_spark.agent.load import AgentLoad, Backlog
from bench_spark.agent.timeline import CONSUMER, PRODUCER
from bench_spark.core.clock import NANOSECONDS
from bench_spark.errors import BenchError, LaneLost
from bench_spark.transports.base import Signal, SignalKind


@dataclass
class Outage:
    """What one lane went through, all its losses together."""

    role: str
    member: int
    losses: int = 0
    reopened: int = 0
    down_ns: int = 0
    reason: str = ""
    """Of the last loss, in the broker's words where it has any."""

    def as_dict(self) -> dict[str, Any]:
        return {
            "role": self.role,
            "member": self.member,
            "losses": self.losses,
            "reopened": self.reopened,
            "down_seconds": self.down_ns / NANOSECONDS,
            "reason": self.reason,
        }


class Outages:
    """Of the lanes of one agent."""

    def __init__(self) -> None:
        self._lanes: dict[tuple[str, int], Outage] = {}
        self._booked_until: dict[tuple[str, int], int] = {}
        """Of lanes that are down: up to when their down time is booked."""

    def count_down(self, role: str | None = None) -> int:
        """How many lanes are down, of this role or of both."""
        return sum(1 for of_role, _ in self._booked_until if role in (None, of_role))

    def is_down(self, role: str, lane: int) -> bool:
        return (role, lane) in self._booked_until

    def lost(self, role: str, lane: int, member: int, at_ns: int, reason: str) -> None:
        outage = self._lanes.setdefault((role, lane), Outage(role, member))
        outage.losses += 1
        outage.reason = reason
        self._booked_until[role, lane] = at_ns

    def book(
        self, role: str, lane: int, until_ns: int, tick_end_ns: Callable[[int], int]
    ) -> list[tuple[int, int]]:
        """How long the lane was down since it was booked last: by tick, a moment in it and that.

        `tick_end_ns`: when the tick ends in which a moment lies.
        """
        pieces = []
        since_ns = self._booked_until[role, lane]
        while since_ns < until_ns:
            end_ns = min(until_ns, tick_end_ns(since_ns))
            pieces.append((since_ns, end_ns - since_ns))
            since_ns = end_ns
        self._booked_until[role, lane] = since_ns
        self._lanes[role, lane].down_ns += sum(down_ns for _, down_ns in pieces)
        return pieces

    def reopened(self, role: str, lane: int) -> None:
        """The lane is up again; its down time was booked before."""
        self._lanes[role, lane].reopened += 1
        del self._booked_until[role, lane]

    def down(self) -> list[tuple[str, int]]:
        """Role and lane of all that are down."""
        return list(self._booked_until)

    def report(self) -> list[dict[str, Any]]:
        found = sorted(self._lanes.values(), key=lambda one: (one.role, one.member))
        return [outage.as_dict() for outage in found]


LOOK_NS = 5_000_000
"""How often to look whether lanes have room again."""


class Backpressure:
    """On a schedule, a lane that is full must not make the others late."""

    def __init__(
        self, full_among: Callable[[Iterable[int]], set[int]], flow: Flow, is_needed: bool = True
    ) -> None:
        self._full_among = full_among
        self._flow = flow
        self._is_needed = is_needed
        self.lanes: set[int] = set()
        """Those that are held back."""
        self._next_look_ns = 0

    def put(self, refused: npt.NDArray[np.uint32], now_ns: int) -> bool:
        """Hold back those that are full of the lanes of refused messages; whether there were any.

        A lane that has room after all, since a moment, is simply tried again.
        """
        if not self._is_needed:
            return False
        full = self._full_among(np.unique(refused).tolist())
        for lane in full:
            self._flow.suspend(lane)
        if full and not self.lanes:
            self._next_look_ns = now_ns + LOOK_NS
        self.lanes |= full
        return bool(full)

    def take_back(self, now_ns: int) -> None:
        """Let lanes that have room send again."""
        if not self.lanes or now_ns < self._next_look_ns:
            return
        self._next_look_ns = now_ns + LOOK_NS
        still_full = self._full_among(self.lanes)
        for lane in self.lanes - still_full:
            self._flow.resume(lane)
        self.lanes = still_full

    def forget(self, lane: int) -> None:
        """The lane is down: whoever opens it again says when it is back."""
        self.lanes.discard(lane)


def _needs_backpressure(load: AgentLoad) -> bool:
    assignment = load.assignment
    # With one message on its way at most, no lane of a request/response load is ever full.
    waits_for_answers = assignment.scenario.load.mode == "request"
    is_paced = assignment.schedule is not None and not waits_for_answers
    return is_paced and len(assignment.producers) > 1


LOOK_FOR_EVENTS_NS = 5_000_000
"""How often to ask for signals while nothing is accepted: a full socket is the usual reason."""


class ConnectionEvents:
    def __init__(
        self, load: AgentLoad, flow: Flow, backlog: Backlog, fail: Callable[[BenchError], None]
    ) -> None:
        """`fail`: called with the reason why a lane is lost for good."""
        self._load = load
        self._flow = flow
        self._backlog = backlog
        self._recorder = load.recorder
        self._fail = fail
        self._blocked_since: dict[int, int] = {}
        self._next_look_ns = 0
        self.outages = Outages()
        self.backpressure = Backpressure(
            load.producers.full_among, flow, is_needed=_needs_backpressure(load)
        )

    def handle_all(self) -> None:
        for signal in self._load.producers.signals():
            self.handle(signal, PRODUCER)
        for signal in self._load.consumers.signals():
            self.handle(signal, CONSUMER)

    def handle_refusal(self, now: int) -> None:
        """Nothing was accepted: maybe because a lane is down."""
        if now >= self._next_look_ns:
            self._next_look_ns = now + LOOK_FOR_EVENTS_NS
            self.handle_all()

    def handle(self, signal: Signal, role: str) -> None:
        if signal.kind is SignalKind.BLOCKED:
            self._blocked_since.setdefault(signal.lane, signal.at_ns)
        elif signal.kind is SignalKind.UNBLOCKED:
            since = self._blocked_since.pop(signal.lane, signal.at_ns)
            self._recorder.blocked(signal.at_ns, signal.at_ns - since)
        elif signal.kind is SignalKind.LOST:
            self._lose(signal, role)
        elif signal.kind is SignalKind.REOPENED:
            self._reopen(signal, role)
        elif signal.kind is SignalKind.REPEATS_DROPPED:
            self._recorder.repeats_dropped(signal.at_ns, signal.count)

    def _lose(self, signal: Signal, role: str) -> None:
        lane, at_ns = signal.lane, signal.at_ns
        if role == PRODUCER and lane in self._blocked_since:
            self._recorder.blocked(at_ns, at_ns - self._blocked_since.pop(lane))
        if self.outages.is_down(role, lane):
            self._book_outage(role, lane, at_ns)
        else:
            self._recorder.error(role, at_ns)
        if not signal.is_reopening:
            self._fail(self._lost(signal, role))
            return
        assignment = self._load.assignment
        members = assignment.producers if role == PRODUCER else assignment.consumers
        self.outages.lost(role, lane, members[lane].index, at_ns, signal.reason)
        if role == PRODUCER:
            self.backpressure.forget(lane)
            self._flow.suspend(lane)

    def _lost(self, signal: Signal, role: str) -> LaneLost:
        address = self._load.addresses[role]
        named = signal.reason if address in signal.reason else f"{address}: {signal.reason}"
        return LaneLost(named)

    def _reopen(self, signal: Signal, role: str) -> None:
        lane, at_ns = signal.lane, signal.at_ns
        self._recorder.reconnected(role, at_ns)
        self._book_outage(role, lane, at_ns)
        self.outages.reopened(role, lane)
        self._backlog.lane_reopened()
        if role == PRODUCER:
            self._flow.resume(lane)
        else:
            self._flow.settle_all()

    # -- what lasts ------------------------------------------------------------------------------

    def book_ongoing(self, now: int) -> None:
        """What lanes that are blocked or down have cost until now."""
        for lane, since in self._blocked_since.items():
            self._recorder.blocked(now, now - since)
            self._blocked_since[lane] = now
        for role, lane in self.outages.down():
            self._book_outage(role, lane, now)

    def _book_outage(self, role: str, lane: int, until_ns: int) -> None:
        timeline = self._load.timeline
        for at_ns, down_ns in self.outages.book(
            role, lane, until_ns, lambda at_ns: timeline.tick_end_ns(timeline.tick_at(at_ns))
        ):
            self._recorder.disconnected(role, at_ns, down_ns)
