"""Messages on a stream of bytes: what is framed is read again, wherever the stream is cut."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench_spark.config.protocols import Tcp
from bench_spark.core.envelope import Envelopes, byte_rows_of, empty_envelopes
from bench_spark.errors import ConfigurationError
from bench_spark.transports.batches import ENVELOPE_ONLY, Batch, Part
from bench_spark.transports.sockets.buffers import MOST_BYTES, Arrivals, ReadBuffer, Unreadable
from bench_spark.transports.sockets.messages import bodies_of
from bench_spark.transports.tcp.framing import LONGEST_REST_BYTES, framing_of, parser_of

LENGTH, LINE = Tcp(), Tcp(framing="line")


def envelopes(count: int) -> Envelopes:
    made = empty_envelopes(count)
    made["sequence"] = np.arange(count)
    made["sent_ns"] = 10**18
    return made


def load(payloads: bytes | list[bytes], count: int, envelope_bytes: int = 0) -> Batch:
    made = envelopes(count)
    lanes, routes = np.zeros(count, np.uint32), np.zeros(count, np.uint16)
    return Batch(lanes, made, payloads, routes, envelope_bytes=envelope_bytes)


class Reader:
    def __init__(self, tcp: Tcp, want: frozenset[Part] = frozenset({Part.BODY})) -> None:
        self.arrivals = Arrivals(want)
        self._parser = parser_of(tcp, 4, self.arrivals)
        self._buffer = ReadBuffer(1 << 20)
        self._rest = b""

    def read(self, data: bytes, cuts: list[int]) -> None:
        ends = [*sorted(cuts), len(data)]
        for start, end in zip([0, *ends], ends, strict=False):
            piece = self._rest + data[start:end]
            self._buffer.raw[: len(piece)] = piece
            done = self._parser.parse(self._buffer, len(piece), 77)
            self._rest = piece[done:]
            self._buffer.raw[: len(piece)] = bytes(len(piece))


sizes = st.integers(0, 60) | st.sampled_from([32, 32, 300, LONGEST_REST_BYTES, 70_001])
FRAMINGS = [LENGTH, LINE, Tcp(length_bytes=8, byte_order="little")]


@settings(deadline=None)
@given(st.sampled_from(FRAMINGS), st.lists(sizes, min_size=1, max_size=40), st.data())
def test_bodies_arrive_as_they_were_framed_wherever_the_stream_is_cut(
    tcp: Tcp, wanted: list[int], data: st.DataObject
) -> None:
    bodies = [bytes([65 + number % 26]) * size for number, size in enumerate(wanted)]
    stream = bytes(framing_of(tcp).data(load(bodies, len(bodies))))
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=10))
    reader = Reader(tcp)
    reader.read(stream, cuts)
    received = reader.arrivals.take()
    assert list(received.bodies or ()) == bodies
    assert received.size.tolist() == wanted
    assert set(received.lane.tolist()) == {4}
    assert set(received.received_ns.tolist()) == {77}


@settings(deadline=None)
@given(st.integers(1, 60), st.sampled_from([8, 32]), st.integers(0, 90), st.data())
def test_messages_have_their_envelopes_whether_or_not_bodies_are_kept(
    count: int, envelope_bytes: int, payload_bytes: int, data: st.DataObject
) -> None:
    sent = load(b"t" * payload_bytes, count, envelope_bytes)
    stream = bytes(framing_of(LENGTH).data(sent))
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=5))
    both = []
    for want in (ENVELOPE_ONLY, frozenset({Part.BODY})):
        reader = Reader(LENGTH, want)
        reader.read(stream, cuts)
        both.append(reader.arrivals.take())
    for received in both:
        rows = byte_rows_of(received.envelope)
        assert np.array_equal(
            rows[:, :envelope_bytes], byte_rows_of(sent.envelope)[:, :envelope_bytes]
        )
        assert set(received.size.tolist()) == {envelope_bytes + payload_bytes}
    assert both[0].bodies is None
    assert list(both[1].bodies or ()) == bodies_of(sent)


def test_a_body_with_a_line_feed_is_refused_by_its_number_and_place() -> None:
    bodies = [b"good", b"also", b"not\nthis"]
    with pytest.raises(ConfigurationError, match=r"message 2 of producer 0 .* at byte 3"):
        framing_of(LINE).data(load(bodies, 3))


def test_a_body_that_is_longer_than_its_length_can_say_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"tcp.length_bytes: 1 .* 256 bytes"):
        framing_of(Tcp(length_bytes=1)).data(load([bytes(256)], 1))


def test_a_length_that_nobody_means_is_not_waited_for() -> None:
    with pytest.raises(Unreadable, match=str(MOST_BYTES + 1)):
        Reader(LENGTH).read((MOST_BYTES + 1).to_bytes(4), [])


@pytest.mark.parametrize("order", ["big", "little"])
def test_a_length_of_eight_bytes_is_told_as_it_came(order: Literal["big", "little"]) -> None:
    tcp = Tcp(length_bytes=8, byte_order=order)
    with pytest.raises(Unreadable, match=str(2**64 - 2)):
        Reader(tcp).read((2**64 - 2).to_bytes(8, order), [])


@settings(deadline=None)
@given(
    st.integers(1, 40),
    st.sampled_from([8, 32]),
    st.integers(0, 90),
    st.lists(st.booleans(), min_size=1, max_size=4),
)
def test_padding_of_each_message_and_of_all_come_in_any_order(
    count: int, envelope_bytes: int, payload_bytes: int, are_own: list[bool]
) -> None:
    framing, random = framing_of(LENGTH), np.random.default_rng(count)
    for is_own in are_own:
        # Zeros, which padding of each message is written over.
        sent = load(bytes(payload_bytes), count, envelope_bytes)
        if is_own:
            own = random.integers(0, 256, (count, payload_bytes), np.uint8)
            sent = dataclasses.replace(sent, payload=own)
        length = (envelope_bytes + payload_bytes).to_bytes(4)
        assert bytes(framing.data(sent)) == b"".join(length + body for body in bodies_of(sent))


@settings(deadline=None)
@given(st.sampled_from(FRAMINGS), st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(tcp: Tcp, data: bytes) -> None:
    parser = parser_of(tcp, 4, Arrivals(ENVELOPE_ONLY))
    buffer = ReadBuffer(len(data))
    buffer.raw[:] = data
    with contextlib.suppress(Unreadable):
        assert 0 <= parser.parse(buffer, len(data), 1) <= len(data)
