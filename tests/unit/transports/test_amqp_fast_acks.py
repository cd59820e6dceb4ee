"""Acks read and written many at once, against the same one by one."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pika.frame
import pika.spec
from hypothesis import given, settings
from hypothesis import strategies as st

from bench_spark.core.envelope import (
    ENVELOPE_BYTES,
    Envelopes,
    empty_envelopes,
    envelope_bytes,
)
from bench_spark.transports.amqp.acks import AckFrames, Confirmations
from bench_spark.transports.amqp.confirms import ConfirmLedger
from bench_spark.transports.amqp.frames import (
    HEARTBEAT_FRAME,
    body_frame,
    header_frame,
    method_frame,
)
from bench_spark.transports.amqp.parsing import Parser
from bench_spark.transports.amqp.settlement import Settlement
from bench_spark.transports.base import OutcomeKind, Outcomes
from bench_spark.transports.sockets.runs import ReadBuffer

CHANNEL, SENT = 1, 300
Basic = pika.spec.Basic

# A tag beside what was sent is a broker's mistake; it must do no harm.
TAGS = st.integers(0, SENT + 5)


def numbered(count: int) -> Envelopes:
    made = empty_envelopes(count)
    made["sequence"] = np.arange(1, count + 1)
    return made


@given(st.lists(st.tuples(TAGS, st.booleans()), min_size=1, max_size=80), st.integers(1, 40))
def test_settling_many_is_settling_one_by_one(acks: list[tuple[int, bool]], at_once: int) -> None:
    one_by_one, together = ConfirmLedger(10**6), ConfirmLedger(10**6)
    one_by_one.sent(numbered(SENT))
    together.sent(numbered(SENT))
    for first in range(0, len(acks), at_once):
        some = acks[first : first + at_once]
        expected = [
            int(one)
            for tag, multiple in some
            for one in one_by_one.settle(tag, multiple)["sequence"]
        ]
        tags, are_multiple = zip(*some, strict=True)
        heads = together.settle_many(np.array(tags, np.int64), np.array(are_multiple))
        assert heads["sequence"].tolist() == sorted(expected)
        assert together.open_count == one_by_one.open_count
    assert np.array_equal(together.abandon(), one_by_one.abandon())


def test_what_is_settled_in_groups_of_singles_leaves_the_ledger() -> None:
    ledger = ConfirmLedger(100)
    for first in range(1, 20_000, 50):
        ledger.sent(numbered(50))
        tags = np.arange(first, first + 50)
        assert len(ledger.settle_many(tags, np.zeros(50, np.bool_))) == 50
    assert len(ledger._heads) < 2000, "memory for what is open, not for all that ever was"


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
        return envelope_bytes(made).tobytes() + b"tail"

    def settle(self, settlement: Settlement, at_ns: int) -> None:
        if self.what == "ack":
            settlement.acked(self.tag, self.multiple, at_ns)
        elif self.what == "nack":
            settlement.nacked(self.tag, self.multiple, at_ns)
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


def summary(outcomes: list[Outcomes]) -> list[tuple[int, OutcomeKind, int]]:
    return sorted(
        (int(head["sequence"]), OutcomeKind(kind), int(at_ns))
        for part in outcomes
        for head, kind, at_ns in zip(part.head, part.kind, part.at_ns, strict=True)
    )


@given(conversations(), st.booleans(), st.data())
@settings(max_examples=150, deadline=None)
def test_a_stream_of_acks_nacks_and_returns_settles_as_one_by_one(
    said: list[Said], may_return: bool, data: st.DataObject
) -> None:
    stream = b"".join(one.frames for one in said)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    bounds = [0, *cuts, len(stream)]

    expected: list[Outcomes] = []
    reference = Settlement(0, 10**6, may_return, expected)
    reference.sent(numbered(SENT), ENVELOPE_BYTES)
    ends = np.cumsum([len(one.frames) for one in said])
    for one, read in zip(said, np.searchsorted(bounds[1:], ends), strict=True):
        one.settle(reference, int(read))

    outcomes: list[Outcomes] = []
    settlement = Settlement(0, 10**6, may_return, outcomes)
    settlement.sent(numbered(SENT), ENVELOPE_BYTES)
    parser = Parser(CHANNEL, 4096, Confirmations(CHANNEL, settlement), lambda method: None)
    buffer, rest = ReadBuffer(1 << 18), b""
    for read, (start, end) in enumerate(itertools.pairwise(bounds)):
        piece = rest + stream[start:end]
        buffer.raw[: len(piece)] = piece
        rest = piece[parser.parse(buffer, len(piece), read) :]
    assert rest == b""
    assert summary(outcomes) == summary(expected)
    assert settlement.in_flight == reference.in_flight


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=20), st.booleans())
def test_acks_are_written_as_pika_writes_them(tags: list[int], multiple: bool) -> None:
    written = AckFrames(CHANNEL, multiple).of(np.array(tags, np.uint64))
    assert written == b"".join(method_frame(CHANNEL, Basic.Ack(tag, multiple)) for tag in tags)
