"""Opening, losing, reopening and closing lanes: what producers and consumers share.

One connection per lane, all on one loop.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from bench_spark.core.clock import NowNs
from bench_spark.errors import BrokerUnreachable
from bench_spark.transports.base import Lane, Signal, SignalKind
from bench_spark.transports.sockets.line import (
    DialogueT,
    Line,
    OpenedT,
    Protocolled,
    close_gracefully,
)
from bench_spark.transports.sockets.loop import Loop
from bench_spark.transports.sockets.reopening import Reopener, ReopeningRule


class OpenLane:
    """A lane with its connection, which the plane gives it."""

    connection: Line

    def __init__(self, number: int, lane: Lane) -> None:
        self.number = number
        self.lane = lane
        self.generation = 0
        """Which of its connections this is."""
        self.is_lost = False
        """Nothing can be sent or received now; it may be on its way back."""
        self.end: Exception | None = None
        self.unanswered = 0
        """Requests to be answered by the broker before the lane can be used."""


LaneT = TypeVar("LaneT", bound=OpenLane)


class Lanes(Generic[LaneT, DialogueT, OpenedT]):
    def __init__(
        self,
        protocol: Protocolled[DialogueT, OpenedT],
        lanes: Sequence[Lane],
        now_ns: NowNs,
        rule: ReopeningRule | None = None,
    ) -> None:
        """Without a rule a lost lane stays lost."""
        self._protocol = protocol
        self._now_ns = now_ns
        self._rule = rule
        self._signals: list[Signal] = []
        self._is_closing = False
        self.has_closed_in_order = True
        self._reopener: Reopener[LaneT, DialogueT, OpenedT] | None = None
        self._loop = Loop()
        try:
            opened = protocol.open_all(len(lanes), self._loop, now_ns)
            self._opened = [self._make_lane(number, lane) for number, lane in enumerate(lanes)]
            # Nothing is read between these steps, so nothing can arrive that nobody expects.
            for lane, one in zip(self._opened, opened, strict=True):
                self._install(lane, one)
        except BaseException:
            self._loop.close()
            raise

    # -- what a protocol adds ----------------------------------------------------------------------

    def _make_lane(self, number: int, lane: Lane) -> LaneT:
        raise NotImplementedError

    def _equip(self, lane: LaneT, opened: OpenedT) -> None:
        """Give the lane its line, made from what was opened."""
        raise NotImplementedError

    def _begin(self, lane: LaneT) -> None:
        """Ask the broker for what the lane needs; each answer is to be told to `_answered`."""
        raise NotImplementedError

    def _before_goodbye(self) -> None:
        """Last words of a subclass to the broker."""

    def _abandon(self, lane: LaneT) -> None:
        """The lane is gone: settle what was still open on it."""

    def _renew(self, lane: LaneT) -> None:
        """A new generation of the lane: nothing of the old one may be used any more."""

    def _has_news(self) -> bool:
        """Whether a subclass has decoded something that was not fetched yet."""
        return False

    # -- for the agent -----------------------------------------------------------------------------

    @property
    def descriptor(self) -> int:
        return self._loop.descriptor

    def signals(self) -> list[Signal]:
        self._pump()
        signals, self._signals = self._signals, []
        self._ring_if_more()
        return signals

    def flush(self, timeout_seconds: float) -> None:
        """Write what still waits for its socket."""
        self._loop.run_until(
            lambda: not any(lane.connection.unsent_bytes for lane in self._opened),
            timeout_seconds,
        )
        self._ring_if_more()

    def close(self) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        self._loop.silence()
        if self._reopener is not None:
            self._reopener.close()
        self._before_goodbye()
        self.has_closed_in_order = close_gracefully(
            self._loop, [lane.connection for lane in self._opened]
        )
        for lane in self._opened:
            self._abandon(lane)
        self._loop.close()

    def _pump(self) -> None:
        if not self._loop.is_closed:
            self._loop.silence()
            self._loop.pump()

    def _ring_if_more(self) -> None:
        # Whoever serves the sockets decodes whatever is there, asked for or not. What the caller
        # did not take must keep the descriptor readable, or it would lie here till the next read.
        if not self._loop.is_closed and (self._signals or self._has_news()):
            self._loop.ring()

    # -- opening, losing, reopening ----------------------------------------------------------------

    def _install(self, lane: LaneT, opened: OpenedT) -> None:
        self._equip(lane, opened)
        line = lane.connection
        line.on_end = functools.partial(self._lose, lane, line)
        if line.failure is not None:
            self._lose(lane, line, line.failure)

    def _begin_all(self, what: str) -> None:
        """Make all lanes ready, and from then on reopen those that are lost."""
        for lane in self._opened:
            self._begin(lane)
        self._await_answers(what)
        if self._rule is not None:
            self._reopener = Reopener(
                self._protocol,
                self._rule,
                self._loop,
                self._now_ns,
                self._begin_again,
                self._give_up,
            )

    def _begin_again(self, lane: LaneT, opened: OpenedT) -> None:
        lane.generation += 1
        lane.unanswered = 0
        lane.end = None
        self._renew(lane)
        self._install(lane, opened)
        self._begin(lane)
        if not lane.unanswered:
            self._reopened(lane)

    def _answered(self, lane: LaneT, _answer: Any = None) -> None:
        lane.unanswered -= 1
        if not lane.unanswered and lane.is_lost:
            self._reopened(lane)

    def _reopened(self, lane: LaneT) -> None:
        # It may have been lost again before it had begun.
        if self._reopener is not None and self._reopener.is_beginning(lane):
            self._reopener.done(lane)
            lane.is_lost = False
            self._signals.append(
                Signal(SignalKind.REOPENED, self._now_ns(), lane.number, lane.generation)
            )

    def _give_up(self, lane: LaneT, why: str) -> None:
        self._signals.append(
            Signal(SignalKind.LOST, self._now_ns(), lane.number, lane.generation, reason=why)
        )

    def _lose(self, lane: LaneT, line: Line, reason: Exception) -> None:
        if line is lane.connection:  # and not one of an earlier generation
            lane.end = lane.end or reason
            protocol = self._protocol
            why, may_pass = protocol.describe_end(line, reason), protocol.may_pass(line, reason)
            self._lose_because(lane, why, may_pass)

    def _lose_because(self, lane: LaneT, why: str, may_pass: bool = False) -> None:
        if self._is_closing:
            return
        if self._reopener is not None and self._reopener.is_beginning(lane):
            self._reopener.failed(lane, why, is_final=not may_pass)
            return
        if lane.is_lost:
            return
        lane.is_lost = True
        is_reopening = may_pass and self._reopener is not None
        self._signals.append(
            Signal(
                SignalKind.LOST,
                self._now_ns(),
                lane.number,
                lane.generation,
                reason=why,
                is_reopening=is_reopening,
            )
        )
        self._abandon(lane)
        if lane.connection.is_open:
            lane.connection.close()
        if self._reopener is not None and is_reopening:
            self._reopener.add(lane, why)

    def _await_answers(self, what: str) -> None:
        """Wait until the broker has answered all requests; raise what it said instead."""
        access = self._protocol.access

        def count_unanswered() -> int:
            # One lane lost is enough to know how this ends.
            if any(lane.is_lost for lane in self._opened):
                return 0
            return sum(lane.unanswered for lane in self._opened)

        self._loop.run_down(count_unanswered, access.timeout_seconds)
        for lane in self._opened:
            if lane.is_lost:
                raise self._protocol.refusal(lane.connection, lane.end, what)
        if count_unanswered():
            raise BrokerUnreachable(
                f"{access.address}: {what}: no answer within {access.timeout_seconds:g} s"
            )
