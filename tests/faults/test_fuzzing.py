"""A hundred thousand spoiled frames and bodies: understood or refused, never a crash.

Streams are made well-formed and then spoiled: bytes changed, cut out, doubled, cut short. So most
of them are nearly right, which is where readers fail. Seeded: a failure can be had again.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import numpy as np
import pika.spec
import pytest
from fault_records import Seen

from bench_spark.agent.payload import BodySizes
from bench_spark.agent.protocol import (
    EventRow,
    FrameReader,
    WireError,
    decode_rows,
    encode_frame,
    encode_rows,
)
from bench_spark.agent.recorder import CONSUMER, Recorder, RecorderSetup
from bench_spark.agent.timeline import Timeline
from bench_spark.core.clock import NANOSECONDS
from bench_spark.core.envelope import ENVELOPE_BYTES, empty_envelopes, envelope_bytes
from bench_spark.core.hdr import shape_for
from bench_spark.core.sequences import SequencePages, SequenceSets
from bench_spark.transports.amqp.deliveries import Deliveries as AmqpDeliveries
from bench_spark.transports.amqp.frames import (
    HEARTBEAT_FRAME,
    body_frame,
    header_frame,
    method_frame,
)
from bench_spark.transports.amqp.parsing import BadFrame
from bench_spark.transports.amqp.parsing import Parser as AmqpParser
from bench_spark.transports.base import HEAD_ONLY, Received
from bench_spark.transports.mqtt import packets
from bench_spark.transports.mqtt.deliveries import Deliveries as MqttDeliveries
from bench_spark.transports.mqtt.deliveries import Unreleased
from bench_spark.transports.mqtt.packets import BadPacket
from bench_spark.transports.mqtt.parsing import Parser as MqttParser
from bench_spark.transports.mqtt.wire import read_buffer
from bench_spark.transports.sockets.arrivals import Arrivals
from bench_spark.transports.sockets.runs import ReadBuffer

FRAMES = 25_000
"""Of each kind; four kinds."""
BODIES = 100_000
SEED = 20_260_917


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


def read_amqp(stream: bytes, buffer: ReadBuffer) -> None:
    deliveries = AmqpDeliveries(0, 1, {b"bench-0-0": 0}, Arrivals(HEAD_ONLY))
    parser = AmqpParser(1, 4096, deliveries, lambda method: None, keeps_bodies=False)
    buffer.raw[: len(stream)] = stream
    assert 0 <= parser.parse(buffer, len(stream), 1) <= len(stream)


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


def read_mqtt(stream: bytes, version: str, buffer: ReadBuffer) -> None:
    deliveries = MqttDeliveries(
        0,
        {b"bench/run/0": 0}.get,
        Arrivals(HEAD_ONLY),
        Unreleased(),
        lambda identifiers: None,
        lambda identifiers: None,
    )
    parser = MqttParser(version, deliveries, lambda kind, body: None, keeps_bodies=False)
    buffer.raw[: len(stream)] = stream
    assert 0 <= parser.parse(buffer, len(stream), 1) <= len(stream)


def tried(
    read: Callable[[bytes], None], make: Callable[[], bytes], refusal: type[Exception]
) -> int:
    """How many of the spoiled streams were refused; any other exception is a failure."""
    refused = 0
    chance = random.Random(SEED)
    for _ in range(FRAMES):
        stream = spoiled(chance, make())
        try:
            read(stream)
        except refusal:
            refused += 1
        except Exception as error:
            raise AssertionError(f"{stream.hex()}: {error!r}") from error
    return refused


@pytest.mark.fault(case=16)
@pytest.mark.faults_slow
def test_spoiled_amqp_is_understood_or_refused(seen: Seen) -> None:
    chance, buffer = random.Random(SEED), ReadBuffer(1 << 16)
    refused = tried(lambda data: read_amqp(data, buffer), lambda: amqp_stream(chance), BadFrame)
    assert 0 < refused < FRAMES
    seen(f"{FRAMES:,} AMQP streams, {refused:,} refused")


@pytest.mark.fault(case=16)
@pytest.mark.faults_slow
@pytest.mark.parametrize("version", ["3.1.1", "5"])
def test_spoiled_mqtt_is_understood_or_refused(version: str, seen: Seen) -> None:
    chance, buffer = random.Random(SEED), read_buffer()
    refused = tried(
        lambda data: read_mqtt(data, version, buffer),
        lambda: mqtt_stream(chance, version),
        BadPacket,
    )
    assert 0 < refused < FRAMES
    seen(f"{FRAMES:,} MQTT {version} streams, {refused:,} refused")


def link_frame(chance: random.Random) -> bytes:
    row = EventRow(chance.randrange(9), "producer", "measure", 1, 2, 1.0, {"sent": 3})
    header, columns = encode_rows([row])
    message = chance.choice(
        [
            ({"type": "rows", "rows": header}, columns),
            ({"type": "reached", "step": "ready"}, b""),
            ({"type": "hello", "agent": 0, "answer": "00"}, b""),
        ]
    )
    return encode_frame(*message)


@pytest.mark.fault(case=16)
def test_spoiled_frames_of_a_link_are_understood_or_refused(seen: Seen) -> None:
    chance = random.Random(SEED)

    def read(data: bytes) -> None:
        for message, payload in FrameReader().feed(data):
            if message["type"] == "rows" and "rows" in message:
                try:
                    decode_rows(message["rows"], payload)
                except (ValueError, KeyError) as error:
                    raise WireError(str(error)) from error

    refused = tried(read, lambda: link_frame(chance), WireError)
    assert 0 < refused < FRAMES
    seen(f"{FRAMES:,} frames of links, {refused:,} refused")


@pytest.mark.fault(case=16)
def test_spoiled_sets_of_numbers_are_understood_or_refused() -> None:
    sets = SequenceSets(2)
    sets.add(np.zeros(5000, np.int64), np.arange(0, 10_000, 2))
    good = sets.export().to_bytes()

    def read(data: bytes) -> None:
        pages = SequencePages.from_bytes(data)
        SequenceSets(2).absorb(pages)

    assert 0 < tried(read, lambda: good, ValueError) <= FRAMES


@pytest.mark.fault(case=16)
def test_bodies_of_any_bytes_are_counted_apart_and_move_no_latency(seen: Seen) -> None:
    """Beside ten messages of our own, each with a latency of a millisecond."""
    start_ns = 1_700_000_000 * NANOSECONDS
    timeline = Timeline(start_ns, NANOSECONDS, 2 * NANOSECONDS, NANOSECONDS)
    recorder = Recorder(
        RecorderSetup(
            shape=shape_for(10_000_000),
            run_tag=77,
            producers=1,
            stream_of_producer=np.array([0]),
            streams_per_subscription=1,
            subscriptions=("red",),
            destinations_by_producer=("red",),
            sizes=BodySizes(100),
            has_schedule=True,
        ),
        timeline,
    )
    numbers = np.random.default_rng(SEED)
    heads = empty_envelopes(BODIES)
    envelope_bytes(heads)[:] = numbers.integers(0, 256, (BODIES, ENVELOPE_BYTES), np.uint8)
    # Whose tag is right by chance, or forged, but whose producer or number cannot be.
    heads["run_tag"][: BODIES // 4] = 77
    heads["producer"][: BODIES // 4] = numbers.integers(1, 1 << 32, BODIES // 4)
    ours = empty_envelopes(10)
    ours["sent_ns"] = ours["intended_ns"] = start_ns + NANOSECONDS
    ours["sequence"], ours["run_tag"] = np.arange(10), 77
    for part in np.array_split(heads, 100):
        receive(recorder, part, start_ns + NANOSECONDS + 1_000_000, numbers)
    receive(recorder, ours, start_ns + NANOSECONDS + 1_000_000, None)
    rows = recorder.rows_until(timeline.measure_end_ns + 2 * NANOSECONDS)
    total = {
        name: sum(row.counters.get(name, 0) for row in rows if row.role == CONSUMER)
        for name in ("received", "malformed", "foreign", "duplicates")
    }
    assert total["received"] == 10
    assert total["malformed"] + total["foreign"] == BODIES
    assert total["malformed"] >= BODIES // 4
    latencies = [row.histograms["latency"] for row in rows if "latency" in row.histograms]
    assert sum(one.count for one in latencies) == 10
    assert {(one.min_us, one.max_us) for one in latencies if one.count} == {(1000, 1000)}
    seen(f"{BODIES:,} bodies: {total['malformed']:,} malformed, {total['foreign']:,} foreign")


def receive(
    recorder: Recorder, head: np.ndarray, at_ns: int, sizes: np.random.Generator | None
) -> None:
    count = len(head)
    size = np.full(count, 100) if sizes is None else sizes.choice([0, 7, 31, 32, 100], count)
    recorder.received(
        Received.of_columns(
            received_ns=np.full(count, at_ns, np.int64),
            lane=np.zeros(count, np.uint32),
            route=np.zeros(count, np.uint16),
            head=head,
            size=size.astype(np.uint32),
            redelivered=np.zeros(count, np.bool_),
        ),
        np.zeros(count, np.int64),
    )
