"""Publishing by pika's own channel methods: slow, plain, and the reference for faster planes."""

from __future__ import annotations

import functools
import itertools
from typing import Any, NamedTuple

import numpy as np
import pika.spec

from bench_spark.core.envelope import ENVELOPE_BYTES, envelope_bytes
from bench_spark.transports.amqp import naming
from bench_spark.transports.amqp.connection import AmqpConnection
from bench_spark.transports.amqp.lanes import LaneTerms
from bench_spark.transports.amqp.message_headers import header_values, returned_head
from bench_spark.transports.amqp.pika_lanes import PikaLane, PikaLanes
from bench_spark.transports.amqp.publishing import message_properties
from bench_spark.transports.amqp.settlement import Settlement
from bench_spark.transports.amqp.settling import SettlingLanes
from bench_spark.transports.base import (
    Batch,
    Destination,
    Headers,
    Signal,
    SignalKind,
    each_tail,
)

UNSENT_LIMIT_BYTES = 64 * 1024
"""A lane that has this much waiting for its socket takes no more messages."""


class _Route(NamedTuple):
    """How messages of a lane reach one of its destinations."""

    keys: tuple[str, ...]
    properties: Any


class _Outbox:
    """What a producer lane knows besides its connection."""

    def __init__(self, routes: list[_Route], settlement: Settlement) -> None:
        self.routes = routes
        self.settlement = settlement
        self.taken: list[int] = []
        """Places in the batch being sent that this lane has taken so far."""
        self.is_blocked = False


class PikaProducers(SettlingLanes[PikaLane], PikaLanes):
    def __init__(self, terms: LaneTerms) -> None:
        self._outboxes: dict[int, _Outbox] = {}
        """By lane."""
        super().__init__(terms)

    def _begin(self, lane: PikaLane) -> None:
        connection, channel = lane.connection, lane.channel
        routes = [self._route_to(one) for one in lane.lane.destinations]
        outbox = _Outbox(routes, self._settlements[lane.number])
        self._outboxes[lane.number] = outbox
        connection.add_on_connection_blocked_callback(
            functools.partial(self._on_blocked, lane, outbox)
        )
        connection.add_on_connection_unblocked_callback(
            functools.partial(self._on_unblocked, lane, outbox)
        )
        channel.add_on_return_callback(functools.partial(self._on_return, lane, outbox))
        if self._amqp.producer_transaction:
            lane.unanswered += 1
            channel.tx_select(callback=functools.partial(self._answered, lane))
        elif self._amqp.confirms:
            lane.unanswered += 1
            channel.confirm_delivery(
                functools.partial(self._on_settled, lane, outbox),
                callback=functools.partial(self._answered, lane),
            )

    def _route_to(self, destination: Destination) -> _Route:
        return _Route(
            naming.routing_keys(self._amqp, destination.index, destination.name or ""),
            message_properties(
                persistent=self._amqp.persistent,
                headers=naming.message_headers(self._amqp, destination.index),
            ),
        )

    # -- sending -----------------------------------------------------------------------------------

    def send(self, batch: Batch) -> int:
        heads = envelope_bytes(np.ascontiguousarray(batch.head)).tobytes()
        tails = each_tail(batch.tail)
        choice = self._key_choice
        keys = itertools.repeat(0) if choice is None else choice.numbers(batch.head).tolist()
        headers = itertools.repeat(None) if batch.headers is None else batch.headers
        is_named = self._amqp.may_return and not batch.head_bytes
        touched: set[int] = set()
        accepted = 0
        # Some columns may have no end, so the shortest one decides.
        for number, place, key, tail, own in zip(
            batch.lane.tolist(), batch.route.tolist(), keys, tails, headers, strict=False
        ):
            lane, outbox = self._opened[number], self._outboxes[number]
            if not self._can_take(lane, outbox):
                break
            route = outbox.routes[place]
            start = accepted * ENVELOPE_BYTES
            name = heads[start : start + ENVELOPE_BYTES].hex() if is_named else None
            # What pika's basic_publish does, which has no `immediate`.
            lane.channel._send_method(
                pika.spec.Basic.Publish(
                    exchange=self._amqp.exchange.name,
                    routing_key=route.keys[key],
                    mandatory=self._amqp.mandatory,
                    immediate=self._amqp.immediate,
                ),
                (
                    self._properties(route, own, name),
                    heads[start : start + batch.head_bytes] + tail,
                ),
            )
            outbox.taken.append(accepted)
            touched.add(number)
            accepted += 1
        for number in touched:
            self._hand_over(batch, self._opened[number], self._outboxes[number])
        return accepted

    def _properties(self, route: _Route, own: Headers | None, message_id: str | None) -> Any:
        if own is None and message_id is None:
            return route.properties
        common = route.properties.headers or {}
        return message_properties(
            persistent=self._amqp.persistent,
            headers={**common, **header_values(own or {})},
            message_id=message_id,
        )

    def _can_take(self, lane: PikaLane, outbox: _Outbox) -> bool:
        if lane.is_lost or outbox.is_blocked or self._is_closing:
            return False
        if lane.number in self._committing:
            return False
        if outbox.settlement.room <= len(outbox.taken):
            return False
        connection = lane.connection
        # Bytes left over from an earlier batch mean that the socket is full; bytes of this batch
        # are collected up to the limit and written together.
        must_flush = not outbox.taken or connection.unsent_bytes >= UNSENT_LIMIT_BYTES
        return not must_flush or connection.unsent_bytes == 0 or connection.flush()

    def _hand_over(self, batch: Batch, lane: PikaLane, outbox: _Outbox) -> None:
        # Noted before it is written: a write that fails abandons what was noted.
        outbox.settlement.sent(batch.head[outbox.taken], batch.head_bytes)
        outbox.taken.clear()
        if self._amqp.producer_transaction and not outbox.settlement.room:
            self._commit(lane)
        lane.connection.flush()

    def _send_commit(self, lane: PikaLane) -> None:
        lane.channel.tx_commit(callback=functools.partial(self._committed, lane))

    # -- what became of it -------------------------------------------------------------------------

    def _on_settled(self, lane: PikaLane, outbox: _Outbox, frame: Any) -> None:
        is_nack = isinstance(frame.method, pika.spec.Basic.Nack)
        settle = outbox.settlement.nacked if is_nack else outbox.settlement.acked
        settle(frame.method.delivery_tag, frame.method.multiple, lane.connection.read_ns)

    def _on_return(
        self,
        lane: PikaLane,
        outbox: _Outbox,
        _channel: Any,
        _method: Any,
        properties: Any,
        body: bytes,
    ) -> None:
        head = returned_head(properties.message_id, body)
        outbox.settlement.returned(head, lane.connection.read_ns)

    # -- back-pressure -----------------------------------------------------------------------------

    def _on_blocked(
        self, lane: PikaLane, outbox: _Outbox, connection: AmqpConnection, frame: Any
    ) -> None:
        outbox.is_blocked = True
        why = str(frame.method.reason)
        self._signals.append(
            Signal(SignalKind.BLOCKED, connection.read_ns, lane.number, reason=why)
        )

    def _on_unblocked(
        self, lane: PikaLane, outbox: _Outbox, connection: AmqpConnection, _frame: Any
    ) -> None:
        outbox.is_blocked = False
        self._signals.append(Signal(SignalKind.UNBLOCKED, connection.read_ns, lane.number))
