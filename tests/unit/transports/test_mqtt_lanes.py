"""MQTT lanes whose broker is the other end of a socket: each hears what it was sent, in order."""

from __future__ import annotations

import itertools
import select
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bench_spark.core.envelope import byte_rows_of
from bench_spark.transports.batches import ENVELOPE_ONLY, Received
from bench_spark.transports.mqtt import packets
from bench_spark.transports.mqtt.connection import MqttConnection, read_buffer
from bench_spark.transports.mqtt.consumers import PublishReader, Routes
from bench_spark.transports.sockets.buffers import Arrivals, ReadBuffer
from bench_spark.transports.sockets.loop import Loop

LANES = 8
TOPICS = (b"bench/run/0", b"bench/run/1", b"other")
CONNACK = {"3.1.1": b"\x20\x02\x00\x00", "5": b"\x20\x03\x00\x00\x00"}
LONG_BYTES = 64 * 1024
FILTERS = (["bench/run/0", "bench/run/1", "other"], ["x", "bench/run/0", "bench/run/1", "other"])
"""Lanes with an even and with an odd number have routes of their own."""


def publish(
    version: str, topic: bytes, payload: bytes, qos: int = 0, identifier: int = 0, flags: int = 0
) -> bytes:
    """Written without the module under test."""
    body = struct.pack(">H", len(topic)) + topic
    if qos:
        body += struct.pack(">H", identifier)
    if version == "5":
        body += b"\x00"
    return packets.packet(0x30 | qos << 1 | flags, body + payload)


@dataclass
class Lane:
    connection: MqttConnection
    broker: socket.socket
    packets: list[tuple[int, bytes]] = field(default_factory=list)
    answers: bytearray = field(default_factory=bytearray)
    """PUBCOMPs and PUBRECs that the lane would send."""
    failures: list[str] = field(default_factory=list)


def reader_of(version: str, number: int, arrivals: Arrivals) -> PublishReader:
    routes = Routes(FILTERS[number % 2])
    return PublishReader(version, number, routes, arrivals, generation=number % 3)


class Lanes:
    """Consumer lanes on one loop, each with its broker at the other end of a pair of sockets."""

    def __init__(self, stack: ExitStack, count: int, version: str) -> None:
        self.version = version
        self.loop = Loop()
        stack.callback(self.loop.close)
        self.arrivals = Arrivals(ENVELOPE_ONLY)
        self._clock = itertools.count(1)
        self._buffer = read_buffer()
        self.lanes = [self._open(stack, number) for number in range(count)]
        self.loop.pump()

    def _open(self, stack: ExitStack, number: int) -> Lane:
        # TCP, because the connection sets its options.
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        near = stack.enter_context(socket.create_connection(server.getsockname()))
        far = stack.enter_context(server.accept()[0])
        near.setblocking(False)
        login = packets.Login(self.version, f"client-{number}", None, None, 0)
        connection = MqttConnection(near, self.loop, lambda: next(self._clock), self._buffer, login)
        lane = Lane(connection, far)
        far.recv(1000)
        far.sendall(CONNACK[self.version])
        assert self.loop.run_until(lambda: connection.is_open, 5)
        reader = reader_of(self.version, number, self.arrivals)
        reader.on_answers = lane.answers.extend
        connection.on_packet = lambda kind, body: lane.packets.append((kind, body))
        connection.on_end = lambda failure: lane.failures.append(str(failure))
        connection.begin(reader)
        return lane

    def hear(self, parts: Sequence[bytes]) -> None:
        """All lanes are sent their part before any of them is read."""
        waiting = []
        for lane, part in zip(self.lanes, parts, strict=True):
            if part and not lane.failures:
                lane.broker.sendall(part)
                waiting.append(lane.connection)
        for connection in waiting:
            select.select([connection], [], [], 5)
        self.loop.pump()
        # What was longer than one turn.
        while select.select([self.loop.descriptor], [], [], 0)[0]:
            self.loop.pump()


@contextmanager
def opened(count: int = LANES, version: str = "3.1.1") -> Iterator[Lanes]:
    with ExitStack() as stack:
        yield Lanes(stack, count, version)


