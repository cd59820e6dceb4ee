"""Reading what a table has got, and no more than that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from growing_run import GrowingRun

from bench_spark.errors import StoreError
from bench_spark.store.delta import Store
from bench_spark.watch.followed_run import AddedRows, added_files


@pytest.fixture
def reader(store: Store) -> AddedRows:
    return AddedRows(Store(store.uri), "events", ["agent", "tick", "sent"], "r1")


def ticks(reader: AddedRows) -> list[int]:
    return sorted(set(reader.read()["tick"].to_pylist()))


def test_first_comes_what_is_there_and_then_what_is_added(store: Store, reader: AddedRows) -> None:
    run = GrowingRun(store)
    run.add_events(0)
    run.add_events(1)
    assert ticks(reader) == [0, 1]
    assert ticks(reader) == []
    run.add_events(2)
    run.add_events(3)
    assert ticks(reader) == [2, 3]
    assert ticks(reader) == []


def test_rows_of_other_runs_are_left_out(store: Store, reader: AddedRows) -> None:
    assert ticks(reader) == []
    GrowingRun(store, "another").add_events(5)
    GrowingRun(store, "r1").add_events(6)
    assert ticks(reader) == [6]


def test_compaction_brings_nothing_new(store: Store, reader: AddedRows) -> None:
    run = GrowingRun(store)
    run.add_events(0)
    assert ticks(reader) == [0]
    run.add_events(1)
    store.compact("events")
    run.add_events(2)
    assert ticks(reader) == [1, 2]


def test_a_row_that_was_replaced_comes_again(store: Store) -> None:
    reader = AddedRows(Store(store.uri), "runs", ["run_id", "status"], "r1")
    run = GrowingRun(store)
    run.begin()
    assert reader.read()["status"].to_pylist() == ["running"]
    run.fail(StoreError("full"))
    assert reader.read()["status"].to_pylist() == ["failed"]


def test_nothing_that_was_read_is_opened_again(store: Store, reader: AddedRows) -> None:
    run = GrowingRun(store)
    for second in range(3):
        run.add_events(second)
    assert ticks(reader) == [0, 1, 2]
    for file in Path(store.table_uri("events")).glob("*.parquet"):
        file.unlink()
    run.add_events(3)
    assert ticks(reader) == [3]


def test_a_file_that_is_gone_is_named_with_its_table(store: Store, reader: AddedRows) -> None:
    assert ticks(reader) == []
    GrowingRun(store).add_events(0)
    for file in Path(store.table_uri("events")).glob("*.parquet"):
        file.unlink()
    with pytest.raises(StoreError, match="events cannot be read"):
        reader.read()


def action(path: str, data_change: bool = True, **statistics: Any) -> str:
    added = {"path": path, "dataChange": data_change, "stats": json.dumps(statistics) or None}
    return json.dumps({"add": added})


def between(low: str, high: str) -> dict[str, Any]:
    return {"minValues": {"run_id": low}, "maxValues": {"run_id": high}}


LONG = "a-suite-with-a-name-that-is-longer-than-statistics-keep-of-a-text-"


@pytest.mark.parametrize(
    ("line", "paths"),
    [
        (action("a.parquet"), ["a.parquet"]),
        (action("a%20b.parquet"), ["a b.parquet"]),
        (action("a.parquet", data_change=False), []),
        (action("a.parquet", **between("r1", "r1")), ["a.parquet"]),
        (action("a.parquet", **between("r2", "r2")), []),
        (action("a.parquet", **between("q", "s")), ["a.parquet"]),
        ('{"remove": {"path": "a.parquet", "dataChange": true}}', []),
        ('{"commitInfo": {}}', []),
    ],
)
def test_a_commit_names_the_files_that_may_hold_rows(line: str, paths: list[str]) -> None:
    assert list(added_files(line, "r1")) == paths


def test_statistics_that_were_cut_short_leave_nothing_out() -> None:
    line = action("a.parquet", **between(LONG[:64], LONG[:64]))
    assert list(added_files(line, f"{LONG}20260102-030405-0a1b")) == ["a.parquet"]
