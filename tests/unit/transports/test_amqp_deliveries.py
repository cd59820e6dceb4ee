"""Streams of frames in any mixture and any pieces, against a naive reader of the whole stream."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pika.compat
import pika.frame
import pika.spec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench_spark.core.envelope import ENVELOPE_BYTES, byte_rows_of
from bench_spark.transports.amqp.consumers import MOST_PIECES, ConsumerTags, DeliveryDecoder
from bench_spark.transports.amqp.frames import (
    HEARTBEAT_FRAME,
    BadFrame,
    FrameParser,
    FrameTerms,
    body_frame,
    header_bytes,
    header_frame,
    method_frame,
)
from bench_spark.transports.batches import Part, Received
from bench_spark.transports.sockets.buffers import (
    MOST_BYTES,
    Arrivals,
    ReadBuffer,
    generation_mark,
    own_tags,
)

CHANNEL, FRAME_MAX, LANE = 1, 4096, 3
FRAMING = FrameTerms(CHANNEL, FRAME_MAX)
TAGS = ConsumerTags(b"bench-0-", 12)
CONSUMERS = {TAGS.of(route): route for route in (0, 1, 9, 10, 11)}
Basic, Connection = pika.spec.Basic, pika.spec.Connection

# -- making streams --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """What alike messages have in common."""

    consumer: str = "bench-0-0"
    exchange: str = ""
    routing_key: str = "bench-run-0"
    size: int = 100
    headers: dict[str, Any] | None = None
    is_from_a_stream: bool = False


def message(method: Any, kind: Kind, number: int) -> list[bytes]:
    """The frames of a message whose body tells its number."""
    body = (number.to_bytes(8, "little") * (kind.size // 8 + 1))[: kind.size]
    headers = kind.headers
    if kind.is_from_a_stream:
        headers = {**(headers or {}), "x-stream-offset": pika.compat.long(number % 2**62)}
    properties = pika.spec.BasicProperties(headers=headers, delivery_mode=1)
    most = FRAME_MAX - 8
    return [
        method_frame(CHANNEL, method),
        header_frame(CHANNEL, len(body), properties),
        *(body_frame(CHANNEL, body[at : at + most]) for at in range(0, len(body), most)),
    ]


def delivery(kind: Kind, tag: int, redelivered: bool = False) -> list[bytes]:
    method = Basic.Deliver(kind.consumer, tag, redelivered, kind.exchange, kind.routing_key)
    return message(method, kind, tag)


def returned(kind: Kind, number: int) -> list[bytes]:
    return message(Basic.Return(312, "NO_ROUTE", kind.exchange, kind.routing_key), kind, number)


FOREIGN = {
    "heartbeat": HEARTBEAT_FRAME,
    "blocked": method_frame(0, Connection.Blocked("memory")),
    "unblocked": method_frame(0, Connection.Unblocked()),
    "connection close": method_frame(0, Connection.Close(320, "CONNECTION_FORCED", 0, 0)),
}
"""May come anywhere, even between the frames of a message."""
BETWEEN_MESSAGES = {
    "ack": method_frame(CHANNEL, Basic.Ack(7, True)),
    "nack": method_frame(CHANNEL, Basic.Nack(8, False, True)),
    "cancel": method_frame(CHANNEL, Basic.Cancel("bench-0-0")),
    "consume-ok": method_frame(CHANNEL, Basic.ConsumeOk("bench-0-1")),
    "flow": method_frame(CHANNEL, pika.spec.Channel.Flow(True)),
}

KINDS = st.builds(
    Kind,
    consumer=st.sampled_from(sorted(CONSUMERS)),
    exchange=st.sampled_from(["", "amq.topic"]),
    routing_key=st.sampled_from(["bench-run-0", "k"]),
    size=st.sampled_from([0, 1, 8, 31, 32, 33, 100, 101, FRAME_MAX - 8, FRAME_MAX, 9000]),
    headers=st.sampled_from([None, {"id": 1}, {"id": "text"}, {"id": "more"}]),
    is_from_a_stream=st.booleans(),
)


@st.composite
def streams(draw: st.DrawFn) -> list[bytes]:
    """Frames: runs of alike messages, with anything between and within them."""
    frames: list[bytes] = []
    tag = draw(st.integers(0, 2**63))
    for _ in range(draw(st.integers(1, 12))):
        what = draw(
            st.sampled_from(["run", "run", "run", "return", "between", "foreign", "broken"])
        )
        if what == "run":
            kind, redelivered = draw(KINDS), draw(st.booleans())
            for _ in range(draw(st.integers(1, 40))):
                tag += 1
                frames += delivery(kind, tag, redelivered)
        elif what == "return":
            frames += returned(draw(KINDS), tag)
        elif what == "between":
            frames.append(BETWEEN_MESSAGES[draw(st.sampled_from(sorted(BETWEEN_MESSAGES)))])
        elif what == "foreign":
            frames.append(FOREIGN[draw(st.sampled_from(sorted(FOREIGN)))])
        else:
            tag += 1
            for frame in delivery(draw(KINDS), tag):
                frames += [frame, FOREIGN[draw(st.sampled_from(sorted(FOREIGN)))]]
    return frames


# -- the naive reader ------------------------------------------------------------------------------


@dataclass
class Seen:
    """Messages and methods, in order; a message with the place of its last byte."""

    messages: list[tuple[int, int, bool, bytes, Any]] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    methods: list[str] = field(default_factory=list)


def read_naively(stream: bytes) -> Seen:
    """pika's decoder, frame by frame; raises for a stream that is no AMQP."""
    seen = Seen()
    at = 0
    method = header = None
    body = b""
    while at < len(stream):
        size, frame = pika.frame.decode_frame(stream[at : at + FRAME_MAX])
        if not size:
            break
        at += size
        if isinstance(frame, pika.frame.Method):
            if pika.spec.has_content(frame.method.INDEX):
                method, body = frame.method, b""
            elif not isinstance(frame.method, Basic.Ack | Basic.Nack):
                seen.methods.append(repr(frame.method))
            continue
        if isinstance(frame, pika.frame.Header):
            header = frame
        elif isinstance(frame, pika.frame.Body):
            body += frame.fragment
        else:
            continue
        if len(body) == header.body_size:
            if isinstance(method, Basic.Deliver):
                route = CONSUMERS[method.consumer_tag]
                row = (route, method.delivery_tag, method.redelivered, body)
                headers = header_bytes(header.properties.headers)
                seen.messages.append((*row, headers))
                seen.ends.append(at)
            method = None
    return seen


