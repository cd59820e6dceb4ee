"""Publishing in batches: frames are built once, stamped per batch, and written as they lie.

A lane takes whole messages only. What its socket does not take at once is kept, at most one write's
worth, and until that has gone the lane takes no more.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pika.spec

from bench_spark.measure.clock import NowNs
from bench_spark.measure.envelope import Envelopes, envelope_bytes
from bench_spark.scenario.models import Amqp
from bench_spark.transports.amqp import naming
from bench_spark.transports.amqp.acks import Confirmations
from bench_spark.transports.amqp.connection import Handover
from bench_spark.transports.amqp.fast_lanes import FastLane, FastLanes
from bench_spark.transports.amqp.frames import method_frame
from bench_spark.transports.amqp.grouping import by_lane, is_of_one_lane
from bench_spark.transports.amqp.key_choice import KeyChoice
from bench_spark.transports.amqp.opening import Access
from bench_spark.transports.amqp.parsing import Parser
from bench_spark.transports.amqp.publishing import MessageBlock, PublishFrames
from bench_spark.transports.amqp.reopening import ReopeningRule
from bench_spark.transports.amqp.settlement import Settlement
from bench_spark.transports.amqp.settling import SettlingLanes
from bench_spark.transports.base import (
    I64,
    U8,
    U16,
    Batch,
    Destination,
    Lane,
    Signal,
    SignalKind,
)

WRITE_BYTES = 256 * 1024
"""Messages written to a lane at once, and the most that may wait there for its socket."""
MOST_BLOCKS = 4096


@dataclass
class _Outbox:
    """What a producer lane knows besides its connection."""

    settlement: Settlement
    frames: list[PublishFrames]
    """By route."""
    is_blocked: bool = False


@dataclass(frozen=True)
class _Load:
    """A batch in the order in which it is written."""

    heads: Envelopes
    rows: U8
    """The same heads as bytes."""
    routes: U16
    tails: bytes | Sequence[bytes]
    head_bytes: int
    key_digits: U8 | None
    """Where routing keys vary: the end of each message's key."""

    @classmethod
    def of(cls, batch: Batch, choice: KeyChoice | None, order: I64 | None = None) -> _Load:
        heads, routes, tails = batch.head, batch.route, batch.tail
        if order is not None:
            heads, routes = heads[order], routes[order]
            tails = tails if isinstance(tails, bytes) else [tails[place] for place in order]
        rows = envelope_bytes(np.ascontiguousarray(heads))
        key_digits = None if choice is None else choice.digits(heads)
        return cls(heads, rows, routes, tails, batch.head_bytes, key_digits)

    def part(self, start: int, end: int) -> _Load:
        """Some of these messages (views, no copies of heads)."""
        return _Load(
            self.heads[start:end],
            self.rows[start:end],
            self.routes[start:end],
            self.tails if isinstance(self.tails, bytes) else self.tails[start:end],
            self.head_bytes,
            None if self.key_digits is None else self.key_digits[start:end],
        )


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


