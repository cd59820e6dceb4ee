"""Tables and views by name, and what a user sees of a mistake."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from bench_spark.errors import ConfigurationError
from bench_spark.spark.sql import create_views, run_query, view_statements
from bench_spark.store import Store
from bench_spark.tables import METRICS, RESOURCES, SUMMARY, TABLES

STARTED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def summary(aggregation: str, measure: str, **values: float) -> dict[str, Any]:
    return {"run_id": "r1", "aggregation": aggregation, "measure": measure} | values


@pytest.fixture
def filled(store: Store) -> Store:
    store.replace_run(
        {
            "run_id": "r1",
            "scenario": "steady",
            "broker": "kafka",
            "status": "valid",
            "started_at": STARTED,
            "measured_until": STARTED + timedelta(seconds=10),
            "counts": [("sent", 100), ("received", 99), ("bytes_sent", 1000), ("errors", 0)],
            "rates": [("send_rate", 10.0), ("receive_rate", 9.9)],
            "delivery_rate": 0.99,
            "scenario_json": json.dumps(
                {"destinations": 3, "load": {"mode": "rate", "rate_per_second": 10.0}}
            ),
        }
    )
    rows = [
        summary("run", "latency", min_us=1, max_us=90, mean_us=5.0, p50_us=4, p99_us=80),
        summary("interval_max", "latency", p75_us=70, p95_us=80, p99_us=90),
        summary("interval_mean", "latency", min_us=2, mean_us=6.0, p95_us=60.5, p99_us=70.5),
        summary("interval_mean", "confirm_latency", mean_us=3.5, p99_us=9.0),
    ]
    store.append("summary", pa.Table.from_pylist(rows, schema=SUMMARY))
    return store


def metric(batch_id: int, second: int, **values: Any) -> dict[str, Any]:
    start = STARTED + timedelta(seconds=second)
    return {
        "run_id": "r1",
        "query_id": "q",
        "batch_id": batch_id,
        "window": "interval",
        "window_start": start,
        "window_end": start + timedelta(seconds=1),
        "window_seconds": 1.0,
        "measure": "latency",
        "written_at": STARTED + timedelta(seconds=20 + batch_id),
    } | values


def test_every_table_and_view_answers_by_name(spark: SparkSession, filled: Store) -> None:
    create_views(spark, filled)
    for name in TABLES:
        assert spark.table(name).columns == TABLES[name].names
    assert len(view_statements()) == 7


def test_latency_spec_has_the_fields_of_the_specification(
    spark: SparkSession, filled: Store
) -> None:
    rows = run_query(spark, filled, "SELECT * FROM latency_spec").to_pylist()
    assert len(rows) == 1
    names = """latency_min_us latency_max_us latency_mean_us latency_p50_us latency_p95_us
        latency_p99_us latency_p999_us messages_sent messages_received messages_acked bytes_sent
        bytes_received errors send_rate receive_rate delivery_rate"""
    assert set(names.split()) <= set(rows[0])
    assert rows[0]["latency_p99_us"] == 80
    assert rows[0]["messages_sent"] == 100
    assert rows[0]["messages_acked"] is None
    assert rows[0]["delivery_rate"] == 0.99


def test_the_documents_tables_take_their_own_aggregation(
    spark: SparkSession, filled: Store
) -> None:
    c2 = run_query(
        spark, filled, "SELECT rate_per_second, max_p99_us, max_p95_us, max_p75_us FROM c2_table"
    ).to_pylist()
    assert c2 == [
        {"rate_per_second": 10.0, "max_p99_us": 90.0, "max_p95_us": 80.0, "max_p75_us": 70.0}
    ]
    e6 = run_query(
        spark, filled, "SELECT queue, avg_us, p95_us, confirm_avg_us, confirm_p99_us FROM e6_table"
    ).to_pylist()
    assert e6 == [
        {
            "queue": 3,
            "avg_us": 6.0,
            "p95_us": 60.5,
            "confirm_avg_us": 3.5,
            "confirm_p99_us": 9.0,
        }
    ]


def resource(source: str, host: str, second: int, **values: Any) -> dict[str, Any]:
    return {
        "run_id": "r1",
        "at": STARTED + timedelta(seconds=second),
        "source": source,
        "host": host,
        "phase": "measure",
        "interval_seconds": 1.0,
    } | values


def test_what_a_run_cost_its_broker_is_beside_its_latency(
    spark: SparkSession, filled: Store
) -> None:
    def used(user: float, written: int) -> dict[str, Any]:
        return {"cpu_user_share_of_machine": user, "device_written_bytes": written}

    rows = [
        resource("node", "a", 0, phase="warmup", **used(1.0, 9_000_000)),
        resource("node", "a", 1, **used(0.2, 3_000_000)),
        resource("node", "a", 2, **used(0.4, 1_000_000)),
        # The same machine once more, seen by another source that was read more rarely.
        resource("process", "a", 2, interval_seconds=2.0, **used(0.1, 2_000_000)),
        resource("node", "b", 1, **used(0.5, 500_000)),
        # A reading that failed weighs nothing.
        resource("node", "b", 2, problem="unreachable"),
    ]
    filled.append("resources", pa.Table.from_pylist(rows, schema=RESOURCES))
    found = run_query(
        spark,
        filled,
        "SELECT avg_us, disk_mb, handed_mb, cpu_user_percent, cpu_system_percent FROM e6_table",
    ).to_pylist()
    assert found == [
        {
            "avg_us": 6.0,
            "disk_mb": 4.5,
            "handed_mb": None,
            "cpu_user_percent": pytest.approx(100 * (0.3 + 0.5) / 2),
            "cpu_system_percent": None,
        }
    ]


def test_the_newest_publication_of_a_window_counts(spark: SparkSession, filled: Store) -> None:
    rows = [
        metric(1, second=0, p99_us=10),
        metric(2, second=0, p99_us=20),
        metric(2, second=1, p99_us=30),
        metric(3, second=1, window="rolling", p99_us=40),
        metric(4, second=11, p99_us=50),
        metric(5, second=2, measure=None),
    ]
    filled.append("metrics", pa.Table.from_pylist(rows, schema=METRICS))
    latest = run_query(spark, filled, "SELECT p99_us FROM metrics_latest ORDER BY batch_id, 1")
    assert latest["p99_us"].to_pylist() == [20, 30, 40, 50, None]
    by_interval = run_query(
        spark, filled, "SELECT p99_us FROM latency_by_interval ORDER BY interval_start"
    )
    assert by_interval["p99_us"].to_pylist() == [20, 30]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELEC 1", "Syntax error at or near 'SELEC'"),
        ("SELECT p98_us FROM summary", "`p98_us` cannot be resolved"),
        ("SELECT * FROM run", "The table or view `run` cannot be found"),
        ("SELECT 1 / (count(*) - 1) FROM runs", "Division by zero"),
    ],
)
def test_a_mistake_in_a_query_is_told_in_one_line_without_java(
    spark: SparkSession,
    filled: Store,
    capfd: pytest.CaptureFixture[str],
    query: str,
    said: str,
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        run_query(spark, filled, query)
    text = str(caught.value)
    assert said in text
    assert "\n" not in text
    assert "org.apache" not in text
    assert "\tat " not in capfd.readouterr().err
