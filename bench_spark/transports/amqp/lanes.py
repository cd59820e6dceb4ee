"""Opening, losing and closing lanes: what producers and consumers of all planes have in common.

One connection and one channel per lane, all on one loop.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from bench_spark.errors import BrokerUnreachable
from bench_spark.measure.clock import NowNs
from bench_spark.transports.amqp.connection import AmqpConnection, Line, describe_end
from bench_spark.transports.amqp.control import close_gracefully
from bench_spark.transports.amqp.loop import Loop
from bench_spark.transports.amqp.opening import Access, open_channels, open_connections, refusal
from bench_spark.transports.base import Lane, Signal, SignalKind


class OpenLane:
    """A lane with its connection."""

    def __init__(self, number: int, lane: Lane, connection: Line) -> None:
        self.number = number
        self.lane = lane
        self.connection = connection
        self.is_lost = False
        self.end: Exception | None = None


LaneT = TypeVar("LaneT", bound=OpenLane)


class Lanes(Generic[LaneT]):
    def __init__(self, access: Access, lanes: Sequence[Lane], now_ns: NowNs) -> None:
        self._access = access
        self._now_ns = now_ns
        self._signals: list[Signal] = []
        self._is_closing = False
        self._loop = Loop()
        try:
            connections = open_connections(access, len(lanes), self._loop, now_ns, access.on_opened)
            channels = open_channels(access, connections, self._loop)
            self._opened = self._equipped(lanes, connections, channels)
        except BaseException:
            self._loop.close()
            raise
        for lane in self._opened:
            lane.connection.on_end = functools.partial(self._lose, lane)

    def _equipped(
        self, lanes: Sequence[Lane], connections: Sequence[AmqpConnection], channels: Sequence[Any]
    ) -> list[LaneT]:
        """The lanes with what the plane needs, from what pika has opened."""
        raise NotImplementedError

    @property
    def descriptor(self) -> int:
        return self._loop.descriptor

    def signals(self) -> list[Signal]:
        self._pump()
        signals, self._signals = self._signals, []
        self._ring_if_more()
        return signals

    def close(self) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        self._loop.silence()
        self._before_goodbye()
        close_gracefully(self._loop, [lane.connection for lane in self._opened])
        for lane in self._opened:
            self._abandon(lane)
        self._loop.close()

    def _before_goodbye(self) -> None:
        """Last words of a subclass to the broker."""

    def _abandon(self, lane: LaneT) -> None:
        """The lane is gone: settle what was still open on it."""

    def _has_news(self) -> bool:
        """Whether a subclass has decoded something that was not fetched yet."""
        return False

    def _pump(self) -> None:
        if not self._loop.is_closed:
            self._loop.silence()
            self._loop.pump()

    def _ring_if_more(self) -> None:
        # Whoever serves the sockets decodes whatever is there, asked for or not. What the caller
        # did not take must keep the descriptor readable, or it would lie here till the next read.
        if not self._loop.is_closed and (self._signals or self._has_news()):
            self._loop.ring()

    def _lose(self, lane: LaneT, reason: Exception) -> None:
        lane.end = lane.end or reason
        self._lose_because(lane, describe_end(lane.connection, reason))

    def _lose_because(self, lane: LaneT, why: str) -> None:
        if lane.is_lost or self._is_closing:
            return
        lane.is_lost = True
        self._signals.append(Signal(SignalKind.LOST, self._now_ns(), lane.number, reason=why))
        self._abandon(lane)
        if lane.connection.is_open:
            lane.connection.close()

    def _await_answers(self, wanted: int, answers: list[Any], what: str) -> None:
        """Wait until the broker has answered all requests; raise what it said instead."""

        def count_unanswered() -> int:
            # One lane lost is enough to know how this ends.
            return 0 if any(lane.is_lost for lane in self._opened) else wanted - len(answers)

        self._loop.run_down(count_unanswered, self._access.timeout_seconds)
        for lane in self._opened:
            if lane.is_lost:
                raise refusal(self._access, lane.connection, lane.end, what)
        if len(answers) < wanted:
            raise BrokerUnreachable(
                f"{self._access.address}: {what}: no answer within "
                f"{self._access.timeout_seconds:g} s"
            )
