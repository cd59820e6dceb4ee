"""Lanes: one connection each, all on one loop; lost ones are reopened.

`SendingLanes` divides batches among them: a lane takes whole messages only, and what its socket
does not take at once is kept, at most one write's worth, until which has gone it takes no more.
`ReceivingLanes` gives on what has arrived, and may leave what comes to some lanes in the network.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from typing import Any, Generic, TypeVar

import numpy as np

from bench_spark.core.clock import NowNs
from bench_spark.core.envelope import envelope_bytes
from bench_spark.errors import BrokerUnreachable
from bench_spark.transports.base import Consumers, Lane, Producers, Signal, SignalKind
from bench_spark.transports.batches import (
    I64,
    U8,
    Batch,
    Received,
    Tails,
    common_tail_bytes,
    each_tail,
    nothing_received,
)
from bench_spark.transports.sockets.connection import (
    Connection,
    ConnectionT,
    Connector,
    OpenedT,
    close_gracefully,
)
from bench_spark.transports.sockets.loop import Loop
from bench_spark.transports.sockets.message_block import NO_TAILS
from bench_spark.transports.sockets.reopening import Reopener, ReopeningRule
from bench_spark.transports.sockets.rows import Arrivals, by_lane, is_of_one_lane


class OpenLane:
    """A lane with its connection, which the plane gives it."""

    connection: Connection

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


class Lanes(Generic[LaneT, ConnectionT, OpenedT]):
    def __init__(
        self,
        protocol: Connector[ConnectionT, OpenedT],
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
        self._reopener: Reopener[LaneT, ConnectionT, OpenedT] | None = None
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
        """Ask the broker for what the lane needs; each answer must be passed to `_answered`."""
        raise NotImplementedError

    def _before_close(self) -> None:
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
        self._wake_if_more()
        return signals

    def flush(self, timeout_seconds: float) -> None:
        """Write what still waits for its socket."""
        self._loop.run_until(
            lambda: not any(lane.connection.unsent_bytes for lane in self._opened),
            timeout_seconds,
        )
        self._wake_if_more()

    def close(self) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        self._loop.clear_wakeup()
        if self._reopener is not None:
            self._reopener.close()
        self._before_close()
        self.has_closed_in_order = close_gracefully(
            self._loop, [lane.connection for lane in self._opened]
        )
        for lane in self._opened:
            self._abandon(lane)
        self._loop.close()

    def _pump(self) -> None:
        if not self._loop.is_closed:
            self._loop.clear_wakeup()
            self._loop.pump()

    def _wake_if_more(self) -> None:
        # Whoever serves the sockets decodes whatever is there, asked for or not. What the caller
        # did not take must keep the descriptor readable, or it would lie here till the next read.
        if not self._loop.is_closed and (self._signals or self._has_news()):
            self._loop.wake()

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

    def _lose(self, lane: LaneT, line: Connection, reason: Exception) -> None:
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


WRITE_BYTES = 256 * 1024
"""Messages written to a lane at once, and the most that may wait there for its socket."""


def is_alike(batch: Batch) -> bool:
    """Whether all have heads, are of one size, and have no headers of their own."""
    tails = type(batch.tail)
    return batch.headers is None and batch.head_bytes > 0 and (tails is bytes or tails is _ARRAY)


def shared_and_own_tails(tails: Tails) -> tuple[bytes, U8]:
    """Of messages that are alike: the tail of all, or zeros that their own are written over; and a
    row for each, where they differ."""
    if isinstance(tails, bytes):
        return tails, NO_TAILS
    assert isinstance(tails, np.ndarray)
    return _zeros(tails.shape[1]), tails


def bodies_of(batch: Batch) -> list[bytes]:
    tails = each_tail(batch.tail)
    if not batch.head_bytes:
        return [tail for tail, _ in zip(tails, batch.head, strict=False)]
    heads = envelope_bytes(batch.head)[:, : batch.head_bytes]
    # A tail that all share has no end, so the heads decide.
    return [head.tobytes() + tail for head, tail in zip(heads, tails, strict=False)]


_ARRAY = np.ndarray


@lru_cache(maxsize=4)
def _zeros(size: int) -> bytes:
    """The same object for every batch: whoever caches frames knows it again at once."""
    return bytes(size)


class SendingLanes(Lanes[LaneT, ConnectionT, OpenedT], Producers):
    # -- what a protocol adds ----------------------------------------------------------------------

    def _allowed(self, lane: LaneT) -> int:
        """How many messages the broker lets the lane send now, whatever its socket takes."""
        raise NotImplementedError

    def _write(self, lane: LaneT, batch: Batch) -> None:
        """Hand these messages to the lane's socket."""
        raise NotImplementedError

    # -- for the agent -----------------------------------------------------------------------------

    def send(self, batch: Batch) -> int:
        if self._is_closing or not len(batch):
            return 0
        if len(self._opened) == 1 or is_of_one_lane(batch.lane):
            return self._send_on_one_lane(batch)
        return self._send_by_lane(batch)

    def full_among(self, lanes: Iterable[int]) -> set[int]:
        # Without trying to write: a socket that has room again is written to by the loop.
        return {
            number
            for number in lanes
            if self._opened[number].connection.unsent_bytes
            or self._allowed(self._opened[number]) <= 0
        }

    def _room(self, lane: LaneT) -> int:
        """How many messages the lane takes now."""
        if self._allowed(lane) <= 0:
            return 0
        if lane.connection.unsent_bytes and not lane.connection.flush():
            return 0
        return self._allowed(lane)  # again: a write that failed has ended the lane

    def _send_on_one_lane(self, batch: Batch) -> int:
        lane = self._opened[batch.lane[0]]
        room = self._room(lane)
        if room <= 0:
            return 0
        count, portions = len(batch), _Portions(batch)
        if room >= count and portions.end(0, count) == count:
            self._write(lane, batch)
            return count
        accepted = 0
        while room > 0 and accepted < count:
            end = portions.end(accepted, min(count, accepted + room))
            self._write(lane, batch.part(accepted, end))
            accepted = end
            room = 0 if accepted == count else self._room(lane)
        return accepted

    def _send_by_lane(self, batch: Batch) -> int:
        """Accepted is a prefix of the batch: it ends where the first lane has no more room."""
        if self._room(self._opened[batch.lane[0]]) <= 0:
            return 0  # before the work of grouping: full lanes are tried again and again
        groups = by_lane(batch.lane)
        portions = _Portions(batch, groups.order)
        accepted = len(batch)
        for number, start, end in groups:
            room = max(0, min(portions.end(start, end) - start, self._room(self._opened[number])))
            if end - start > room:
                accepted = min(accepted, int(groups.order[start + room]))
        if not accepted:
            return 0
        ordered = batch.at(groups.order)
        for number, start, end in groups:
            if accepted < len(batch):
                end = start + int(groups.order[start:end].searchsorted(accepted))
            if end > start:
                self._write(self._opened[number], ordered.part(start, end))
        return accepted


