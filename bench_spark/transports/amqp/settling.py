"""What producers of every plane have in common: what became of the messages they have sent."""

from __future__ import annotations

from typing import Any

from bench_spark.transports.amqp.key_choice import key_choice
from bench_spark.transports.amqp.lanes import AmqpLanes, LaneTerms
from bench_spark.transports.amqp.settlement import Settlement
from bench_spark.transports.base import Outcomes, joined_outcomes
from bench_spark.transports.sockets.lanes import LaneT

RELEASE_PERIOD_NS = 10_000_000
"""How often to look for nacks whose returns are overdue: not at every turn of a thousand lanes."""


class SettlingLanes(AmqpLanes[LaneT]):
    """Lanes with a settlement each; a plane's producers mix them with its own lanes."""

    def __init__(self, terms: LaneTerms) -> None:
        self._amqp = terms.amqp
        self._key_choice = key_choice(terms.amqp)
        self._settled: list[Outcomes] = []
        self._next_release_ns = 0
        self._committing: set[int] = set()
        """Lanes whose transaction the broker is committing: they take no messages meanwhile."""
        self._settlements = [self._make_settlement(number) for number in range(len(terms.lanes))]
        super().__init__(terms)
        try:
            self._begin_all("tx.select" if terms.amqp.producer_transaction else "confirm.select")
        except BaseException:
            self.close()
            raise

    def _make_settlement(self, number: int) -> Settlement:
        # A transaction is settled as a whole, and as long as it is not, no other may begin: the
        # same as so many confirms, all of which come at once.
        unsettled = self._amqp.producer_transaction or self._amqp.confirms
        return Settlement(number, unsettled, self._amqp.may_return, self._settled)

    def _renew(self, lane: LaneT) -> None:
        # Tags begin at 1 again: what the new generation is told must not settle the old one's.
        self._settlements[lane.number] = self._make_settlement(lane.number)
        self._committing.discard(lane.number)

    def commit(self) -> None:
        if not self._amqp.producer_transaction:
            return
        for lane in self._opened:
            if not lane.is_lost and self._settlements[lane.number].in_flight:
                self._commit(lane)

    def _commit(self, lane: LaneT) -> None:
        """Ask the broker to commit what was published on the lane, unless it is at it already."""
        if lane.number not in self._committing:
            self._committing.add(lane.number)
            self._send_commit(lane)

    def _send_commit(self, lane: LaneT) -> None:
        raise NotImplementedError

    def _committed(self, lane: LaneT, _answer: Any = None) -> None:
        self._committing.discard(lane.number)
        self._settlements[lane.number].acked(0, True, lane.connection.read_ns)

    def in_flight(self) -> int:
        return sum(settlement.in_flight for settlement in self._settlements)

    def outcomes(self) -> Outcomes:
        self._pump()
        if self._amqp.may_return and (now_ns := self._now_ns()) >= self._next_release_ns:
            self._next_release_ns = now_ns + RELEASE_PERIOD_NS
            for settlement in self._settlements:
                settlement.release(now_ns)
        settled = joined_outcomes(self._settled)
        self._settled.clear()
        self._ring_if_more()
        return settled

    def _has_news(self) -> bool:
        return bool(self._settled)

    def _abandon(self, lane: LaneT) -> None:
        self._settlements[lane.number].abandon(self._now_ns())
