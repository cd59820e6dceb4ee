"""Publishing in batches: frames are built once, stamped per batch, and written as they lie."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pika.spec

from bench_spark.transports.amqp import naming
from bench_spark.transports.amqp.acks import Confirmations
from bench_spark.transports.amqp.connection import AmqpConnection, Handover
from bench_spark.transports.amqp.fast_lanes import FastLane, FastLanes
from bench_spark.transports.amqp.frames import method_frame
from bench_spark.transports.amqp.lanes import LaneTerms
from bench_spark.transports.amqp.message_headers import message_ids
from bench_spark.transports.amqp.parsing import Parser
from bench_spark.transports.amqp.protocol import OpenChannel
from bench_spark.transports.amqp.publishing import MessageBlock, PublishFrames
from bench_spark.transports.amqp.settlement import Settlement
from bench_spark.transports.amqp.settling import SettlingLanes
from bench_spark.transports.base import (
    U8,
    Destination,
    Signal,
    SignalKind,
)
from bench_spark.transports.sockets.sending import Load, SendingLanes

MOST_BLOCKS = 4096


@dataclass
class _Outbox:
    """What a producer lane knows besides its connection."""

    settlement: Settlement
    frames: list[PublishFrames]
    """By route."""
    is_blocked: bool = False


@dataclass
class _Blocks:
    """Blocks of messages; lanes that publish the same way share them."""

    _made: dict[tuple[PublishFrames, int, int], MessageBlock] = field(default_factory=dict)

    def of(self, frames: PublishFrames, tail: bytes, head_bytes: int) -> MessageBlock:
        key = (frames, len(tail), head_bytes)
        block = self._made.get(key)
        # An agent sends the same tail again and again: usually it is the very same object.
        if block is None or (block.tail is not tail and block.tail != tail):
            if len(self._made) >= MOST_BLOCKS:
                self._made.clear()
            block = self._made[key] = MessageBlock(frames, tail, head_bytes)
        return block


class FastProducers(
    SettlingLanes[FastLane], FastLanes, SendingLanes[FastLane, AmqpConnection, OpenChannel]
):
    def __init__(self, terms: LaneTerms) -> None:
        self._outboxes: dict[int, _Outbox] = {}
        """By lane."""
        self._frames: dict[tuple[object, ...], PublishFrames] = {}
        self._blocks = _Blocks()
        super().__init__(terms)

    def _make_parser(self, lane: FastLane, on_method: Callable[[Any], None]) -> Parser:
        settlement, handover = self._settlements[lane.number], lane.handover
        frames = [self._frames_for(handover, one) for one in lane.lane.destinations]
        self._outboxes[lane.number] = _Outbox(settlement, frames)
        receiver = Confirmations(handover.channel, settlement)
        return Parser(handover.channel, handover.frame_max, receiver, on_method)

    def _frames_for(self, handover: Handover, destination: Destination) -> PublishFrames:
        routing_key = naming.routing_keys(self._amqp, destination.index, destination.name or "")[0]
        headers = naming.message_headers(self._amqp, destination.index)
        key = (handover.channel, handover.frame_max, routing_key, *headers.values())
        if key not in self._frames:
            self._frames[key] = PublishFrames(
                handover.channel,
                self._amqp.exchange.name,
                routing_key,
                mandatory=self._amqp.mandatory,
                immediate=self._amqp.immediate,
                persistent=self._amqp.persistent,
                frame_max=handover.frame_max,
                headers=headers,
            )
        return self._frames[key]

    def _begin(self, lane: FastLane) -> None:
        if lane.handover.blocked_reason is not None:
            self._block(lane, lane.handover.blocked_reason)
        if self._amqp.producer_transaction:
            lane.unanswered += 1
            lane.connection.send_method(pika.spec.Tx.Select())
        elif self._amqp.confirms:
            lane.unanswered += 1
            lane.connection.send_method(pika.spec.Confirm.Select())

    # -- sending -----------------------------------------------------------------------------------

    def _allowed(self, lane: FastLane) -> int:
        outbox = self._outboxes[lane.number]
        if lane.is_lost or outbox.is_blocked or lane.number in self._committing:
            return 0
        return outbox.settlement.room

    def _write(self, lane: FastLane, load: Load) -> None:
        outbox = self._outboxes[lane.number]
        # Noted before it is written: a write that fails abandons what was noted.
        outbox.settlement.sent(load.heads, load.head_bytes)
        data = self._data(outbox.frames, load)
        if self._amqp.producer_transaction and not outbox.settlement.room:
            self._committing.add(lane.number)
            data = b"".join((data, method_frame(lane.handover.channel, pika.spec.Tx.Commit())))
        lane.connection.send(data)

    def _send_commit(self, lane: FastLane) -> None:
        lane.connection.send_method(pika.spec.Tx.Commit())

    def _data(self, frames: Sequence[PublishFrames], load: Load) -> bytes | memoryview:
        routes = load.routes
        digits = None if self._key_choice is None else self._key_choice.digits(load.heads)
        if not load.is_of_one_kind:
            return _one_by_one(frames, load, digits, self._amqp.may_return)
        if len(frames) == 1 or not np.count_nonzero(routes != routes[0]):
            block = self._blocks.of(frames[routes[0]], load.shared_tail, load.head_bytes)
            return block.stamped(load.rows, digits, load.own_tails)
        return self._interleaved(frames, load, digits)

    def _interleaved(
        self, frames: Sequence[PublishFrames], load: Load, key_digits: U8 | None
    ) -> bytes:
        """Messages of one lane for several destinations, in the order they were dealt."""
        pieces: list[bytes | memoryview] = [b""] * len(load.rows)
        for route in np.unique(load.routes).tolist():
            places = np.flatnonzero(load.routes == route)
            digits = None if key_digits is None else key_digits[places]
            tails = None if load.own_tails is None else load.own_tails[places]
            block = self._blocks.of(frames[route], load.shared_tail, load.head_bytes)
            stamped, size = block.stamped(load.rows[places], digits, tails), block.message_bytes
            for number, place in enumerate(places.tolist()):
                pieces[place] = stamped[number * size : (number + 1) * size]
        return b"".join(pieces)

    # -- what the broker says ----------------------------------------------------------------------

    def _on_method(self, lane: FastLane, method: Any) -> None:
        if isinstance(method, pika.spec.Confirm.SelectOk | pika.spec.Tx.SelectOk):
            self._answered(lane)
        elif isinstance(method, pika.spec.Tx.CommitOk):
            self._committed(lane)
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

    def _block(self, lane: FastLane, why: str) -> None:
        self._outboxes[lane.number].is_blocked = True
        at_ns = lane.connection.read_ns or self._now_ns()
        self._signals.append(Signal(SignalKind.BLOCKED, at_ns, lane.number, reason=why))

    def _unblock(self, lane: FastLane) -> None:
        self._outboxes[lane.number].is_blocked = False
        at_ns = lane.connection.read_ns
        self._signals.append(Signal(SignalKind.UNBLOCKED, at_ns, lane.number))


def _one_by_one(
    frames: Sequence[PublishFrames], load: Load, key_digits: U8 | None, may_return: bool
) -> bytes:
    """Messages that differ in more than their heads."""
    digits = itertools.repeat(b"") if key_digits is None else (row.tobytes() for row in key_digits)
    headers = itertools.repeat(None) if load.headers is None else load.headers
    is_named = may_return and not load.head_bytes
    names = message_ids(load.rows) if is_named else itertools.repeat(b"")
    # Some of these columns may have no end, so the shortest one decides.
    return b"".join(
        itertools.chain.from_iterable(
            frames[route].pieces(body, ends, own, name)
            for body, route, ends, own, name in zip(
                load.bodies(), load.routes.tolist(), digits, headers, names, strict=False
            )
        )
    )
