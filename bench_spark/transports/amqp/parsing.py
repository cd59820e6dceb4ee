"""Reading a stream of AMQP frames: runs of alike ones together, any other one by one. Pure.

The parser owns the order of things. At each place it first offers the bytes to the receiver's fast
path; what that does not know exactly is read as a single frame, whatever it is, and the fast path
is offered the next. So a heartbeat between two messages costs one frame's slow reading, and nothing
is skipped.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Protocol

import pika.exceptions
import pika.spec

from bench_spark.core.envelope import ENVELOPE_BYTES
from bench_spark.transports.amqp.frames import (
    ACK,
    BODY,
    DELIVER,
    END_MARK,
    FRAME_END,
    FRAME_EXTRA_BYTES,
    FRAME_KINDS,
    FRAME_START,
    FRAME_START_BYTES,
    HEADER,
    METHOD,
    NACK,
    RETURN,
)
from bench_spark.transports.sockets.arrivals import MOST_BYTES, too_large
from bench_spark.transports.sockets.runs import ReadBuffer

_METHOD_ID = struct.Struct(">I")
_SETTLED = struct.Struct(">QB")
_BODY_SIZE = struct.Struct(">Q")
_BASIC_CLASS = pika.spec.BasicProperties.INDEX.to_bytes(2, "big")
_BODY_SIZE_AT, PROPERTIES_AT = 4, 12
"""In a header frame's content."""
_FOR_CHANNELS = frozenset({DELIVER, RETURN, ACK, NACK})
NOT_UNDERSTOOD = (KeyError, IndexError, ValueError, struct.error, pika.exceptions.AMQPError)
"""What decoding a frame's content raises where it is not what it should be."""


class BadFrame(Exception):
    """The bytes are no AMQP, or no AMQP that may come here."""


class Content:
    """A message as it comes in frame by frame."""

    __slots__ = ("header", "method", "method_id", "missing_bytes", "piece_sizes", "pieces", "size")

    def __init__(self, method_id: int, method: bytes) -> None:
        self.method_id = method_id
        self.method = method
        """Content of the method frame."""
        self.header = b""
        """Content of the header frame."""
        self.size = 0
        self.missing_bytes = 0
        self.pieces: list[bytes] = []
        self.piece_sizes: list[int] = []

    @classmethod
    def of(cls, method: bytes, header: bytes, size: int) -> Content:
        """A delivery that was read elsewhere, in one frame, without its body."""
        made = cls(DELIVER, method)
        made.header, made.size, made.piece_sizes = header, size, [size] if size else []
        return made

    @property
    def message_id(self) -> str | None:
        properties = pika.spec.BasicProperties().decode(self.header[PROPERTIES_AT:])
        found: str | None = properties.message_id
        return found

    @property
    def body(self) -> bytes:
        """All of it where the parser keeps bodies, else at least the envelope."""
        return self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces)


class Receiver(Protocol):
    """What is done with that which arrives on a lane."""

    def take_run(self, buffer: ReadBuffer, start: int, end: int, at_ns: int) -> int:
        """Decode frames that are alike together; how many bytes that were."""

    def awaits_rest(self, buffer: ReadBuffer, start: int, end: int) -> bool:
        """Whether what is left is the beginning of such frames, better read once it is whole."""

    def on_content(self, content: Content, at_ns: int) -> None: ...

    def on_settled(self, tag: int, multiple: bool, is_nack: bool, at_ns: int) -> None: ...

    def on_read_end(self, at_ns: int) -> None:
        """All that one read brought has been decoded."""


