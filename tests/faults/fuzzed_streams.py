"""Spoiled streams of every protocol, read by its parser.

    python fuzzed_streams.py PROTOCOL STREAMS

A program of its own, so that numba can compile the kernels with bounds checks, which has to be
known before the first of them is loaded. Streams are made well-formed and then spoiled: bytes
changed, cut out, doubled, cut short. So most of them are nearly right, which is where readers fail.
Each arrives in one or two reads, in memory that ends where the bytes end: in a larger buffer a read
beyond them would go unseen. Seeded: a failure can be had again.

Prints how many streams were refused as one JSON object. Any exception but the refusal that is meant
ends it with the stream that caused it.
"""

from __future__ import annotations

import json
import random
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol as Interface

import pika.spec

from bench_spark.config.protocols import Tcp
from bench_spark.core.envelope import ENVELOPE_BYTES, empty_envelopes
from bench_spark.transports.amqp.confirms import Confirms, ConfirmTerms, OutcomeRows
from bench_spark.transports.amqp.consumers import ConsumerTags, DeliveryDecoder
from bench_spark.transports.amqp.frames import (
    HEARTBEAT_FRAME,
    BadFrame,
    FrameParser,
    FrameTerms,
    body_frame,
    header_frame,
    method_frame,
)
from bench_spark.transports.batches import ENVELOPE_ONLY, Part
from bench_spark.transports.http.messages import BadMessage, HttpParser, read_request
from bench_spark.transports.mqtt import packets
from bench_spark.transports.mqtt.consumers import PublishReader, Routes
from bench_spark.transports.mqtt.packets import BadPacket
from bench_spark.transports.sockets.buffers import Arrivals, ReadBuffer, Unreadable
from bench_spark.transports.tcp.framing import parser_of

SEED = 20_260_917
WELL_FORMED = 500
"""Streams to begin with; making one takes longer than spoiling it."""
FRAMING = FrameTerms(1, 4096)
UNCONFIRMED = 20


class Parser(Interface):
    """Reads what has arrived, and returns how many bytes of it are done with."""

    def parse(self, buffer: ReadBuffer, end: int, received_ns: int) -> int: ...


@dataclass(frozen=True)
class Fuzzed:
    """A protocol to be fuzzed."""

    make: Callable[[random.Random], bytes]
    """A well-formed stream."""
    open: Callable[[], Parser]
    """A parser as a new connection has it."""
    refusal: type[Exception]


def spoiled(chance: random.Random, stream: bytes) -> bytes:
    made = bytearray(stream)
    for _ in range(chance.randint(1, 4)):
        if not made:
            break
        at = chance.randrange(len(made))
        match chance.randrange(6):
            case 0:
                made[at] = chance.randrange(256)
            case 1:
                made[at] ^= 1 << chance.randrange(8)
            case 2:
                del made[at : at + chance.randint(1, 8)]
            case 3:
                made[at:at] = made[at : at + chance.randint(1, 16)]
            case 4:
                made[at:at] = chance.randbytes(chance.randint(1, 8))
            case 5:
                del made[at:]
    return bytes(made)


def amqp_stream(chance: random.Random) -> bytes:
    frames = []
    for tag in range(1, chance.randint(2, 6)):
        body = chance.randbytes(chance.choice((0, 8, 31, 32, 100)))
        frames += [
            method_frame(1, pika.spec.Basic.Deliver("bench-0-0", tag, False, "", "bench-run-0")),
            header_frame(1, len(body), pika.spec.BasicProperties(delivery_mode=1)),
            body_frame(1, body),
            chance.choice((b"", HEARTBEAT_FRAME, method_frame(1, pika.spec.Basic.Ack(tag, True)))),
        ]
    return b"".join(frames)


def open_amqp(want: frozenset[Part] = ENVELOPE_ONLY) -> Parser:
    consumers = ConsumerTags(b"bench-0-", 1)
    deliveries = DeliveryDecoder(0, FRAMING, consumers, Arrivals(want))
    return FrameParser(FRAMING, deliveries, lambda method: None)


def confirm_stream(chance: random.Random) -> bytes:
    frames = []
    for _ in range(chance.randint(1, 12)):
        method = chance.choice((pika.spec.Basic.Ack, pika.spec.Basic.Nack))
        tag, is_multiple = chance.randrange(2 * UNCONFIRMED), chance.randrange(3) == 0
        frames.append(method_frame(1, method(tag, is_multiple)))
        frames.append(chance.choice((b"", b"", HEARTBEAT_FRAME)))
    return b"".join(frames)


