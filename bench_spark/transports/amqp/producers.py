"""Producers: batches become frames that are written as they lie, and confirms become outcomes.

Where a destination has several routing keys, a message takes one by its number, not by a generator
of random numbers: a message that was refused keeps its key for the next try. The keys of a
destination differ only in the digits at their end, so frames of all of them have one length.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pika.spec

from bench_spark.config.protocols import Amqp
from bench_spark.core.envelope import Envelopes, byte_rows_of, empty_envelopes
from bench_spark.core.kernels import kernel, warm_up
from bench_spark.core.randomness import mixed
from bench_spark.transports.amqp import topology
from bench_spark.transports.amqp.confirms import Confirms, ConfirmTerms, has_tags, remember
from bench_spark.transports.amqp.connection import AmqpConnection
from bench_spark.transports.amqp.frames import (
    BODY,
    END_MARK,
    FRAME_EXTRA_BYTES,
    FRAME_START_BYTES,
    FrameParser,
    FrameTerms,
    MessageHeader,
    body_frame,
    frame_start,
    header_frame,
    message_ids,
    method_frame,
)
from bench_spark.transports.base import Destination, Signal, SignalKind
from bench_spark.transports.batches import I64, U8, Batch, Headers, OutcomeKind, Payloads
from bench_spark.transports.sockets.buffers import Int, OutcomeRows, copy_bytes
from bench_spark.transports.sockets.lanes import Sender
from bench_spark.transports.sockets.messages import (
    MESSAGES_AT,
    NO_PAYLOADS,
    Template,
    TemplateBlock,
    Templates,
    bodies_of,
    has_room,
    is_alike,
    put_messages,
    runs_by_route,
    shared_and_own_payloads,
)
from bench_spark.transports.sockets.opening import OpenLane

MOST_STARTS = 4096
"""Beginnings of messages that are kept, by the size of the body."""

_TRANSIENT, _PERSISTENT = 1, 2
_KEY_AT = FRAME_START_BYTES + 4 + 2 + 1 + 1
"""In a publish's frame, for an empty exchange: behind class and method, a reserved number, and the
lengths of exchange and key."""


def message_properties(
    *, persistent: bool, headers: Mapping[str, Any] | None, message_id: str | None = None
) -> Any:
    """All that a message says of itself: what is not asked for stays unset."""
    return pika.spec.BasicProperties(
        delivery_mode=_PERSISTENT if persistent else _TRANSIENT,
        headers=dict(headers) if headers else None,
        message_id=message_id,
    )


class PublishFrames:
    """Messages that are published alike on one connection."""

    def __init__(
        self,
        framing: FrameTerms,
        publish: Any,
        *,
        persistent: bool,
        headers: Mapping[str, Any] | None = None,
    ) -> None:
        """`publish`: the method, with exchange, routing key and flags."""
        self._channel = framing.channel
        self._method = method_frame(framing.channel, publish)
        self._properties = message_properties(persistent=persistent, headers=headers)
        mode = _PERSISTENT if persistent else _TRANSIENT
        self._own_header = MessageHeader(framing.channel, mode, headers)
        self.piece_bytes = framing.content_max
        """Of a body, in one frame."""
        self._starts: dict[int, bytes] = {}
        self.body_at = len(self._start(0)) + FRAME_START_BYTES
        """Where in a message's bytes its body begins."""
        names_bytes = len(publish.exchange.encode()) + len(publish.routing_key.encode())
        self.key_end = _KEY_AT + names_bytes
        """Where its routing key ends."""

    def _start(self, body_bytes: int) -> bytes:
        return self._method + header_frame(self._channel, body_bytes, self._properties)

    def message(self, body: bytes, key_digits: bytes = b"") -> bytes:
        """All frames of one message; `key_digits` replace the last characters of the routing
        key."""
        return b"".join(self.pieces(body, key_digits))

    def pieces(
        self,
        body: bytes,
        key_digits: bytes = b"",
        headers: Headers | None = None,
        message_id: bytes = b"",
    ) -> tuple[bytes, ...]:
        """The same, to be joined with those of others; a body larger than a frame is split."""
        if headers is None and not message_id:
            start = self._start_of(len(body))
        else:
            start = self._method + self._own_header.frame(len(body), headers, message_id)
            start += self._body_start(len(body))
        if key_digits:
            key_end = self.key_end
            start = start[: key_end - len(key_digits)] + key_digits + start[key_end:]
        if not body:
            return (start,)
        if len(body) <= self.piece_bytes:
            return start, body, END_MARK
        return (
            start,
            *(
                body_frame(self._channel, body[first : first + self.piece_bytes])
                for first in range(0, len(body), self.piece_bytes)
            ),
        )

    def _start_of(self, body_bytes: int) -> bytes:
        """What comes before a body of that size."""
        start = self._starts.get(body_bytes)
        if start is None:
            if len(self._starts) >= MOST_STARTS:
                self._starts.clear()
            start = self._start(body_bytes) + self._body_start(body_bytes)
            self._starts[body_bytes] = start
        return start

    def _body_start(self, body_bytes: int) -> bytes:
        """Of a body's only frame; empty where it has none or several."""
        if not 0 < body_bytes <= self.piece_bytes:
            return b""
        return frame_start(BODY, self._channel, body_bytes)


