"""Event rows survive the wire, and nonsense is refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench_spark.agent.protocol import EventRow, decode_rows, encode_rows
from bench_spark.core.hdr import SparseHistogram
from bench_spark.store.schema import COUNTERS

whole = st.integers(0, 2**62)
histograms = st.lists(
    st.tuples(st.integers(0, 2**31 - 1), st.integers(1, 2**62)),
    max_size=8,
    unique_by=lambda p: p[0],
).flatmap(
    lambda buckets: st.builds(
        SparseHistogram,
        min_us=whole,
        max_us=whole,
        sum_us=whole,
        negative=whole,
        overflow=whole,
        values_us=st.just(np.array(sorted(v for v, _ in buckets), dtype=np.int32)),
        counts=st.just(np.array([c for _, c in buckets], dtype=np.int64)),
    )
)
event_rows = st.builds(
    EventRow,
    row_number=whole,
    role=st.sampled_from(["producer", "consumer"]),
    phase=st.sampled_from(["warmup", "measure"]),
    tick=st.integers(0, 10**6),
    tick_start_ns=st.integers(0, 2**62),
    tick_seconds=st.floats(0, 1),
    counters=st.dictionaries(st.sampled_from(COUNTERS), whole),
    destination=st.none() | st.text(max_size=10),
    cpu_seconds=st.none() | st.floats(0, 100),
    clock_offset_ns=st.none() | st.integers(-(2**40), 2**40),
    clock_bound_ns=st.none() | whole,
    histograms=st.dictionaries(
        st.sampled_from(["latency", "send_lag", "confirm_latency"]), histograms
    ),
)


def a_row(**changes: Any) -> EventRow:
    return EventRow(
        **{
            "row_number": 1,
            "role": "consumer",
            "phase": "measure",
            "tick": 3,
            "tick_start_ns": 5,
            "tick_seconds": 1.0,
            "counters": {"received": 7},
        }
        | changes
    )


ONE_BUCKET = SparseHistogram(1, 2, 3, 4, 5, np.array([9], np.int32), np.array([8], np.int64))
ONLY_OVERFLOW = SparseHistogram(9, 9, 9, 0, 1, np.zeros(0, np.int32), np.zeros(0, np.int64))


@settings(max_examples=50)
@given(st.lists(event_rows, max_size=3))
def test_rows_come_back_as_they_were_sent(rows: list[EventRow]) -> None:
    header, columns = encode_rows(rows)
    assert decode_rows(json.loads(json.dumps(header)), columns) == rows


def test_no_rows_are_no_bytes() -> None:
    assert encode_rows([]) == ([], b"")
    assert decode_rows([], b"") == []


def test_a_histogram_with_nothing_but_overflow_survives() -> None:
    rows = [
        a_row(histograms={"latency": ONLY_OVERFLOW, "send_lag": ONE_BUCKET}),
        a_row(histograms={"latency": ONLY_OVERFLOW}),
    ]
    assert decode_rows(*encode_rows(rows)) == rows


@given(st.integers(-100, 100).filter(bool))
def test_bytes_that_do_not_fit_the_header_are_refused(change: int) -> None:
    header, columns = encode_rows([a_row(histograms={"latency": ONE_BUCKET})])
    wrong = columns + bytes(change) if change > 0 else columns[:change]
    with pytest.raises(ValueError, match=r"byte|buffer"):
        decode_rows(header, wrong)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["histograms", "measure", "buckets", "role", "tick", "min_us"]), inner
        )
    ),
    max_leaves=8,
)


@given(json_values, st.binary(max_size=40))
def test_garbage_is_refused_with_an_error_the_collector_knows(header: Any, columns: bytes) -> None:
    try:
        decode_rows(header, columns)
    except (ValueError, KeyError):
        return
    assert (header, columns) in (([], b""), ({}, b""), ("", b""))


@pytest.mark.parametrize(
    "change",
    [
        {"buckets": -1},
        {"buckets": 2},
        {"buckets": 10**18},
        {"buckets": "many"},
        {"buckets": None},
        {"buckets": 1.5e300},
    ],
)
def test_a_wrong_number_of_buckets_is_refused(change: dict[str, Any]) -> None:
    header, columns = encode_rows([a_row(histograms={"latency": ONE_BUCKET})])
    header[0]["histograms"][0] |= change
    with pytest.raises(ValueError, match=r"."):
        decode_rows(header, columns)


def test_a_row_with_a_field_nobody_knows_is_refused() -> None:
    header, columns = encode_rows([a_row()])
    with pytest.raises(ValueError, match="no header of event rows"):
        decode_rows([header[0] | {"surprise": 1}], columns)