def open_confirms() -> Parser:
    """With messages that are not confirmed yet."""
    confirms = Confirms(0, FRAMING, ConfirmTerms(UNCONFIRMED, may_return=True), OutcomeRows())
    confirms.sent(empty_envelopes(UNCONFIRMED), ENVELOPE_BYTES)
    return FrameParser(FRAMING, confirms, lambda method: None)


def mqtt_stream(chance: random.Random, version: str) -> bytes:
    topic = b"bench/run/0"
    parts = []
    for identifier in range(1, chance.randint(2, 6)):
        qos = chance.randrange(3)
        body = struct.pack(">H", len(topic)) + topic
        body += struct.pack(">H", identifier) if qos else b""
        body += b"\0" if version == "5" else b""
        body += chance.randbytes(chance.choice((0, 8, 31, 32, 100)))
        parts.append(packets.packet(0x30 | qos << 1, body))
        parts.append(chance.choice((b"", b"\xd0\x00", b"\x62\x02\x00\x01")))
    return b"".join(parts)


def open_mqtt(version: str) -> Parser:
    reader = PublishReader(version, 0, Routes(["bench/run/0"]), Arrivals(ENVELOPE_ONLY))
    reader.on_packet = lambda kind, body: None
    return reader


def tcp_stream(chance: random.Random) -> bytes:
    bodies = (chance.randbytes(chance.choice((0, 8, 31, 32, 100))) for _ in range(5))
    return b"".join(struct.pack(">I", len(body)) + body for body in bodies)


def line_stream(chance: random.Random) -> bytes:
    return b"".join(b"x" * chance.choice((0, 8, 31, 32, 100)) + b"\n" for _ in range(5))


def http_stream(chance: random.Random) -> bytes:
    parts = []
    for _ in range(chance.randint(1, 4)):
        body = chance.randbytes(chance.choice((0, 8, 31, 32, 100)))
        if chance.randrange(2):
            parts.append(b"POST /x HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        else:
            chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            envelope = b"POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
            parts.append(envelope + chunk + b"0\r\n\r\n")
    return b"".join(parts)


def open_http() -> Parser:
    return HttpParser(read_request, lambda envelope, size, body, at_ns: None, None)


FUZZED = {
    "amqp": Fuzzed(amqp_stream, open_amqp, BadFrame),
    "amqp-parts": Fuzzed(
        amqp_stream, lambda: open_amqp(frozenset({Part.BODY, Part.HEADERS})), BadFrame
    ),
    "amqp-confirms": Fuzzed(confirm_stream, open_confirms, BadFrame),
    "mqtt-3.1.1": Fuzzed(
        lambda chance: mqtt_stream(chance, "3.1.1"), lambda: open_mqtt("3.1.1"), BadPacket
    ),
    "mqtt-5": Fuzzed(lambda chance: mqtt_stream(chance, "5"), lambda: open_mqtt("5"), BadPacket),
    "tcp": Fuzzed(tcp_stream, lambda: parser_of(Tcp(), 0, Arrivals(ENVELOPE_ONLY)), Unreadable),
    "tcp-line": Fuzzed(
        line_stream, lambda: parser_of(Tcp(framing="line"), 0, Arrivals(ENVELOPE_ONLY)), Unreadable
    ),
    "http": Fuzzed(http_stream, open_http, BadMessage),
}


def read(parser: Parser, stream: bytes, cut: int) -> None:
    """In two reads; what the first leaves over comes again before the second, as from a socket."""
    done = parsed(parser, stream[:cut])
    parsed(parser, stream[done:])


def parsed(parser: Parser, data: bytes) -> int:
    buffer = ReadBuffer(len(data))
    buffer.raw[:] = data
    done = parser.parse(buffer, len(data), 1)
    assert 0 <= done <= len(data)
    return done


def refused(protocol: Fuzzed, streams: int) -> int:
    """How many of the spoiled streams were refused; any other exception is a failure."""
    chance = random.Random(SEED)
    well_formed = [protocol.make(chance) for _ in range(WELL_FORMED)]
    count = 0
    for number in range(streams):
        stream = spoiled(chance, well_formed[number % WELL_FORMED])
        cut = chance.randint(0, len(stream)) if number % 2 else len(stream)
        try:
            read(protocol.open(), stream, cut)
        except protocol.refusal:
            count += 1
        except Exception as error:
            raise AssertionError(f"{stream.hex()} cut at {cut}: {error!r}") from error
    return count


def main() -> None:
    name, streams = sys.argv[1], int(sys.argv[2])
    print(json.dumps({"refused": refused(FUZZED[name], streams)}))


if __name__ == "__main__":
    main()
