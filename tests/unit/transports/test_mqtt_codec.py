"""Streams of packets in any mixture and any pieces, against a naive reader of the whole stream."""

from __future__ import annotations

import contextlib
import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench_spark.core.envelope import (
    ENVELOPE_BYTES,
    byte_rows_of,
    empty_envelopes,
    word_rows_of,
)
from bench_spark.transports.batches import (
    ENVELOPE_ONLY,
    RECEIVED_DTYPE,
    OutcomeKind,
    Part,
    Received,
)
from bench_spark.transports.mqtt import codec, packets
from bench_spark.transports.mqtt.connection import PacketReader, read_buffer
from bench_spark.transports.mqtt.consumers import PublishReader, Routes
from bench_spark.transports.mqtt.packets import BadPacket
from bench_spark.transports.mqtt.producers import InFlight, OutcomeRows
from bench_spark.transports.sockets.buffers import Arrivals, ReadBuffer

LANE = 3
TOPICS = (b"bench/run/0", b"bench/run/1", b"t")
VERSIONS = ("3.1.1", "5")
LONG_BYTES = 64 * 1024


# -- making streams --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """What messages have in common."""

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


def feed(parser: PacketReader, parts: Sequence[bytes]) -> None:
    buffer, rest = read_buffer(), b""
    for part in parts:
        data = rest + part
        buffer.raw[: len(data)] = data
        done = parser.parse(buffer, len(data), at_ns=7)
        rest = bytes(buffer.raw[done : len(data)])
    assert rest == b""


def acks_in(data: bytes, kind: int) -> list[int]:
    """The identifiers of the acknowledgements of this kind."""
    acks = [struct.unpack_from(">BBH", data, at) for at in range(0, len(data), 4)]
    assert {length for _, length, _ in acks} <= {2}
    return [identifier for one, _, identifier in acks if one == kind]


_ARRIVALS = Arrivals(ENVELOPE_ONLY)
"""Made once: its rows take longer to make than a stream to read."""


@dataclass
class Consumer:
    """The reader of a lane, and all that it says."""

    version: str = "3.1.1"
    want: frozenset[Part] = ENVELOPE_ONLY
    packets: list[tuple[int, bytes]] = field(default_factory=list)
    answers: bytearray = field(default_factory=bytearray)
    repeats: int = 0

    def __post_init__(self) -> None:
        self.arrivals = _ARRIVALS if self.want == ENVELOPE_ONLY else Arrivals(self.want)
        self.arrivals.take()
        routes = Routes([topic.decode() for topic in TOPICS])
        self.parser = PublishReader(self.version, LANE, routes, self.arrivals)
        self.parser.on_packet = lambda kind, body: self.packets.append((kind, body))
        self.parser.on_answers = self.answers.extend
        self.parser.on_repeats = self._count

    def _count(self, repeats: int) -> None:
        self.repeats += repeats

    @property
    def released(self) -> list[int]:
        return acks_in(bytes(self.answers), packets.PUBCOMP)

    @property
    def repeated(self) -> list[int]:
        found = acks_in(bytes(self.answers), packets.PUBREC)
        assert len(found) == self.repeats
        return found

    def hear(self, parts: Sequence[bytes]) -> Received:
        feed(self.parser, parts)
        return self.arrivals.take()


def token(identifier: int, qos: int) -> int:
    return identifier | qos << 16