@kernel
def write_and_remember(block: U8, envelopes: I64, payloads: U8, ring: I64) -> Int:
    """Write messages, and open a tag for each where there are confirms. Returns where they end: 0,
    and nothing done, where the block or the ring of tags is too small."""
    if not has_room(block, envelopes) or (has_tags(ring) and not remember(envelopes, ring)):
        return 0
    return put_messages(block, envelopes, payloads)


@kernel
def put_digits(block: U8, key_end: Int, message_bytes: Int, digits: U8) -> None:
    """Write the last digits of the routing key of each message."""
    at, width = key_end, digits.shape[1]
    for number in range(len(digits)):
        copy_bytes(block[at - width :], digits[number])
        at += message_bytes


class KeyChoice:
    """For messages that take one of so many keys, numbered with so many digits."""

    def __init__(self, keys: int, digits: int) -> None:
        self._keys = np.uint64(keys)
        texts = "".join(f"{number:0{digits}d}" for number in range(keys)).encode()
        self._digits: U8 = np.frombuffer(texts, np.uint8).reshape(keys, digits)

    def numbers(self, envelopes: Envelopes) -> I64:
        """The number of each message's key: evenly spread, in no order."""
        numbers: I64 = (mixed(envelopes) % self._keys).astype(np.int64)
        return numbers

    def digits(self, envelopes: Envelopes) -> U8:
        """A row with the digits of each message's key."""
        rows: U8 = self._digits[self.numbers(envelopes)]
        return rows


def key_choice(amqp: Amqp) -> KeyChoice | None:
    """None where all messages of a destination have the same key."""
    if amqp.routing_keys < 2:
        return None
    return KeyChoice(amqp.routing_keys, topology.key_digits(amqp))


def _template(frames: PublishFrames, payload: bytes, envelope_bytes: int) -> Template:
    return Template(
        frames.message(bytes(envelope_bytes) + payload),
        frames.body_at,
        envelope_bytes,
        piece_bytes=frames.piece_bytes,
        gap_bytes=FRAME_EXTRA_BYTES,
    )


