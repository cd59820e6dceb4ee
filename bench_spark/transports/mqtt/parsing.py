"""Reading a stream of MQTT packets: runs of alike ones together, any other one by one. Pure.

The parser owns the order of things. At each place it first offers the bytes to the receiver's fast
path; what that does not know exactly is read as a single packet, whatever it is, and the fast path
is offered the next. A message longer than `LONGEST_WHOLE_BYTES` is not collected before it is read:
its payload is taken as it comes, and only what is needed of it is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from bench_spark.core.envelope import ENVELOPE_BYTES
from bench_spark.transports.mqtt.packets import (
    ACKS,
    DUP,
    KIND_BITS,
    PUBLISH,
    BadPacket,
    read_ack,
    read_length,
)
from bench_spark.transports.sockets.arrivals import MOST_BYTES, too_large
from bench_spark.transports.sockets.runs import ReadBuffer

LONGEST_WHOLE_BYTES = 64 * 1024
"""Longer messages are read in pieces."""
LONGEST_START_BYTES = 160 * 1024
"""Most of a packet that is waited for: a message's topic and properties, or any other packet."""


def qos_of(first_byte: int) -> int:
    return first_byte >> 1 & 3


class Message:
    """A PUBLISH, whole or on its way."""

    __slots__ = (
        "first_byte",
        "identifier",
        "missing_bytes",
        "pieces",
        "properties",
        "size",
        "topic",
    )

    def __init__(
        self, first_byte: int, topic: bytes, identifier: int, properties: bytes, size: int
    ) -> None:
        self.first_byte = first_byte
        self.topic = topic
        self.identifier = identifier
        """0 at QoS 0."""
        self.properties = properties
        """As they came, with their length; empty in version 3.1.1."""
        self.size = size
        self.missing_bytes = size
        self.pieces: list[bytes] = []

    @property
    def qos(self) -> int:
        return qos_of(self.first_byte)

    @property
    def is_duplicate(self) -> bool:
        """Whether the broker says that it sends this once more."""
        return bool(self.first_byte & DUP)

    @property
    def body(self) -> bytes:
        """All of it where the parser keeps bodies, else at least the envelope."""
        return self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces)


class Receiver(Protocol):
    """What is done with that which arrives on a lane."""

    def take_run(self, buffer: ReadBuffer, start: int, end: int, at_ns: int) -> int:
        """Decode packets that are alike together; how many bytes that were."""

    def on_message(self, message: Message, at_ns: int) -> None: ...

    def on_ack(self, kind: int, identifier: int, code: int, at_ns: int) -> None:
        """PUBACK, PUBREC, PUBREL or PUBCOMP."""

    def on_read_end(self, at_ns: int) -> None:
        """All that one read brought has been decoded."""