def rows_of(received: Received) -> list[tuple[Any, ...]]:
    envelopes = byte_rows_of(received.envelope)
    return [
        (int(route), int(size), bool(redelivered), int(tag), envelope.tobytes())
        for route, size, redelivered, tag, envelope in zip(
            received.route,
            received.size,
            received.redelivered,
            received.tag,
            envelopes,
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
            envelope = payload(kind.size, number)[:ENVELOPE_BYTES].ljust(ENVELOPE_BYTES, b"\0")
            tag = token(number, kind.qos) if kind.qos else 0
            expected.append((TOPICS.index(kind.topic), kind.size, kind.is_duplicate, tag, envelope))
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
def test_messages_are_decoded_also_behind_a_stranger(version: str, qos: int) -> None:
    kind = Kind(qos=qos)
    consumer = Consumer(version)
    stream = b"".join(publish(version, kind, number, number) for number in range(1, 101))
    stream += b"\xd0\x00"
    stream += b"".join(publish(version, kind, number, number) for number in range(101, 201))
    received = consumer.hear([stream])
    assert len(received) == 200
    assert consumer.packets == [(0xD0, b"")]
    assert set(received.lane.tolist()) == {LANE}
    assert set(received.received_ns.tolist()) == {7}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("want", [ENVELOPE_ONLY, frozenset({Part.BODY})])
def test_long_messages_are_read_in_pieces_and_arrive_whole(
    version: str, want: frozenset[Part]
) -> None:
    sizes = (LONG_BYTES, LONG_BYTES * 5, 40, 40, LONG_BYTES - 100)
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
    envelopes = byte_rows_of(received.envelope)
    assert [envelope.tobytes() for envelope in envelopes] == [
        body[:ENVELOPE_BYTES] for body in bodies
    ]


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


def test_any_number_of_releases_in_one_read_is_answered_in_order() -> None:
    consumer = Consumer()
    once = [publish("3.1.1", Kind(qos=2, size=8), number, number) for number in range(1, 1001)]
    release = [packets.packet(packets.PUBREL, struct.pack(">H", one)) for one in range(1, 1001)]
    room = len(consumer.arrivals.rows)
    for _ in range(3):
        assert len(consumer.hear([b"".join(once)])) == 1000
        consumer.hear([b"".join(once[:1]), b"".join(release)])
    assert consumer.released == [*range(1, 1001)] * 3
    assert consumer.repeated == [1] * 3
    assert len(consumer.arrivals.rows) == room


def test_a_message_with_bad_headers_is_none() -> None:
    wanted = frozenset({Part.BODY, Part.HEADERS})
    consumer = Consumer("5", wanted)
    good = publish("5", Kind(properties=b"\x26\x00\x01k\x00\x01v"), 0, 1)
    bad = publish("5", Kind(properties=b"\x26\x00\x01\xff\x00\x01v"), 0, 2)
    with pytest.raises(BadPacket, match="not understood"):
        consumer.hear([good + bad])
    received = consumer.arrivals.take()
    assert (len(received), len(received.bodies or ())) == (1, 1)
    assert received.headers == [{"k": b"v"}]


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
        (b"\x62\xff\xff\xff\x7f", "packet of kind 0x62"),
        (b"\x62\x01\x00", "without its identifier"),
    ],
)
def test_what_is_no_mqtt_is_named(stream: bytes, problem: str) -> None:
    with pytest.raises(BadPacket, match=problem):
        Consumer().hear([stream])


@pytest.mark.parametrize("size", [1001, 1 << 20])
def test_a_message_that_is_larger_than_any_of_the_run_is_not_waited_for(size: int) -> None:
    reader = PublishReader("3.1.1", LANE, Routes(["t"]), Arrivals(ENVELOPE_ONLY, most_bytes=1000))
    with pytest.raises(BadPacket, match=r"announced with .* 1000"):
        feed(reader, [publish("3.1.1", Kind(topic=b"t", size=size), 0, 1)[:100]])


def test_a_message_whose_start_never_ends_is_not_waited_for() -> None:
    properties = packets.length_bytes(1 << 20)
    start = b"\x30" + packets.length_bytes(1 << 21) + b"\x00\x01t" + properties
    with pytest.raises(BadPacket, match="topic and properties have"):
        Consumer("5").hear([start + bytes(codec.LONGEST_START_BYTES)])


