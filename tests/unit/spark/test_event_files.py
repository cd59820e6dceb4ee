"""Files of `events` as the executors' Python reads them, against the rows that were written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench_spark.agent.protocol import EventRow
from bench_spark.core.hdr import SparseHistogram
from bench_spark.driver.committer import events_table
from bench_spark.spark.merge import TickRows, merge_event_batches, merge_event_files, read_tick_rows
from bench_spark.store.delta import Store

LATENCY = SparseHistogram(
    10, 4001, 14_011, 0, 0, np.array([10, 4001], np.int32), np.array([3, 2], np.int64)
)


def rows(tick: int, agents: int) -> pa.Table:
    made = EventRow(0, "consumer", "measure", tick, tick * 10**9, 1.0, {"received": 5})
    made.histograms["latency"] = LATENCY
    return events_table("run-1", [(agent, 0, made) for agent in range(agents)])


def named(*parts: tuple[str, int]) -> pa.RecordBatch:
    files, starts = zip(*parts, strict=True)
    return pa.record_batch({"file": list(files), "part_start": pa.array(starts, pa.int64())})


def merged(*batches: pa.RecordBatch) -> dict[int, TickRows]:
    out = list(merge_event_files(iter(batches)))
    table = pa.Table.from_batches(out) if out else None
    return {} if table is None else {one.key.tick: one for one in read_tick_rows(table)}


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """The files of two commits, as Spark names them, in a directory that needs quoting."""
    store = Store(tmp_path / "a store").open()
    for tick in range(2):
        store.append("events", rows(tick, agents=300))
    return sorted(path.as_uri() for path in Path(store.table_uri("events")).glob("*.parquet"))


def test_every_file_is_read_once_however_many_rows_name_it(files: list[str]) -> None:
    found = merged(named(*[(file, 0) for file in files] * 3), named((files[0], 0)))
    assert {tick: one.counter("received") for tick, one in found.items()} == {0: 1500, 1: 1500}
    assert found[1].histogram("latency").counts.tolist() == [900, 600]
    assert len(found[0].rows) == 300


def test_the_later_parts_of_a_file_belong_to_whoever_has_the_first(files: list[str]) -> None:
    assert merged(named((files[0], 4096))) == {}
    assert len(merged(named((files[0], 4096), (files[0], 0)))) == 1


def test_a_column_that_an_older_program_did_not_write_counts_nothing(tmp_path: Path) -> None:
    older = rows(0, agents=2).drop_columns(["reconnects", "cpu_seconds"])
    pq.write_table(older, tmp_path / "older.parquet")
    found = merged(named(((tmp_path / "older.parquet").as_uri(), 0)))
    assert found[0].counter("reconnects") == 0
    assert found[0].counter("received") == 10


def test_files_and_rows_are_merged_alike(files: list[str]) -> None:
    by_rows = pa.Table.from_batches(
        list(merge_event_batches(iter(rows(1, agents=300).to_batches())))
    )
    (expected,) = read_tick_rows(by_rows)
    by_files = merged(named(*[(file, 0) for file in files]))[1]
    assert by_files.histograms() == expected.histograms()
    assert by_files.counters.tolist() == expected.counters.tolist()