def by_lane(received: Received, lanes: int) -> list[list[tuple[Any, ...]]]:
    rows: list[list[tuple[Any, ...]]] = [[] for _ in range(lanes)]
    for lane, *rest, envelope in zip(
        received.lane.tolist(),
        received.route.tolist(),
        received.size.tolist(),
        received.redelivered.tolist(),
        received.tag.tolist(),
        byte_rows_of(received.envelope),
        strict=True,
    ):
        rows[lane].append((*rest, envelope.tobytes()))
    return rows


# -- any mixture -----------------------------------------------------------------------------------

HARMLESS = (
    b"\xd0\x00",  # PINGRESP
    b"\x90\x03\x00\x01\x00",  # SUBACK
    b"\x62\x02\x00\x01",  # PUBREL
)
DEADLY = (
    b"\xff\xff\xff\xff\xff",
    publish("3.1.1", b"unknown", b"x" * 40),
    publish("3.1.1", TOPICS[0], b"x" * 40, qos=1, identifier=0),
)


def mixed_streams(random: Random, version: str) -> list[bytes]:
    """What each lane is sent: mostly copies, of which some lanes get no copy, or another packet
    before it, or one of another size or with other flags."""
    sent = [b""] * LANES
    usual = [(random.choice(TOPICS), random.choice((8, 40, 1000)), random.choice((0, 1)))] * 4
    usual += [(random.choice(TOPICS), random.choice((0, 31, 127)), random.choice((0, 1, 2)))] * 2
    for number in range(1, random.randint(10, 40)):
        topic, size, qos = random.choice(usual)
        for lane in range(LANES):
            chance = random.random()
            flags, own_size = 0, size
            if chance < 0.02:
                sent[lane] += random.choice(HARMLESS)
            elif chance < 0.022:
                sent[lane] += random.choice(DEADLY)
            elif chance < 0.025:
                sent[lane] += publish(version, b"other", b"x" * (LONG_BYTES + 100))
            elif chance < 0.04:
                flags = random.choice((0x01, 0x08))
            elif chance < 0.05:
                own_size = random.choice((0, 41, 3000))
            elif chance < 0.1:
                continue
            payload = (struct.pack("<HH", number, lane) * (own_size // 4 + 1))[:own_size]
            sent[lane] += publish(version, topic, payload, qos, number * LANES + lane, flags)
    return sent


def turns_of(random: Random, streams: Sequence[bytes]) -> list[tuple[bytes, ...]]:
    """The streams in pieces: most lanes get about as much in a turn, now and then with a cut in the
    middle of a packet."""
    turns = []
    done = [0] * len(streams)
    whole = [0] * len(streams)
    """The end of the packets that a lane was given, the last of them perhaps in part."""
    while any(at < len(stream) for at, stream in zip(done, streams, strict=True)):
        parts = []
        for lane, stream in enumerate(streams):
            whole[lane] = _packets_end(stream, whole[lane], random.choice((1, 1, 1, 2, 3)))
            is_cut = random.random() < 0.1
            end = random.randint(done[lane], whole[lane]) if is_cut else whole[lane]
            parts.append(stream[done[lane] : end])
            done[lane] = end
        turns.append(tuple(parts))
    return turns


def _packets_end(stream: bytes, at: int, count: int) -> int:
    """Behind so many packets, as far as there are any and they can be read."""
    for _ in range(count):
        try:
            found = packets.read_length(stream, at + 1, len(stream))
        except packets.BadPacket:
            found = None
        at = len(stream) if found is None else min(len(stream), sum(found))
    return at


def heard_alone(version: str, number: int, stream: bytes) -> tuple[Any, ...]:
    """What a lane makes of all that it was sent, read at once."""
    arrivals = Arrivals(ENVELOPE_ONLY)
    reader = reader_of(version, number, arrivals)
    told: list[tuple[int, bytes]] = []
    answers = bytearray()
    reader.on_packet = lambda kind, body: told.append((kind, body)) if kind != 0xD0 else None
    reader.on_answers = answers.extend
    buffer = ReadBuffer(len(stream))
    buffer.raw[:] = stream
    failures = []
    try:
        reader.parse(buffer, len(stream), 1)
    except packets.BadPacket as error:
        failures = [f"the broker sent {error}"]
    return by_lane(arrivals.take(), LANES)[number], told, bytes(answers), failures


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1 << 32), version=st.sampled_from(("3.1.1", "5")))
def test_each_lane_hears_its_own_stream_whatever_others_hear_and_wherever_it_is_cut(
    seed: int, version: str
) -> None:
    random = Random(seed)
    streams = mixed_streams(random, version)
    with opened(LANES, version) as lanes:
        for turn in turns_of(random, streams):
            lanes.hear(turn)
        rows = by_lane(lanes.arrivals.take(), LANES)
        for number, (lane, stream) in enumerate(zip(lanes.lanes, streams, strict=True)):
            heard = (rows[number], lane.packets, bytes(lane.answers), lane.failures)
            assert heard == heard_alone(version, number, stream)


