"""Frames of messages to publish: templates that are copied and stamped, or one by one. Pure.

Where a destination has several routing keys, a message takes one by its number, not by a generator
of random numbers: a message that was refused keeps its key for the next try. The keys of a
destination differ only in the digits at their end, so frames of all of them have one length.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pika.spec

from bench_spark.config.protocols import Amqp
from bench_spark.core.envelope import Envelopes, empty_envelopes, envelope_bytes
from bench_spark.core.kernels import kernel, warm_up
from bench_spark.core.mixing import mixed
from bench_spark.transports.amqp import naming
from bench_spark.transports.amqp.confirms import Confirms, ConfirmTerms, has_tags, remember
from bench_spark.transports.amqp.frames import (
    BODY,
    END_MARK,
    FRAME_EXTRA_BYTES,
    FRAME_START_BYTES,
    Framing,
    MessageHeader,
    body_frame,
    frame_start,
    header_frame,
    message_ids,
    method_frame,
)
from bench_spark.transports.batches import I64, U8, U16, Batch, Headers, Tails
from bench_spark.transports.sockets.buffers import NO_TAILS, Int, OutcomeRows, copy_bytes
from bench_spark.transports.sockets.lanes import (
    WRITE_BYTES,
    bodies_of,
    is_alike,
    shared_and_own_tails,
)

MOST_TEMPLATES = 4096
"""That are kept, by route, size of the body, and how much of a head is in it."""
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
        framing: Framing,
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


_HEAD_BYTES, _BODY_AT, _PIECE_BYTES, _MESSAGE = range(4)
"""Words before a template's message: how many bytes of a head are in it, where its body begins, and
what one frame holds of a body. In bytes, the message is behind the last of them."""
_MESSAGE_AT = 8 * _MESSAGE


@kernel
def write_messages(out: U8, template: U8, heads: I64, tails: U8, ring: I64) -> Int:
    """Write the template's message once for each head, with that head, and with the tail that is
    its own where there are any; and open a tag for each where there are confirms. Returns where
    they end: 0, and nothing done, where `out` or the ring of tags is too small."""
    places, message = template[:_MESSAGE_AT].view(np.int64), template[_MESSAGE_AT:]
    head_bytes, body_at, piece_bytes = places[_HEAD_BYTES], places[_BODY_AT], places[_PIECE_BYTES]
    message_bytes, tail_bytes, envelopes = len(message), tails.shape[1], heads.view(np.uint8)
    if len(heads) * message_bytes > len(out) or (has_tags(ring) and not remember(heads, ring)):
        return 0
    shared_bytes = body_at if tail_bytes else message_bytes
    at = 0
    for number in range(len(heads)):
        copy_bytes(out[at:], message[:shared_bytes])
        copy_bytes(out[at + body_at :], envelopes[number][:head_bytes])
        done = 0
        while done < tail_bytes:
            # As far as a body's frame reaches, and then the end of that frame and the next start.
            frame = (head_bytes + done) // piece_bytes
            first = body_at + head_bytes + done + frame * FRAME_EXTRA_BYTES
            count = min(tail_bytes - done, (frame + 1) * piece_bytes - head_bytes - done)
            end = first + count
            copy_bytes(out[at + first :], tails[number][done : done + count])
            copy_bytes(out[at + end :], message[end : end + FRAME_EXTRA_BYTES])
            done += count
        at += message_bytes
    return at


@kernel
def put_digits(out: U8, message_bytes: Int, key_end: Int, digits: U8) -> None:
    """Write the last digits of the routing key of each message."""
    at, width = 0, digits.shape[1]
    for number in range(len(digits)):
        copy_bytes(out[at + key_end - width :], digits[number])
        at += message_bytes


class KeyChoice:
    """For messages that take one of so many keys, numbered with so many digits."""

    def __init__(self, keys: int, digits: int) -> None:
        self._keys = np.uint64(keys)
        texts = "".join(f"{number:0{digits}d}" for number in range(keys)).encode()
        self._digits: U8 = np.frombuffer(texts, np.uint8).reshape(keys, digits)

    def numbers(self, heads: Envelopes) -> I64:
        """The number of each message's key: evenly spread, in no order."""
        numbers: I64 = (mixed(heads) % self._keys).astype(np.int64)
        return numbers

    def digits(self, heads: Envelopes) -> U8:
        """A row with the digits of each message's key."""
        rows: U8 = self._digits[self.numbers(heads)]
        return rows


def key_choice(amqp: Amqp) -> KeyChoice | None:
    """None where all messages of a destination have the same key."""
    if amqp.routing_keys < 2:
        return None
    return KeyChoice(amqp.routing_keys, naming.key_digits(amqp))


class MessageTemplate:
    """The frames of messages of one size, to be written with other heads, tails and keys."""

    def __init__(self, frames: PublishFrames, tail: bytes, head_bytes: int) -> None:
        """`tail`: of all messages that are not given one of their own."""
        self.tail = tail
        whole = frames.message(bytes(head_bytes) + tail)
        places = np.array([head_bytes, frames.body_at, frames.piece_bytes], np.int64)
        self.data: U8 = np.frombuffer(bytearray(places.tobytes() + whole), np.uint8)
        self.message_bytes = len(whole)
        self.key_end = frames.key_end


