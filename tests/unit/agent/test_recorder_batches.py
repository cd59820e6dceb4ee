"""Everything that goes into a recorder comes out, however it is divided into batches."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.recordings import (
    RUN_TAG,
    START_NS,
    at,
    envelopes,
    merged,
    receive,
    recorded,
    recorder,
    sent,
    settle,
    total,
)

from bench_spark.agent.timeline import MEASURE, WARMUP
from bench_spark.core.clock import NANOSECONDS
from bench_spark.core.envelope import empty_envelopes
from bench_spark.transports.batches import (
    OUTCOME_DTYPE,
    RECEIVED_DTYPE,
    OutcomeKind,
    Outcomes,
    joined_outcomes,
)

MANY = 4096


@pytest.mark.parametrize("at_once", [1, 7, MANY + 1])
def test_outcomes_are_the_same_however_many_come_at_once(at_once: int) -> None:
    one = recorder()
    count = MANY + 5
    envelope = envelopes(intended=[1.1] * count)
    kinds = [
        OutcomeKind.REFUSED if place % 3 == 0 else OutcomeKind.CONFIRMED for place in range(count)
    ]
    for first in range(0, count, at_once):
        chosen = slice(first, first + at_once)
        settle(one, envelope[chosen], kinds[chosen], moment=1.2, lane=1)
    rows = one.all_rows()
    refused = -(-count // 3)
    assert (total(rows, "refused"), total(rows, "confirmed")) == (refused, count - refused)
    assert merged(rows, "confirm_latency").count == count - refused
    assert one.failed_sets.count(1, 0, count) == refused
    assert one.confirmed_sets.count(1, 0, count) == count - refused


@pytest.mark.parametrize("count", [1, MANY - 1, MANY, MANY + 1, 3 * MANY + 7])
def test_a_batch_may_be_of_any_size_and_span_ticks_and_phases(count: int) -> None:
    one = recorder()
    envelope = envelopes(intended=np.linspace(0.5, 2.5, count).tolist())
    sent(one, envelope)
    receive(one, envelope, received=2.75)
    rows = one.all_rows()
    assert total(rows, "sent") == total(rows, "received") == one.received_once == count
    assert merged(rows, "latency").count == merged(rows, "send_lag").count == count
    assert one.received_sets.count(0, 0, count) == count
    assert one.all_rows() == []


def test_all_of_many_send_calls_are_timed() -> None:
    one = recorder()
    for call in range(MANY + 3):
        sent(one, envelopes(intended=[1.0 + call / NANOSECONDS] * 2), insert_ns=5_000)
    assert merged(one.all_rows(), "insert_duration").count == 2 * (MANY + 3)


def test_the_caller_may_reuse_its_columns() -> None:
    one = recorder()
    envelope = envelopes(intended=[1.1, 1.2])
    sent(one, envelope)
    receive(one, envelope, received=1.3)
    envelope["sent_ns"], envelope["sequence"] = 0, 99
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
        envelope = empty_envelopes(len(batch))
        received = []
        for place, (intended, lag, latency, sequence, producer, tag, size) in enumerate(batch):
            sent_ns = at(intended + lag)
            received_ns = sent_ns + round(latency * NANOSECONDS)
            envelope[place] = (sent_ns, at(intended), sequence, producer, tag)
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
        receive(one, envelope, received, size=sizes, subscription=places)
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


def test_rows_keep_their_layout_when_they_are_joined_or_chosen() -> None:
    """Kernels are compiled for one layout: another would stall a load while it is compiled."""
    for dtype in (RECEIVED_DTYPE, OUTCOME_DTYPE):
        rows = np.zeros(3, dtype)
        assert np.concatenate([rows, rows]).dtype == dtype
        assert rows[[2, 0]].dtype == dtype
    outcomes = Outcomes(np.zeros(3, OUTCOME_DTYPE))
    assert joined_outcomes([outcomes, outcomes]).rows.dtype == OUTCOME_DTYPE