# -- ours ------------------------------------------------------------------------------------------

EVERYTHING = frozenset({Part.BODY, Part.HEADERS})


class Reader:
    """The decoder with a socket's part: pieces in, columns out."""

    def __init__(self, want: frozenset[Part] = EVERYTHING) -> None:
        self.arrivals = Arrivals(want)
        self.deliveries = DeliveryDecoder(LANE, FRAMING, TAGS, self.arrivals)
        self.methods: list[str] = []
        self._rest = b""
        self._parser = FrameParser(
            FRAMING, self.deliveries, lambda method: self.methods.append(repr(method))
        )

    def read(self, piece: bytes, at_ns: int) -> None:
        data = self._rest + piece
        buffer = ReadBuffer(len(data))
        buffer.raw[:] = data
        done = self._parser.parse(buffer, len(data), at_ns)
        # Whatever was decoded must have been copied out: the next read comes here.
        self._rest = data[done:]
        buffer.raw[:] = bytes(len(data))


def rows(received: Received) -> list[tuple[int, int, bool, bytes, Any]]:
    if not len(received):
        return []
    assert received.bodies is not None
    assert received.headers is not None
    columns = (received.route.tolist(), received.tag.tolist(), received.redelivered.tolist())
    return list(zip(*columns, received.bodies, received.headers, strict=True))


