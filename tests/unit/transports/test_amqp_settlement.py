"""Acks, nacks and returns, in the orders in which brokers send them."""

from __future__ import annotations

import pytest

from bench_spark.core.envelope import ENVELOPE_BYTES, Envelopes, empty_envelopes, envelope_bytes
from bench_spark.transports.amqp.settlement import NANOSECONDS_HELD, Settlement
from bench_spark.transports.base import OutcomeKind, Outcomes

CONFIRMED, REFUSED, RETURNED, UNKNOWN = OutcomeKind


def numbered(count: int) -> Envelopes:
    made = empty_envelopes(count)
    made["sent_ns"] = range(100, 100 + count)
    made["sequence"] = range(count)
    return made


def body(heads: Envelopes, place: int, head_bytes: int = ENVELOPE_BYTES) -> bytes:
    return bytes(envelope_bytes(heads)[place].tobytes()[:head_bytes]) + b"tail"


def outcomes(sink: list[Outcomes]) -> list[tuple[int, OutcomeKind, int]]:
    return [
        (int(head["sequence"]), OutcomeKind(kind), int(at_ns))
        for part in sink
        for head, kind, at_ns in zip(part.head, part.kind, part.at_ns, strict=True)
    ]


def settlement(
    confirms: int = 10, may_return: bool = True
) -> tuple[Settlement, list[Outcomes], Envelopes]:
    sink: list[Outcomes] = []
    made = Settlement(3, confirms, may_return, sink)
    heads = numbered(4)
    made.sent(heads, ENVELOPE_BYTES)
    return made, sink, heads


def test_an_ack_confirms_with_the_lane_and_the_time_it_was_read() -> None:
    lane, sink, _ = settlement()
    lane.acked(2, multiple=True, at_ns=7)
    assert outcomes(sink) == [(0, CONFIRMED, 7), (1, CONFIRMED, 7)]
    assert sink[0].lane.tolist() == [3, 3]
    assert lane.in_flight == 2


@pytest.mark.parametrize("head_bytes", [8, 32])
def test_a_return_followed_by_its_ack_counts_as_returned_only(head_bytes: int) -> None:
    lane, sink, heads = settlement()
    lane.sent(numbered(0), head_bytes)
    lane.returned(body(heads, 1, head_bytes), at_ns=5)
    assert outcomes(sink) == []
    lane.acked(4, multiple=True, at_ns=6)
    kinds = [kind for _, kind, _ in outcomes(sink)]
    assert kinds == [CONFIRMED, RETURNED, CONFIRMED, CONFIRMED]


def test_a_nack_followed_by_its_return_counts_as_returned_only() -> None:
    lane, sink, heads = settlement()
    lane.nacked(2, multiple=False, at_ns=5)
    assert outcomes(sink) == []
    assert lane.in_flight == 4
    lane.returned(body(heads, 1), at_ns=6)
    assert outcomes(sink) == [(1, RETURNED, 5)]
    assert lane.in_flight == 3


def test_a_nack_without_a_return_is_a_refusal_once_its_return_is_overdue() -> None:
    lane, sink, _ = settlement()
    lane.nacked(1, multiple=False, at_ns=5)
    lane.release(now_ns=5 + NANOSECONDS_HELD - 1)
    assert outcomes(sink) == []
    lane.release(now_ns=5 + NANOSECONDS_HELD)
    assert outcomes(sink) == [(0, REFUSED, 5)]


def test_where_nothing_can_be_returned_a_nack_is_a_refusal_at_once() -> None:
    lane, sink, _ = settlement(may_return=False)
    lane.nacked(1, multiple=False, at_ns=5)
    assert outcomes(sink) == [(0, REFUSED, 5)]


def test_without_confirms_a_return_is_an_outcome_by_itself() -> None:
    lane, sink, heads = settlement(confirms=0)
    lane.returned(body(heads, 2), at_ns=9)
    assert outcomes(sink) == [(2, RETURNED, 9)]
    assert lane.in_flight == 0


def test_a_lost_lane_leaves_unknown_what_is_open_and_keeps_what_is_known() -> None:
    lane, sink, heads = settlement()
    lane.nacked(1, multiple=False, at_ns=5)
    lane.returned(body(heads, 3), at_ns=6)
    lane.abandon(at_ns=8)
    assert outcomes(sink) == [(0, REFUSED, 5), (1, UNKNOWN, 8), (2, UNKNOWN, 8), (3, RETURNED, 8)]
    assert lane.in_flight == 0


def test_settling_a_tag_nobody_knows_changes_nothing() -> None:
    lane, sink, _ = settlement()
    lane.nacked(99, multiple=False, at_ns=5)
    lane.acked(99, multiple=False, at_ns=5)
    lane.release(now_ns=10 * NANOSECONDS_HELD)
    assert outcomes(sink) == []
