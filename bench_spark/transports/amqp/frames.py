"""AMQP 0-9-1 frames: encoded by pika's codecs, and read as a stream. Pure.

A frame is a kind, a channel, a size, that many bytes, and an end mark. A receiver decodes the
frames that there are many of, deliveries or confirms, by a compiled loop. It stops at any other
frame, which `FrameParser` reads: other methods by pika's codec, and frames that are not as they
should be by naming what is wrong with them.

Frames of many messages are alike and built once; those of messages with headers of their own are
not. pika needs some 20 us for the properties of each, so `MessageHeader` puts them together: what
all have in common is encoded by pika, once.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import pika.data
import pika.exceptions
import pika.frame
import pika.spec

from bench_spark.core.envelope import ENVELOPE_BYTES
from bench_spark.transports.batches import U8, Headers
from bench_spark.transports.sockets.buffers import MOST_BYTES, ReadBuffer, Unreadable, too_large

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
FRAME_KINDS = frozenset({METHOD, HEADER, BODY, HEARTBEAT})
FRAME_END = 0xCE
END_MARK = bytes([FRAME_END])
FRAME_START = struct.Struct(">BHI")
"""Kind, channel, size of what follows."""
FRAME_START_BYTES = FRAME_START.size
FRAME_EXTRA_BYTES = FRAME_START_BYTES + len(END_MARK)
"""What a frame has besides its content."""

DELIVER: int = pika.spec.Basic.Deliver.INDEX
RETURN: int = pika.spec.Basic.Return.INDEX
ACK: int = pika.spec.Basic.Ack.INDEX
NACK: int = pika.spec.Basic.Nack.INDEX

MORE, FULL, FOREIGN = 0, 1, 2
"""Why a decoder stopped: it needs more bytes, or more room for what comes out, or it is at a frame
that it leaves to the parser: another method, or one that is not as it should be."""

HEARTBEAT_FRAME: bytes = pika.frame.Heartbeat().marshal()


class FrameTerms(NamedTuple):
    """What was agreed on with the broker for the frames of a connection."""

    channel: int
    frame_max: int

    @property
    def content_max(self) -> int:
        """Bytes in a frame besides its start and end."""
        return self.frame_max - FRAME_EXTRA_BYTES


def frame_start(kind: int, channel: int, content_bytes: int) -> bytes:
    return FRAME_START.pack(kind, channel, content_bytes)


def method_frame(channel: int, method: Any) -> bytes:
    """The frame of one of `pika.spec`'s methods."""
    return bytes(pika.frame.Method(channel, method).marshal())


def header_frame(channel: int, body_bytes: int, properties: Any) -> bytes:
    return bytes(pika.frame.Header(channel, body_bytes, properties).marshal())


def body_frame(channel: int, piece: bytes) -> bytes:
    return frame_start(BODY, channel, len(piece)) + piece + END_MARK


_CONTENT = struct.Struct(">HHQH")
"""Class, weight, size of the body, which properties there are."""
_LENGTH = struct.Struct(">I")
_FLAGS = struct.Struct(">H")
_TEXT = ord("S")
_MODE_ONLY: int = pika.spec.BasicProperties.FLAG_DELIVERY_MODE
_WITH_HEADERS: int = _MODE_ONLY | pika.spec.BasicProperties.FLAG_HEADERS
_WITH_ID: int = pika.spec.BasicProperties.FLAG_MESSAGE_ID
_CLASS: int = pika.spec.BasicProperties.INDEX


class MessageHeader:
    """Header frames of messages that differ in their headers."""

    def __init__(self, channel: int, delivery_mode: int, common: Mapping[str, Any] | None) -> None:
        """`common`: the headers that all of them have; a message's own of that name wins."""
        self._channel = channel
        self._mode = bytes([delivery_mode])
        self._common = dict(common or {})
        self._names: dict[str, bytes] = {}

    def frame(self, body_bytes: int, headers: Headers | None, message_id: bytes = b"") -> bytes:
        """`message_id`: the property of that name, if it is not empty."""
        flags, pieces = _MODE_ONLY, []
        if headers or self._common:
            flags = _WITH_HEADERS
            table = self._table(headers or {})
            pieces += [_LENGTH.pack(len(table)), table]
        pieces.append(self._mode)
        if message_id:
            flags |= _WITH_ID
            pieces += [bytes([len(message_id)]), message_id]
        content = _CONTENT.pack(_CLASS, 0, body_bytes, flags) + b"".join(pieces)
        return frame_start(HEADER, self._channel, len(content)) + content + END_MARK

    def _table(self, headers: Headers) -> bytes:
        pieces: list[bytes] = []
        if self._common:
            rest = {name: value for name, value in self._common.items() if name not in headers}
            pika.data.encode_table(pieces, rest)
            pieces[0] = b""  # its length is not that of the whole
        for name, value in headers.items():
            pieces += [self._start(name), _LENGTH.pack(len(value)), value]
        return b"".join(pieces)

    def _start(self, name: str) -> bytes:
        """Name and type. A `long string` is AMQP's type for text, and holds any bytes."""
        found = self._names.get(name)
        if found is None:
            pieces: list[bytes] = []
            pika.data.encode_short_string(pieces, name)
            found = self._names[name] = b"".join(pieces) + b"S"
        return found


