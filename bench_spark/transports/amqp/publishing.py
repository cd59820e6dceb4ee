"""Frames of messages to publish: whole messages, and blocks of equal ones to be stamped. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pika.spec

from bench_spark.transports.amqp.frames import (
    BODY,
    END_MARK,
    FRAME_EXTRA_BYTES,
    FRAME_START_BYTES,
    body_frame,
    frame_start,
    header_frame,
    method_frame,
)
from bench_spark.transports.amqp.message_headers import MessageHeader
from bench_spark.transports.base import U8, Headers

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
        self._piece_bytes = frame_max - FRAME_EXTRA_BYTES
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
        if len(body) <= self._piece_bytes:
            return start, body, END_MARK
        return (
            start,
            *(
                body_frame(self._channel, body[first : first + self._piece_bytes])
                for first in range(0, len(body), self._piece_bytes)
            ),
        )

    def places_in_message(self, start: int, end: int) -> list[slice]:
        """Where in a message's bytes these bytes of its body are: a piece for each frame."""
        places = []
        while start < end:
            frames_before = start // self._piece_bytes
            stop = min(end, (frames_before + 1) * self._piece_bytes)
            shift = self.body_at + frames_before * FRAME_EXTRA_BYTES
            places.append(slice(start + shift, stop + shift))
            start = stop
        return places

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
        if not 0 < body_bytes <= self._piece_bytes:
            return b""
        return frame_start(BODY, self._channel, body_bytes)


class MessageBlock:
    """Messages of one size, one behind the other in memory.

    The frames are built once. Every batch writes its heads into the rows it needs, and its tails
    and the last digits of its routing keys where they differ; the bytes of those rows go to the
    socket as they lie there.
    """

    def __init__(self, frames: PublishFrames, tail: bytes, head_bytes: int) -> None:
        """`tail`: of all messages that are not given one of their own."""
        self.tail = tail
        self._head_bytes = head_bytes
        self._tail_pieces = frames.places_in_message(head_bytes, head_bytes + len(tail))
        self._head_at = frames.body_at
        self._key_end = frames.key_end
        self._message = np.frombuffer(frames.message(bytes(head_bytes) + tail), np.uint8)
        self.message_bytes = len(self._message)
        self._has_own_tails = False
        self._make_rows(1)

    def stamped(
        self, heads: U8, key_digits: U8 | None = None, tails: U8 | None = None
    ) -> memoryview:
        """The frames of as many messages as there are heads; good until the next call."""
        count = len(heads)
        if count > len(self._rows):
            self._make_rows(1 << (count - 1).bit_length())
        if tails is None and self._has_own_tails:
            self._has_own_tails = False
            self._make_rows(len(self._rows))
        self._head_columns[:count] = heads[:, : self._head_bytes]
        if tails is not None:
            self._has_own_tails = True
            first = 0
            for piece in self._tail_pieces:
                length = piece.stop - piece.start
                self._rows[:count, piece] = tails[:, first : first + length]
                first += length
        if key_digits is not None:
            key_at = self._key_end - key_digits.shape[1]
            self._rows[:count, key_at : self._key_end] = key_digits
        return self._bytes[: count * self.message_bytes]

    def _make_rows(self, count: int) -> None:
        # By need, not by the largest batch: a thousand lanes may have a block each.
        self._rows = np.tile(self._message, (count, 1))
        self._head_columns = self._rows[:, self._head_at : self._head_at + self._head_bytes]
        self._bytes = self._rows.reshape(-1).data
