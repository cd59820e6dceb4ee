"""Tables as data sets: rows that Spark reads, sent by agents that know nothing of Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agents import run_load
from pyspark.sql.functions import expr

from bench_spark.agent.recorder import CONSUMER, PRODUCER
from bench_spark.config.broker import Broker
from bench_spark.config.models import Scenario
from bench_spark.data.records import ColumnRecords
from bench_spark.errors import ConfigurationError
from bench_spark.plan import Plan, make_plan
from bench_spark.spark.datasets import DatasetRows
from bench_spark.store.delta import Store

LOOPBACK = Broker(kind="loopback")
ROWS = 60
COLUMNS = {"body": "text", "key": "name", "headers": "marks", "interval": "gap", "sort": "n"}


@pytest.fixture(scope="module")
def table(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Rows 10 ms apart, in no order."""
    path = str(tmp_path_factory.mktemp("tables") / "requests")
    frame = spark.range(ROWS).selectExpr(
        "id AS n",
        "concat('record ', id) AS text",
        "encode(concat('k', id), 'utf-8') AS name",
        "map('a', string(id)) AS marks",
        "if(id = 0, NULL, 0.01D) AS gap",
    )
    frame.orderBy("name").repartition(3).write.format("delta").save(path)
    return path


@pytest.fixture
def rows(spark: Any, tmp_path: Path) -> Iterator[DatasetRows]:
    found = DatasetRows(spark, Store(tmp_path / "store"))
    yield found
    found.close()
    assert list(tmp_path.glob("store/_datasets/*")) == []


def plan(dataset: dict[str, Any], **keys: Any) -> Plan:
    scenario = Scenario.model_validate({"dataset": dataset} | keys)
    return make_plan(scenario, "rows-of-a-table")


def test_recorded_rows_are_sent_once_with_all_their_parts_at_their_own_pace(
    rows: DatasetRows, table: str
) -> None:
    made = plan(
        {"table": table, "columns": COLUMNS, "repeat": False, "replay": {"speed": 2}},
        producers=3,
        consumers=3,
        destinations=3,
        identity={"carrier": "append", "content_hash": True},
        phases={"warmup_seconds": 0, "drain_seconds": 5},
    )
    assert made.expected_messages is None
    given = rows.given_to(made, LOOPBACK)
    assert given.expected_messages == ROWS
    assert given.scenario.phases.measure_seconds == pytest.approx((ROWS - 1) * 0.005, abs=0.002)
    [assignment] = given.assignments
    schedule = assignment.schedule
    assert schedule is not None
    due_ns = schedule.intended_of_ns(np.arange(ROWS))
    assert due_ns.tolist() == [number * 5_000_000 for number in range(ROWS)]
    source = ColumnRecords(Path(assignment.rows_at or ""))
    read = source.read(np.array([0, 59, 7]))
    assert list(read.bodies) == [b"record 0", b"record 59", b"record 7"]
    assert list(read.keys or ()) == [b"k0", b"k59", b"k7"]
    assert list(read.headers or ()) == [{"a": b"0"}, {"a": b"59"}, {"a": b"7"}]
    source.close()

    load = run_load(given, LOOPBACK)
    assert load.control.failures == []
    assert load.total(PRODUCER, "sent") == load.total(CONSUMER, "received") == ROWS
    assert load.total(CONSUMER, "corrupted") == 0
    assert load.accounts().received_once == ROWS


def test_a_table_is_read_once_for_all_runs_of_a_session(
    rows: DatasetRows, table: str, spark: Any
) -> None:
    with_intervals = (
        spark.read.format("delta")
        .load(table)
        .withColumn("spell", expr("make_dt_interval(0, 0, 0, 0.01)"))
    )
    with_intervals.createOrReplaceTempView("recorded_spells")
    dataset = {"table": "recorded_spells", "columns": {"body": "text", "interval": "spell"}}
    first, again = (
        rows.given_to(plan(dataset, phases={"measure_seconds": seconds}), LOOPBACK)
        for seconds in (1, 2)
    )
    assert first.assignments[0].rows_at == again.assignments[0].rows_at
    assert first.scenario.load.rate_per_second == pytest.approx(100, rel=0.02)
    assert again.expected_messages == pytest.approx(200, abs=2)


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"body": "missing"}, "columns.body: the table has no column missing; it has n, text"),
        ({"body": "n"}, "columns.body: column n is bigint; allowed: string or binary"),
        ({"body": "text", "headers": "name"}, "columns.headers: column name is binary"),
        ({"body": "text", "interval": "text"}, "columns.interval: column text is string"),
    ],
)
def test_columns_that_will_not_do_are_refused(
    rows: DatasetRows, table: str, columns: dict[str, str], told: str
) -> None:
    with pytest.raises(ConfigurationError, match=told):
        rows.given_to(plan({"table": table, "columns": columns}), LOOPBACK)


def test_a_table_that_is_not_there_is_refused(rows: DatasetRows) -> None:
    with pytest.raises(ConfigurationError, match=r"dataset.table: nowhere: .*nowhere"):
        rows.given_to(plan({"table": "nowhere"}), LOOPBACK)


def test_rows_do_not_go_through_an_object_store(spark: Any) -> None:
    with pytest.raises(ConfigurationError, match="use a store that is a directory"):
        DatasetRows(spark, Store("s3://bucket/bench")).given_to(plan({"table": "t"}), LOOPBACK)