class MessageWriter:
    """Writes the frames of batches into memory that all lanes of an agent share."""

    def __init__(self, may_return: bool, key_choice: KeyChoice | None = None) -> None:
        self._may_return = may_return
        self._key_choice = key_choice
        self._templates: dict[tuple[PublishFrames, int, int], MessageTemplate] = {}
        self._out: U8 = np.zeros(2 * WRITE_BYTES, np.uint8)
        self._view = self._out.data
        # What the last batch was written from, as the next one mostly is like it. Its tail is that
        # of all messages, or rows in the same memory for each.
        self._frames: Sequence[PublishFrames] = ()
        self._tail: Tails = b""
        self._head_bytes = 0
        self._template = self._out
        self._tails: U8 = NO_TAILS

    def write(
        self, frames: Sequence[PublishFrames], batch: Batch, confirms: Confirms
    ) -> bytes | memoryview:
        """The frames of these messages, whose routes are places in `frames`, and which will be
        confirmed. Good until the next call."""
        if (
            frames is self._frames
            and batch.tail is self._tail
            and batch.head_bytes == self._head_bytes
            and batch.headers is None
        ):
            heads = batch.head_words
            end = write_messages(self._out, self._template, heads, self._tails, confirms.ring)
            if end:
                confirms.count(len(heads), self._head_bytes)
                return self._view[:end]
        if is_alike(batch):
            return self._write_alike(frames, batch, confirms)
        confirms.sent(batch.head, batch.head_bytes)
        digits = None if self._key_choice is None else self._key_choice.digits(batch.head)
        return _one_by_one(frames, batch, digits, self._may_return)

    def _write_alike(
        self, frames: Sequence[PublishFrames], batch: Batch, confirms: Confirms
    ) -> memoryview:
        confirms.count(len(batch), batch.head_bytes)
        tail, tails = shared_and_own_tails(batch.tail)
        runs = _runs(batch.route) if len(frames) > 1 else ((0, 0, len(batch)),)
        end = 0
        for route, first, stop in runs:
            template = self._template_of(frames[route], tail, batch.head_bytes)
            heads, start = batch.head_words[first:stop], end
            end += len(heads) * template.message_bytes
            self._make_room(start, end)
            out, own_tails = self._out[start:], tails[first:stop]
            while not write_messages(out, template.data, heads, own_tails, confirms.ring):
                confirms.double_ring()
            if self._key_choice is not None:
                digits = self._key_choice.digits(batch.head[first:stop])
                put_digits(out, template.message_bytes, template.key_end, digits)
        if len(frames) == 1 and self._key_choice is None:
            self._frames, self._tail, self._head_bytes = frames, batch.tail, batch.head_bytes
            self._template, self._tails = template.data, tails
        return self._view[:end]

    def _template_of(self, frames: PublishFrames, tail: bytes, head_bytes: int) -> MessageTemplate:
        key = (frames, len(tail), head_bytes)
        found = self._templates.get(key)
        # An agent sends the same tail again and again: usually it is the very same object.
        if found is None or (found.tail is not tail and found.tail != tail):
            if len(self._templates) >= MOST_TEMPLATES:
                self._templates.clear()
            found = self._templates[key] = MessageTemplate(frames, tail, head_bytes)
        return found

    def _make_room(self, filled: int, wanted: int) -> None:
        """For so many bytes, the first of which are filled."""
        if wanted > len(self._out):
            larger = np.zeros(2 * wanted, np.uint8)
            larger[:filled] = self._out[:filled]
            self._out, self._view = larger, larger.data


def _runs(routes: U16) -> Iterator[tuple[int, int, int]]:
    """Route, and where messages that follow each other on it begin and end."""
    bounds = [0, *(np.flatnonzero(np.diff(routes)) + 1).tolist(), len(routes)]
    return zip(routes[bounds[:-1]].tolist(), bounds[:-1], bounds[1:], strict=True)


def _one_by_one(
    frames: Sequence[PublishFrames], batch: Batch, key_digits: U8 | None, may_return: bool
) -> bytes:
    """Messages that differ in more than their heads."""
    digits = itertools.repeat(b"") if key_digits is None else (row.tobytes() for row in key_digits)
    headers = itertools.repeat(None) if batch.headers is None else batch.headers
    is_named = may_return and not batch.head_bytes
    names = message_ids(envelope_bytes(batch.head)) if is_named else itertools.repeat(b"")
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
    framing, publish = Framing(1, 4096), pika.spec.Basic.Publish(routing_key="0")
    frames = [PublishFrames(framing, publish, persistent=False)]
    batch = Batch(np.zeros(1, np.uint32), empty_envelopes(1), b"", np.zeros(1, np.uint16))
    confirms = Confirms(0, framing, ConfirmTerms(1, may_return=False), OutcomeRows())
    MessageWriter(may_return=False, key_choice=KeyChoice(2, 1)).write(frames, batch, confirms)