class PublishWriter:
    """Writes the frames of batches into memory that all lanes of an agent share."""

    def __init__(self, may_return: bool, key_choice: KeyChoice | None = None) -> None:
        self._may_return = may_return
        self._key_choice = key_choice
        self._templates = Templates(_template)
        self._block = TemplateBlock()
        # What the last batch was written from, as the next one mostly is like it. Its payload is
        # that of all messages, or rows in the same memory for each.
        self._frames: Sequence[PublishFrames] = ()
        self._payload: Payloads = b""
        self._payloads: U8 = NO_PAYLOADS
        self._envelope_bytes = 0
        # What was written of it, which for the next as large is the same view of the block.
        self._end = 0
        self._written = self._block.view

    def write(
        self, frames: Sequence[PublishFrames], batch: Batch, confirms: Confirms
    ) -> bytes | memoryview:
        """The frames of these messages, whose routes are places in `frames`, and which will be
        confirmed. Good until the next call."""
        if (
            frames is self._frames
            and batch.payload is self._payload
            and batch.envelope_bytes == self._envelope_bytes
            and batch.headers is None
        ):
            block, envelopes = self._block, batch.envelope_words
            end = write_and_remember(block.data, envelopes, self._payloads, confirms.ring)
            if end:
                confirms.envelope_bytes = self._envelope_bytes
                if end != self._end:
                    self._end, self._written = end, block.view[MESSAGES_AT:end]
                return self._written
        self._frames, self._end = (), 0
        if not is_alike(batch):
            confirms.sent(batch.envelope, batch.envelope_bytes)
            digits = None if self._key_choice is None else self._key_choice.digits(batch.envelope)
            return _one_by_one(frames, batch, digits, self._may_return)
        if len(frames) > 1:
            return b"".join(
                self._write_alike(frames[route], batch.part(first, end), confirms).tobytes()
                for route, first, end in runs_by_route(batch)
            )
        written = self._write_alike(frames[0], batch, confirms)
        if self._key_choice is None and (
            self._payloads is NO_PAYLOADS or self._payloads is batch.payload
        ):
            self._frames, self._payload, self._envelope_bytes = (
                frames,
                batch.payload,
                batch.envelope_bytes,
            )
        return written

    def _write_alike(self, frames: PublishFrames, batch: Batch, confirms: Confirms) -> memoryview:
        """Of one destination."""
        confirms.envelope_bytes = batch.envelope_bytes
        payload, self._payloads = shared_and_own_payloads(batch.payload)
        template = self._templates.of(frames, payload, batch.envelope_bytes)
        block, envelopes = self._block, batch.envelope_words
        block.begin(template, len(envelopes))
        while not (end := write_and_remember(block.data, envelopes, self._payloads, confirms.ring)):
            confirms.double_ring()
        if self._key_choice is not None:
            digits = self._key_choice.digits(batch.envelope)
            put_digits(block.data, MESSAGES_AT + frames.key_end, template.message_bytes, digits)
        return block.view[MESSAGES_AT:end]


def _one_by_one(
    frames: Sequence[PublishFrames], batch: Batch, key_digits: U8 | None, may_return: bool
) -> bytes:
    """Messages that differ in more than their envelopes."""
    digits = itertools.repeat(b"") if key_digits is None else (row.tobytes() for row in key_digits)
    headers = itertools.repeat(None) if batch.headers is None else batch.headers
    is_named = may_return and not batch.envelope_bytes
    names = message_ids(byte_rows_of(batch.envelope)) if is_named else itertools.repeat(b"")
    # Some of these columns may have no end, so the shortest one decides.
    return b"".join(
        itertools.chain.from_iterable(
            frames[route].pieces(body, ends, own, name)
            for body, route, ends, own, name in zip(
                bodies_of(batch), batch.route.tolist(), digits, headers, names, strict=False
            )
        )
    )


@warm_up
def _compile() -> None:
    framing, publish = FrameTerms(1, 4096), pika.spec.Basic.Publish(routing_key="0")
    frames = [PublishFrames(framing, publish, persistent=False)]
    batch = Batch(np.zeros(1, np.uint32), empty_envelopes(1), b"", np.zeros(1, np.uint16))
    confirms = Confirms(0, framing, ConfirmTerms(1, may_return=False), OutcomeRows())
    PublishWriter(may_return=False, key_choice=KeyChoice(2, 1)).write(frames, batch, confirms)


RELEASE_PERIOD_SECONDS = 0.01
"""How often to look for nacks whose returns are overdue, while any are held."""