def test_topics_of_any_number_and_length_keep_their_routes() -> None:
    long = "t/" + "x" * (codec.TOPIC_BYTES + 1)
    routes = Routes(["a/+", "t/+"])
    arrivals = Arrivals(ENVELOPE_ONLY)
    reader = PublishReader("3.1.1", LANE, routes, arrivals)
    names = [f"a/{number}" for number in range(3000)] + [long, "t/" + "y" * 238]
    stream = b"".join(publish("3.1.1", Kind(topic=name.encode()), 0, 1) for name in names)
    for _ in range(2):
        feed(reader, pieces(stream, range(0, len(stream), 100_000)))
        assert arrivals.take().route.tolist() == [0] * 3000 + [1, 1]
    assert routes.of(b"c/1") is None


def test_a_lane_with_a_kept_session_still_knows_what_was_not_released() -> None:
    consumer, next_one = Consumer(), Consumer()
    message = publish("3.1.1", Kind(qos=2), 9, 1)
    assert len(consumer.hear([message])) == 1
    next_one.parser.take_over(consumer.parser)
    assert len(next_one.hear([message])) == 0
    assert next_one.repeated == [9]


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=300), version=st.sampled_from(VERSIONS))
def test_any_bytes_are_understood_or_refused(data: bytes, version: str) -> None:
    read_exactly(data, version)


def read_exactly(data: bytes, version: str) -> bool:
    """Decode from memory that ends where the data does; whether it was MQTT."""
    consumer = Consumer(version)
    buffer = ReadBuffer(len(data))
    buffer.raw[:] = data
    try:
        done = consumer.parser.parse(buffer, len(data), at_ns=1)
    except BadPacket:
        return False
    assert 0 <= done <= len(data)
    return True


def spoiled(random: Random, stream: bytes) -> bytes:
    made = bytearray(stream)
    for _ in range(random.randint(1, 3)):
        at = random.randrange(len(made) + 1)
        match random.randrange(4):
            case 0:
                made[at : at + 1] = random.randbytes(1)
            case 1:
                del made[at : at + random.randint(1, 8)]
            case 2:
                made[at:at] = random.choice((b"\xff\xff\xff\x7f", b"\x62\x02\x00\x01", b"\x32"))
            case 3:
                del made[at:]
    return bytes(made)


SPOILED = 500 if numba.config.DISABLE_JIT else 5000


@pytest.mark.parametrize("version", VERSIONS)
def test_spoiled_streams_are_understood_or_refused_whatever_lies_behind_them(version: str) -> None:
    random = Random(20_261_118)
    understood = 0
    buffer = read_buffer()
    for _ in range(SPOILED):
        messages = [
            publish(version, Kind(TOPICS[random.randrange(3)], size, random.randrange(3)), 7, 1)
            for size in random.choices((0, 8, 31, 32, 100), k=random.randint(1, 4))
        ]
        data = spoiled(random, b"\xd0\x00".join(messages))
        understood += read_exactly(data, version)
        heard = []
        for behind in (b"\x00", b"\xff"):
            consumer = Consumer(version)
            buffer.raw[: len(data)] = data
            buffer.raw[len(data) : len(data) + 400] = behind * 400
            try:
                outcome = str(consumer.parser.parse(buffer, len(data), at_ns=1))
            except BadPacket as error:
                outcome = str(error)
            rows = consumer.arrivals.take().rows.tobytes()
            heard.append((outcome, rows, consumer.packets, consumer.answers))
        assert heard[0] == heard[1], data.hex()
    assert 0 < understood < SPOILED


