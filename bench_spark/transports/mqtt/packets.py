"""MQTT's control packets as bytes, 3.1.1 and 5. Pure.

A packet is a kind with four flags, a length of one to four bytes, and that many bytes. Version 5
adds properties to most packets, and a reason code to most answers.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bench_spark.errors import ConfigurationError
from bench_spark.transports.sockets.buffers import Unreadable

CONNECT: Final = 0x10
CONNACK: Final = 0x20
PUBLISH: Final = 0x30
PUBACK: Final = 0x40
PUBREC: Final = 0x50
PUBREL: Final = 0x62
PUBCOMP: Final = 0x70
SUBSCRIBE: Final = 0x82
SUBACK: Final = 0x90
UNSUBSCRIBE: Final = 0xA2
UNSUBACK: Final = 0xB0
PINGREQ: Final = bytes([0xC0, 0])
PINGRESP: Final = 0xD0
DISCONNECT: Final = 0xE0

KIND_BITS: Final = 0xF0
"""Of a first byte: what is left without flags."""
RETAIN: Final = 0x01

MOST_LENGTH_BYTES: Final = 4
FAILED: Final = 0x80
"""Reason codes from here on say no."""

_LEVELS = {"3.1.1": 4, "5": 5}
_U16 = struct.Struct(">H")

# Identifiers of the properties that are sent or looked at.
SESSION_EXPIRY: Final = 0x11
SERVER_KEEP_ALIVE: Final = 0x13
REASON_STRING: Final = 0x1F
RECEIVE_MAXIMUM: Final = 0x21
MAXIMUM_QOS: Final = 0x24
RETAIN_AVAILABLE: Final = 0x25
MAXIMUM_PACKET_SIZE: Final = 0x27
USER_PROPERTY: Final = 0x26
WILDCARD_AVAILABLE: Final = 0x28
SHARED_AVAILABLE: Final = 0x2A

REASONS: Final[Mapping[int, str]] = {
    0x04: "disconnect with will message",
    0x10: "no matching subscribers",
    0x11: "no subscription existed",
    0x80: "unspecified error",
    0x81: "malformed packet",
    0x82: "protocol error",
    0x83: "implementation specific error",
    0x84: "unsupported protocol version",
    0x85: "client identifier not valid",
    0x86: "bad user name or password",
    0x87: "not authorized",
    0x88: "server unavailable",
    0x89: "server busy",
    0x8A: "banned",
    0x8B: "server shutting down",
    0x8C: "bad authentication method",
    0x8D: "keep alive timeout",
    0x8E: "session taken over",
    0x8F: "topic filter invalid",
    0x90: "topic name invalid",
    0x91: "packet identifier in use",
    0x92: "packet identifier not found",
    0x93: "receive maximum exceeded",
    0x94: "topic alias invalid",
    0x95: "packet too large",
    0x96: "message rate too high",
    0x97: "quota exceeded",
    0x98: "administrative action",
    0x99: "payload format invalid",
    0x9A: "retain not supported",
    0x9B: "QoS not supported",
    0x9C: "use another server",
    0x9D: "server moved",
    0x9E: "shared subscriptions not supported",
    0x9F: "connection rate exceeded",
    0xA0: "maximum connect time",
    0xA1: "subscription identifiers not supported",
    0xA2: "wildcard subscriptions not supported",
}

RETURN_CODES_3: Final[Mapping[int, int]] = {1: 0x84, 2: 0x85, 3: 0x88, 4: 0x86, 5: 0x87}
"""What version 3.1.1 says in a CONNACK, as the reason codes of version 5."""


class BadPacket(Unreadable):
    """The bytes are no MQTT, or no MQTT that may come here."""


def reason(code: int) -> str:
    """A code and what it means: `0x87 not authorized`."""
    return f"0x{code:02x} {REASONS.get(code, 'unknown reason')}"


# -- writing ---------------------------------------------------------------------------------------


def length_bytes(length: int) -> bytes:
    """Seven bits to a byte, the lowest first."""
    digits = bytearray()
    while length > 127:
        digits.append(length & 127 | 128)
        length >>= 7
    digits.append(length)
    return bytes(digits)


def text(value: str) -> bytes:
    return binary(value.encode())


def binary(value: bytes) -> bytes:
    return _U16.pack(len(value)) + value


def packet(kind: int, *fields: bytes) -> bytes:
    body = b"".join(fields)
    return bytes([kind]) + length_bytes(len(body)) + body


@dataclass(frozen=True)
class Login:
    """What a CONNECT says; the password is in no representation."""

    version: str
    client_id: str
    username: str | None
    password: bytes | None
    keep_alive_seconds: int
    is_clean: bool = True
    session_expiry_seconds: int = 0
    receive_maximum: int = 65535

    def __repr__(self) -> str:
        return f"Login({self.client_id!r}, version {self.version}, user {self.username!r})"

    @property
    def packet(self) -> bytes:
        flags = 0x02 if self.is_clean else 0
        fields = [b"", self._properties(), text(self.client_id)]
        if self.username is not None:
            flags |= 0x80
            fields.append(text(self.username))
            # 3.1.1 allows no password without a user.
            if self.password is not None:
                flags |= 0x40
                fields.append(binary(self.password))
        level = _LEVELS[self.version]
        fields[0] = text("MQTT") + bytes([level, flags]) + _U16.pack(self.keep_alive_seconds)
        return packet(CONNECT, *fields)

    def _properties(self) -> bytes:
        if self.version != "5":
            return b""
        found = b""
        if self.session_expiry_seconds:
            found += struct.pack(">BI", SESSION_EXPIRY, self.session_expiry_seconds)
        if self.receive_maximum < 65535:
            found += struct.pack(">BH", RECEIVE_MAXIMUM, self.receive_maximum)
        return length_bytes(len(found)) + found


def publish_start(
    version: str, topic: str, qos: int, retain: bool, payload_bytes: int, properties: bytes = b""
) -> tuple[bytes, int]:
    """All of a message before its payload, with packet identifier 0; and where that is.

    `properties`: those of version 5, without their length."""
    name = text(topic)
    identifier = b"\0\0" if qos else b""
    if version == "5":
        properties = length_bytes(len(properties)) + properties
    length = len(name) + len(identifier) + len(properties) + payload_bytes
    first = bytes([PUBLISH | qos << 1 | (RETAIN if retain else 0)]) + length_bytes(length)
    return first + name + identifier + properties, len(first) + len(name)


def user_properties(headers: Mapping[str, bytes]) -> bytes:
    """Encode headers as version 5 has them: text, as brokers close the connection on others."""
    for name, value in headers.items():
        if not (value.isascii() or _is_text(value)):
            raise ConfigurationError(
                f"header {name!r}: {value[:40]!r} is no UTF-8 text, and MQTT has no other headers"
            )
    return b"".join([_property_name(name) + binary(value) for name, value in headers.items()])


@functools.lru_cache(maxsize=1024)
def _property_name(name: str) -> bytes:
    return bytes([USER_PROPERTY]) + text(name)


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def read_user_properties(properties: bytes) -> dict[str, bytes]:
    """The headers among a message's properties, which begin with their length."""
    found: dict[str, bytes] = {}
    for identifier, value in _each_property(properties, 0)[0]:
        if identifier == USER_PROPERTY:
            name, content = value
            found[name] = content.encode()
    return found