class AmqpSender(Sender[AmqpConnection]):
    decoded: OutcomeRows

    def __init__(self, amqp: Amqp) -> None:
        self.request = "tx.select" if amqp.producer_transaction else "confirm.select"
        self.decoded = OutcomeRows()
        self._amqp = amqp
        self._is_transactional = amqp.producer_transaction > 0
        self._writer = PublishWriter(amqp.may_return, key_choice(amqp))
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
        self._holding: set[Confirms] = set()
        """Those that hold nacks whose returns may follow."""

    # -- opening -----------------------------------------------------------------------------------

    def equip(self, lane: OpenLane[AmqpConnection]) -> None:
        connection = lane.connection
        framing = connection.framing
        frames = tuple(self._frames_for(framing, one) for one in lane.lane.destinations)
        self._frames_of_lane[lane.number] = self._frames_of_routes.setdefault(frames, frames)
        confirms = Confirms(lane.number, framing, self._confirm_terms, self.decoded)
        confirms.on_held = self._release_later
        self._confirms[lane.number] = confirms
        on_method = functools.partial(self._on_method, lane)
        connection.begin(FrameParser(framing, confirms, connection.on_any_method), on_method)

    def _frames_for(self, framing: FrameTerms, destination: Destination) -> PublishFrames:
        routing_key = topology.routing_keys(self._amqp, destination.index, destination.name or "")[
            0
        ]
        headers = topology.message_headers(self._amqp, destination.index)
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

    # -- sending -----------------------------------------------------------------------------------

    def room(self, lane: OpenLane[AmqpConnection]) -> int:
        return 0 if lane.is_lost else self._confirms[lane.number].room

    def write(self, lane: OpenLane[AmqpConnection], batch: Batch) -> None:
        confirms = self._confirms[lane.number]
        # Noted before it is written: a write that fails abandons what was noted.
        data = self._writer.write(self._frames_of_lane[lane.number], batch, confirms)
        if self._is_transactional and not confirms.room:
            confirms.is_committing = True
            channel = lane.connection.framing.channel
            data = b"".join((data, method_frame(channel, pika.spec.Tx.Commit())))
        lane.connection.send(data)

    def commit(self) -> None:
        if not self._amqp.producer_transaction:
            return
        for lane in self.lanes.open:
            confirms = self._confirms[lane.number]
            if not lane.is_lost and not confirms.is_committing and confirms.in_flight:
                confirms.is_committing = True
                lane.connection.send_method(pika.spec.Tx.Commit())

    # -- what became of it -------------------------------------------------------------------------

    def in_flight(self) -> int:
        return sum(confirms.in_flight for confirms in self._confirms.values())

    def _release_later(self, confirms: Confirms) -> None:
        if not self._holding:
            self.lanes.loop.call_later(RELEASE_PERIOD_SECONDS, self._release)
        self._holding.add(confirms)

    def _release(self) -> None:
        """Settle nacks whose returns are overdue, until none are held."""
        now_ns = self.lanes.now_ns()
        self._holding = {confirms for confirms in self._holding if confirms.release(now_ns)}
        if self._holding:
            self.lanes.loop.call_later(RELEASE_PERIOD_SECONDS, self._release)

    def abandon(self, lane: OpenLane[AmqpConnection]) -> None:
        self._confirms[lane.number].abandon(self.lanes.now_ns())

    # -- what the broker says ----------------------------------------------------------------------

    def _on_method(self, lane: OpenLane[AmqpConnection], method: Any) -> None:
        if isinstance(method, pika.spec.Confirm.SelectOk | pika.spec.Tx.SelectOk):
            self.lanes.answered(lane)
        elif isinstance(method, pika.spec.Tx.CommitOk):
            confirms = self._confirms[lane.number]
            confirms.is_committing = False
            confirms.settled(0, True, OutcomeKind.CONFIRMED, lane.connection.read_ns)
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
        self._confirms[lane.number].is_blocked = True
        at_ns = lane.connection.read_ns or self.lanes.now_ns()
        self.lanes.signals.append(Signal(SignalKind.BLOCKED, at_ns, lane.number, reason=why))

    def _unblock(self, lane: OpenLane[AmqpConnection]) -> None:
        self._confirms[lane.number].is_blocked = False
        at_ns = lane.connection.read_ns
        self.lanes.signals.append(Signal(SignalKind.UNBLOCKED, at_ns, lane.number))
