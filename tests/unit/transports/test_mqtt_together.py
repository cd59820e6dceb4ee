"""Lanes that are read side by side: they hear what each would hear by itself, in the same order."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Sequence
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mqtt_crowds import TOPICS, Lanes, by_lane, opened, publish

from bench_spark.transports.base import HEAD_ONLY
from bench_spark.transports.mqtt import packets
from bench_spark.transports.mqtt.parsing import LONGEST_WHOLE_BYTES
from bench_spark.transports.mqtt.together import MOST_KNOWN, Together
from bench_spark.transports.mqtt.tokens import token
from bench_spark.transports.sockets import generations
from bench_spark.transports.sockets.arrivals import Arrivals
from bench_spark.transports.sockets.crowd import MANY, READ_AHEAD_BYTES

# -- any mixture -----------------------------------------------------------------------------------

LANES = 2 * MANY


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
                sent[lane] += publish(version, b"other", b"x" * (LONGEST_WHOLE_BYTES + 100))
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


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1 << 32), version=st.sampled_from(("3.1.1", "5")))
def test_a_crowd_hears_what_its_lanes_would_hear_one_by_one(seed: int, version: str) -> None:
    random = Random(seed)
    turns = turns_of(random, mixed_streams(random, version))
    heard = []
    for is_crowd in (True, False):
        with opened(LANES, version, is_crowd) as lanes:
            for turn in turns:
                lanes.hear(turn)
            heard.append(
                (
                    by_lane(lanes.arrivals.take(), LANES),
                    [(lane.packets, lane.said, lane.failures) for lane in lanes.lanes],
                )
            )
    assert heard[0] == heard[1]


# -- single rules ----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["3.1.1", "5"])
@pytest.mark.parametrize("qos", [0, 1])
def test_copies_are_decoded_together_with_the_time_of_each_read(version: str, qos: int) -> None:
    with opened(LANES, version) as lanes:
        for number in range(1, 11):
            topic = TOPICS[number % 2]
            payload = number.to_bytes(8, "little") * 10
            lanes.hear(
                [
                    publish(version, topic, payload, qos, 1000 * number + lane)
                    for lane in range(LANES)
                ]
            )
        received = lanes.arrivals.take()
        assert len(received) == 10 * LANES
        # Two of each topic were read one by one, by lanes of either kind.
        assert lanes.together.decoded >= 8 * LANES
        assert len(set(received.received_ns.tolist())) == 10 * LANES
        for lane, rows in enumerate(by_lane(received, LANES)):
            assert [row[0] for row in rows] == [number % 2 + lane % 2 for number in range(1, 11)]
            tags = [
                (token(1000 * number + lane, qos) if qos else 0) + generations.mark(lane % 3)
                for number in range(1, 11)
            ]
            assert [row[3] for row in rows] == tags


def test_several_messages_in_each_read_are_decoded_together_in_their_order() -> None:
    with opened(LANES) as lanes:
        messages = [
            publish("3.1.1", TOPICS[number % 2], struct.pack("<Q", number) * 5)
            for number in range(30)
        ]
        for _ in range(3):
            lanes.hear([b"".join(messages)] * LANES)
        assert lanes.together.decoded >= 2 * 30 * LANES
        for rows in by_lane(lanes.arrivals.take(), LANES):
            numbers = [struct.unpack_from("<Q", row[-1])[0] for row in rows]
            assert numbers == [*range(30)] * 3


def test_a_lane_with_more_than_is_read_ahead_reads_on_by_itself() -> None:
    message = publish("3.1.1", TOPICS[0], b"x" * 1000)
    many = 5 * READ_AHEAD_BYTES // len(message)
    with opened(LANES) as lanes:
        for _ in range(3):
            lanes.hear([message] * LANES)
        lanes.arrivals.take()
        lanes.send([message * many] * 2 + [message] * (LANES - 2))
        lanes.loop.pump()
        received = lanes.arrivals.take()
        assert np.bincount(received.lane).tolist() == [many] * 2 + [1] * (LANES - 2)


def test_at_qos_2_messages_stay_with_their_lane() -> None:
    with opened(LANES) as lanes:
        for _ in range(4):
            lanes.hear([publish("3.1.1", TOPICS[0], b"x" * 40, 2, 9)] * LANES)
        assert lanes.together.decoded == 0
        assert len(lanes.arrivals.take()) == LANES
        assert {tuple(lane.said) for lane in lanes.lanes} == {(("PUBREC", 9),) * 3}


def warmed(lanes: Lanes, message: bytes, numbers: range = range(LANES)) -> None:
    """These lanes have heard messages like this one."""
    for _ in range(3):
        lanes.hear([message if number in numbers else b"" for number in range(LANES)])
    lanes.arrivals.take()


def test_an_identifier_of_0_among_copies_ends_its_lane_only() -> None:
    copies = [publish("3.1.1", TOPICS[0], b"x" * 40, 1, lane) for lane in range(LANES)]
    with opened(LANES) as lanes:
        warmed(lanes, copies[1])
        lanes.hear(copies)
        assert sorted(lanes.arrivals.take().lane.tolist()) == [*range(1, LANES)]
        assert [len(lane.failures) for lane in lanes.lanes] == [1] + [0] * (LANES - 1)
        assert "identifier 0" in lanes.lanes[0].failures[0]


def test_what_lanes_with_other_filters_were_sent_tells_nothing_about_a_lanes_routes() -> None:
    message = publish("3.1.1", TOPICS[0], b"x" * 40)
    with opened(LANES) as lanes:
        warmed(lanes, message, range(0, LANES, 2))
        lanes.hear([message] * LANES)
        received = lanes.arrivals.take()
        assert dict(zip(received.lane.tolist(), received.route.tolist(), strict=True)) == {
            lane: lane % 2 for lane in range(LANES)
        }


def test_copies_that_are_cut_off_wait_for_their_rest() -> None:
    message = publish("3.1.1", TOPICS[0], bytes(range(100)))
    with opened(LANES) as lanes:
        warmed(lanes, message)
        lanes.hear([message[:-1] if lane % 3 else message for lane in range(LANES)])
        assert {lane % 3 for lane in lanes.arrivals.take().lane.tolist()} == {0}
        lanes.hear([message[-1:] if lane % 3 else b"" for lane in range(LANES)])
        lanes.hear([message] * LANES)
        counts = np.bincount(lanes.arrivals.take().lane).tolist()
        assert counts == [1 + bool(lane % 3) for lane in range(LANES)]


def test_the_payload_of_a_long_message_is_not_taken_for_messages() -> None:
    message = publish("3.1.1", TOPICS[0], b"x" * 40)
    inner = message * (LONGEST_WHOLE_BYTES // len(message) + 2)
    long = publish("3.1.1", b"other", inner)
    start = long[: len(long) - len(inner)]
    with opened(LANES) as lanes:
        warmed(lanes, message)
        lanes.hear([start] * LANES)
        for first in range(0, len(inner), 40 * len(message)):
            lanes.hear([inner[first : first + 40 * len(message)]] * LANES)
        assert lanes.arrivals.take().size.tolist() == [len(inner)] * LANES


def test_any_number_of_topics_is_forgotten_again() -> None:
    arrivals = Arrivals(HEAD_ONLY)
    together = Together(arrivals, [("#",)] * LANES)
    for number in range(10 * MOST_KNOWN):
        likeness = (0x30, str(number).encode(), b"", 40)
        together.learn(0, likeness, 0)
        together.learn(0, likeness, 0)
    assert together.known <= MOST_KNOWN


def test_a_lane_that_has_ended_is_no_member_any_more() -> None:
    message = publish("3.1.1", TOPICS[0], b"x" * 40)
    with opened(LANES) as lanes:
        for _ in range(3):
            lanes.hear([message] * LANES)
        lanes.lanes[3].broker.sendall(message)
        lanes.lanes[3].broker.close()
        lanes.hear([b"" if lane == 3 else message for lane in range(LANES)])
        assert lanes.lanes[3].failures == ["connection closed by the peer"]
        lanes.hear([message] * LANES)
        counts = np.bincount(lanes.arrivals.take().lane, minlength=LANES).tolist()
        assert counts == [4 if lane == 3 else 5 for lane in range(LANES)]


def test_whoever_gets_the_descriptor_of_an_ended_lane_next_is_served_by_itself() -> None:
    message = publish("3.1.1", TOPICS[0], b"x" * 40)
    near, far = socket.socketpair()
    with opened(LANES) as lanes, near, far:
        warmed(lanes, message)
        descriptor = lanes.lanes[3].wire.fileno()
        lanes.lanes[3].wire.abort("enough")
        os.dup2(near.fileno(), descriptor)
        with socket.socket(fileno=descriptor) as next_owner:
            heir = Heir(next_owner)
            lanes.loop.add(heir)
            far.send(b"hello")
            lanes.send([message] * LANES)
            lanes.loop.pump()
            assert heir.heard == b"hello"
        assert len(lanes.arrivals.take()) == LANES - 1


class Heir:
    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self.heard = b""

    def fileno(self) -> int:
        return self._end.fileno()

    def on_ready(self, events: int) -> None:
        self.heard += self._end.recv(100)