class Parser:
    def __init__(
        self,
        version: str,
        receiver: Receiver,
        on_packet: Callable[[int, bytes], None],
        keeps_bodies: bool = False,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        """`on_packet` is called with the first byte and the content of all other packets.
        `most_bytes`: of a message's payload."""
        self._most_bytes = most_bytes
        self._has_properties = version == "5"
        self._receiver = receiver
        self._on_packet = on_packet
        self._kept_bytes = None if keeps_bodies else ENVELOPE_BYTES
        self._message: Message | None = None
        """A long one whose end has not come yet."""

    @property
    def is_inside_message(self) -> bool:
        """Whether the next bytes are of a long message's payload."""
        return self._message is not None

    def parse(self, buffer: ReadBuffer, end: int, at_ns: int) -> int:
        """Decode what the buffer holds up to `end`; how many bytes are done with.

        The rest is the beginning of something: it must come first in the next call's buffer.
        """
        start = 0
        while start < end:
            if self._message is not None:
                start += self._take_payload(self._message, buffer.raw, start, end, at_ns)
                continue
            start += self._receiver.take_run(buffer, start, end, at_ns)
            taken = self._take_packet(buffer.raw, start, end, at_ns)
            if not taken:
                break
            start += taken
        self._receiver.on_read_end(at_ns)
        return start

    def _take_packet(self, raw: bytearray, start: int, end: int, at_ns: int) -> int:
        if end - start < 2:
            return 0
        found = read_length(raw, start + 1, end)
        if found is None:
            return 0
        length, at = found
        first_byte, stop = raw[start], at + length
        if first_byte & KIND_BITS == PUBLISH:
            return self._take_message(raw, start, at, stop, end, at_ns)
        if stop - start > LONGEST_START_BYTES:
            raise BadPacket(f"a packet of kind 0x{first_byte:02x} and {length} bytes")
        if stop > end:
            return 0
        body = bytes(raw[at:stop])
        if first_byte in ACKS:
            self._receiver.on_ack(first_byte, *read_ack(body), at_ns)
        else:
            self._on_packet(first_byte, body)
        return stop - start

    def _take_message(
        self, raw: bytearray, start: int, at: int, stop: int, end: int, at_ns: int
    ) -> int:
        if stop > end and stop - start <= LONGEST_WHOLE_BYTES:
            return 0
        if stop - at > self._most_bytes + LONGEST_START_BYTES:
            raise BadPacket(too_large(stop - at, self._most_bytes))
        message_start = self._read_start(raw, start, at, stop, min(end, stop))
        if message_start is None:
            if min(end, stop) - start > LONGEST_START_BYTES:
                raise BadPacket(f"a message whose topic and properties have {end - start} bytes")
            return 0
        message, payload_at = message_start
        if message.size > self._most_bytes:
            raise BadPacket(too_large(message.size, self._most_bytes))
        return payload_at - start + self._take_payload(message, raw, payload_at, end, at_ns)

    def _read_start(
        self, raw: bytearray, start: int, at: int, stop: int, end: int
    ) -> tuple[Message, int] | None:
        """A message without its payload, and where that begins; None where it is not all there."""
        first_byte = raw[start]
        qos = qos_of(first_byte)
        if qos > 2:
            raise BadPacket("a message of QoS 3")
        topic_at = at + 2
        if topic_at > end:
            return self._incomplete(stop, end)
        topic_end = topic_at + int.from_bytes(raw[at:topic_at])
        payload_at = topic_end + (2 if qos else 0)
        if payload_at > end:
            return self._incomplete(stop, end)
        identifier = int.from_bytes(raw[topic_end:payload_at])
        if qos and not identifier:
            raise BadPacket("a message with packet identifier 0")
        properties_at = payload_at
        if self._has_properties:
            found = read_length(raw, properties_at, end)
            if found is None:
                return self._incomplete(stop, end)
            properties_bytes, payload_at = found
            payload_at += properties_bytes
            if payload_at > end:
                return self._incomplete(stop, end)
        properties = bytes(raw[properties_at:payload_at])
        topic = bytes(raw[topic_at:topic_end])
        return Message(first_byte, topic, identifier, properties, stop - payload_at), payload_at

    @staticmethod
    def _incomplete(stop: int, end: int) -> None:
        if end == stop:
            raise BadPacket("a message that ends before its payload")

    def _take_payload(
        self, message: Message, raw: bytearray, start: int, end: int, at_ns: int
    ) -> int:
        """As much of a payload as is there; how many bytes that were."""
        size = min(message.missing_bytes, end - start)
        taken_before = message.size - message.missing_bytes
        if self._kept_bytes is None:
            message.pieces.append(bytes(raw[start : start + size]))
        elif taken_before < self._kept_bytes:
            kept = min(size, self._kept_bytes - taken_before)
            message.pieces.append(bytes(raw[start : start + kept]))
        message.missing_bytes -= size
        self._message = message if message.missing_bytes else None
        if self._message is None:
            self._receiver.on_message(message, at_ns)
        return size
