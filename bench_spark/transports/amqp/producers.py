"""Producers: batches become frames that are written as they lie, and confirms become outcomes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pika.spec

from bench_spark.transports.amqp import naming
from bench_spark.transports.amqp.confirms import Confirms, ConfirmTerms
from bench_spark.transports.amqp.connection import AmqpConnection
from bench_spark.transports.amqp.frames import Framing, Parser, method_frame
from bench_spark.transports.amqp.lanes import AmqpLane, AmqpLanes, LaneTerms
from bench_spark.transports.amqp.publishing import MessageWriter, PublishFrames, key_choice
from bench_spark.transports.base import Destination, Signal, SignalKind
from bench_spark.transports.batches import Batch, Outcomes
from bench_spark.transports.sockets.lanes import SendingLanes
from bench_spark.transports.sockets.rows import OutcomeRows

RELEASE_PERIOD_NS = 10_000_000
"""How often to look for nacks whose returns are overdue: not at every turn of a thousand lanes."""


class AmqpProducers(AmqpLanes, SendingLanes[AmqpLane, AmqpConnection, AmqpConnection]):
    def __init__(self, terms: LaneTerms) -> None:
        amqp = terms.amqp
        self._key_choice = key_choice(amqp)
        self._writer = MessageWriter(amqp.may_return)
        self._frames: dict[tuple[object, ...], PublishFrames] = {}
        self._frames_of_lane: dict[int, list[PublishFrames]] = {}
        """By route."""
        # A transaction is settled as a whole, and as long as it is not, no other may begin: the
        # same as so many confirms, all of which come at once.
        unsettled = amqp.producer_transaction or amqp.confirms
        self._confirm_terms = ConfirmTerms(unsettled, amqp.may_return)
        self._confirms: dict[int, Confirms] = {}
        """By lane; a new connection has new ones, as its tags begin at 1 again."""
        self._outcomes = OutcomeRows()
        self._next_release_ns = 0
        self._committing: set[int] = set()
        """Lanes whose transaction the broker is committing: they take no messages meanwhile."""
        self._blocked: set[int] = set()
        """Lanes on which the broker wants no messages now."""
        super().__init__(terms)
        try:
            self._begin_all("tx.select" if amqp.producer_transaction else "confirm.select")
        except BaseException:
            self.close()
            raise

    # -- opening -----------------------------------------------------------------------------------

    def _make_parser(
        self, lane: AmqpLane, framing: Framing, on_method: Callable[[Any], None]
    ) -> Parser:
        self._frames_of_lane[lane.number] = [
            self._frames_for(framing, one) for one in lane.lane.destinations
        ]
        confirms = Confirms(lane.number, framing, self._confirm_terms, self._outcomes)
        self._confirms[lane.number] = confirms
        return Parser(framing, confirms, on_method)

    def _frames_for(self, framing: Framing, destination: Destination) -> PublishFrames:
        routing_key = naming.routing_keys(self._amqp, destination.index, destination.name or "")[0]
        headers = naming.message_headers(self._amqp, destination.index)
        key = (framing, routing_key, *headers.values())
        if key not in self._frames:
            self._frames[key] = PublishFrames(
                framing.channel,
                self._amqp.exchange.name,
                routing_key,
                mandatory=self._amqp.mandatory,
                immediate=self._amqp.immediate,
                persistent=self._amqp.persistent,
                frame_max=framing.frame_max,
                headers=headers,
            )
        return self._frames[key]

    def _renew(self, lane: AmqpLane) -> None:
        self._committing.discard(lane.number)
        self._blocked.discard(lane.number)

    def _begin(self, lane: AmqpLane) -> None:
        if lane.connection.blocked_reason is not None:
            self._block(lane, lane.connection.blocked_reason)
        if self._amqp.producer_transaction:
            lane.unanswered += 1
            lane.connection.send_method(pika.spec.Tx.Select())
        elif self._amqp.confirms:
            lane.unanswered += 1
            lane.connection.send_method(pika.spec.Confirm.Select())

    # -- sending -----------------------------------------------------------------------------------

    def _allowed(self, lane: AmqpLane) -> int:
        number = lane.number
        if lane.is_lost or number in self._blocked or number in self._committing:
            return 0
        return self._confirms[number].room

    def _write(self, lane: AmqpLane, batch: Batch) -> None:
        confirms = self._confirms[lane.number]
        # Noted before it is written: a write that fails abandons what was noted.
        digits = None if self._key_choice is None else self._key_choice.digits(batch.head)
        data = self._writer.write(self._frames_of_lane[lane.number], batch, confirms, digits)
        if self._amqp.producer_transaction and not confirms.room:
            self._committing.add(lane.number)
            channel = lane.connection.framing.channel
            data = b"".join((data, method_frame(channel, pika.spec.Tx.Commit())))
        lane.connection.send(data)

    def commit(self) -> None:
        if not self._amqp.producer_transaction:
            return
        for lane in self._opened:
            is_open = not lane.is_lost and lane.number not in self._committing
            if is_open and self._confirms[lane.number].in_flight:
                self._committing.add(lane.number)
                lane.connection.send_method(pika.spec.Tx.Commit())

    # -- what became of it -------------------------------------------------------------------------

    def in_flight(self) -> int:
        return sum(confirms.in_flight for confirms in self._confirms.values())

    def outcomes(self) -> Outcomes:
        self._pump()
        if self._amqp.may_return and (now_ns := self._now_ns()) >= self._next_release_ns:
            self._next_release_ns = now_ns + RELEASE_PERIOD_NS
            for confirms in self._confirms.values():
                confirms.release(now_ns)
        settled = self._outcomes.take()
        self._wake_if_more()
        return settled

    def _has_news(self) -> bool:
        return bool(self._outcomes)

    def _abandon(self, lane: AmqpLane) -> None:
        self._confirms[lane.number].abandon(self._now_ns())

    # -- what the broker says ----------------------------------------------------------------------

    def _on_method(self, lane: AmqpLane, method: Any) -> None:
        if isinstance(method, pika.spec.Confirm.SelectOk | pika.spec.Tx.SelectOk):
            self._answered(lane)
        elif isinstance(method, pika.spec.Tx.CommitOk):
            self._committing.discard(lane.number)
            self._confirms[lane.number].acked(0, True, lane.connection.read_ns)
        elif isinstance(method, pika.spec.Connection.Blocked):
            self._block(lane, str(method.reason))
        elif isinstance(method, pika.spec.Connection.Unblocked):
            self._unblock(lane)
        elif isinstance(method, pika.spec.Channel.Flow):
            # The protocol's older way to say the same.
            if method.active:
                self._unblock(lane)
            else:
                self._block(lane, "channel.flow")

    def _block(self, lane: AmqpLane, why: str) -> None:
        self._blocked.add(lane.number)
        at_ns = lane.connection.read_ns or self._now_ns()
        self._signals.append(Signal(SignalKind.BLOCKED, at_ns, lane.number, reason=why))

    def _unblock(self, lane: AmqpLane) -> None:
        self._blocked.discard(lane.number)
        at_ns = lane.connection.read_ns
        self._signals.append(Signal(SignalKind.UNBLOCKED, at_ns, lane.number))