def subscribe(version: str, identifier: int, filters: Sequence[str], qos: int) -> bytes:
    properties = b"\0" if version == "5" else b""
    wanted = (text(one) + bytes([qos]) for one in filters)
    return packet(SUBSCRIBE, _U16.pack(identifier), properties, *wanted)


def unsubscribe(version: str, identifier: int, filters: Sequence[str]) -> bytes:
    properties = b"\0" if version == "5" else b""
    return packet(UNSUBSCRIBE, _U16.pack(identifier), properties, *map(text, filters))


def disconnect(version: str, ends_session: bool = False) -> bytes:
    """Encode DISCONNECT; in version 5 it may end a session that the broker would else keep."""
    if version == "5" and ends_session:
        return packet(DISCONNECT, struct.pack(">BBBI", 0, 5, SESSION_EXPIRY, 0))
    return packet(DISCONNECT)


# -- reading ---------------------------------------------------------------------------------------


def read_length(raw: bytes | bytearray, at: int, end: int) -> tuple[int, int] | None:
    """A length and where it ends; None where its end is not there yet."""
    length = 0
    for place in range(MOST_LENGTH_BYTES):
        if at + place >= end:
            return None
        digit = raw[at + place]
        length |= (digit & 127) << 7 * place
        if digit < 128:
            return length, at + place + 1
    raise BadPacket("a length of more than four bytes")


