"""Known columns in, exact counters and histograms out."""

from __future__ import annotations

from unit.recordings import (
    at,
    envelopes,
    keys,
    merged,
    receive,
    recorded,
    recorder,
    sent,
    settle,
    total,
)

from bench_spark.agent.timeline import CONSUMER, MEASURE, PRODUCER, WARMUP
from bench_spark.transports.batches import OutcomeKind

# -- phases and ticks ------------------------------------------------------------------------------


def test_sent_messages_count_in_the_tick_they_were_sent_and_the_phase_they_were_due() -> None:
    one = recorder()
    sent(one, envelopes(intended=[0.2, 0.999, 1.0, 1.5], sent=[0.3, 1.001, 1.002, 2.1]))
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
    receive(one, envelopes(intended=[0.9, 1.1, 2.9]), received=[1.2, 1.2, 3.5])
    rows = one.all_rows()
    assert [(key, row.counters["received"]) for key, row in zip(keys(rows), rows, strict=True)] == [
        ((1, CONSUMER, MEASURE), 1),
        ((1, CONSUMER, WARMUP), 1),
        ((3, CONSUMER, MEASURE), 1),
    ]


def test_a_row_says_when_its_tick_was() -> None:
    one = recorder()
    sent(one, envelopes(intended=[1.5]))
    (row,) = one.all_rows()
    assert (row.tick_start_ns, row.tick_seconds, row.destination) == (at(1), 1.0, None)


def test_rows_leave_when_their_tick_is_over() -> None:
    one = recorder()
    sent(one, envelopes(intended=[0.5, 1.5]))
    assert keys(one.rows_until(at(0.9))) == []
    assert keys(one.rows_until(at(1.9))) == [(0, PRODUCER, WARMUP)]
    assert keys(one.rows_until(at(1.95))) == []
    assert keys(one.all_rows()) == [(1, PRODUCER, MEASURE)]


def test_what_comes_late_makes_another_row_that_adds_up() -> None:
    one = recorder()
    receive(one, envelopes(intended=[1.1, 1.2]), received=1.3)
    rows = one.rows_until(at(2.1))
    receive(one, envelopes(intended=[1.25], sequence=[2]), received=1.4)
    rows += one.all_rows()
    assert keys(rows) == [(1, CONSUMER, MEASURE)] * 2
    assert [row.row_number for row in rows] == [0, 1]
    assert total(rows, "received") == 3
    assert merged(rows, "latency").count == 3


# -- measures --------------------------------------------------------------------------------------


def test_the_measures_are_differences_of_the_instants() -> None:
    one = recorder()
    envelope = envelopes(intended=[1.1, 1.2], sent=[1.101, 1.205])
    sent(one, envelope)
    receive(one, envelope, received=[1.111, 1.225])
    rows = one.all_rows()
    assert merged(rows, "send_lag") == recorded([1000, 5000])
    assert merged(rows, "latency") == recorded([10_000, 20_000])
    assert merged(rows, "delivery_latency") == recorded([11_000, 25_000])


def test_without_a_schedule_there_is_neither_send_lag_nor_delivery_latency() -> None:
    one = recorder(has_schedule=False)
    envelope = envelopes(intended=[1.1])
    sent(one, envelope)
    receive(one, envelope, received=1.2)
    measures = {measure for row in one.all_rows() for measure in row.histograms}
    assert measures == {"latency", "insert_duration"}


def test_the_time_in_a_send_call_counts_for_every_message_in_it() -> None:
    one = recorder()
    sent(one, envelopes(intended=[0.5, 0.5]), insert_ns=7_000)
    sent(one, envelopes(intended=[1.5, 1.5, 1.5]), insert_ns=9_000)
    rows = one.all_rows()
    assert keys(rows) == [(0, PRODUCER, WARMUP), (1, PRODUCER, MEASURE)]
    assert rows[0].histograms["insert_duration"] == recorded([7, 7])
    assert rows[1].histograms["insert_duration"] == recorded([9, 9, 9])


def test_a_negative_latency_is_counted_and_taken_as_zero() -> None:
    one = recorder()
    receive(one, envelopes(intended=[1.2]), received=1.1)
    latency = merged(one.all_rows(), "latency")
    assert (latency.negative, latency.count, latency.max_us) == (1, 1, 0)


# -- outcomes --------------------------------------------------------------------------------------


def test_outcomes_are_counted_by_kind_and_confirms_are_timed() -> None:
    one = recorder()
    envelope = envelopes(intended=[0.9, 1.1, 1.2, 1.3, 1.4], sent=[0.9, 1.1, 1.2, 1.3, 1.4])
    kinds = [
        OutcomeKind.CONFIRMED,
        OutcomeKind.CONFIRMED,
        OutcomeKind.REFUSED,
        OutcomeKind.RETURNED,
        OutcomeKind.UNKNOWN,
    ]
    settle(one, envelope, kinds, moment=1.5, lane=2)
    rows = one.all_rows()
    assert total(rows, "confirmed", phase=WARMUP) == 1
    assert total(rows, "confirmed", phase=MEASURE) == 1
    assert (total(rows, "refused"), total(rows, "returned")) == (1, 1)
    assert {row.tick for row in rows} == {1}
    assert merged(rows, "confirm_latency") == recorded([600_000, 400_000])
    assert one.confirmed_sets.count(2, 0, 10) == 2
    assert one.failed_sets.count(2, 0, 10) == 2
    assert one.failed_sets.missing(2, 0, 5) == [(0, 2), (4, 5)]


def test_what_was_refused_or_returned_is_not_under_way() -> None:
    one = recorder()
    envelope = envelopes([0.5, 1.1, 1.2, 1.3])
    sent(one, envelope)
    sent(one, envelopes([1.1], producer=2), lane=2)
    kinds = [OutcomeKind.CONFIRMED, OutcomeKind.REFUSED, OutcomeKind.RETURNED]
    settle(one, envelope[:3], kinds, moment=1.5)
    assert one.under_way.tolist() == [2, 0, 1, 0]
    assert one.confirmed_by_lane.tolist() == [1, 0, 0, 0]


def test_no_outcomes_make_no_row() -> None:
    one = recorder()
    settle(one, envelopes(intended=[]), [], moment=1.5)
    assert one.all_rows() == []


# -- what the loop counts itself -------------------------------------------------------------------


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
    sent(one, envelopes(intended=[0.5, 0.6, 1.5, 1.6]), lane=[0, 3, 3, 3])
    assert one.sent_by_lane[WARMUP].tolist() == [1, 0, 0, 1]
    assert one.sent_by_lane[MEASURE].tolist() == [0, 0, 0, 2]


# -- by destination --------------------------------------------------------------------------------


def test_a_breakdown_keeps_destinations_apart() -> None:
    one = recorder(by_destination=True)
    envelope = envelopes(intended=[1.1] * 4, sequence=[0, 0, 0, 0], producer=[0, 1, 2, 3])
    sent(one, envelope, lane=[0, 1, 2, 3])
    settle(one, envelope[:1], [OutcomeKind.CONFIRMED], moment=1.2, lane=1)
    receive(one, envelope[:3], received=1.3, subscription=[0, 1, 0])
    rows = one.all_rows()
    assert total(rows, "sent", destination="red") == 2
    assert total(rows, "sent", destination="blue") == 2
    assert total(rows, "confirmed", destination="blue") == 1
    assert total(rows, "received", destination="red") == 2
    assert total(rows, "received", destination="blue") == 1
    assert merged([row for row in rows if row.destination == "red"], "latency").count == 2
