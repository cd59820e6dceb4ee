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
from bench_spark.transports.sockets.buffers import (
    NO_TAILS,
    Int,
    OutcomeRows,
    copy_bytes,
)
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
    """Messages for one exchange and routing key on one channel."""

    def __init__(
        self,
        channel: int,
        exchange: str,
        routing_key: str,
        *,
        mandatory: bool,
        immediate: bool = False,
        persistent: bool,
        frame_max: int,
        headers: Mapping[str, Any] | None = None,
    ) -> None:
        self._channel = channel
        self._method = method_frame(
            channel,
            pika.spec.Basic.Publish(
                exchange=exchange,
                routing_key=routing_key,
                mandatory=mandatory,
                immediate=immediate,
            ),
        )
        self._properties = message_properties(persistent=persistent, headers=headers)
        mode = _PERSISTENT if persistent else _TRANSIENT
        self._own_header = MessageHeader(channel, mode, headers)
        self.piece_bytes = frame_max - FRAME_EXTRA_BYTES
        """Of a body, in one frame."""
        self._starts: dict[int, bytes] = {}
        start = self._start(0)
        self.body_at = len(start) + FRAME_START_BYTES
        """Where in a message's bytes its body begins."""
        self.key_end = _KEY_AT + len(exchange.encode()) + len(routing_key.encode())
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
def write_messages(out: U8, template: U8, heads: I64, tails: U8, ring: I64) -> bool:
    """Write the template's message once for each head, with that head, and with the tail that is
    its own where there are any; and open a tag for each where there are confirms. False, and
    nothing done, where the ring of tags is too small."""
    if has_tags(ring) and not remember(heads, ring):
        return False
    places, message = template[:_MESSAGE_AT].view(np.int64), template[_MESSAGE_AT:]
    head_bytes, body_at, piece_bytes = places[_HEAD_BYTES], places[_BODY_AT], places[_PIECE_BYTES]
    message_bytes, tail_bytes, envelopes = len(message), tails.shape[1], heads.view(np.uint8)
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
    return True


@kernel
def put_digits(out: U8, message_bytes: Int, key_end: Int, digits: U8) -> None:
    """Write the last digits of the routing key of each message."""
    at, width = 0, digits.shape[1]
    for number in range(len(digits)):
        copy_bytes(out[at + key_end - width :], digits[number])
        at += message_bytes


class MessageTemplate:
    """The frames of messages of one size, to be written with other heads, tails and keys."""

    def __init__(self, frames: PublishFrames, tail: bytes, head_bytes: int) -> None:
        """`tail`: of all messages that are not given one of their own."""
        self.frames = frames
        self.tail = tail
        self.head_bytes = head_bytes
        whole = frames.message(bytes(head_bytes) + tail)
        places = np.array([head_bytes, frames.body_at, frames.piece_bytes], np.int64)
        self.data: U8 = np.frombuffer(bytearray(places.tobytes() + whole), np.uint8)
        self.message_bytes = len(whole)
        self.key_end = frames.key_end


class MessageWriter:
    """Writes the frames of batches into memory that all lanes of an agent share."""

    def __init__(self, may_return: bool) -> None:
        self._may_return = may_return
        self._templates: dict[tuple[PublishFrames, int, int], MessageTemplate] = {}
        self._out: U8 = np.zeros(2 * WRITE_BYTES, np.uint8)
        self._view = self._out.data
        # How the last batch was written, as the next one mostly is like it: its template, and the
        # tail that it had, which is that of all or in the same memory for each.
        self._last: MessageTemplate | None = None
        self._last_tail: Tails = b""
        self._last_tails: U8 = NO_TAILS

    def write(
        self,
        frames: Sequence[PublishFrames],
        batch: Batch,
        confirms: Confirms,
        digits: U8 | None = None,
    ) -> bytes | memoryview:
        """The frames of these messages, whose routes are places in `frames`, and which will be
        confirmed; `digits` end their routing keys. Good until the next call."""
        last = self._last
        if (
            last is not None
            and batch.tail is self._last_tail
            and frames[0] is last.frames
            and batch.head_bytes == last.head_bytes
            and batch.headers is None
            and digits is None
            and len(frames) == 1
        ):
            heads, tails = batch.head_words, self._last_tails
            end = len(heads) * last.message_bytes
            confirms.count(len(heads), last.head_bytes)
            if end > len(self._out) or not write_messages(
                self._out, last.data, heads, tails, confirms.ring
            ):
                self._write(last, 0, heads, tails, confirms)
            return self._view[:end]
        if not is_alike(batch):
            confirms.sent(batch.head, batch.head_bytes)
            return _one_by_one(frames, batch, digits, self._may_return)
        tail, tails = shared_and_own_tails(batch.tail)
        confirms.count(len(batch), batch.head_bytes)
        if len(frames) == 1:
            template = self._template(frames[0], tail, batch.head_bytes)
            self._last, self._last_tail, self._last_tails = template, batch.tail, tails
            end = self._write(template, 0, batch.head_words, tails, confirms)
            if digits is not None:
                put_digits(self._out, template.message_bytes, template.key_end, digits)
            return self._view[:end]
        templates = [self._template(one, tail, batch.head_bytes) for one in frames]
        self._make_room(len(batch) * max(template.message_bytes for template in templates))
        end = 0
        for route, first, stop in _runs(batch.route):
            template, start = templates[route], end
            heads = batch.head_words[first:stop]
            end = self._write(template, start, heads, tails[first:stop], confirms)
            if digits is not None:
                own = digits[first:stop]
                put_digits(self._out[start:], template.message_bytes, template.key_end, own)
        return self._view[:end]

    def _write(
        self, template: MessageTemplate, at: int, heads: I64, tails: U8, confirms: Confirms
    ) -> int:
        """Where these messages end."""
        end = at + len(heads) * template.message_bytes
        if end > len(self._out):
            self._make_room(end)
        out = self._out[at:] if at else self._out
        while not write_messages(out, template.data, heads, tails, confirms.ring):
            confirms.double_ring()
        return end

    def _template(self, frames: PublishFrames, tail: bytes, head_bytes: int) -> MessageTemplate:
        key = (frames, len(tail), head_bytes)
        found = self._templates.get(key)
        # An agent sends the same tail again and again: usually it is the very same object.
        if found is None or (found.tail is not tail and found.tail != tail):
            if len(self._templates) >= MOST_TEMPLATES:
                self._templates.clear()
            found = self._templates[key] = MessageTemplate(frames, tail, head_bytes)
        return found

    def _make_room(self, wanted_bytes: int) -> None:
        if wanted_bytes > len(self._out):
            self._out = np.zeros(2 * wanted_bytes, np.uint8)
            self._view = self._out.data


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
    frames = PublishFrames(1, "", "0", mandatory=False, persistent=False, frame_max=4096)
    heads, digits = empty_envelopes(1), np.full((1, 1), ord("0"), np.uint8)
    batch = Batch(np.zeros(1, np.uint32), heads, b"", np.zeros(1, np.uint16))
    confirms = Confirms(0, Framing(1, 4096), ConfirmTerms(1, may_return=False), OutcomeRows())
    MessageWriter(may_return=False).write([frames], batch, confirms, digits)


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