class Parser:
    def __init__(
        self,
        channel: int,
        frame_max: int,
        receiver: Receiver,
        on_method: Callable[[Any], None],
        keeps_bodies: bool = False,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        """`most_bytes`: of a message's body."""
        self._most_bytes = most_bytes
        self._channel = channel
        self._content_max = frame_max - FRAME_EXTRA_BYTES
        self._receiver = receiver
        self._on_method = on_method
        self._kept_bytes = None if keeps_bodies else ENVELOPE_BYTES
        self._content: Content | None = None

    def parse(self, buffer: ReadBuffer, end: int, at_ns: int) -> int:
        """Decode what the buffer holds up to `end`; how many bytes are done with.

        The rest is the beginning of something: it must come first in the next call's buffer.
        """
        start = 0
        while start < end:
            if self._content is None:
                start += self._receiver.take_run(buffer, start, end, at_ns)
                if self._receiver.awaits_rest(buffer, start, end):
                    break
            try:
                taken = self._take_frame(buffer.raw, start, end, at_ns)
            except NOT_UNDERSTOOD as error:
                raise BadFrame(f"a frame that is not understood ({error!r})") from error
            if not taken:
                break
            start += taken
        self._receiver.on_read_end(at_ns)
        return start

    def _take_frame(self, raw: bytearray, start: int, end: int, at_ns: int) -> int:
        if end - start < FRAME_EXTRA_BYTES:
            return 0
        kind, channel, size = FRAME_START.unpack_from(raw, start)
        if kind not in FRAME_KINDS or size > self._content_max:
            raise BadFrame(f"a frame of kind {kind} and {size} bytes")
        first = start + FRAME_START_BYTES
        stop: int = first + size
        if stop >= end:
            return 0
        if raw[stop] != FRAME_END:
            raise BadFrame("a frame without its end mark")
        if kind == METHOD:
            self._on_method_frame(channel, bytes(raw[first:stop]), at_ns)
        elif kind == HEADER:
            self._on_header_frame(channel, bytes(raw[first:stop]), at_ns)
        elif kind == BODY:
            self._on_body_frame(channel, raw, first, stop, at_ns)
        return stop + len(END_MARK) - start

    def _on_method_frame(self, channel: int, method: bytes, at_ns: int) -> None:
        [method_id] = _METHOD_ID.unpack_from(method)
        if channel not in (0, self._channel) or (channel == 0 and method_id in _FOR_CHANNELS):
            raise BadFrame(f"a frame for channel {channel}")
        if channel and self._content is not None:
            # Only the end of the channel may come in the middle of a message.
            if method_id != pika.spec.Channel.Close.INDEX:
                raise BadFrame("a message that breaks off")
            self._content = None
        if method_id in (DELIVER, RETURN):
            self._content = Content(method_id, method)
        elif method_id in (ACK, NACK):
            tag, bits = _SETTLED.unpack_from(method, _METHOD_ID.size)
            self._receiver.on_settled(tag, bool(bits & 1), method_id == NACK, at_ns)
        else:
            self._on_method(_decoded(method_id, method))

    def _on_header_frame(self, channel: int, header: bytes, at_ns: int) -> None:
        content = self._content
        if content is None or content.header or channel != self._channel:
            raise BadFrame("a header without its message")
        if len(header) <= PROPERTIES_AT or not header.startswith(_BASIC_CLASS):
            raise BadFrame("a header that is none of a message")
        content.header = header
        [content.size] = _BODY_SIZE.unpack_from(header, _BODY_SIZE_AT)
        if content.size > self._most_bytes:
            raise BadFrame(too_large(content.size, self._most_bytes))
        content.missing_bytes = content.size
        self._end_content_if_whole(content, at_ns)

    def _on_body_frame(
        self, channel: int, raw: bytearray, first: int, stop: int, at_ns: int
    ) -> None:
        content = self._content
        size = stop - first
        if content is None or not content.header or channel != self._channel:
            raise BadFrame("a body without its message")
        if size > content.missing_bytes:
            raise BadFrame("a body that is longer than announced")
        if self._kept_bytes is None or content.size - content.missing_bytes < self._kept_bytes:
            kept = size if self._kept_bytes is None else min(size, self._kept_bytes)
            content.pieces.append(bytes(raw[first : first + kept]))
        content.piece_sizes.append(size)
        content.missing_bytes -= size
        self._end_content_if_whole(content, at_ns)

    def _end_content_if_whole(self, content: Content, at_ns: int) -> None:
        if content.missing_bytes == 0:
            self._content = None
            self._receiver.on_content(content, at_ns)


def _decoded(method_id: int, content: bytes) -> Any:
    """One of `pika.spec`'s methods."""
    method = pika.spec.methods[method_id]()
    method.decode(content, _METHOD_ID.size)
    return method