@dataclass(frozen=True)
class Connack:
    session_present: bool
    code: int
    """As in version 5; 0 means welcome."""
    properties: Mapping[int, Any]


def read_connack(body: bytes) -> Connack:
    if len(body) < 2:
        raise BadPacket("a CONNACK of fewer than two bytes")
    if len(body) == 2:
        # Also how a broker without version 5 says that it has none.
        return Connack(bool(body[0] & 1), RETURN_CODES_3.get(body[1], body[1]), {})
    properties, _ = read_properties(body, 2)
    return Connack(bool(body[0] & 1), body[1], properties)


def read_suback(version: str, body: bytes) -> tuple[int, bytes]:
    """The identifier, and the QoS granted or the reason for none, filter by filter; of an UNSUBACK
    likewise, except that version 3.1.1 says nothing."""
    at = 2
    if version == "5":
        _, at = read_properties(body, at)
    return identifier_of(body), body[at:]


def read_disconnect(body: bytes) -> tuple[int, str]:
    """Reason code and the broker's own words, if it has any."""
    code = body[0] if body else 0
    properties: Mapping[int, Any] = {}
    if len(body) > 1:
        properties, _ = read_properties(body, 1)
    return code, str(properties.get(REASON_STRING, ""))


def identifier_of(body: bytes) -> int:
    if len(body) < _U16.size:
        raise BadPacket("a packet without its identifier")
    [identifier] = _U16.unpack_from(body)
    return int(identifier)


def read_properties(body: bytes, at: int) -> tuple[dict[int, Any], int]:
    """Properties by identifier (of those that repeat, the last), and where they end."""
    properties, end = _each_property(body, at)
    return dict(properties), end


def _each_property(body: bytes, at: int) -> tuple[list[tuple[int, Any]], int]:
    """Identifier and value of each, and where they end."""
    found = read_length(body, at, len(body))
    if found is None:
        raise BadPacket("a packet that ends in its properties")
    length, at = found
    end = at + length
    if end > len(body):
        raise BadPacket("properties that are longer than their packet")
    properties: list[tuple[int, Any]] = []
    try:
        while at < end:
            identifier = body[at]
            value, at = _READERS[identifier](body, at + 1)
            properties.append((identifier, value))
    except (KeyError, IndexError, struct.error, UnicodeDecodeError) as error:
        raise BadPacket(f"properties that are not understood ({error!r})") from error
    if at != end:
        raise BadPacket("properties that do not end where they should")
    return properties, end


_Reader = Callable[[bytes, int], tuple[Any, int]]


def _number(form: str) -> _Reader:
    packed = struct.Struct(form)

    def read(body: bytes, at: int) -> tuple[Any, int]:
        return packed.unpack_from(body, at)[0], at + packed.size

    return read


def _read_binary(body: bytes, at: int) -> tuple[bytes, int]:
    [length] = _U16.unpack_from(body, at)
    end = at + _U16.size + length
    return body[at + _U16.size : end], end


def _read_text(body: bytes, at: int) -> tuple[str, int]:
    value, end = _read_binary(body, at)
    return value.decode(), end


def _read_pair(body: bytes, at: int) -> tuple[tuple[str, str], int]:
    key, at = _read_text(body, at)
    value, at = _read_text(body, at)
    return (key, value), at


def _read_length_value(body: bytes, at: int) -> tuple[int, int]:
    found = read_length(body, at, len(body))
    if found is None:
        raise IndexError(at)
    return found


_byte, _u16, _u32 = _number(">B"), _number(">H"), _number(">I")
_READERS: Mapping[int, _Reader] = {
    **dict.fromkeys((0x01, 0x17, 0x19, 0x24, 0x25, 0x28, 0x29, 0x2A), _byte),
    **dict.fromkeys((0x13, 0x21, 0x22, 0x23), _u16),
    **dict.fromkeys((0x02, 0x11, 0x18, 0x27), _u32),
    **dict.fromkeys((0x03, 0x08, 0x12, 0x15, 0x1A, 0x1C, 0x1F), _read_text),
    **dict.fromkeys((0x09, 0x16), _read_binary),
    0x0B: _read_length_value,
    0x26: _read_pair,
}