def message_ids(envelopes: U8) -> list[bytes]:
    """By which a message without an envelope in its body is known again where the broker returns
    it."""
    return [row.tobytes().hex().encode() for row in envelopes]


def returned_envelope(message_id: str | None, body: bytes) -> bytes:
    """What a message that came back begins with, or would begin with."""
    return body if message_id is None else bytes.fromhex(message_id)


def read_headers(properties: bytes) -> Headers:
    """The headers among a message's properties. Where these are only what `MessageHeader` writes,
    and all values text, that takes a tenth of pika's time."""
    [flags] = _FLAGS.unpack_from(properties)
    if flags == _MODE_ONLY and len(properties) == _FLAGS.size + 1:
        return {}
    found = _texts_of(properties) if flags == _WITH_HEADERS else None
    if found is None:
        return header_bytes(pika.spec.BasicProperties().decode(properties).headers)
    return found


def _texts_of(properties: bytes) -> Headers | None:
    """Of a table and a delivery mode; None where they are not just that, or not all is text."""
    at = _FLAGS.size + _LENGTH.size
    end: int = at + _LENGTH.unpack_from(properties, _FLAGS.size)[0]
    if end + 1 != len(properties):
        return None
    found: dict[str, bytes] = {}
    while at < end:
        name_end = at + 1 + properties[at]
        if properties[name_end] != _TEXT:
            return None
        name = properties[at + 1 : name_end].decode()
        at = name_end + 1 + _LENGTH.size
        value_end: int = at + _LENGTH.unpack_from(properties, name_end + 1)[0]
        found[name] = properties[at:value_end]
        at = value_end
    return found if at == end else None


def header_bytes(table: Mapping[str, Any] | None) -> Headers:
    """What arrived, by name, as bytes: numbers and the like as people write them."""
    return {name: _value_bytes(value) for name, value in (table or {}).items()}


def _value_bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, bool):
        return b"true" if value else b"false"
    return str(value).encode()


BASIC_CLASS: int = pika.spec.BasicProperties.INDEX
BODY_SIZE_AT, PROPERTIES_AT = 4, 12
"""In a header frame's content."""
_METHOD_ID = struct.Struct(">I")
_SETTLED = struct.Struct(">QB")
_PARSING_CLASS = struct.Struct(">H")
_BODY_SIZE = struct.Struct(">Q")
_FOR_CHANNELS = frozenset({DELIVER, RETURN, ACK, NACK})
NOT_UNDERSTOOD = (KeyError, IndexError, ValueError, struct.error, pika.exceptions.AMQPError)
"""What decoding a frame's content raises where it is not what it should be."""


class BadFrame(Unreadable):
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
    def envelope(self) -> bytes:
        """What the body begins with, as far as an envelope reaches."""
        return self._kept


class FrameReceiver(Protocol):
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
    """The receiver of a connection that consumes nothing.

    The only message that may come is one of its own that is returned; it is dropped.
    """

    is_within_message = False
    missing_bytes = None

    def decode(self, buffer: ReadBuffer, at: int, end: int, at_ns: int) -> tuple[int, int]:
        return at, FOREIGN

    def break_off(self) -> None:
        """Nothing has begun."""

    def begin_content(self, method_id: int, method: bytes) -> Content:
        if method_id != RETURN:
            raise BadFrame("a message to somebody who has not asked for any")
        return Content(method_id)

    def on_content(self, content: Content, at_ns: int) -> None:
        """Drops a return: who asks with a message waits for the answer to what is asked next."""


class FrameParser:
    def __init__(
        self,
        framing: FrameTerms,
        receiver: FrameReceiver,
        on_method: Callable[[Any], None],
        most_bytes: int = MOST_BYTES,
    ) -> None:
        """`most_bytes`: of a message's body."""
        self._most_bytes = most_bytes
        self._channel = framing.channel
        self._content_max = framing.content_max
        self._receiver = receiver
        self._decode = receiver.decode
        self._on_method = on_method
        self._content: Content | None = None

    def parse(self, buffer: ReadBuffer, end: int, at_ns: int) -> int:
        """Decode what the buffer holds up to `end`; how many bytes are done with.

        The rest is the beginning of a frame: it must come first in the next call's buffer.
        """
        at = 0
        while True:
            if self._content is None:
                at, why = self._decode(buffer, at, end, at_ns)
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
        if len(header) <= PROPERTIES_AT or _PARSING_CLASS.unpack_from(header)[0] != BASIC_CLASS:
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
