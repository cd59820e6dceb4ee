"""Producers: batches become frames that are written as they lie, and confirms become outcomes."""

from __future__ import annotations

import functools
from typing import Any

import pika.spec

from bench_spark.config.protocols import Amqp
from bench_spark.transports.amqp import naming
from bench_spark.transports.amqp.confirms import Confirms, ConfirmTerms
from bench_spark.transports.amqp.connection import AmqpConnection
from bench_spark.transports.amqp.frames import Framing, Parser, method_frame
from bench_spark.transports.amqp.publishing import MessageWriter, PublishFrames, key_choice
from bench_spark.transports.base import Destination, Signal, SignalKind
from bench_spark.transports.batches import Batch
from bench_spark.transports.sockets.buffers import OutcomeRows
from bench_spark.transports.sockets.lanes import Sender
from bench_spark.transports.sockets.opening import OpenLane

RELEASE_PERIOD_SECONDS = 0.01
"""How often to look for nacks whose returns are overdue: not at every turn of a thousand lanes."""


class AmqpSender(Sender[AmqpConnection]):
    decoded: OutcomeRows

    def __init__(self, amqp: Amqp) -> None:
        self.request = "tx.select" if amqp.producer_transaction else "confirm.select"
        self.decoded = OutcomeRows()
        self._amqp = amqp
        self._is_transactional = amqp.producer_transaction > 0
        self._writer = MessageWriter(amqp.may_return, key_choice(amqp))
        self._frames: dict[tuple[object, ...], PublishFrames] = {}
        self._frames_of_lane: dict[int, tuple[PublishFrames, ...]] = {}
        """By route; the same object for lanes with the same destinations."""
        self._frames_of_routes: dict[tuple[PublishFrames, ...], tuple[PublishFrames, ...]] = {}
        # A transaction is settled as a whole, and as long as it is not, no other may begin: the
        # same as so many confirms, all of which come at once.
        unsettled = amqp.producer_transaction or amqp.confirms
        self._confirm_terms = ConfirmTerms(unsettled, amqp.may_return)
        self._confirms: dict[int, Confirms] = {}
        """By lane; a new connection has new ones, as its tags begin at 1 again."""
        self._committing: set[int] = set()
        """Lanes whose transaction the broker is committing: they take no messages meanwhile."""
        self._blocked: set[int] = set()
        """Lanes on which the broker wants no messages now."""
        self._is_releasing = False

    # -- opening -----------------------------------------------------------------------------------

    def equip(self, lane: OpenLane[AmqpConnection]) -> None:
        self._committing.discard(lane.number)
        self._blocked.discard(lane.number)
        connection = lane.connection
        framing = connection.framing
        frames = tuple(self._frames_for(framing, one) for one in lane.lane.destinations)
        self._frames_of_lane[lane.number] = self._frames_of_routes.setdefault(frames, frames)
        confirms = Confirms(lane.number, framing, self._confirm_terms, self.decoded)
        self._confirms[lane.number] = confirms
        on_method = functools.partial(self._on_method, lane)
        connection.begin(Parser(framing, confirms, connection.on_any_method), on_method)

    def _frames_for(self, framing: Framing, destination: Destination) -> PublishFrames:
        routing_key = naming.routing_keys(self._amqp, destination.index, destination.name or "")[0]
        headers = naming.message_headers(self._amqp, destination.index)
        key = (framing, routing_key, *headers.values())
        if key not in self._frames:
            publish = pika.spec.Basic.Publish(
                exchange=self._amqp.exchange.name,
                routing_key=routing_key,
                mandatory=self._amqp.mandatory,
                immediate=self._amqp.immediate,
            )
            self._frames[key] = PublishFrames(
                framing, publish, persistent=self._amqp.persistent, headers=headers
            )
        return self._frames[key]

    def begin(self, lane: OpenLane[AmqpConnection]) -> None:
        if lane.connection.blocked_reason is not None:
            self._block(lane, lane.connection.blocked_reason)
        if self._amqp.producer_transaction:
            lane.unanswered += 1
            lane.connection.send_method(pika.spec.Tx.Select())
        elif self._amqp.confirms:
            lane.unanswered += 1
            lane.connection.send_method(pika.spec.Confirm.Select())
        if self._amqp.may_return and not self._is_releasing:
            self._is_releasing = True
            self._release()

    # -- sending -----------------------------------------------------------------------------------

    def room(self, lane: OpenLane[AmqpConnection]) -> int:
        number = lane.number
        if lane.is_lost or number in self._blocked or number in self._committing:
            return 0
        return self._confirms[number].room

    def write(self, lane: OpenLane[AmqpConnection], batch: Batch) -> None:
        confirms = self._confirms[lane.number]
        # Noted before it is written: a write that fails abandons what was noted.
        data = self._writer.write(self._frames_of_lane[lane.number], batch, confirms)
        if self._is_transactional and not confirms.room:
            self._committing.add(lane.number)
            channel = lane.connection.framing.channel
            data = b"".join((data, method_frame(channel, pika.spec.Tx.Commit())))
        lane.connection.send(data)

    def commit(self) -> None:
        if not self._amqp.producer_transaction:
            return
        for lane in self.lanes.open:
            is_open = not lane.is_lost and lane.number not in self._committing
            if is_open and self._confirms[lane.number].in_flight:
                self._committing.add(lane.number)
                lane.connection.send_method(pika.spec.Tx.Commit())

    # -- what became of it -------------------------------------------------------------------------

    def in_flight(self) -> int:
        return sum(confirms.in_flight for confirms in self._confirms.values())

    def _release(self) -> None:
        """Settle nacks whose returns are overdue, again and again."""
        now_ns = self.lanes.now_ns()
        for confirms in self._confirms.values():
            confirms.release(now_ns)
        self.lanes.loop.call_later(RELEASE_PERIOD_SECONDS, self._release)

    def abandon(self, lane: OpenLane[AmqpConnection]) -> None:
        self._confirms[lane.number].abandon(self.lanes.now_ns())

    # -- what the broker says ----------------------------------------------------------------------

    def _on_method(self, lane: OpenLane[AmqpConnection], method: Any) -> None:
        if isinstance(method, pika.spec.Confirm.SelectOk | pika.spec.Tx.SelectOk):
            self.lanes.answered(lane)
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

    def _block(self, lane: OpenLane[AmqpConnection], why: str) -> None:
        self._blocked.add(lane.number)
        at_ns = lane.connection.read_ns or self.lanes.now_ns()
        self.lanes.signals.append(Signal(SignalKind.BLOCKED, at_ns, lane.number, reason=why))

    def _unblock(self, lane: OpenLane[AmqpConnection]) -> None:
        self._blocked.discard(lane.number)
        at_ns = lane.connection.read_ns
        self.lanes.signals.append(Signal(SignalKind.UNBLOCKED, at_ns, lane.number))