def test_an_identifier_of_0_ends_its_lane_only() -> None:
    copies = [publish("3.1.1", TOPICS[0], b"x" * 40, 1, lane) for lane in range(LANES)]
    with opened() as lanes:
        lanes.hear(copies)
        assert sorted(lanes.arrivals.take().lane.tolist()) == [*range(1, LANES)]
        assert [len(lane.failures) for lane in lanes.lanes] == [1] + [0] * (LANES - 1)
        assert "identifier 0" in lanes.lanes[0].failures[0]


def test_lanes_with_other_filters_have_other_routes_for_the_same_topic() -> None:
    message = publish("3.1.1", TOPICS[0], b"x" * 40)
    with opened() as lanes:
        lanes.hear([message] * LANES)
        received = lanes.arrivals.take()
        assert dict(zip(received.lane.tolist(), received.route.tolist(), strict=True)) == {
            lane: lane % 2 for lane in range(LANES)
        }
        assert len(set(received.received_ns.tolist())) == LANES


def test_messages_that_are_cut_off_wait_for_their_rest() -> None:
    message = publish("3.1.1", TOPICS[0], bytes(range(100)))
    with opened() as lanes:
        lanes.hear([message[:-1] if lane % 3 else message for lane in range(LANES)])
        assert {lane % 3 for lane in lanes.arrivals.take().lane.tolist()} == {0}
        lanes.hear([message[-1:] if lane % 3 else b"" for lane in range(LANES)])
        lanes.hear([message] * LANES)
        counts = np.bincount(lanes.arrivals.take().lane).tolist()
        assert counts == [1 + bool(lane % 3) for lane in range(LANES)]


def test_the_payload_of_a_long_message_is_not_taken_for_messages() -> None:
    message = publish("3.1.1", TOPICS[0], b"x" * 40)
    inner = message * (LONG_BYTES // len(message) + 2)
    long = publish("3.1.1", b"other", inner)
    start = long[: len(long) - len(inner)]
    with opened() as lanes:
        lanes.hear([start] * LANES)
        for first in range(0, len(inner), 40 * len(message)):
            lanes.hear([inner[first : first + 40 * len(message)]] * LANES)
        assert lanes.arrivals.take().size.tolist() == [len(inner)] * LANES


def test_a_lane_that_has_ended_leaves_the_others_alone() -> None:
    message = publish("3.1.1", TOPICS[0], b"x" * 40)
    with opened() as lanes:
        for _ in range(3):
            lanes.hear([message] * LANES)
        lanes.lanes[3].broker.sendall(message)
        lanes.lanes[3].broker.close()
        lanes.hear([b"" if lane == 3 else message for lane in range(LANES)])
        assert lanes.lanes[3].failures == ["connection closed by the peer"]
        lanes.hear([message] * LANES)
        counts = np.bincount(lanes.arrivals.take().lane, minlength=LANES).tolist()
        assert counts == [4 if lane == 3 else 5 for lane in range(LANES)]
