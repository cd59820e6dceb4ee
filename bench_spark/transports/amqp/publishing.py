"""Frames of messages to publish: templates that are copied and stamped, or one by one. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pika.spec

from bench_spark.core.envelope import ENVELOPE_BYTES
from bench_spark.core.kernels import kernel, warm_up
from bench_spark.transports.amqp.frames import (
    BODY,
    END_MARK,
    FRAME_EXTRA_BYTES,
    FRAME_START_BYTES,
    body_frame,
    copy_bytes,
    frame_start,
    header_frame,
    method_frame,
)
from bench_spark.transports.amqp.message_headers import MessageHeader, message_ids
from bench_spark.transports.base import U8, U16, Headers
from bench_spark.transports.sockets.sending import WRITE_BYTES, Load

MOST_TEMPLATES = 4096
"""That are kept, by route, size of the body, and how much of a head is in it."""
MOST_STARTS = 4096
"""Beginnings of messages that are kept, by the size of the body."""

_TRANSIENT, _PERSISTENT = 1, 2
_KEY_AT = FRAME_START_BYTES + 4 + 2 + 1 + 1
"""In a publish's frame, for an empty exchange: behind class and method, a reserved number, and the
lengths of exchange and key."""
_NONE: U8 = np.zeros((0, 0), np.uint8)
"""Where messages have no tails or digits of their own."""


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


@kernel
def write_messages(
    out: U8,
    at: int,
    message: U8,
    heads: U8,
    tails: U8,
    digits: U8,
    head_bytes: int,
    body_at: int,
    key_end: int,
    piece_bytes: int,
) -> int:
    """Write the message once for each head, with that head, and the tail and the last digits of the
    routing key that are its own where there are any; where the last one ends."""
    message_bytes, tail_bytes, key_digits = len(message), tails.shape[1], digits.shape[1]
    for number in range(len(heads)):
        copy_bytes(out[at:], message[: body_at if tail_bytes else message_bytes])
        copy_bytes(out[at + body_at :], heads[number][:head_bytes])
        if key_digits:
            copy_bytes(out[at + key_end - key_digits :], digits[number])
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


class MessageTemplate:
    """The frames of messages of one size, to be written with other heads, tails and keys."""

    def __init__(self, frames: PublishFrames, tail: bytes, head_bytes: int) -> None:
        """`tail`: of all messages that are not given one of their own."""
        self.tail = tail
        self._frames = frames
        self._head_bytes = head_bytes
        whole = frames.message(bytes(head_bytes) + tail)
        self._message: U8 = np.frombuffer(bytearray(whole), np.uint8)
        self.message_bytes = len(whole)

    def write(self, out: U8, at: int, heads: U8, tails: U8 = _NONE, digits: U8 = _NONE) -> int:
        """Write as many messages as there are heads; where they end."""
        frames = self._frames
        return write_messages(
            out,
            at,
            self._message,
            heads,
            tails,
            digits,
            self._head_bytes,
            frames.body_at,
            frames.key_end,
            frames.piece_bytes,
        )


class MessageWriter:
    """Writes the frames of batches into memory that all lanes of an agent share."""

    def __init__(self, may_return: bool) -> None:
        self._may_return = may_return
        self._templates: dict[tuple[PublishFrames, int, int], MessageTemplate] = {}
        self._out: U8 = np.zeros(2 * WRITE_BYTES, np.uint8)
        self._view = self._out.data

    def write(
        self, frames: Sequence[PublishFrames], load: Load, digits: U8 | None = None
    ) -> bytes | memoryview:
        """The frames of these messages, whose routes are places in `frames`; `digits` end their
        routing keys. Good until the next call."""
        if not load.is_of_one_kind:
            return _one_by_one(frames, load, digits, self._may_return)
        tails = _NONE if load.own_tails is None else load.own_tails
        if len(frames) == 1:
            template = self._template(frames[0], load.shared_tail, load.head_bytes)
            self._make_room(len(load.rows) * template.message_bytes)
            end = template.write(
                self._out, 0, load.rows, tails, _NONE if digits is None else digits
            )
            return self._view[:end]
        templates = [self._template(one, load.shared_tail, load.head_bytes) for one in frames]
        longest = max(template.message_bytes for template in templates)
        self._make_room(len(load.rows) * longest)
        end = 0
        for route, first, stop in _runs(load.routes):
            end = templates[route].write(
                self._out,
                end,
                load.rows[first:stop],
                tails[first:stop],
                _NONE if digits is None else digits[first:stop],
            )
        return self._view[:end]

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


@warm_up
def _compile() -> None:
    frames = PublishFrames(1, "", "", mandatory=False, persistent=False, frame_max=4096)
    template = MessageTemplate(frames, b"", ENVELOPE_BYTES)
    out = np.zeros(template.message_bytes, np.uint8)
    template.write(out, 0, np.zeros((1, ENVELOPE_BYTES), np.uint8))
