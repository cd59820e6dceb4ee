"""Reads a stream of AMQP frames. Pure.

A receiver decodes the frames that there are many of, deliveries or confirms, by a compiled loop. It
stops at any other frame, which is read here: other methods by pika's codec, and frames that are not
as they should be by naming what is wrong with them.
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
    FOREIGN,
    FRAME_END,
    FRAME_EXTRA_BYTES,
    FRAME_KINDS,
    FRAME_START,
    FRAME_START_BYTES,
    HEADER,
    METHOD,
    MORE,
    NACK,
    RETURN,
    Framing,
)
from bench_spark.transports.sockets.arrivals import MOST_BYTES, ReadBuffer, too_large

BASIC_CLASS: int = pika.spec.BasicProperties.INDEX
BODY_SIZE_AT, PROPERTIES_AT = 4, 12
"""In a header frame's content."""
_METHOD_ID = struct.Struct(">I")
_SETTLED = struct.Struct(">QB")
_CLASS = struct.Struct(">H")
_BODY_SIZE = struct.Struct(">Q")
_FOR_CHANNELS = frozenset({DELIVER, RETURN, ACK, NACK})
NOT_UNDERSTOOD = (KeyError, IndexError, ValueError, struct.error, pika.exceptions.AMQPError)
"""What decoding a frame's content raises where it is not what it should be."""


class BadFrame(Exception):
    """The bytes are no AMQP, or no AMQP that may come here."""


def not_understood(error: Exception) -> BadFrame:
    return BadFrame(f"a frame that is not understood ({error!r})")


class Content:
    """A message that comes in frame by frame: one that was returned, or is of no use here."""

    __slots__ = ("_kept", "header", "method_id", "missing_bytes")

    def __init__(self, method_id: int) -> None:
        self.method_id = method_id
        self.header = b""
        """Content of the header frame."""
        self.missing_bytes = 0
        self._kept = b""

    def add(self, piece: bytes) -> None:
        self.missing_bytes -= len(piece)
        self._kept += piece[: ENVELOPE_BYTES - len(self._kept)]

    @property
    def message_id(self) -> str | None:
        properties = pika.spec.BasicProperties().decode(self.header[PROPERTIES_AT:])
        found: str | None = properties.message_id
        return found

    @property
    def head(self) -> bytes:
        """What the body begins with, as far as an envelope reaches."""
        return self._kept


class Receiver(Protocol):
    """Decodes the frames of a lane that there are many of."""

    def decode(self, buffer: ReadBuffer, at: int, end: int, at_ns: int) -> tuple[int, int]:
        """Decode from `at` to `end`; where that ended, and whether it needs MORE bytes or is at a
        FOREIGN frame."""

    @property
    def is_within_message(self) -> bool:
        """Whether a message has begun and is not complete."""

    @property
    def missing_bytes(self) -> int | None:
        """Of that message's body; None before its header."""

    def break_off(self) -> None:
        """Forget the message that has begun."""

    def begin_content(self, method_id: int, method: bytes) -> Content:
        """A method that `decode` left, and that a message's header and body follow."""

    def on_content(self, content: Content, at_ns: int) -> None:
        """Such a message is complete."""


class NoMessages:
    """The receiver of a connection on which no message can come: everything is read here."""

    is_within_message = False
    missing_bytes = None

    def decode(self, buffer: ReadBuffer, at: int, end: int, at_ns: int) -> tuple[int, int]:
        return at, FOREIGN

    def break_off(self) -> None:
        """Nothing has begun."""

    def begin_content(self, method_id: int, method: bytes) -> Content:
        raise BadFrame("a message to somebody who has not asked for any")

    def on_content(self, content: Content, at_ns: int) -> None:
        """It never begins."""


class Parser:
    def __init__(
        self,
        framing: Framing,
        receiver: Receiver,
        on_method: Callable[[Any], None],
        most_bytes: int = MOST_BYTES,
    ) -> None:
        """`most_bytes`: of a message's body."""
        self._most_bytes = most_bytes
        self._channel = framing.channel
        self._content_max = framing.content_max
        self._receiver = receiver
        self._on_method = on_method
        self._content: Content | None = None

    def parse(self, buffer: ReadBuffer, end: int, at_ns: int) -> int:
        """Decode what the buffer holds up to `end`; how many bytes are done with.

        The rest is the beginning of a frame: it must come first in the next call's buffer.
        """
        at = 0
        while True:
            if self._content is None:
                at, why = self._receiver.decode(buffer, at, end, at_ns)
                if why == MORE:
                    return at
            try:
                taken = self._take_frame(buffer.raw, at, end, at_ns)
            except NOT_UNDERSTOOD as error:
                raise not_understood(error) from error
            if not taken:
                return at
            at += taken

    def _take_frame(self, raw: bytearray, start: int, end: int, at_ns: int) -> int:
        """How many bytes the frame was; 0 where it is not complete."""
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
            self._on_method_frame(channel, bytes(raw[first:stop]))
        elif kind == HEADER:
            self._on_header_frame(channel, bytes(raw[first:stop]), at_ns)
        elif kind == BODY:
            self._on_body_frame(channel, bytes(raw[first:stop]), at_ns)
        return stop + len(END_MARK) - start

    def _on_method_frame(self, channel: int, method: bytes) -> None:
        [method_id] = _METHOD_ID.unpack_from(method)
        if channel not in (0, self._channel) or (channel == 0 and method_id in _FOR_CHANNELS):
            raise BadFrame(f"a frame for channel {channel}")
        if channel and (self._content is not None or self._receiver.is_within_message):
            # Only the end of the channel may come in the middle of a message.
            if method_id != pika.spec.Channel.Close.INDEX:
                raise BadFrame("a message that breaks off")
            self._content = None
            self._receiver.break_off()
        if method_id in (DELIVER, RETURN):
            self._content = self._receiver.begin_content(method_id, method)
        elif method_id in (ACK, NACK):
            _SETTLED.unpack_from(method, _METHOD_ID.size)  # raises, or is of no use here
        else:
            self._on_method(_decoded(method_id, method))

    def _on_header_frame(self, channel: int, header: bytes, at_ns: int) -> None:
        content = self._content
        is_due = (
            self._receiver.is_within_message and self._receiver.missing_bytes is None
            if content is None
            else not content.header
        )
        if not is_due or channel != self._channel:
            raise BadFrame("a header without its message")
        if len(header) <= PROPERTIES_AT or _CLASS.unpack_from(header)[0] != BASIC_CLASS:
            raise BadFrame("a header that is none of a message")
        [size] = _BODY_SIZE.unpack_from(header, BODY_SIZE_AT)
        if size > self._most_bytes or content is None:
            raise BadFrame(too_large(size, self._most_bytes))
        content.header = header
        content.missing_bytes = size
        self._end_content_if_whole(content, at_ns)

    def _on_body_frame(self, channel: int, piece: bytes, at_ns: int) -> None:
        content = self._content
        if content is None:
            missing = self._receiver.missing_bytes
        else:
            missing = content.missing_bytes if content.header else None
        if missing is None or channel != self._channel:
            raise BadFrame("a body without its message")
        if len(piece) > missing or content is None:
            raise BadFrame("a body that is longer than announced")
        content.add(piece)
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
