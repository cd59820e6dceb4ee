"""What consumers of every plane have in common: acknowledgements, committed where that is asked."""

from __future__ import annotations

import time
from typing import Any

from bench_spark.transports.amqp.connection import AmqpConnection
from bench_spark.transports.amqp.lanes import AmqpLanes, LaneTerms
from bench_spark.transports.amqp.protocol import OpenChannel
from bench_spark.transports.amqp.transactions import U64, AckTransactions
from bench_spark.transports.base import Lane
from bench_spark.transports.sockets.lanes import LaneT
from bench_spark.transports.sockets.receiving import ReceivingLanes

IDLE_SECONDS = 1.0
"""Acknowledgements that are not enough for a group, or for a transaction, go out anyway after this
long without a message."""
DETACH_SECONDS = 5.0
"""How long to wait for each consumer's cancellation: the broker first sends what it has pushed."""
COMMIT_SECONDS = 2.0
"""How long to wait, when all is over, for the broker to commit what was acknowledged last."""


class AcknowledgingLanes(AmqpLanes[LaneT], ReceivingLanes[LaneT, AmqpConnection, OpenChannel]):
    """Lanes whose messages are acknowledged; a plane's consumers mix them with its own lanes."""

    def __init__(self, terms: LaneTerms) -> None:
        self._amqp = terms.amqp
        self._transactions: dict[int, AckTransactions] = {}
        """By lane, where acknowledgements are committed."""
        self._acknowledged_unreported = 0
        self._idle_check_seconds = 0.0
        super().__init__(terms)

    def attach(self) -> None:
        is_transacted = self._amqp.consumer_transaction > 0
        self._begin_all("tx.select, basic.consume" if is_transacted else "basic.consume")
        self._ring_if_more()

    # -- what a plane adds -------------------------------------------------------------------------

    def _cancel(self, lane: LaneT, route: int) -> None:
        """Ask for no more from this destination; the answer goes to `_answered`."""
        raise NotImplementedError

    def _acknowledge_groups(self, older_than: float) -> None:
        """Acknowledge what waits for its group to be full, where nothing was added since then."""
        raise NotImplementedError

    def _send_transaction(self, lane: LaneT, tags: U64) -> None:
        """Acknowledge these tags and ask for the commit, whose answer goes to `_committed`."""
        raise NotImplementedError

    # -- the end of deliveries ---------------------------------------------------------------------

    def detach(self) -> bool:
        self.hold(())
        lanes = [lane for lane in self._opened if not lane.is_lost and lane.connection.is_open]
        for lane in lanes:
            lane.unanswered += len(lane.lane.destinations)
            for route in range(len(lane.lane.destinations)):
                self._cancel(lane, route)
        have_all_answered = self._loop.run_down(
            lambda: sum(lane.unanswered for lane in lanes if not lane.is_lost), DETACH_SECONDS
        )
        self._ring_if_more()
        # What was on its way to be acknowledged is still in its queue.
        return have_all_answered or self._amqp.ack == "manual"

    # -- transactions ------------------------------------------------------------------------------

    def _begin_transactions(self, lane: LaneT) -> None:
        self._transactions[lane.number] = AckTransactions(
            self._amqp.consumer_transaction, self._amqp.ack_every
        )

    def _acknowledge_in_transaction(self, lane: LaneT, tags: U64, now_seconds: float) -> None:
        """What this makes the broker acknowledge is reported when it has said so."""
        self._transactions[lane.number].add(tags, now_seconds)
        self._commit(lane)

    def _commit(self, lane: LaneT, is_partial: bool = False) -> None:
        tags = self._transactions[lane.number].begin(is_partial)
        if len(tags):
            self._send_transaction(lane, tags)

    def _committed(self, lane: LaneT, _answer: Any = None) -> None:
        self._acknowledged_unreported += self._transactions[lane.number].committed()
        self._commit(lane)

    # -- the rest ----------------------------------------------------------------------------------

    def _be_idle(self) -> None:
        now_seconds = time.monotonic()
        can_be_partial = self._amqp.ack_every > 1 or self._amqp.consumer_transaction > 1
        if can_be_partial and now_seconds >= self._idle_check_seconds:
            self._idle_check_seconds = now_seconds + IDLE_SECONDS / 4
            self._acknowledge_rest(older_than=now_seconds - IDLE_SECONDS)

    def _acknowledge_rest(self, older_than: float) -> None:
        if not self._amqp.consumer_transaction:
            self._acknowledge_groups(older_than)
            return
        for number, transactions in self._transactions.items():
            lane = self._opened[number]
            is_idle = transactions.added_seconds <= older_than
            if transactions.waiting and is_idle and not lane.is_lost:
                self._commit(lane, is_partial=True)

    def _before_goodbye(self) -> None:
        self.hold(())
        # A commit may be under way, and the rest can only be acknowledged behind it.
        self._await_commits()
        self._acknowledge_rest(older_than=time.monotonic())
        self._await_commits()

    def _await_commits(self) -> None:
        def is_done() -> bool:
            return not any(
                transactions.is_committing and self._opened[number].connection.is_open
                for number, transactions in self._transactions.items()
            )

        self._loop.run_until(is_done, COMMIT_SECONDS)


def consumer_tag(lane: Lane, route: int) -> str:
    """What a consumer is called on its connection: the route is read back from it."""
    return f"bench-{lane.member}-{route}"