# -- acknowledgements ------------------------------------------------------------------------------


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 2), st.integers(1, 65535)),
        min_size=1,
        max_size=60,
    ),
    st.sampled_from((8, 4000)),
)
def test_each_message_of_the_present_generation_is_acknowledged_in_order(
    messages: list[tuple[int, int, int, int]], room: int
) -> None:
    present = np.array([0, 1, 2, 0], np.int64)
    rows = np.zeros(len(messages), RECEIVED_DTYPE)
    expected: dict[int, bytes] = {}
    for row, (lane, generation, qos, identifier) in zip(rows, messages, strict=True):
        row["lane"] = lane
        row["tag"] = generation << 48 | (token(identifier, qos) if qos else 0)
        if qos and generation == present[lane]:
            kind = packets.PUBACK if qos == 1 else packets.PUBREC
            ack = struct.pack(">BBH", kind, 2, identifier)
            expected[lane] = expected.get(lane, b"") + ack
    said: dict[int, bytes] = {}
    out, at = np.zeros(room, np.uint8), 0
    while at < len(rows):
        before = at
        at, lane, written = codec.encode_acks(rows, at, present, out)
        assert at > before
        if written:
            said[lane] = said.get(lane, b"") + out[:written].tobytes()
    assert said == expected


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
    outcomes = OutcomeRows()
    answers = bytearray()
    in_flight = InFlight(LANE, 60, outcomes)
    in_flight.on_answers = answers.extend
    in_flight.on_packet = lambda kind, body: None
    first, expected = 0, {}
    for count in batches:
        envelopes = empty_envelopes(count)
        envelopes["sequence"] = np.arange(first, first + count)
        found = in_flight.sent(word_rows_of(envelopes))
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
        feed(in_flight, pieces(stream, cuts))
        if qos == 2:
            accepted = {one for one in shuffled if sequence[one] not in refused}
            released = acks_in(bytes(answers), packets.PUBREL)
            answers.clear()
            assert released == [one for one in shuffled if one in accepted]
            completes = b"".join(
                packets.packet(packets.PUBCOMP, struct.pack(">H", one)) for one in released
            )
            feed(in_flight, pieces(completes, cuts))
        assert len(in_flight) == 0
    told = outcomes.take()
    assert (
        dict(zip(told.envelope["sequence"].tolist(), told.kind.tolist(), strict=True)) == expected
    )
    assert len(told) == len(expected)
    assert set(told.lane.tolist()) == {LANE}
    assert set(told.at_ns.tolist()) == {7}


def test_what_is_open_when_a_lane_goes_is_unknown() -> None:
    outcomes = OutcomeRows()
    in_flight = InFlight(LANE, 10, outcomes)
    in_flight.sent(word_rows_of(empty_envelopes(4)))
    in_flight.abandon(at_ns=5)
    told = outcomes.take()
    assert len(told) == 4
    assert set(told.kind.tolist()) == {OutcomeKind.UNKNOWN}
    assert len(in_flight) == 0


@pytest.mark.parametrize(
    ("stream", "problem"),
    [
        (b"\x30\x03\x00\x01t", "has not subscribed"),
        (b"\x40\x01\x00", "without its identifier"),
        (b"\x40\xff\xff\xff\xff\x01", "four bytes"),
        (b"\x40\xff\xff\xff\x7f", "packet of kind 0x40"),
    ],
)
@pytest.mark.parametrize("limit", [0, 10])
def test_what_no_producer_may_be_sent_is_named(stream: bytes, problem: str, limit: int) -> None:
    with pytest.raises(BadPacket, match=problem):
        feed(InFlight(LANE, limit, OutcomeRows()), [stream])


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=60), limit=st.sampled_from((0, 1, 300)))
def test_any_acknowledgements_are_understood_or_refused(data: bytes, limit: int) -> None:
    outcomes = OutcomeRows()
    in_flight = InFlight(LANE, limit, outcomes)
    in_flight.on_packet = lambda kind, body: None
    in_flight.sent(word_rows_of(empty_envelopes(limit)))
    buffer = ReadBuffer(len(data))
    buffer.raw[:] = data
    with contextlib.suppress(BadPacket):
        in_flight.parse(buffer, len(data), at_ns=1)
    assert len(in_flight) + outcomes.count == limit
