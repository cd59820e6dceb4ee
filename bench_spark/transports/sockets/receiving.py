"""Lanes that receive: what has arrived is taken by column, and a lane may be held."""

from __future__ import annotations

from collections.abc import Collection

from bench_spark.transports.base import Consumers
from bench_spark.transports.batches import Received, nothing_received
from bench_spark.transports.sockets.arrivals import Arrivals
from bench_spark.transports.sockets.lanes import Lanes, LaneT
from bench_spark.transports.sockets.line import DialogueT, OpenedT


class ReceivingLanes(Lanes[LaneT, DialogueT, OpenedT], Consumers):
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
        self._ring_if_more()
        return received

    def _be_idle(self) -> None:
        """Nothing has come since the last time."""

    def _take(self) -> Received:
        return self._arrivals.take()

    def _has_news(self) -> bool:
        return bool(self._arrivals)