class _Portions:
    """How many messages go into one write: of a size as many as fit, and always one."""

    def __init__(self, batch: Batch, order: I64 | None = None) -> None:
        """`order` in which the batch is written."""
        tail_bytes = common_tail_bytes(batch.tail)
        self._most = 0
        self._ends: I64 | None = None
        if tail_bytes is not None:
            self._most = max(1, WRITE_BYTES // max(1, batch.head_bytes + tail_bytes))
        else:
            lengths = map(len, batch.tail)
            sizes = np.fromiter(lengths, np.int64, len(batch.tail)) + batch.head_bytes
            self._ends = np.cumsum(sizes if order is None else sizes[order])

    def end(self, start: int, limit: int) -> int:
        """Where the write that begins with this message ends, at most at `limit`."""
        if self._ends is None:
            return min(limit, start + self._most)
        before = int(self._ends[start - 1]) if start else 0
        end = int(self._ends.searchsorted(before + WRITE_BYTES, side="right"))
        return min(limit, max(start + 1, end))


class ReceivingLanes(Lanes[LaneT, ConnectionT, OpenedT], Consumers):
    _arrivals: Arrivals
    """What the lanes have decoded; whoever uses it makes it before it opens them."""
    _held: frozenset[int] = frozenset()

    def hold(self, lanes: Collection[int]) -> None:
        for number in self._held.symmetric_difference(lanes):
            if not self._opened[number].is_lost:
                self._opened[number].connection.hold(number in lanes)
        self._held = frozenset(lanes)

    def _install(self, lane: LaneT, opened: OpenedT) -> None:
        # A new connection is read, whatever became of the last one.
        self._held -= {lane.number}
        super()._install(lane, opened)

    def receive(self, timeout_seconds: float) -> Received:
        if self._is_closing:
            return nothing_received()
        self._pump()
        if not self._has_news():
            self._be_idle()
            if timeout_seconds > 0:
                self._loop.run_until(lambda: self._has_news() or self._signals, timeout_seconds)
        received = self._take()
        self._wake_if_more()
        return received

    def _be_idle(self) -> None:
        """Nothing has come since the last time."""

    def _take(self) -> Received:
        return self._arrivals.take()

    def _has_news(self) -> bool:
        return bool(self._arrivals)
