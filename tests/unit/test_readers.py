"""The store as other programs read it, without bench-spark; Spark does in tests/spark."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from bench_spark.store.arrow import RUNS
from bench_spark.store.delta import Store

STARTED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture
def runs(tmp_path: Path) -> DeltaTable:
    """A table of three runs, in several files, the first of which was replaced."""
    store = Store(tmp_path / "store").open()
    for name, status in (("a", "running"), ("b", "valid"), ("c", "degraded"), ("a", "valid")):
        store.replace_run({"run_id": name, "status": status, "started_at": STARTED})
    return DeltaTable(store.table_uri("runs"))


EXPECTED = [("a", "valid"), ("b", "valid"), ("c", "degraded")]


def test_deltalake_reads_it(runs: DeltaTable) -> None:
    rows = runs.to_pyarrow_table().sort_by("run_id").select(["run_id", "status"])
    assert [tuple(row.values()) for row in rows.to_pylist()] == EXPECTED


def test_pandas_reads_it(runs: DeltaTable) -> None:
    rows = runs.to_pandas().sort_values("run_id")
    assert list(zip(rows.run_id, rows.status, strict=True)) == EXPECTED
    assert {moment.to_pydatetime() for moment in rows.started_at} == {STARTED}


def test_duckdb_reads_it_through_arrow(runs: DeltaTable) -> None:
    with duckdb.connect() as database:
        database.register("runs", runs.to_pyarrow_dataset())
        query = "SELECT run_id, status FROM runs ORDER BY run_id"
        assert database.execute(query).fetchall() == EXPECTED


def test_every_column_has_a_type_that_duckdb_knows(tmp_path: Path) -> None:
    store = Store(tmp_path / "store").open()
    store.append("runs", pa.Table.from_pylist([{"run_id": "a"}], schema=RUNS))
    with duckdb.connect() as database:
        database.register("runs", DeltaTable(store.table_uri("runs")).to_pyarrow_dataset())
        assert [row[0] for row in database.execute("DESCRIBE runs").fetchall()] == RUNS.names
