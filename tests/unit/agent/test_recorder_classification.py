"""What a recorder takes for ours, foreign, malformed, doubled or late."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from unit.recordings import (
    RUN_TAG,
    at,
    envelopes,
    keys,
    merged,
    receive,
    recorded,
    recorder,
    total,
)

from bench_spark.agent.records import BodySizes
from bench_spark.agent.timeline import CONSUMER, MEASURE, WARMUP
from bench_spark.core.envelope import foreign_stamps


def test_duplicates_are_counted_but_not_timed_again() -> None:
    one = recorder()
    receive(one, envelopes(intended=[1.1, 1.2], sequence=[0, 1]), received=1.3)
    receive(
        one, envelopes(intended=[1.1, 1.3], sequence=[0, 2]), received=1.4, redelivered=[True, 0]
    )
    rows = one.all_rows()
    assert total(rows, "received") == 4
    assert total(rows, "duplicates") == 1
    assert total(rows, "redelivered") == 1
    assert total(rows, "out_of_order") == 0
    assert merged(rows, "latency") == recorded([200_000, 100_000, 100_000])
    assert one.received_once == 3


def test_late_comers_are_out_of_order_within_their_own_stream_only() -> None:
    one = recorder()
    envelope = envelopes(intended=[1.1] * 5, sequence=[5, 3, 0, 4, 6], producer=[0, 0, 2, 0, 0])
    receive(one, envelope, received=1.2)
    rows = one.all_rows()
    assert total(rows, "out_of_order") == 2
    assert total(rows, "duplicates") == 0


def test_the_same_number_from_another_producer_or_subscription_is_no_duplicate() -> None:
    one = recorder()
    envelope = envelopes(intended=[1.1] * 4, sequence=[9] * 4, producer=[0, 2, 1, 3])
    receive(one, envelope, received=1.2, subscription=[0, 0, 1, 1])
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
    receive(one, envelopes(intended=[1.1], **change), received=1.2, size=size)
    (row,) = one.all_rows()
    counted = {name: value for name, value in row.counters.items() if value}
    assert counted == {counter: 1}
    assert row.histograms == {}
    assert one.received_once == 0


def test_what_is_not_ours_belongs_to_the_phase_it_arrived_in() -> None:
    one = recorder()
    receive(one, envelopes(intended=[0.1], run_tag=1), received=2.5)
    assert keys(one.all_rows()) == [(2, CONSUMER, MEASURE)]


@pytest.mark.parametrize("size", [8, 16, 31])
def test_tiny_bodies_have_a_latency_and_no_accounts(size: int) -> None:
    one = recorder(sizes=BodySizes(size))
    envelope = envelopes(intended=[0.0, 0.0], sent=[1.1, 1.2])
    envelope[["intended_ns", "sequence", "producer", "run_tag"]] = 0
    receive(one, envelope, received=1.3, size=size)
    receive(one, envelope[:1], received=1.3, size=7)
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


def test_of_a_message_that_another_agent_sent_only_the_time_since_it_was_due_is_recorded() -> None:
    into = recorder(is_carried=True, first_measured=np.array([0, 0, 0, 0]))
    envelope = envelopes([1.2, 1.3, 1.4])
    envelope["sent_ns"][1:] = 0
    envelope["intended_ns"][2] = 0
    receive(into, envelope, 1.5)
    [row] = into.all_rows()
    assert row.counters["received"] == 3
    assert row.histograms["latency"].count == 1
    delivery = row.histograms["delivery_latency"]
    assert (delivery.count, delivery.max_us, delivery.min_us) == (2, 300_000, 200_000)


def test_a_recorder_that_takes_any_message_looks_at_none() -> None:
    """Foreign, malformed, repeated, tiny: all count, in the phase and tick in which they arrive."""
    into = recorder(takes_any=True, by_destination=True)
    envelope = envelopes([0.5] * 6, sequence=[1] * 6, run_tag=RUN_TAG + 1, producer=99)
    moments = [-0.5, 0.2, 1.5, 1.5, 2.5, 9.0]
    receive(
        into,
        envelope,
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
    into = recorder(takes_any=True, foreign_stamps=foreign_stamps(True))
    envelope = envelopes([1.1, 1.2, 1.3, 1.4], run_tag=RUN_TAG + 1, producer=99)
    envelope["sent_ns"][2] = np.uint64(2**64 - 1)  # no time of this age
    receive(into, envelope, [1.5, 1.5, 1.5, 1.5], size=[8, 100, 100, 7])
    rows = into.all_rows()
    latencies = [row.histograms["latency"] for row in rows]
    assert sum(one.count for one in latencies) == 2
    assert (total(rows, "received"), total(rows, "malformed")) == (4, 2)
    assert latencies[0].mean_us == pytest.approx(350_000, rel=0.01)
