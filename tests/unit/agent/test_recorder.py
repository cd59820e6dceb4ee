"""Known columns in, exact counters and histograms out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench_spark.agent.recorder import (
    CONSUMER,
    FOLD_ROWS,
    PRODUCER,
    SPARE_TIME_ROWS,
    Recorder,
)
from bench_spark.agent.recorder_setup import RecorderSetup
from bench_spark.agent.rows import EventRow
from bench_spark.agent.sizes import BodySizes
from bench_spark.agent.timeline import MEASURE, WARMUP, Timeline
from bench_spark.measure.clock import NANOSECONDS
from bench_spark.measure.envelope import Envelopes, empty_envelopes
from bench_spark.measure.hdr import Histogram, SparseHistogram, merge_sparse, shape_for
from bench_spark.transports.base import OutcomeKind, Outcomes, Received

RUN_TAG = 77
START_NS = 1_700_000_000 * NANOSECONDS
SHAPE = shape_for(10_000_000)
TIMELINE = Timeline(START_NS, NANOSECONDS, 2 * NANOSECONDS, NANOSECONDS)
"""Tick 0 is warm-up, 1 and 2 are measured, 3 is the drain."""

SETUP = RecorderSetup(
    shape=SHAPE,
    run_tag=RUN_TAG,
    producers=4,
    stream_of_producer=np.array([0, 0, 1, 1]),
    streams_per_subscription=2,
    subscriptions=("red", "blue"),
    destinations_by_producer=("red", "blue", "red", "blue"),
    sizes=BodySizes(100),
    has_schedule=True,
)


def at(seconds: float) -> int:
    return START_NS + round(seconds * NANOSECONDS)


def recorder(**changes: Any) -> Recorder:
    return Recorder(replace(SETUP, **changes), TIMELINE)


def heads(
    intended: Sequence[float],
    sent: Sequence[float] | None = None,
    sequence: Sequence[int] | None = None,
    producer: int | Sequence[int] = 0,
    run_tag: int = RUN_TAG,
) -> Envelopes:
    """Envelopes of messages; times are seconds after the start."""
    head = empty_envelopes(len(intended))
    head["intended_ns"] = [at(moment) for moment in intended]
    head["sent_ns"] = [at(moment) for moment in (intended if sent is None else sent)]
    head["sequence"] = np.arange(len(intended)) if sequence is None else sequence
    head["producer"] = producer
    head["run_tag"] = run_tag
    return head


def receive(
    into: Recorder,
    head: Envelopes,
    received: Sequence[float] | float,
    *,
    size: int | Sequence[int] = 100,
    subscription: int | Sequence[int] = 0,
    redelivered: Sequence[bool] | bool = False,
) -> None:
    count = len(head)

    def column(value: Any, dtype: Any) -> Any:
        return np.broadcast_to(np.asarray(value, dtype=dtype), count).copy()

    moments = np.broadcast_to(np.asarray(received, dtype=np.float64), count).tolist()
    into.received(
        Received(
            received_ns=np.array([at(moment) for moment in moments], dtype=np.int64),
            lane=np.zeros(count, np.uint32),
            route=np.zeros(count, np.uint16),
            head=head,
            size=column(size, np.uint32),
            redelivered=column(redelivered, np.bool_),
        ),
        column(subscription, np.int64),
    )


def test_of_a_message_that_another_agent_sent_only_the_time_since_it_was_due_is_recorded() -> None:
    into = recorder(is_carried=True, first_measured=np.array([0, 0, 0, 0]))
    head = heads([1.2, 1.3, 1.4])
    head["sent_ns"][1:] = 0
    head["intended_ns"][2] = 0
    receive(into, head, 1.5)
    [row] = into.all_rows()
    assert row.counters["received"] == 3
    assert row.histograms["latency"].count == 1
    delivery = row.histograms["delivery_latency"]
    assert (delivery.count, delivery.max_us, delivery.min_us) == (2, 300_000, 200_000)


def test_a_recorder_that_takes_any_message_looks_at_none() -> None:
    """Foreign, malformed, repeated, tiny: all count, in the phase and tick in which they arrive."""
    into = recorder(takes_any=True, by_destination=True)
    head = heads([0.5] * 6, sequence=[1] * 6, run_tag=RUN_TAG + 1, producer=99)
    moments = [-0.5, 0.2, 1.5, 1.5, 2.5, 9.0]
    receive(
        into,
        head,
        moments,
        size=[0, 1, 31, 100, 5, 7],
        subscription=[0, 0, 0, 1, 0, 0],
        redelivered=[False, True, True, False, False, False],
    )
    rows = {(row.phase, row.tick, row.destination): row for row in into.all_rows()}
    received = {key: row.counters["received"] for key, row in rows.items()}
    assert received == {
        (WARMUP, 0, "red"): 2,
        (MEASURE, 1, "red"): 1,
        (MEASURE, 1, "blue"): 1,
        (MEASURE, 2, "red"): 1,
        (MEASURE, 9, "red"): 1,
    }
    assert sum(row.counters["bytes"] for row in rows.values()) == 144
    assert sum(row.counters["redelivered"] for row in rows.values()) == 2
    assert not any(row.histograms or row.counters["foreign"] for row in rows.values())
    assert (into.received_once, into.received_measured) == (6, 4)
    assert into.received_span_ns == (at(1.5), at(9.0))


def test_foreign_messages_with_a_send_time_have_a_latency_and_tiny_ones_none() -> None:
    into = recorder(takes_any=True, reads_timestamps=True)
    head = heads([1.1, 1.2, 1.3, 1.4], run_tag=RUN_TAG + 1, producer=99)
    head["sent_ns"][2] = np.uint64(2**64 - 1)  # no time of this age
    receive(into, head, [1.5, 1.5, 1.5, 1.5], size=[8, 100, 100, 7])
    latencies = [row.histograms["latency"] for row in into.all_rows()]
    assert sum(one.count for one in latencies) == 2
    assert latencies[0].mean_us == pytest.approx(350_000, rel=0.01)


def sent(into: Recorder, head: Envelopes, lane: int | Sequence[int] = 0) -> None:
    lanes = np.broadcast_to(np.asarray(lane, dtype=np.uint32), len(head)).copy()
    into.sent(lanes, head)


def settle(
    into: Recorder, head: Envelopes, kinds: Sequence[OutcomeKind], moment: float, lane: int = 0
) -> None:
    into.outcomes(
        Outcomes(
            at_ns=np.full(len(head), at(moment)),
            lane=np.full(len(head), lane, np.uint32),
            kind=np.array(kinds, np.uint8),
            head=head,
        )
    )


def total(rows: Sequence[EventRow], counter: str, **where: Any) -> int:
    return sum(
        row.counters.get(counter, 0)
        for row in rows
        if all(getattr(row, name) == value for name, value in where.items())
    )


def merged(rows: Sequence[EventRow], measure: str) -> SparseHistogram:
    return merge_sparse([row.histograms[measure] for row in rows if measure in row.histograms])


def recorded(values_us: Sequence[float]) -> SparseHistogram:
    """What a histogram of these values looks like."""
    histogram = Histogram(SHAPE)
    histogram.record_ns(np.array([round(value * 1000) for value in values_us], dtype=np.int64))
    return histogram.sparse()


def keys(rows: Sequence[EventRow]) -> list[tuple[int, str, str]]:
    return [(row.tick, row.role, row.phase) for row in rows]


# -- phases and ticks ----------------------------------------------------------------------------


def test_sent_messages_count_in_the_tick_they_were_sent_and_the_phase_they_were_due() -> None:
    one = recorder()
    sent(one, heads(intended=[0.2, 0.999, 1.0, 1.5], sent=[0.3, 1.001, 1.002, 2.1]))
    rows = one.all_rows()
    assert [(key, row.counters["sent"]) for key, row in zip(keys(rows), rows, strict=True)] == [
        ((0, PRODUCER, WARMUP), 1),
        ((1, PRODUCER, MEASURE), 1),
        ((1, PRODUCER, WARMUP), 1),
        ((2, PRODUCER, MEASURE), 1),
    ]
    assert total(rows, "bytes") == 400


def test_received_messages_count_in_the_tick_they_arrived_and_the_phase_they_were_due() -> None:
    one = recorder()
    receive(one, heads(intended=[0.9, 1.1, 2.9]), received=[1.2, 1.2, 3.5])
    rows = one.all_rows()
    assert [(key, row.counters["received"]) for key, row in zip(keys(rows), rows, strict=True)] == [
        ((1, CONSUMER, MEASURE), 1),
        ((1, CONSUMER, WARMUP), 1),
        ((3, CONSUMER, MEASURE), 1),
    ]


def test_a_row_says_when_its_tick_was() -> None:
    one = recorder()
    sent(one, heads(intended=[1.5]))
    (row,) = one.all_rows()
    assert (row.tick_start_ns, row.tick_seconds, row.destination) == (at(1), 1.0, None)


def test_rows_leave_when_their_tick_is_over() -> None:
    one = recorder()
    sent(one, heads(intended=[0.5, 1.5]))
    assert keys(one.rows_until(at(0.9))) == []
    assert keys(one.rows_until(at(1.9))) == [(0, PRODUCER, WARMUP)]
    assert keys(one.rows_until(at(1.95))) == []
    assert keys(one.all_rows()) == [(1, PRODUCER, MEASURE)]


def test_what_comes_late_makes_another_row_that_adds_up() -> None:
    one = recorder()
    receive(one, heads(intended=[1.1, 1.2]), received=1.3)
    rows = one.rows_until(at(2.1))
    receive(one, heads(intended=[1.25], sequence=[2]), received=1.4)
    rows += one.all_rows()
    assert keys(rows) == [(1, CONSUMER, MEASURE)] * 2
    assert [row.row_number for row in rows] == [0, 1]
    assert total(rows, "received") == 3
    assert merged(rows, "latency").count == 3


# -- measures ------------------------------------------------------------------------------------


def test_the_measures_are_differences_of_the_instants() -> None:
    one = recorder()
    head = heads(intended=[1.1, 1.2], sent=[1.101, 1.205])
    sent(one, head)
    receive(one, head, received=[1.111, 1.225])
    rows = one.all_rows()
    assert merged(rows, "send_lag") == recorded([1000, 5000])
    assert merged(rows, "latency") == recorded([10_000, 20_000])
    assert merged(rows, "delivery_latency") == recorded([11_000, 25_000])


def test_without_a_schedule_there_is_neither_send_lag_nor_delivery_latency() -> None:
    one = recorder(has_schedule=False)
    head = heads(intended=[1.1])
    sent(one, head)
    receive(one, head, received=1.2)
    assert {measure for row in one.all_rows() for measure in row.histograms} == {"latency"}


def test_the_time_in_a_send_call_counts_for_every_message_in_it() -> None:
    one = recorder()
    one.insert_duration(at(0.5), 7_000, 2)
    one.insert_duration(at(1.5), 9_000, 3)
    rows = one.all_rows()
    assert keys(rows) == [(0, PRODUCER, WARMUP), (1, PRODUCER, MEASURE)]
    assert rows[0].histograms["insert_duration"] == recorded([7, 7])
    assert rows[1].histograms["insert_duration"] == recorded([9, 9, 9])


def test_a_negative_latency_is_counted_and_taken_as_zero() -> None:
    one = recorder()
    receive(one, heads(intended=[1.2]), received=1.1)
    latency = merged(one.all_rows(), "latency")
    assert (latency.negative, latency.count, latency.max_us) == (1, 1, 0)


# -- judging what arrives ------------------------------------------------------------------------


def test_duplicates_are_counted_but_not_timed_again() -> None:
    one = recorder()
    receive(one, heads(intended=[1.1, 1.2], sequence=[0, 1]), received=1.3)
    receive(one, heads(intended=[1.1, 1.3], sequence=[0, 2]), received=1.4, redelivered=[True, 0])
    rows = one.all_rows()
    assert total(rows, "received") == 4
    assert total(rows, "duplicates") == 1
    assert total(rows, "redelivered") == 1
    assert total(rows, "out_of_order") == 0
    assert merged(rows, "latency") == recorded([200_000, 100_000, 100_000])
    assert one.received_once == 3


def test_late_comers_are_out_of_order_within_their_own_stream_only() -> None:
    one = recorder()
    head = heads(intended=[1.1] * 5, sequence=[5, 3, 0, 4, 6], producer=[0, 0, 2, 0, 0])
    receive(one, head, received=1.2)
    rows = one.all_rows()
    assert total(rows, "out_of_order") == 2
    assert total(rows, "duplicates") == 0


def test_the_same_number_from_another_producer_or_subscription_is_no_duplicate() -> None:
    one = recorder()
    head = heads(intended=[1.1] * 4, sequence=[9] * 4, producer=[0, 2, 1, 3])
    receive(one, head, received=1.2, subscription=[0, 0, 1, 1])
    assert total(one.all_rows(), "duplicates") == 0
    assert [one.received_sets.count(group, 9, 10) for group in range(4)] == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("change", "size", "counter"),
    [
        ({"run_tag": RUN_TAG + 1}, 100, "foreign"),
        ({"run_tag": RUN_TAG + 1, "sequence": [2**63]}, 100, "foreign"),
        ({}, 31, "malformed"),
        ({}, 0, "malformed"),
        ({"producer": 4}, 100, "malformed"),
        ({"producer": 2**32 - 1}, 100, "malformed"),
        ({"sequence": [2**40]}, 100, "malformed"),
        ({"sequence": [2**64 - 1]}, 100, "malformed"),
    ],
)
def test_what_is_not_ours_is_counted_apart(change: dict[str, Any], size: int, counter: str) -> None:
    one = recorder()
    receive(one, heads(intended=[1.1], **change), received=1.2, size=size)
    (row,) = one.all_rows()
    counted = {name: value for name, value in row.counters.items() if value}
    assert counted == {counter: 1}
    assert row.histograms == {}
    assert one.received_once == 0


def test_what_is_not_ours_belongs_to_the_phase_it_arrived_in() -> None:
    one = recorder()
    receive(one, heads(intended=[0.1], run_tag=1), received=2.5)
    assert keys(one.all_rows()) == [(2, CONSUMER, MEASURE)]


@pytest.mark.parametrize("size", [8, 16, 31])
def test_tiny_bodies_have_a_latency_and_no_accounts(size: int) -> None:
    one = recorder(sizes=BodySizes(size))
    head = heads(intended=[0.0, 0.0], sent=[1.1, 1.2])
    head[["intended_ns", "sequence", "producer", "run_tag"]] = 0
    receive(one, head, received=1.3, size=size)
    receive(one, head[:1], received=1.3, size=7)
    rows = one.all_rows()
    assert keys(rows) == [(1, CONSUMER, MEASURE)]
    assert (total(rows, "received"), total(rows, "malformed"), total(rows, "bytes")) == (
        2,
        1,
        2 * size,
    )
    assert total(rows, "foreign") == total(rows, "duplicates") == 0
    assert merged(rows, "latency") == recorded([200_000, 100_000])
    assert "delivery_latency" not in rows[0].histograms


# -- outcomes ------------------------------------------------------------------------------------


def test_outcomes_are_counted_by_kind_and_confirms_are_timed() -> None:
    one = recorder()
    head = heads(intended=[0.9, 1.1, 1.2, 1.3, 1.4], sent=[0.9, 1.1, 1.2, 1.3, 1.4])
    kinds = [
        OutcomeKind.CONFIRMED,
        OutcomeKind.CONFIRMED,
        OutcomeKind.REFUSED,
        OutcomeKind.RETURNED,
        OutcomeKind.UNKNOWN,
    ]
    settle(one, head, kinds, moment=1.5, lane=2)
    rows = one.all_rows()
    assert total(rows, "confirmed", phase=WARMUP) == 1
    assert total(rows, "confirmed", phase=MEASURE) == 1
    assert (total(rows, "refused"), total(rows, "returned")) == (1, 1)
    assert {row.tick for row in rows} == {1}
    assert merged(rows, "confirm_latency") == recorded([600_000, 400_000])
    assert one.confirmed_sets.count(2, 0, 10) == 2
    assert one.failed_sets.count(2, 0, 10) == 2
    assert one.failed_sets.missing(2, 0, 5) == [(0, 2), (4, 5)]


def test_no_outcomes_make_no_row() -> None:
    one = recorder()
    settle(one, heads(intended=[]), [], moment=1.5)
    assert one.all_rows() == []


# -- what the loop counts itself -----------------------------------------------------------------


def test_other_counters_go_to_the_tick_and_phase_of_their_moment() -> None:
    one = recorder()
    one.due(WARMUP, at(0.1), 10)
    one.due(MEASURE, at(1.1), 20)
    one.acknowledged(at(1.2), 5)
    one.acknowledged(at(1.2), 0)
    one.error(CONSUMER, at(0.5))
    one.blocked(at(2.5), 1234)
    rows = one.all_rows()
    found = {key: row.counters for key, row in zip(keys(rows), rows, strict=True)}
    assert found == {
        (0, CONSUMER, WARMUP): {"errors": 1},
        (0, PRODUCER, WARMUP): {"due": 10},
        (1, CONSUMER, MEASURE): {"acked": 5},
        (1, PRODUCER, MEASURE): {"due": 20},
        (2, PRODUCER, MEASURE): {"blocked_ns": 1234},
    }


def test_what_was_sent_is_known_per_lane_and_phase() -> None:
    one = recorder()
    sent(one, heads(intended=[0.5, 0.6, 1.5, 1.6]), lane=[0, 3, 3, 3])
    one.fold()
    assert one.sent_by_lane[WARMUP].tolist() == [1, 0, 0, 1]
    assert one.sent_by_lane[MEASURE].tolist() == [0, 0, 0, 2]


# -- by destination ------------------------------------------------------------------------------


def test_a_breakdown_keeps_destinations_apart() -> None:
    one = recorder(by_destination=True)
    head = heads(intended=[1.1] * 4, sequence=[0, 0, 0, 0], producer=[0, 1, 2, 3])
    sent(one, head, lane=[0, 1, 2, 3])
    settle(one, head[:1], [OutcomeKind.CONFIRMED], moment=1.2, lane=1)
    receive(one, head[:3], received=1.3, subscription=[0, 1, 0])
    rows = one.all_rows()
    assert total(rows, "sent", destination="red") == 2
    assert total(rows, "sent", destination="blue") == 2
    assert total(rows, "confirmed", destination="blue") == 1
    assert total(rows, "received", destination="red") == 2
    assert total(rows, "received", destination="blue") == 1
    assert merged([row for row in rows if row.destination == "red"], "latency").count == 2


# -- everything that goes in comes out -----------------------------------------------------------


@pytest.mark.parametrize("at_once", [1, 7, FOLD_ROWS + 1])
def test_outcomes_are_the_same_however_many_come_at_once(at_once: int) -> None:
    one = recorder()
    count = FOLD_ROWS + 5
    head = heads(intended=[1.1] * count)
    kinds = [
        OutcomeKind.REFUSED if place % 3 == 0 else OutcomeKind.CONFIRMED for place in range(count)
    ]
    for first in range(0, count, at_once):
        chosen = slice(first, first + at_once)
        settle(one, head[chosen], kinds[chosen], moment=1.2, lane=1)
    rows = one.all_rows()
    refused = -(-count // 3)
    assert (total(rows, "refused"), total(rows, "confirmed")) == (refused, count - refused)
    assert merged(rows, "confirm_latency").count == count - refused
    assert one.failed_sets.count(1, 0, count) == refused
    assert one.confirmed_sets.count(1, 0, count) == count - refused


@pytest.mark.parametrize("count", [1, FOLD_ROWS - 1, FOLD_ROWS, FOLD_ROWS + 1, 3 * FOLD_ROWS + 7])
def test_a_batch_may_cross_any_number_of_folds(count: int) -> None:
    one = recorder()
    head = heads(intended=np.linspace(0.5, 2.5, count).tolist())
    sent(one, head)
    receive(one, head, received=2.75)
    rows = one.all_rows()
    assert total(rows, "sent") == total(rows, "received") == one.received_once == count
    assert merged(rows, "latency").count == merged(rows, "send_lag").count == count
    assert one.received_sets.count(0, 0, count) == count
    assert one.all_rows() == []


def test_spare_time_folds_the_longest_buffer_and_leaves_little_ones() -> None:
    one = recorder()
    head = heads(intended=np.linspace(0.5, 2.5, SPARE_TIME_ROWS).tolist())
    sent(one, head)
    receive(one, head[:-1], received=2.75)
    one.fold_some()
    assert one.sent_by_lane["measure"].sum() + one.sent_by_lane["warmup"].sum() == SPARE_TIME_ROWS
    assert one.received_once == 0
    one.fold_some()
    assert one.received_once == 0, "a few rows wait"
    receive(one, head[-1:], received=2.75)
    one.fold_some()
    assert one.received_once == SPARE_TIME_ROWS
    assert total(one.all_rows(), "sent") == SPARE_TIME_ROWS


def test_more_send_calls_than_a_fold_holds_are_all_timed() -> None:
    one = recorder()
    for call in range(FOLD_ROWS + 3):
        one.insert_duration(at(1.0) + call, 5_000, 2)
    assert merged(one.all_rows(), "insert_duration").count == 2 * (FOLD_ROWS + 3)


def test_the_caller_may_reuse_its_columns() -> None:
    one = recorder()
    head = heads(intended=[1.1, 1.2])
    sent(one, head)
    receive(one, head, received=1.3)
    head["sent_ns"], head["sequence"] = 0, 99
    rows = one.all_rows()
    assert merged(rows, "latency") == recorded([200_000, 100_000])
    assert one.received_sets.count(0, 0, 2) == 2


message = st.tuples(
    st.floats(0, 2.99),  # intended
    st.floats(0, 0.5),  # send lag
    st.floats(0, 1.5),  # latency
    st.integers(0, 30),  # sequence
    st.integers(0, 5),  # producer: 4 and 5 do not exist
    st.sampled_from([RUN_TAG, RUN_TAG, RUN_TAG, 5]),
    st.sampled_from([100, 100, 100, 20]),
)


@settings(max_examples=40)
@given(st.lists(st.lists(message, max_size=8), max_size=5), st.booleans())
def test_the_sum_over_all_rows_is_what_went_in(
    batches: list[list[tuple[Any, ...]]], by_destination: bool
) -> None:
    one, rows, expected = recorder(by_destination=by_destination), [], Counter[str]()
    known: set[tuple[int, int]] = set()
    latencies_us = []
    for batch in batches:
        head = empty_envelopes(len(batch))
        received = []
        for place, (intended, lag, latency, sequence, producer, tag, size) in enumerate(batch):
            sent_ns = at(intended + lag)
            received_ns = sent_ns + round(latency * NANOSECONDS)
            head[place] = (sent_ns, at(intended), sequence, producer, tag)
            received.append((received_ns - START_NS) / NANOSECONDS)
            if size < 32:
                expected["malformed"] += 1
            elif tag != RUN_TAG:
                expected["foreign"] += 1
            elif producer > 3:
                expected["malformed"] += 1
            else:
                phase = MEASURE if intended >= 1 else WARMUP
                expected[f"received {phase}"] += 1
                expected["bytes"] += size
                if (producer, sequence) in known:
                    expected["duplicates"] += 1
                else:
                    latencies_us.append((received_ns - sent_ns) / 1000)
                known.add((producer, sequence))
        sizes = [entry[-1] for entry in batch]
        places = [entry[4] % 2 for entry in batch]
        receive(one, head, received, size=sizes, subscription=places)
        rows += one.rows_until(at(1.5))
    rows += one.all_rows()
    found = Counter(
        {
            "malformed": total(rows, "malformed"),
            "foreign": total(rows, "foreign"),
            "duplicates": total(rows, "duplicates"),
            "bytes": total(rows, "bytes"),
            f"received {WARMUP}": total(rows, "received", phase=WARMUP),
            f"received {MEASURE}": total(rows, "received", phase=MEASURE),
        }
    )
    assert +found == +expected
    assert one.received_once == len(known)
    assert merged(rows, "latency") == recorded(latencies_us)
    assert [row.row_number for row in rows] == list(range(len(rows)))
