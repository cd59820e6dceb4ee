"""What happens to connections, whom that concerns, and the time it cost.

`ConnectionEvents` books lanes that are blocked, lost and reopened. `Outages` keeps the record of
who was down for how long, and `WriteOff` answers the question that a lost connection leaves behind:
how many of the messages that are out will never arrive? `Backlog` says how far senders may run
ahead of consumers. `Backpressure` holds back lanes that are full: a transport accepts a batch from
its front, up to the first message whose lane has no room, and one slow lane would make a thousand
others late. `WindowWatch` finds windows that do not move.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bench_spark.agent.flow import Flow, RequestFlow, RoundRobinFlow, WindowFlow
from bench_spark.agent.job import Job, Lanes
from bench_spark.agent.pacing import NO_END
from bench_spark.agent.recorder import Recorder
from bench_spark.agent.timeline import CONSUMER, PRODUCER
from bench_spark.core.clock import NANOSECONDS
from bench_spark.errors import BenchError, LaneLost, RunError
from bench_spark.plan import Assignment
from bench_spark.transports.base import Signal, SignalKind

QUIET_NS = NANOSECONDS
"""Once a lane is back, messages that survived arrive; when none has for this long, none will."""


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


class Quiet:
    """How long a number has not changed."""

    def __init__(self) -> None:
        self._seen: int | None = None
        self._since_ns = 0

    def lasts_ns(self, number: int, now_ns: int) -> int:
        if number != self._seen:
            self._seen, self._since_ns = number, now_ns
        return now_ns - self._since_ns

    def start_again(self) -> None:
        self._seen = None


class WriteOff:
    """Messages that are counted as out although they went down with a connection.

    Without confirms nobody can tell them from those still on their way. So after a connection came
    back they are written off once nothing has arrived for `QUIET_NS`. Those that arrive all the
    same are taken back.
    """

    def __init__(self) -> None:
        self.messages = 0
        self.is_due = False
        """A connection came back, and it is not known yet what went down with it."""
        self._quiet = Quiet()

    def reopened(self) -> None:
        self.is_due = True
        self._quiet.start_again()

    def look(self, out: int, received: int, now_ns: int) -> None:
        """`out`: sent, and not received or known to have failed."""
        self.messages = max(0, min(self.messages, out))
        if self.is_due and (out <= 0 or self._quiet.lasts_ns(received, now_ns) >= QUIET_NS):
            self.messages = max(0, out)
            self.is_due = False


@dataclass(slots=True)
class Tally:
    """Every number has one part that adds to it, and others that read it."""

    sent: int = 0
    """Accepted by the transport."""
    received: int = 0
    """Of this run: what another one left behind counts for nothing here."""
    freed: int = 0
    """Refused or returned by the broker: no longer on their way."""
    reopened: int = 0
    """Lanes that came back, not messages."""


class Unbounded:
    """A backlog that nobody need watch: the load is bounded otherwise."""

    def room(self, body_bytes: int) -> int:
        return NO_END

    def told(self, everyones: int) -> None: ...

    def reopened(self) -> None: ...

    def look(self, now_ns: int) -> None: ...


class Backlog:
    """In deliveries: every copy of a message counts, and one message is always let out."""

    def __init__(self, tally: Tally, limit_bytes: int, copies: int, is_shared: bool) -> None:
        """`copies` of each message are delivered. `is_shared`: other agents send to and receive
        from the same destinations, and the driver sends how much is in them."""
        self._tally = tally
        self._limit_bytes = limit_bytes
        self._copies = copies
        self._is_shared = is_shared
        self._everyones = 0
        self._sent_at_news = 0
        self._write_off = WriteOff()

    def room(self, body_bytes: int) -> int:
        """How many more messages of that size the limit allows."""
        limit = max(self._copies, self._limit_bytes // body_bytes)
        if self._is_shared:
            sent_since = self._tally.sent - self._sent_at_news
            backlog = self._everyones + sent_since * self._copies
        else:
            backlog = self._out - self._write_off.messages
            if self._write_off.is_due and backlog > limit // 2:
                # Sending on would hide that of all these nothing arrives any more.
                return 0
        return (limit - backlog) // self._copies

    @property
    def _out(self) -> int:
        """Sent by this agent, and neither received by it nor known to have failed."""
        tally = self._tally
        return (tally.sent - tally.freed) * self._copies - tally.received

    def told(self, everyones: int) -> None:
        """The driver says how much all agents together have under way."""
        self._everyones = everyones
        self._sent_at_news = self._tally.sent

    def reopened(self) -> None:
        """A lane is back; nobody knows yet what went down with its connection."""
        self._write_off.reopened()

    def look(self, now_ns: int) -> None:
        """While all lanes are up: write off what will not arrive any more."""
        self._write_off.look(self._out, self._tally.received, now_ns)


LOOK_NS = 5_000_000
"""How often to look whether lanes have room again."""


class Backpressure:
    def __init__(
        self, full_among: Callable[[Iterable[int]], set[int]], flow: RoundRobinFlow
    ) -> None:
        self._full_among = full_among
        self._flow = flow
        self._lanes: set[int] = set()
        self._next_look_ns = 0

    def put(self, refused: npt.NDArray[np.uint32], now_ns: int) -> bool:
        """Hold back those that are full of the lanes of refused messages; whether there were any.

        A lane that has room after all, since a moment, is simply tried again.
        """
        full = self._full_among(np.unique(refused).tolist())
        for lane in full:
            self._flow.suspend(lane)
        if full and not self._lanes:
            self._next_look_ns = now_ns + LOOK_NS
        self._lanes |= full
        return bool(full)

    def take_back(self, now_ns: int) -> None:
        """Let lanes that have room send again."""
        if not self._lanes or now_ns < self._next_look_ns:
            return
        self._next_look_ns = now_ns + LOOK_NS
        still_full = self._full_among(self._lanes)
        for lane in self._lanes - still_full:
            self._flow.resume(lane)
        self._lanes = still_full

    def forget(self, lane: int) -> None:
        """The lane is down: whoever opens it again says when it is back."""
        self._lanes.discard(lane)


class NoBackpressure:
    """Where the others need not go on without a lane that is full."""

    def put(self, refused: npt.NDArray[np.uint32], now_ns: int) -> bool:
        return False

    def take_back(self, now_ns: int) -> None: ...

    def forget(self, lane: int) -> None: ...


@dataclass(frozen=True)
class FlowControl:
    """Who may send, how far ahead of the consumers, and how many messages have gone where."""

    flow: Flow
    backlog: Backlog | Unbounded
    backpressure: Backpressure | NoBackpressure
    tally: Tally


def flow_control_for(job: Job, lanes: Lanes) -> FlowControl:
    flow, tally = _flow_for(job.assignment), Tally()
    return FlowControl(
        flow, _backlog_for(job.assignment, lanes, tally), _backpressure_for(job, lanes, flow), tally
    )


def _flow_for(assignment: Assignment) -> Flow:
    load = assignment.scenario.load
    members = assignment.producer_numbers
    if load.mode == "request":
        return RequestFlow(members)
    if load.mode == "window":
        return WindowFlow(members, load.in_flight)
    return RoundRobinFlow(members or (0,), owes=assignment.schedule is not None)


def _backpressure_for(job: Job, lanes: Lanes, flow: Flow) -> Backpressure | NoBackpressure:
    """On a schedule, a lane that is full must not make the others late."""
    is_needed = job.assignment.schedule is not None and len(job.assignment.producers) > 1
    # With one message on its way at most, no lane of a request/response load is ever full.
    if not is_needed or not isinstance(flow, RoundRobinFlow):
        return NoBackpressure()
    return Backpressure(lanes.producers.full_among, flow)


def _backlog_for(assignment: Assignment, lanes: Lanes, tally: Tally) -> Backlog | Unbounded:
    scenario = assignment.scenario
    # Without consumers there is no backlog to watch: the scenario bounds the load otherwise.
    is_bounded = lanes.are_self_limiting or scenario.only_publishes
    if scenario.load.mode != "maximum" or is_bounded:
        return Unbounded()
    return Backlog(
        tally,
        scenario.load.backlog_limit_bytes,
        copies=scenario.wiring.copies,
        is_shared=assignment.shares_destinations,
    )


LOOK_FOR_EVENTS_NS = 5_000_000
"""How often to ask for signals while nothing is accepted: a full socket is the usual reason."""


class ConnectionEvents:
    def __init__(
        self,
        job: Job,
        lanes: Lanes,
        control: FlowControl,
        recorder: Recorder,
        fail: Callable[[BenchError], None],
    ) -> None:
        """`fail`: called with the reason why a lane is lost for good."""
        self._assignment = job.assignment
        self._timeline = job.timeline
        self._lanes = lanes
        self._control = control
        self._recorder = recorder
        self._fail = fail
        self._blocked_since: dict[int, int] = {}
        self._next_look_ns = 0
        self.outages = Outages()

    def handle_all(self) -> None:
        for signal in self._lanes.producers.signals():
            self.handle(signal, PRODUCER)
        for signal in self._lanes.consumers.signals():
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
        members = self._assignment.producers if role == PRODUCER else self._assignment.consumers
        self.outages.lost(role, lane, members[lane].index, at_ns, signal.reason)
        if role == PRODUCER:
            self._control.backpressure.forget(lane)
            self._control.flow.suspend(lane)

    def _lost(self, signal: Signal, role: str) -> LaneLost:
        address = self._lanes.addresses[role]
        named = signal.reason if address in signal.reason else f"{address}: {signal.reason}"
        return LaneLost(named)

    def _reopen(self, signal: Signal, role: str) -> None:
        lane, at_ns = signal.lane, signal.at_ns
        self._recorder.reconnected(role, at_ns)
        self._book_outage(role, lane, at_ns)
        self.outages.reopened(role, lane)
        self._control.tally.reopened += 1
        self._control.backlog.reopened()
        if role == PRODUCER:
            self._control.flow.resume(lane)
        else:
            self._control.flow.settle_all()

    # -- what lasts ------------------------------------------------------------------------------

    def book_ongoing(self, now: int) -> None:
        """What lanes that are blocked or down have cost until now."""
        for lane, since in self._blocked_since.items():
            self._recorder.blocked(now, now - since)
            self._blocked_since[lane] = now
        for role, lane in self.outages.down():
            self._book_outage(role, lane, now)

    def _book_outage(self, role: str, lane: int, until_ns: int) -> None:
        timeline = self._timeline
        for at_ns, down_ns in self.outages.book(
            role, lane, until_ns, lambda at_ns: timeline.tick_end_ns(timeline.tick_at(at_ns))
        ):
            self._recorder.disconnected(role, at_ns, down_ns)


STALL_NS = 5 * NANOSECONDS


class NoWatch:
    """Only windows can stand still for good."""

    def start_again(self) -> None: ...

    def reclaim_what_was_lost(self, now: int) -> None: ...

    def stalled(self, now: int, is_filling: bool) -> RunError | None:
        return None


def window_watch_for(control: FlowControl, outages: Outages) -> WindowWatch | NoWatch:
    flow = control.flow
    return WindowWatch(flow, outages, control.tally) if isinstance(flow, WindowFlow) else NoWatch()


class WindowWatch:
    """Finds windows that do not move. Pure: the caller owns the clock."""

    def __init__(self, windows: WindowFlow, outages: Outages, tally: Tally) -> None:
        self._windows = windows
        self._outages = outages
        self._tally = tally
        self._stall = Quiet()
        self._settling = Quiet()

    def start_again(self) -> None:
        """Something took its time, and nobody was watching."""
        self._stall.start_again()

    def reclaim_what_was_lost(self, now: int) -> None:
        if not self._windows.is_settling or self._outages.count_down(CONSUMER):
            self._settling.start_again()
        elif self._settling.lasts_ns(self._windows.settling_credit, now) >= QUIET_NS:
            self._windows.reclaim()

    def stalled(self, now: int, is_filling: bool) -> RunError | None:
        """Why the run cannot go on, if nothing has moved for too long."""
        if self._outages.count_down() or self._windows.is_settling:
            self._stall.start_again()
        stalled_ns = self._stall.lasts_ns(self._windows.progress + self._tally.sent, now)
        if stalled_ns <= STALL_NS:
            return None
        what = "the window is stalled: no message of this agent arrived"
        if is_filling:
            what = "the window cannot be filled: the broker took no message of this agent"
        return RunError(f"{what} for {STALL_NS // NANOSECONDS} s")
