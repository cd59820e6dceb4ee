"""Merging event rows without Spark: exact, duplicates dropped, nothing copied per bucket."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench_spark.core.hdr import Histogram, SparseHistogram, merge_sparse, shape_for
from bench_spark.spark import merge
from bench_spark.spark.merge import (
    TICK_ROWS,
    RowIdentity,
    TickKey,
    TickRows,
    histogram_array,
    merge_event_batches,
    read_tick_rows,
    tick_rows_batch,
    unite,
)
from bench_spark.store.arrow import EVENTS
from bench_spark.store.schema import COUNTERS


def sparse(*values_us: int) -> SparseHistogram:
    histogram = Histogram(shape_for(10_000_000))
    histogram.record_ns(np.array(values_us, dtype=np.int64) * 1000)
    return histogram.sparse()


def event(
    number: int, histograms: dict[str, SparseHistogram] | None = None, **changes: Any
) -> dict[str, Any]:
    row = {
        "run_id": "r",
        "agent": 0,
        "attempt": 0,
        "row_number": number,
        "role": "consumer",
        "phase": "measure",
        "tick": 3,
        "tick_start": 3_000_000,
        "tick_seconds": 1.0,
        "received": 10,
        "cpu_seconds": 0.5,
    }
    return row | changes | {"histograms": histograms or {}}


def event_batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    columns = [
        histogram_array([row["histograms"] for row in rows])
        if field.name == "histograms"
        else pa.array([row.get(field.name) for row in rows], field.type)
        for field in EVENTS
    ]
    return pa.RecordBatch.from_arrays(columns, schema=EVENTS)


def merged(*batches: pa.RecordBatch) -> dict[TickKey, TickRows]:
    out = list(merge_event_batches(iter(batches)))
    return {row.key: row for row in read_tick_rows(pa.Table.from_batches(out, TICK_ROWS))}


KEY = TickKey("r", "consumer", "measure", 3)


def test_rows_of_one_key_are_added_up_over_all_batches() -> None:
    found = merged(
        event_batch([event(0, {"latency": sparse(1, 5)}), event(1, {"latency": sparse(5, 9)})]),
        event_batch([event(0, {"latency": sparse(7)}, agent=1, received=5, errors=2)]),
    )
    row = found[KEY]
    assert row.counter("received") == 25
    assert row.counter("errors") == 2
    assert row.counter("sent") == 0
    assert row.cpu_seconds == pytest.approx(1.5)
    assert row.histogram("latency") == sparse(1, 5, 5, 9, 7)
    assert row.rows == {RowIdentity(0, 0, 0), RowIdentity(0, 0, 1), RowIdentity(1, 0, 0)}


@pytest.mark.parametrize(
    ("name", "value"), [("run_id", "s"), ("role", "producer"), ("phase", "warmup"), ("tick", 4)]
)
def test_rows_of_another_run_role_phase_or_tick_stay_apart(name: str, value: Any) -> None:
    found = merged(event_batch([event(0), event(1, **{name: value})]))
    assert len(found) == 2
    assert found[KEY].counter("received") == 10


def test_a_row_that_comes_twice_counts_once() -> None:
    row = event(0, {"latency": sparse(5)})
    found = merged(event_batch([row, row, event(1)]), event_batch([row]))
    assert found[KEY].counter("received") == 20
    assert found[KEY].histogram("latency") == sparse(5)


def test_another_attempt_of_the_same_agent_is_another_row() -> None:
    found = merged(event_batch([event(0), event(0, attempt=1)]))
    assert found[KEY].counter("received") == 20


def test_a_batch_may_be_a_slice_of_a_larger_one() -> None:
    rows = [event(n, {"latency": sparse(n + 1), "send_lag": sparse(n)}) for n in range(6)]
    found = merged(event_batch(rows).slice(2, 3))
    assert found[KEY].histogram("latency") == sparse(3, 4, 5)
    assert found[KEY].histogram("send_lag") == sparse(2, 3, 4)


def test_rows_without_histograms_or_with_none_are_counted_all_the_same() -> None:
    table = event_batch([event(0), event(1)])
    nothing = pa.array([None, None], EVENTS.field("histograms").type)
    without = table.set_column(EVENTS.get_field_index("histograms"), "histograms", nothing)
    assert merged(without)[KEY].counter("received") == 20
    assert merged(without)[KEY].histograms() == {}
    assert merged() == {}


def test_buckets_are_views_of_the_batch() -> None:
    batch = event_batch([event(0, {"latency": sparse(*range(100))})])
    row = next(merge.read_event_batch(batch))
    buffer = batch.column("histograms").values.field("values_us").values.buffers()[1]
    address = row.histogram("latency").values_us.__array_interface__["data"][0]
    assert buffer.address <= address < buffer.address + buffer.size


def test_a_worker_lets_go_of_batches_it_has_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge, "FOLD_BYTES", 1)
    batches = [event_batch([event(n, {"latency": sparse(n + 1)}, tick=n % 3)]) for n in range(9)]
    found = merged(*batches)
    assert found[KEY._replace(tick=1)].histogram("latency") == sparse(2, 5, 8)


def test_partitions_that_share_a_row_cannot_be_united() -> None:
    one = next(merge_event_batches(iter([event_batch([event(0), event(1)])])))
    two = next(merge_event_batches(iter([event_batch([event(2)])])))
    overlapping = next(merge_event_batches(iter([event_batch([event(1), event(3)])])))
    united = unite(read_tick_rows(pa.Table.from_batches([one, two])))
    assert united is not None
    assert united[KEY].counter("received") == 30
    assert unite(read_tick_rows(pa.Table.from_batches([one, two, overlapping]))) is None


def test_merged_rows_survive_arrow_in_every_field() -> None:
    row = TickRows(
        key=KEY,
        tick_start_us=1_700_000_000_123_456,
        tick_seconds=0.25,
        counters=np.arange(len(COUNTERS), dtype=np.int64) * 2**40,
        cpu_seconds=0.125,
        rows={RowIdentity(1, 2, 3), RowIdentity(4, 5, 6)},
    )
    row.add_histogram(
        "latency",
        SparseHistogram(1, 2**40, 2**50, 3, 4, np.array([7], np.int32), np.array([2**60])),
    )
    batch = tick_rows_batch([row])
    assert batch.schema == TICK_ROWS
    (back,) = read_tick_rows(pa.Table.from_batches([batch]))
    assert (back.key, back.tick_start_us, back.tick_seconds, back.cpu_seconds, back.rows) == (
        *(row.key, row.tick_start_us, row.tick_seconds, row.cpu_seconds, row.rows),
    )
    assert np.array_equal(back.counters, row.counters)
    assert back.histograms() == row.histograms()


numbers = st.lists(st.integers(0, 20_000_000), max_size=8)


@settings(deadline=None, max_examples=50)
@given(
    rows=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), numbers), max_size=30),
    cut=st.integers(1, 10),
)
def test_merging_equals_recording_everything_in_one_place(
    rows: list[tuple[int, int, list[int]]], cut: int
) -> None:
    events = [
        event(number, {"latency": sparse(*values)} if values else None, agent=agent, tick=tick)
        for number, (agent, tick, values) in enumerate(rows)
    ]
    partitions = [events[first : first + cut] for first in range(0, len(events), cut)]
    out: Iterable[pa.RecordBatch] = (
        batch
        for partition in partitions
        for batch in merge_event_batches(iter([event_batch(partition)]))
    )
    united = unite(read_tick_rows(pa.Table.from_batches(out, TICK_ROWS)))
    assert united is not None
    for tick in {row[1] for row in rows}:
        values = [value for _, other, all_values in rows if other == tick for value in all_values]
        expected = sparse(*values) if values else merge_sparse([])
        assert united[KEY._replace(tick=tick)].histogram("latency") == expected
