"""What single messages say of themselves besides their bodies: headers, and whose they are. Pure.

Frames of many messages are alike and built once; those of messages with headers of their own are
not. pika needs some 20 us for the properties of each, so they are put together here: what all have
in common is encoded by pika, once.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import pika.data
import pika.spec

from bench_spark.transports.amqp.frames import END_MARK, HEADER, frame_start
from bench_spark.transports.batches import U8, Headers

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


def message_ids(heads: U8) -> list[bytes]:
    """By which a message without a head in its body is known again where the broker returns it."""
    return [row.tobytes().hex().encode() for row in heads]


def returned_head(message_id: str | None, body: bytes) -> bytes:
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


def header_values(headers: Headers) -> dict[str, Any]:
    """For pika, which sends text as text and all else as an array of bytes."""
    return {name: _text_or_bytes(value) for name, value in headers.items()}


def _value_bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, bool):
        return b"true" if value else b"false"
    return str(value).encode()


def _text_or_bytes(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value
