"""Confirms against a plain set of open tags, streams of them in any pieces, and returns."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pika.frame
import pika.spec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench_spark.core.envelope import ENVELOPE_BYTES, Envelopes, byte_rows_of, empty_envelopes
from bench_spark.transports.amqp.confirms import (
    NANOSECONDS_HELD,
    Confirms,
    ConfirmTerms,
    OutcomeRows,
)
from bench_spark.transports.amqp.frames import (
    HEARTBEAT_FRAME,
    BadFrame,
    FrameParser,
    FrameTerms,
    body_frame,
    header_frame,
    method_frame,
)
from bench_spark.transports.batches import OutcomeKind
from bench_spark.transports.sockets.buffers import ReadBuffer

CHANNEL, SENT = 1, 300
FRAMING = FrameTerms(CHANNEL, 4096)
Basic = pika.spec.Basic
CONFIRMED, REFUSED, RETURNED, UNKNOWN = OutcomeKind

# A tag beside what was sent is a broker's mistake; it must do no harm.
TAGS = st.integers(0, SENT + 5)


def envelopes(first_tag: int, count: int) -> Envelopes:
    """Envelopes whose sequence is the tag they will get."""
    made = empty_envelopes(count)
    made["sequence"] = np.arange(first_tag, first_tag + count)
    return made


def stamped(count: int) -> Envelopes:
    made = envelopes(0, count)
    made["sent_ns"] = range(100, 100 + count)
    return made


def settled_so_far(sink: OutcomeRows) -> list[tuple[int, OutcomeKind, int]]:
    return [
        (int(row["envelope"]["sequence"]), OutcomeKind(row["kind"]), int(row["at_ns"]))
        for row in sink.rows[: sink.count]
    ]


class Ledger:
    """Confirms whose outcomes are asked for after every step."""

    def __init__(self, limit: int) -> None:
        self._outcomes = OutcomeRows()
        self.confirms = Confirms(0, FRAMING, ConfirmTerms(limit, False), self._outcomes)

    def send(self, made: Envelopes) -> None:
        self.confirms.sent(made, ENVELOPE_BYTES)

    def settled(self, tag: int, multiple: bool) -> list[int]:
        self.confirms.settled(tag, multiple, OutcomeKind.CONFIRMED, 1)
        return self._sequences()

    def abandoned(self) -> list[int]:
        self.confirms.abandon(1)
        return self._sequences()

    def _sequences(self) -> list[int]:
        return [int(one) for one in self._outcomes.take().envelope["sequence"]]


def filled(count: int, limit: int = 100) -> Ledger:
    ledger = Ledger(limit)
    ledger.send(envelopes(1, count))
    return ledger


def settled(ledger: Ledger, tag: int, multiple: bool) -> list[int]:
    return ledger.settled(tag, multiple)


def test_a_single_confirm_settles_one_message_wherever_it_is() -> None:
    ledger = filled(5)
    assert settled(ledger, 3, multiple=False) == [3]
    assert ledger.confirms.in_flight == 4


def test_multiple_settles_what_is_still_open_up_to_its_tag() -> None:
    ledger = filled(5)
    settled(ledger, 2, multiple=False)
    assert settled(ledger, 4, multiple=True) == [1, 3, 4]
    assert settled(ledger, 5, multiple=True) == [5]


def test_multiple_with_tag_zero_settles_everything() -> None:
    assert settled(filled(3), 0, multiple=True) == [1, 2, 3]


def test_a_tag_that_is_not_open_settles_nothing() -> None:
    ledger = filled(3)
    settled(ledger, 2, multiple=False)
    for tag in (0, 2, 4, 1000):
        assert settled(ledger, tag, multiple=False) == []
    assert ledger.confirms.in_flight == 2


def test_room_is_what_the_limit_leaves() -> None:
    ledger = filled(7, limit=10)
    assert ledger.confirms.room == 3
    settled(ledger, 5, multiple=True)
    assert ledger.confirms.room == 8


def test_a_full_ledger_takes_no_more_until_a_quarter_is_free() -> None:
    ledger = filled(100, limit=100)
    assert ledger.confirms.room == 0
    settled(ledger, 24, multiple=True)
    assert ledger.confirms.room == 0, (
        "one message for every confirm costs as much as many at a time"
    )
    settled(ledger, 25, multiple=False)
    assert ledger.confirms.room == 25
    ledger.send(envelopes(101, 10))
    assert ledger.confirms.room == 15, "it is not full again"


def test_a_ledger_for_one_message_has_room_when_that_is_settled() -> None:
    ledger = filled(1, limit=1)
    assert ledger.confirms.room == 0
    settled(ledger, 1, multiple=False)
    assert ledger.confirms.room == 1


def test_abandoning_gives_all_that_is_open_once() -> None:
    ledger = filled(4)
    settled(ledger, 2, multiple=False)
    assert ledger.abandoned() == [1, 3, 4]
    assert ledger.abandoned() == []


def test_one_slow_message_does_not_limit_those_behind_it() -> None:
    ledger = filled(1, limit=10)
    for tag in range(2, 5000):
        ledger.send(envelopes(tag, 1))
        assert settled(ledger, tag, multiple=False) == [tag]
    assert settled(ledger, 1, multiple=False) == [1]
    assert ledger.confirms.in_flight == 0


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(1, 900)),
        st.tuples(st.just("ack"), st.integers(0, 4000)),
        st.tuples(st.just("ack multiple"), st.integers(0, 4000)),
    ),
    max_size=60,
)


@given(STEPS)
def test_the_ledger_agrees_with_a_set_of_open_tags(steps: list[tuple[str, int]]) -> None:
    ledger = Ledger(10**6)
    open_tags: set[int] = set()
    next_tag = 1
    for what, number in steps:
        if what == "send":
            ledger.send(envelopes(next_tag, number))
            open_tags |= set(range(next_tag, next_tag + number))
            next_tag += number
        else:
            multiple = what == "ack multiple"
            if multiple:
                expected = {tag for tag in open_tags if number == 0 or tag <= number}
            else:
                expected = open_tags & {number}
            assert settled(ledger, number, multiple) == sorted(expected)
            open_tags -= expected
        assert ledger.confirms.in_flight == len(open_tags)
    assert ledger.abandoned() == sorted(open_tags)


def test_what_is_settled_leaves_the_ring() -> None:
    ledger = Ledger(100)
    for first in range(1, 20_000, 50):
        ledger.send(envelopes(first, 50))
        for tag in range(first, first + 50):
            assert settled(ledger, tag, multiple=False) == [tag]
    assert ledger.confirms.ring.nbytes < 80_000, "memory for open ones, not for all that were"


# -- streams ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Said:
    """One thing that a broker says to a producer."""

    what: str
    tag: int
    multiple: bool

    @property
    def frames(self) -> bytes:
        if self.what == "ack":
            return method_frame(CHANNEL, Basic.Ack(self.tag, self.multiple))
        if self.what == "nack":
            return method_frame(CHANNEL, Basic.Nack(self.tag, self.multiple, False))
        if self.what == "return":
            properties = pika.spec.BasicProperties(delivery_mode=1)
            return b"".join(
                (
                    method_frame(CHANNEL, Basic.Return(312, "NO_ROUTE", "", "nowhere")),
                    header_frame(CHANNEL, len(self.body), properties),
                    body_frame(CHANNEL, self.body),
                )
            )
        return HEARTBEAT_FRAME

    @property
    def body(self) -> bytes:
        made = empty_envelopes(1)
        made["sequence"] = self.tag
        return byte_rows_of(made).tobytes() + b"payload"

    def settle(self, settlement: Confirms, at_ns: int) -> None:
        if self.what == "ack":
            settlement.settled(self.tag, self.multiple, OutcomeKind.CONFIRMED, at_ns)
        elif self.what == "nack":
            settlement.settled(self.tag, self.multiple, OutcomeKind.REFUSED, at_ns)
        elif self.what == "return":
            settlement.returned(self.body, at_ns)


@st.composite
def conversations(draw: st.DrawFn) -> list[Said]:
    """Mostly runs of single acks in order, with anything between them."""
    said: list[Said] = []
    for _ in range(draw(st.integers(1, 10))):
        if draw(st.booleans()):
            first = draw(TAGS)
            said += [
                Said("ack", tag, False) for tag in range(first, first + draw(st.integers(1, 60)))
            ]
        else:
            what = draw(st.sampled_from(["ack", "nack", "return", "heartbeat"]))
            said.append(Said(what, draw(TAGS), draw(st.booleans())))
    return said


def summary(outcomes: OutcomeRows) -> list[tuple[int, OutcomeKind, int]]:
    return sorted(settled_so_far(outcomes))


def confirms_of(sent: int, may_return: bool) -> tuple[Confirms, OutcomeRows]:
    outcomes = OutcomeRows()
    confirms = Confirms(0, FRAMING, ConfirmTerms(10**6, may_return), outcomes)
    confirms.sent(envelopes(1, sent), ENVELOPE_BYTES)
    return confirms, outcomes


@given(conversations(), st.booleans(), st.data())
@settings(max_examples=150, deadline=None)
def test_a_stream_of_acks_nacks_and_returns_settles_as_one_by_one(
    said: list[Said], may_return: bool, data: st.DataObject
) -> None:
    stream = b"".join(one.frames for one in said)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    bounds = [0, *cuts, len(stream)]

    reference, expected = confirms_of(SENT, may_return)
    ends = np.cumsum([len(one.frames) for one in said])
    for one, read in zip(said, np.searchsorted(bounds[1:], ends), strict=True):
        one.settle(reference, int(read))

    confirms, outcomes = confirms_of(SENT, may_return)
    parser, rest = FrameParser(FRAMING, confirms, lambda method: None), b""
    for read, (start, end) in enumerate(itertools.pairwise(bounds)):
        piece = rest + stream[start:end]
        buffer = ReadBuffer(len(piece))
        buffer.raw[:] = piece
        rest = piece[parser.parse(buffer, len(piece), read) :]
    assert rest == b""
    assert summary(outcomes) == summary(expected)
    assert confirms.in_flight == reference.in_flight


@pytest.mark.parametrize("tag", [0, 5000, 2**63, 2**64 - 1])
def test_one_ack_of_more_than_there_is_room_for_settles_all(tag: int) -> None:
    confirms, outcomes = confirms_of(5000, may_return=False)
    frame = method_frame(CHANNEL, Basic.Ack(tag, True))
    buffer = ReadBuffer(len(frame))
    buffer.raw[:] = frame
    parser = FrameParser(FRAMING, confirms, lambda method: None)
    assert parser.parse(buffer, len(frame), 7) == len(frame)
    assert settled_so_far(outcomes) == [(tag, CONFIRMED, 7) for tag in range(1, 5001)]
    assert confirms.in_flight == 0


def test_single_acks_of_tags_beyond_all_settle_nothing() -> None:
    confirms, outcomes = confirms_of(10, may_return=False)
    for tag in (0, 11, 2**63 - 1, 2**63, 2**64 - 1):
        frame = method_frame(CHANNEL, Basic.Ack(tag, False))
        buffer = ReadBuffer(len(frame))
        buffer.raw[:] = frame
        FrameParser(FRAMING, confirms, lambda method: None).parse(buffer, len(frame), 7)
    assert settled_so_far(outcomes) == []
    assert confirms.in_flight == 10


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (b"\1\0\1\0\0\0\x08\0\x3c\0\x50\0\0\0\0\xce", "not understood"),
        (method_frame(CHANNEL + 1, Basic.Ack(1, False)), "a frame for channel 2"),
        (method_frame(0, Basic.Ack(1, False)), "a frame for channel 0"),
        (method_frame(CHANNEL, Basic.Ack(1, False))[:-1] + b"x", "without its end mark"),
        (body_frame(CHANNEL, b"x"), "a body without its message"),
    ],
)
def test_what_is_no_amqp_is_refused_and_named(bad: bytes, why: str) -> None:
    confirms, _ = confirms_of(10, may_return=True)
    buffer = ReadBuffer(len(bad))
    buffer.raw[:] = bad
    with pytest.raises(BadFrame, match=why):
        FrameParser(FRAMING, confirms, lambda method: None).parse(buffer, len(bad), 7)


# -- the orders in which brokers send acks, nacks and returns --------------------------------------


def body(envelopes: Envelopes, place: int, envelope_bytes: int = ENVELOPE_BYTES) -> bytes:
    return bytes(byte_rows_of(envelopes)[place].tobytes()[:envelope_bytes]) + b"payload"


def settlement(
    confirms: int = 10, may_return: bool = True
) -> tuple[Confirms, OutcomeRows, Envelopes]:
    sink = OutcomeRows()
    made = Confirms(3, FRAMING, ConfirmTerms(confirms, may_return), sink)
    envelopes = stamped(4)
    made.sent(envelopes, ENVELOPE_BYTES)
    return made, sink, envelopes


def test_an_ack_confirms_with_the_lane_and_the_time_it_was_read() -> None:
    lane, sink, _ = settlement()
    lane.settled(2, True, OutcomeKind.CONFIRMED, 7)
    assert settled_so_far(sink) == [(0, CONFIRMED, 7), (1, CONFIRMED, 7)]
    assert sink.take().lane.tolist() == [3, 3]
    assert lane.in_flight == 2


@pytest.mark.parametrize("envelope_bytes", [8, 32])
def test_a_return_followed_by_its_ack_counts_as_returned_only(envelope_bytes: int) -> None:
    lane, sink, envelopes = settlement()
    lane.sent(stamped(0), envelope_bytes)
    lane.returned(body(envelopes, 1, envelope_bytes), at_ns=5)
    assert settled_so_far(sink) == []
    lane.settled(4, True, OutcomeKind.CONFIRMED, 6)
    kinds = [kind for _, kind, _ in settled_so_far(sink)]
    assert kinds == [CONFIRMED, RETURNED, CONFIRMED, CONFIRMED]


def test_a_nack_followed_by_its_return_counts_as_returned_only() -> None:
    lane, sink, envelopes = settlement()
    lane.settled(2, False, OutcomeKind.REFUSED, 5)
    assert settled_so_far(sink) == []
    assert lane.in_flight == 4
    lane.returned(body(envelopes, 1), at_ns=6)
    assert settled_so_far(sink) == [(1, RETURNED, 5)]
    assert lane.in_flight == 3


def test_a_nack_without_a_return_is_a_refusal_once_its_return_is_overdue() -> None:
    lane, sink, _ = settlement()
    lane.settled(1, False, OutcomeKind.REFUSED, 5)
    lane.release(now_ns=5 + NANOSECONDS_HELD - 1)
    assert settled_so_far(sink) == []
    lane.release(now_ns=5 + NANOSECONDS_HELD)
    assert settled_so_far(sink) == [(0, REFUSED, 5)]


def test_where_nothing_can_be_returned_a_nack_is_a_refusal_at_once() -> None:
    lane, sink, _ = settlement(may_return=False)
    lane.settled(1, False, OutcomeKind.REFUSED, 5)
    assert settled_so_far(sink) == [(0, REFUSED, 5)]


def test_without_confirms_a_return_is_an_outcome_by_itself() -> None:
    lane, sink, envelopes = settlement(confirms=0)
    lane.returned(body(envelopes, 2), at_ns=9)
    assert settled_so_far(sink) == [(2, RETURNED, 9)]
    assert lane.in_flight == 0


def test_a_lost_lane_leaves_unknown_what_is_open_and_keeps_what_is_known() -> None:
    lane, sink, envelopes = settlement()
    lane.settled(1, False, OutcomeKind.REFUSED, 5)
    lane.returned(body(envelopes, 3), at_ns=6)
    lane.abandon(at_ns=8)
    assert settled_so_far(sink) == [
        (0, REFUSED, 5),
        (1, UNKNOWN, 8),
        (2, UNKNOWN, 8),
        (3, RETURNED, 8),
    ]
    assert lane.in_flight == 0


def test_settling_a_tag_nobody_knows_changes_nothing() -> None:
    lane, sink, _ = settlement()
    lane.settled(99, False, OutcomeKind.REFUSED, 5)
    lane.settled(99, False, OutcomeKind.CONFIRMED, 5)
    lane.release(now_ns=10 * NANOSECONDS_HELD)
    assert settled_so_far(sink) == []