class FastProducers(SettlingLanes[FastLane], FastLanes):
    def __init__(
        self,
        access: Access,
        amqp: Amqp,
        lanes: Sequence[Lane],
        now_ns: NowNs,
        rule: ReopeningRule | None = None,
    ) -> None:
        self._outboxes: dict[int, _Outbox] = {}
        """By lane."""
        self._frames: dict[tuple[object, ...], PublishFrames] = {}
        self._blocks = _Blocks()
        self._key_choice = (
            KeyChoice(amqp.routing_keys, naming.key_digits(amqp)) if amqp.routing_keys > 1 else None
        )
        super().__init__(access, amqp, lanes, now_ns, rule)

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

    def send(self, batch: Batch) -> int:
        if self._is_closing or not len(batch):
            return 0
        if is_of_one_lane(batch.lane):
            return self._send_on_one_lane(batch)
        return self._send_by_lane(batch)

    def _send_on_one_lane(self, batch: Batch) -> int:
        lane = self._opened[batch.lane[0]]
        room = self._room(lane)
        if room <= 0:
            return 0
        load = _Load.of(batch, self._key_choice)
        most = _messages_per_write(batch)
        accepted = 0
        while room > 0 and accepted < len(batch):
            end = min(len(batch), accepted + min(most, room))
            self._write(lane, load, accepted, end)
            accepted = end
            room = self._room(lane)
        return accepted

    def _send_by_lane(self, batch: Batch) -> int:
        """Accepted is a prefix of the batch: it ends where the first lane has no more room."""
        if self._room(self._opened[batch.lane[0]]) <= 0:
            return 0  # before the work of grouping: full lanes are tried again and again
        groups = by_lane(batch.lane)
        most = _messages_per_write(batch)
        accepted = len(batch)
        for number, start, end in groups:
            room = max(0, min(most, self._room(self._opened[number])))
            if end - start > room:
                accepted = min(accepted, int(groups.order[start + room]))
        if not accepted:
            return 0
        load = _Load.of(batch, self._key_choice, groups.order)
        for number, start, end in groups:
            if accepted < len(batch):
                end = start + int(groups.order[start:end].searchsorted(accepted))
            if end > start:
                self._write(self._opened[number], load, start, end)
        return accepted

    def full_among(self, lanes: Iterable[int]) -> set[int]:
        # Without trying to write: a socket that has room again is written to by the loop.
        return {
            number
            for number in lanes
            if self._opened[number].connection.unsent_bytes
            or self._allowed(self._opened[number]) <= 0
        }

    def _room(self, lane: FastLane) -> int:
        """How many messages the lane takes now."""
        if self._allowed(lane) <= 0:
            return 0
        if lane.connection.unsent_bytes and not lane.connection.flush():
            return 0
        return self._allowed(lane)  # again: a write that failed has ended the lane

    def _allowed(self, lane: FastLane) -> int:
        """How many messages the broker lets the lane send now, whatever its socket takes."""
        outbox = self._outboxes[lane.number]
        if lane.is_lost or outbox.is_blocked or lane.number in self._committing:
            return 0
        return outbox.settlement.room

    def _write(self, lane: FastLane, load: _Load, start: int, end: int) -> None:
        outbox = self._outboxes[lane.number]
        # Noted before it is written: a write that fails abandons what was noted.
        outbox.settlement.sent(load.heads[start:end], load.head_bytes)
        data = self._data(outbox.frames, load.part(start, end))
        if self._amqp.producer_transaction and not outbox.settlement.room:
            self._committing.add(lane.number)
            data = b"".join((data, method_frame(lane.handover.channel, pika.spec.Tx.Commit())))
        lane.connection.send(data)

    def _send_commit(self, lane: FastLane) -> None:
        lane.connection.send_method(pika.spec.Tx.Commit())

    def _data(self, frames: Sequence[PublishFrames], load: _Load) -> bytes | memoryview:
        routes, tails = load.routes, load.tails
        if not isinstance(tails, bytes):
            return _each_with_its_tail(frames, load, tails)
        if len(frames) == 1 or not np.count_nonzero(routes != routes[0]):
            block = self._blocks.of(frames[routes[0]], tails, load.head_bytes)
            return block.stamped(load.rows, load.key_digits)
        return self._interleaved(frames, load, tails)

    def _interleaved(self, frames: Sequence[PublishFrames], load: _Load, tail: bytes) -> bytes:
        """Messages of one lane for several destinations, in the order they were dealt."""
        pieces: list[bytes | memoryview] = [b""] * len(load.rows)
        for route in np.unique(load.routes).tolist():
            places = np.flatnonzero(load.routes == route)
            digits = None if load.key_digits is None else load.key_digits[places]
            block = self._blocks.of(frames[route], tail, load.head_bytes)
            stamped, size = block.stamped(load.rows[places], digits), block.message_bytes
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


def _messages_per_write(batch: Batch) -> int:
    tail_bytes = len(batch.tail) if isinstance(batch.tail, bytes) else max(map(len, batch.tail))
    return max(1, WRITE_BYTES // (batch.head_bytes + tail_bytes))


def _each_with_its_tail(
    frames: Sequence[PublishFrames], load: _Load, tails: Sequence[bytes]
) -> bytes:
    heads = load.rows[:, : load.head_bytes]
    digits = (
        itertools.repeat(b"")
        if load.key_digits is None
        else (row.tobytes() for row in load.key_digits)
    )
    # `digits` may have no end, so the shortest column decides.
    return b"".join(
        frames[route].message(head.tobytes() + tail, key_digits)
        for head, route, tail, key_digits in zip(
            heads, load.routes.tolist(), tails, digits, strict=False
        )
    )