@given(streams(), st.data())
@settings(max_examples=150, deadline=None)
def test_any_stream_in_any_pieces_is_read_as_the_naive_reader_reads_it(
    frames: list[bytes], data: st.DataObject
) -> None:
    stream = b"".join(frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    bounds = [0, *cuts, len(stream)]
    reader = Reader()
    for number, (start, end) in enumerate(itertools.pairwise(bounds)):
        if end > start:
            reader.read(stream[start:end], at_ns=number)
    received = reader.arrivals.take()
    expected = read_naively(stream)
    assert rows(received) == expected.messages
    assert reader.methods == expected.methods
    bodies = [body for *_, body, _ in expected.messages]
    assert received.size.tolist() == [len(body) for body in bodies]
    assert byte_rows_of(received.envelope).tobytes() == b"".join(
        body[:ENVELOPE_BYTES].ljust(ENVELOPE_BYTES, b"\0") for body in bodies
    )
    assert set(received.lane.tolist()) <= {LANE}
    # A message is received with the read that brings its last byte.
    last_bytes = np.array(expected.ends, dtype=np.int64)
    assert np.array_equal(received.received_ns, np.searchsorted(bounds[1:], last_bytes))


def test_more_messages_than_there_is_room_for_are_all_decoded() -> None:
    count = 3 * max(MOST_PIECES, len(Arrivals(EVERYTHING).rows))
    messages = [b"".join(delivery(Kind(size=tag % 50), tag)) for tag in range(count)]
    messages.insert(count // 2, HEARTBEAT_FRAME)
    for want in (frozenset[Part](), EVERYTHING):
        reader = Reader(want)
        reader.read(b"".join(messages), at_ns=1)
        received = reader.arrivals.take()
        assert received.tag.tolist() == list(range(count))
        assert received.size.tolist() == [tag % 50 for tag in range(count)]
        if want:
            assert rows(received) == read_naively(b"".join(messages)).messages


def test_a_row_is_written_over_in_all_of_its_fields() -> None:
    reader = Reader(frozenset())
    for rows_used_before in range(2):
        reader.arrivals.rows.view(np.uint8)[:] = 0xFF
        reader.read(b"".join(delivery(Kind(size=8), 5)), at_ns=7)
        received = reader.arrivals.take()
        envelope = (5).to_bytes(8, "little").ljust(ENVELOPE_BYTES, b"\0")
        assert byte_rows_of(received.envelope).tobytes() == envelope, rows_used_before
        [row] = received.rows[["received_ns", "tag", "lane", "size", "subscription"]].tolist()
        assert row == (7, 5, LANE, 8, 0)
        [row] = received.rows[["route", "redelivered", "corrupted"]].tolist()
        assert row == (0, False, False)


@pytest.mark.parametrize("most", [1, 5, 8, 12, 31])
def test_an_envelope_is_put_together_from_frames_of_any_size(most: int) -> None:
    body = bytes(range(50))
    frames = [
        method_frame(CHANNEL, Basic.Deliver("bench-0-0", 1, False, "", "k")),
        header_frame(CHANNEL, len(body), pika.spec.BasicProperties()),
        *(body_frame(CHANNEL, body[at : at + most]) for at in range(0, len(body), most)),
    ]
    reader = Reader(frozenset())
    for number, frame in enumerate(frames):
        reader.read(frame, at_ns=number)
    received = reader.arrivals.take()
    assert received.size.tolist() == [len(body)]
    assert byte_rows_of(received.envelope).tobytes() == body[:ENVELOPE_BYTES]


def test_a_tag_says_of_which_generation_it_is() -> None:
    arrivals = Arrivals(frozenset())
    mark = generation_mark(3)
    parser = FrameParser(FRAMING, DeliveryDecoder(LANE, FRAMING, TAGS, arrivals, mark), print)
    stream = b"".join(delivery(Kind(), 77))
    buffer = ReadBuffer(len(stream))
    buffer.raw[:] = stream
    assert parser.parse(buffer, len(stream), 1) == len(stream)
    assert own_tags(arrivals.take().tag, 3).tolist() == [77]


def test_a_message_that_differs_in_any_byte_is_read_as_the_naive_reader_reads_it_or_refused() -> (
    None
):
    messages = [b"".join(delivery(Kind(size=40), tag)) for tag in range(1, 41)]
    spoilt_at, spoilt = 19, messages[19]
    for place in range(len(spoilt)):
        changed = bytearray(spoilt)
        changed[place] ^= 1
        stream = b"".join((*messages[:spoilt_at], changed, *messages[spoilt_at + 1 :]))
        reader = Reader()
        try:
            reader.read(stream, at_ns=1)
        except BadFrame:
            # Nothing that came before is lost.
            tags = [tag for _, tag, *_ in rows(reader.arrivals.take())]
            assert tags == list(range(1, spoilt_at + 1)), place
        else:
            assert rows(reader.arrivals.take()) == read_naively(stream).messages, place


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "a frame of kind 72 and"),
        (HEARTBEAT_FRAME[:-1] + b"\0", "a frame without its end mark"),
        (body_frame(CHANNEL, b"no message began"), "a body without its message"),
        (header_frame(CHANNEL, 5, pika.spec.BasicProperties()), "a header without its message"),
        (b"".join(delivery(Kind(), 1)[1::-1]), "a header without its message"),
        (b"".join(delivery(Kind(), 1)[::2]), "a body without its message"),
        (delivery(Kind(), 1)[0] * 2, "a message that breaks off"),
        (b"".join(delivery(Kind(), 1)[:2]) + delivery(Kind(), 1)[0], "a message that breaks off"),
        (b"".join(delivery(Kind(), 1)[:2]) * 2, "a message that breaks off"),
        (b"".join([*delivery(Kind(), 1)[:2], delivery(Kind(), 1)[1]]), "header without its"),
        (b"".join(delivery(Kind(consumer="someone"), 1)), "a consumer that is not ours"),
        (b"".join(delivery(Kind(consumer="bench-0-12"), 1)), "a consumer that is not ours"),
        (b"".join(delivery(Kind(consumer="bench-0-01"), 1)), "a consumer that is not ours"),
        (b"".join(delivery(Kind(consumer="bench-0-"), 1)), "a consumer that is not ours"),
        (b"".join(delivery(Kind(consumer="bench-0-1x"), 1)), "a consumer that is not ours"),
        (
            b"".join([*delivery(Kind(size=8), 1)[:2], body_frame(CHANNEL, bytes(9))]),
            "longer than announced",
        ),
        (
            b"".join(frame.replace(b"\1\0\1", b"\1\0\2", 1) for frame in delivery(Kind(), 1)),
            "a frame for channel 2",
        ),
        (body_frame(CHANNEL, bytes(FRAME_MAX)), "a frame of kind 3 and 4096 bytes"),
        (b"\1\0\1\0\0\0\4\0\x3c\xff\xff\xce", "not understood"),
        (b"\1\0\1\0\0\0\2\0\x3c\xce", "not understood"),
        (b"\1\0\1\0\0\0\6\0\x3c\0\x3c\xff\0\xce", "not understood"),
        (
            delivery(Kind(), 1)[0] + header_frame(CHANNEL, 2**63, pika.spec.BasicProperties()),
            "announced with 9223372036854775808 bytes",
        ),
        (
            delivery(Kind(), 1)[0]
            + header_frame(CHANNEL, MOST_BYTES + 1, pika.spec.BasicProperties()),
            f"the largest that can arrive in this run has {MOST_BYTES}",
        ),
        (
            returned(Kind(), 1)[0]
            + header_frame(CHANNEL, MOST_BYTES + 1, pika.spec.BasicProperties()),
            f"the largest that can arrive in this run has {MOST_BYTES}",
        ),
    ],
)
def test_what_is_no_amqp_is_refused_and_named_not_skipped(bad: bytes, why: str) -> None:
    with pytest.raises(BadFrame, match=why):
        Reader().read(bad, at_ns=1)


def test_a_stream_that_is_cut_anywhere_waits_for_the_rest() -> None:
    stream = b"".join([*delivery(Kind(size=20), 1), *delivery(Kind(size=20), 2)])
    expected = read_naively(stream).messages
    for cut_at in range(1, 130):
        reader = Reader()
        reader.read(stream[:cut_at], at_ns=1)
        reader.read(stream[cut_at:], at_ns=2)
        assert rows(reader.arrivals.take()) == expected, cut_at


def test_a_channel_that_is_closed_in_the_middle_of_a_message_is_told() -> None:
    reader = Reader()
    reader.read(b"".join(delivery(Kind(), 1)[:2]), at_ns=1)
    close = pika.spec.Channel.Close(406, "PRECONDITION_FAILED", 0, 0)
    reader.read(method_frame(CHANNEL, close), at_ns=2)
    assert len(reader.methods) == 1
    assert "PRECONDITION_FAILED" in reader.methods[0]
