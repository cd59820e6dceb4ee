"""Streams of packets in any mixture and any pieces, against a naive reader of the whole stream."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench_spark.core.envelope import ENVELOPE_BYTES, empty_envelopes, envelope_bytes
from bench_spark.transports.base import HEAD_ONLY, OutcomeKind, Outcomes, Part, Received
from bench_spark.transports.mqtt import packets
from bench_spark.transports.mqtt.deliveries import Deliveries, Unreleased
from bench_spark.transports.mqtt.packets import BadPacket
from bench_spark.transports.mqtt.parsing import LONGEST_WHOLE_BYTES, Parser
from bench_spark.transports.mqtt.settlement import Settlement
from bench_spark.transports.mqtt.tokens import token
from bench_spark.transports.mqtt.wire import read_buffer
from bench_spark.transports.sockets.arrivals import Arrivals

LANE = 3
TOPICS = (b"bench/run/0", b"bench/run/1", b"t")
VERSIONS = ("3.1.1", "5")


# -- making streams --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """What alike messages have in common."""

    topic: bytes = TOPICS[0]
    size: int = 100
    qos: int = 0
    is_duplicate: bool = False
    is_retained: bool = False
    properties: bytes = b""


def payload(size: int, number: int) -> bytes:
    return (number.to_bytes(8, "little") * (size // 8 + 1))[:size]


def publish(version: str, kind: Kind, identifier: int, number: int) -> bytes:
    """Written without the module under test."""
    first = 0x30 | kind.is_duplicate << 3 | kind.qos << 1 | kind.is_retained
    body = struct.pack(">H", len(kind.topic)) + kind.topic
    if kind.qos:
        body += struct.pack(">H", identifier)
    if version == "5":
        body += bytes([len(kind.properties)]) + kind.properties
    return packets.packet(first, body + payload(kind.size, number))


def pieces(stream: bytes, cuts: Sequence[int]) -> list[bytes]:
    places = sorted({cut % (len(stream) + 1) for cut in cuts} | {0, len(stream)})
    return [stream[a:b] for a, b in itertools.pairwise(places)]


def feed(parser: Parser, parts: Sequence[bytes]) -> None:
    buffer, rest = read_buffer(), b""
    for part in parts:
        data = rest + part
        buffer.raw[: len(data)] = data
        done = parser.parse(buffer, len(data), at_ns=7)
        rest = bytes(buffer.raw[done : len(data)])
    assert rest == b""


@dataclass
class Consumer:
    """The receiver of a lane, and all that it said."""

    version: str = "3.1.1"
    want: frozenset[Part] = HEAD_ONLY
    packets: list[tuple[int, bytes]] = field(default_factory=list)
    released: list[int] = field(default_factory=list)
    repeated: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.arrivals = Arrivals(self.want)
        self.deliveries = Deliveries(
            LANE,
            {topic: route for route, topic in enumerate(TOPICS)}.get,
            self.arrivals,
            Unreleased(),
            lambda ids: self.released.extend(ids.tolist()),
            lambda ids: self.repeated.extend(ids.tolist()),
        )
        self.parser = Parser(
            self.version,
            self.deliveries,
            lambda kind, body: self.packets.append((kind, body)),
            keeps_bodies=Part.BODY in self.want,
        )

    def hear(self, parts: Sequence[bytes]) -> Received:
        feed(self.parser, parts)
        return self.arrivals.take()


def rows_of(received: Received) -> list[tuple[Any, ...]]:
    heads = envelope_bytes(received.head)
    return [
        (int(route), int(size), bool(redelivered), int(tag), head.tobytes())
        for route, size, redelivered, tag, head in zip(
            received.route,
            received.size,
            received.redelivered,
            received.tag,
            heads,
            strict=True,
        )
    ]


kinds = st.builds(
    Kind,
    topic=st.sampled_from(TOPICS),
    size=st.sampled_from((0, 8, 31, 32, 100, 127, 1000)),
    qos=st.integers(0, 2),
    is_duplicate=st.booleans(),
    is_retained=st.booleans(),
    properties=st.sampled_from((b"", b"\x01\x01", b"\x26\x00\x01k\x00\x01v")),
)
foreign = st.sampled_from(
    (
        b"\xd0\x00",  # PINGRESP
        b"\x90\x03\x00\x01\x00",  # SUBACK
        b"\xb0\x02\x00\x02",  # UNSUBACK
        b"\xe0\x00",  # DISCONNECT
    )
)
runs = st.lists(
    st.tuples(kinds, st.integers(1, 40), st.one_of(st.none(), foreign)), min_size=1, max_size=6
)


@settings(max_examples=150, deadline=None)
@given(
    runs=runs,
    cuts=st.lists(st.integers(0, 1 << 20), max_size=12),
    version=st.sampled_from(VERSIONS),
)
def test_nothing_is_lost_whatever_comes_between_and_wherever_the_stream_is_cut(
    runs: list[tuple[Kind, int, bytes | None]], cuts: list[int], version: str
) -> None:
    stream, expected, others, released = b"", [], [], []
    number = 0
    for kind, count, other in runs:
        for _ in range(count):
            number += 1
            stream += publish(version, kind, number, number)
            head = payload(kind.size, number)[:ENVELOPE_BYTES].ljust(ENVELOPE_BYTES, b"\0")
            tag = token(number, kind.qos) if kind.qos else 0
            expected.append((TOPICS.index(kind.topic), kind.size, kind.is_duplicate, tag, head))
            if kind.qos == 2 and number % 3 == 0:
                stream += packets.packet(packets.PUBREL, struct.pack(">H", number))
                released.append(number)
        if other is not None:
            stream += other
            others.append(other)
    consumer = Consumer(version)
    assert rows_of(consumer.hear(pieces(stream, cuts))) == expected
    assert [bytes([kind]) + bytes([len(body)]) + body for kind, body in consumer.packets] == others
    assert consumer.released == released
    assert consumer.repeated == []


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_alike_messages_are_decoded_together_also_behind_a_stranger(version: str, qos: int) -> None:
    kind = Kind(qos=qos)
    consumer = Consumer(version)
    stream = b"".join(publish(version, kind, number, number) for number in range(1, 101))
    stream += b"\xd0\x00"
    stream += b"".join(publish(version, kind, number, number) for number in range(101, 201))
    received = consumer.hear([stream])
    assert len(received) == 200
    assert consumer.deliveries.decoded_together >= 190
    assert consumer.packets == [(0xD0, b"")]
    assert set(received.lane.tolist()) == {LANE}
    assert set(received.received_ns.tolist()) == {7}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("want", [HEAD_ONLY, frozenset({Part.BODY})])
def test_long_messages_are_read_in_pieces_and_arrive_whole(
    version: str, want: frozenset[Part]
) -> None:
    sizes = (LONGEST_WHOLE_BYTES, LONGEST_WHOLE_BYTES * 5, 40, 40, LONGEST_WHOLE_BYTES - 100)
    messages = [
        publish(version, Kind(size=size, qos=1), number, number)
        for number, size in enumerate(sizes, start=1)
    ]
    stream = b"".join(messages)
    consumer = Consumer(version, want)
    parts = pieces(stream, range(0, len(stream), 10_007))
    received = consumer.hear(parts)
    assert received.size.tolist() == list(sizes)
    bodies = [payload(size, number) for number, size in enumerate(sizes, start=1)]
    if want:
        assert received.bodies is not None
        assert list(received.bodies) == bodies
    heads = envelope_bytes(received.head)
    assert [head.tobytes() for head in heads] == [body[:ENVELOPE_BYTES] for body in bodies]


def test_at_qos_2_what_comes_again_before_its_release_is_not_given_on() -> None:
    consumer = Consumer()
    once = b"".join(publish("3.1.1", Kind(qos=2), number, number) for number in range(1, 31))
    assert len(consumer.hear([once])) == 30
    again = Kind(qos=2, is_duplicate=True)
    repeats = b"".join(publish("3.1.1", again, number, number) for number in (3, 5))
    fresh = b"".join(publish("3.1.1", Kind(qos=2), number, number) for number in range(20, 41))
    assert len(consumer.hear([repeats + fresh])) == 10
    assert consumer.repeated == [3, 5, *range(20, 31)]
    release = b"".join(
        packets.packet(packets.PUBREL, struct.pack(">H", number)) for number in range(1, 41)
    )
    assert len(consumer.hear([release + fresh])) == 21
    assert consumer.released == list(range(1, 41))


def test_at_qos_1_what_comes_again_is_given_on_and_marked() -> None:
    consumer = Consumer()
    first = publish("3.1.1", Kind(qos=1), 9, 1)
    again = publish("3.1.1", Kind(qos=1, is_duplicate=True), 9, 1)
    received = consumer.hear([first + again])
    assert received.redelivered.tolist() == [False, True]


@pytest.mark.parametrize(
    ("stream", "problem"),
    [
        (b"\x36\x05\x00\x01t\x00\x01", "QoS 3"),
        (b"\x32\x05\x00\x01t\x00\x00", "identifier 0"),
        (b"\x30\x02\x00\x09", "ends before its payload"),
        (b"\x30\x04\x00\x02xy", "not subscribed"),
        (b"\x30\xff\xff\xff\xff\x01", "four bytes"),
        (b"\x90\xff\xff\xff\x7f", "packet of kind 0x90"),
    ],
)
def test_what_is_no_mqtt_is_named(stream: bytes, problem: str) -> None:
    with pytest.raises(BadPacket, match=problem):
        Consumer().hear([stream])


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=300), version=st.sampled_from(VERSIONS))
def test_any_bytes_are_understood_or_refused(data: bytes, version: str) -> None:
    consumer = Consumer(version)
    buffer = read_buffer()
    buffer.raw[: len(data)] = data
    try:
        done = consumer.parser.parse(buffer, len(data), at_ns=1)
    except BadPacket:
        return
    assert 0 <= done <= len(data)


# -- what a producer is told -----------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(
    qos=st.sampled_from((1, 2)),
    batches=st.lists(st.integers(1, 60), min_size=1, max_size=5),
    cuts=st.lists(st.integers(0, 1 << 16), max_size=8),
    suffix=st.sampled_from((b"", b"\x00", b"\x10", b"\x10\x00")),
    refused=st.sets(st.integers(0, 299), max_size=5),
    order=st.randoms(use_true_random=False),
)
def test_every_message_has_one_outcome_whatever_the_acknowledgements_look_like(
    qos: int,
    batches: list[int],
    cuts: list[int],
    suffix: bytes,
    refused: set[int],
    order: Any,
) -> None:
    sink: list[Outcomes] = []
    released: list[int] = []
    settlement = Settlement(LANE, 60, sink, lambda ids: released.extend(ids.tolist()))
    parser = Parser("5", settlement, lambda kind, body: None)
    first, expected = 0, {}
    for count in batches:
        heads = empty_envelopes(count)
        heads["sequence"] = np.arange(first, first + count)
        found = settlement.sent(heads)
        assert found is not None
        sequence = dict(zip(found.tolist(), range(first, first + count), strict=True))
        first += count
        shuffled = list(sequence)
        order.shuffle(shuffled)
        stream = b""
        for identifier in shuffled:
            is_refused = sequence[identifier] in refused
            says = b"\x97" if is_refused else suffix
            kind = packets.PUBACK if qos == 1 else packets.PUBREC
            stream += packets.packet(kind, struct.pack(">H", identifier) + says) + b"\xd0\x00"
            outcome = OutcomeKind.REFUSED if is_refused else OutcomeKind.CONFIRMED
            expected[sequence[identifier]] = outcome
        if cuts and cuts[0] % 2:
            stream = stream.replace(b"\xd0\x00", b"")
        feed(parser, pieces(stream, cuts))
        if qos == 2:
            accepted = {one for one in shuffled if sequence[one] not in refused}
            assert set(released) == accepted
            completes = b"".join(
                packets.packet(packets.PUBCOMP, struct.pack(">H", one)) for one in released
            )
            released.clear()
            feed(parser, pieces(completes, cuts))
        assert settlement.in_flight == 0
    told = {
        int(head["sequence"]): OutcomeKind(int(kind))
        for part in sink
        for head, kind in zip(part.head, part.kind, strict=True)
    }
    assert told == expected
    assert sum(map(len, sink)) == len(expected)


def test_what_is_open_when_a_lane_goes_is_unknown() -> None:
    sink: list[Outcomes] = []
    settlement = Settlement(LANE, 10, sink, lambda ids: None)
    settlement.sent(empty_envelopes(4))
    settlement.abandon(at_ns=5)
    assert [len(one) for one in sink] == [4]
    assert set(sink[0].kind.tolist()) == {OutcomeKind.UNKNOWN}
    assert settlement.in_flight == 0
