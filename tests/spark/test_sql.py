"""Tables and views by name, and what a user sees of a mistake."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from delta import DeltaTable
from pyspark.sql import SparkSession

from bench_spark.cli import main
from bench_spark.errors import EXIT_CONFIGURATION, ConfigurationError, StoreNotReady
from bench_spark.jars import delta_set
from bench_spark.spark.sql import (
    create_views,
    refuse_unless_reading,
    registration,
    run_query,
    view_statements,
)
from bench_spark.store.arrow import METRICS, RESOURCES, SCHEMAS, SUMMARY
from bench_spark.store.delta import Store
from bench_spark.store.schema import PERCENTILES

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
            "result_json": json.dumps({"measured_seconds": 8.0}),
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
    for name in SCHEMAS:
        assert spark.table(name).columns == SCHEMAS[name].names
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
    assert (rows[0]["sent_per_second"], rows[0]["received_per_second"]) == (10.0, 9.9)
    assert (rows[0]["send_rate"], rows[0]["receive_rate"]) == (100 / 8, 99 / 8)


def test_the_documents_tables_take_their_own_aggregation(
    spark: SparkSession, filled: Store
) -> None:
    c2 = run_query(
        spark,
        filled,
        "SELECT rate_per_second, max_p99_us, max_p95_us, max_p75_us FROM latency_by_rate",
    ).to_pylist()
    assert c2 == [
        {"rate_per_second": 10.0, "max_p99_us": 90.0, "max_p95_us": 80.0, "max_p75_us": 70.0}
    ]
    e6 = run_query(
        spark,
        filled,
        "SELECT queue, avg_us, p95_us, confirm_avg_us, confirm_p99_us FROM interval_means",
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


def test_views_show_no_percentile_above_the_maximum_of_rows_written_before(
    spark: SparkSession, filled: Store
) -> None:
    statistics = dict.fromkeys((name for name, _ in PERCENTILES), 11_403_263)
    rows = [
        summary(aggregation, "latency", max_us=11_396_122, **statistics) | {"run_id": "old"}
        for aggregation in ("run", "interval_max", "interval_mean")
    ]
    filled.append("summary", pa.Table.from_pylist(rows, schema=SUMMARY))
    filled.replace_run({"run_id": "old", "started_at": STARTED, "scenario_json": "{}"})
    window = metric(1, second=0, max_us=11_396_122, **statistics) | {"run_id": "old"}
    filled.append("metrics", pa.Table.from_pylist([window], schema=METRICS))
    names = ", ".join(statistics)
    for query in (
        f"SELECT {names} FROM metrics_latest",
        f"SELECT {names} FROM latency_by_interval",
        "SELECT latency_p50_us, latency_p95_us, latency_p99_us, latency_p999_us FROM latency_spec",
        "SELECT max_p99_us, max_p95_us, max_p75_us FROM latency_by_rate",
        "SELECT p95_us, p99_us FROM interval_means",
    ):
        [row] = run_query(spark, filled, f"{query} WHERE run_id = 'old'").to_pylist()
        assert set(row.values()) == {11_396_122}, query


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
        "SELECT avg_us, disk_mb, handed_mb, cpu_user_percent, cpu_system_percent "
        "FROM interval_means",
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


READING = """
SELECT * FROM runs
/* DELETE */ SELECT 'DELETE FROM runs' AS text FROM runs -- DROP TABLE runs
SELECT run_id FROM runs;
WITH one AS (SELECT * FROM runs) SELECT count(*) FROM one
WITH RECURSIVE up AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM up WHERE n < 3) SELECT * FROM up
VALUES (1), (2)
TABLE runs
FROM runs SELECT run_id
FROM runs |> WHERE status = 'valid' |> SELECT run_id
(SELECT run_id FROM runs) UNION ALL (SELECT run_id FROM summary) ORDER BY 1 LIMIT 3 OFFSET 1
SELECT run_id FROM runs INTERSECT SELECT run_id FROM summary EXCEPT SELECT run_id FROM metrics
SELECT DISTINCT r.run_id FROM runs r LEFT JOIN summary USING (run_id)
SELECT run_id FROM runs WHERE run_id IN (SELECT run_id FROM summary) AND EXISTS (TABLE metrics)
SELECT status, count(*) FROM runs GROUP BY status HAVING count(*) > 0
SELECT status, sum(count(*)) OVER w FROM runs GROUP BY ROLLUP (status) WINDOW w AS (ORDER BY status)
SELECT key, value FROM runs LATERAL VIEW explode(counts) AS key, value
SELECT r.run_id, l.p99_us FROM runs r, LATERAL (SELECT p99_us FROM summary LIMIT 1) AS l
SELECT * FROM (SELECT measure, p99_us FROM summary) PIVOT (max(p99_us) FOR measure IN ('latency'))
SELECT * FROM (SELECT p50_us, p99_us FROM summary) UNPIVOT (us FOR name IN (p50_us, p99_us))
SELECT /*+ REPARTITION(2) */ * FROM runs TABLESAMPLE (100 PERCENT) CLUSTER BY run_id
SELECT * FROM range(3) AS t(n) JOIN (VALUES (1), (2)) AS v(n) ON t.n = v.n
SELECT * FROM delta.`$store/runs` VERSION AS OF 0
DESCRIBE runs
DESCRIBE QUERY SELECT * FROM runs
DESCRIBE FUNCTION abs
DESCRIBE HISTORY delta.`$store/runs`
DESC DETAIL delta.`$store/runs`
SHOW SCHEMAS
SHOW COLUMNS IN runs
SHOW FUNCTIONS LIKE 'abs'
EXPLAIN SELECT * FROM runs
EXPLAIN DELETE FROM delta.`$store/runs`
"""

EXPLAINED = (
    "EXTENDED DELETE FROM delta.`$store/runs`",
    "INSERT OVERWRITE DIRECTORY '$store/x' USING parquet SELECT 1",
)
"""Nothing of it is carried out."""

CHANGING = """
DELETE FROM runs
DELETE FROM delta.`$store/runs`
/* SELECT */ delete from delta.`$store/runs` where true
WITH a AS (SELECT * FROM runs) INSERT INTO delta.`$store/runs` SELECT * FROM a
INSERT INTO delta.`$store/runs` SELECT * FROM runs
INSERT OVERWRITE delta.`$store/runs` SELECT * FROM runs LIMIT 0
INSERT INTO IDENTIFIER('delta.`$store/runs`') SELECT * FROM runs
INSERT OVERWRITE DIRECTORY '$store/x' USING parquet SELECT 1
FROM runs INSERT INTO delta.`$store/runs` SELECT * INSERT INTO delta.`$store/runs` SELECT *
MERGE INTO delta.`$store/runs` t USING runs s ON t.run_id = s.run_id WHEN MATCHED THEN DELETE
UPDATE delta.`$store/runs` SET status = 'x'
TRUNCATE TABLE delta.`$store/runs`
VACUUM delta.`$store/runs`
VACUUM '$store/runs' RETAIN 1000 HOURS
OPTIMIZE delta.`$store/runs`
REORG TABLE delta.`$store/runs` APPLY (PURGE)
RESTORE TABLE delta.`$store/runs` TO VERSION AS OF 0
CONVERT TO DELTA parquet.`$store/x`
GENERATE symlink_format_manifest FOR TABLE delta.`$store/runs`
CREATE TABLE copy USING delta LOCATION '$store/x' AS SELECT 1 AS one
CREATE OR REPLACE TEMPORARY VIEW runs AS SELECT 1
CREATE DATABASE other
CREATE TEMPORARY FUNCTION g() RETURNS INT RETURN 1
DROP TABLE delta.`$store/runs`
DROP VIEW runs
ALTER TABLE delta.`$store/runs` ADD COLUMN x INT
COMMENT ON TABLE delta.`$store/runs` IS 'x'
CACHE TABLE runs
CACHE LAZY TABLE x AS SELECT 1
CLEAR CACHE
REFRESH TABLE runs
ANALYZE TABLE delta.`$store/runs` COMPUTE STATISTICS
SET spark.sql.shuffle.partitions = 1
RESET
USE default
DECLARE x INT
CALL system.anything()
EXPLAIN CALL system.anything()
ADD JAR '$store/x.jar'
EXECUTE IMMEDIATE 'DELETE FROM delta.`$store/runs`'
EXPLAIN EXECUTE IMMEDIATE 'DELETE FROM delta.`$store/runs`'
BEGIN SELECT 1; DELETE FROM delta.`$store/runs`; END
SELECT TRANSFORM(run_id) USING 'tee $store/x' AS (a) FROM runs
SELECT (SELECT max(a) FROM (SELECT TRANSFORM(run_id) USING 'tee $store/x' AS (a) FROM runs))
WITH a AS (SELECT TRANSFORM(run_id) USING 'tee $store/x' AS (a) FROM runs) SELECT * FROM a
"""


def statements(table: str, store: Store) -> list[str]:
    return table.replace("$store", store.uri).strip().splitlines()


def test_what_reads_is_let_through(spark: SparkSession, filled: Store) -> None:
    for statement in statements(READING, filled):
        refuse_unless_reading(spark, statement)


@pytest.mark.parametrize(
    "query",
    [
        "WITH one AS (SELECT * FROM runs) SELECT count(*) FROM one",
        "DESCRIBE HISTORY delta.`$store/runs`",
        "SHOW COLUMNS IN runs",
    ],
)
def test_what_reads_is_answered(spark: SparkSession, filled: Store, query: str) -> None:
    assert len(run_query(spark, filled, query.replace("$store", filled.uri)))


def test_what_changes_anything_is_refused_and_changes_nothing(
    spark: SparkSession, filled: Store
) -> None:
    versions = {name: filled.version(name) for name in SCHEMAS}
    before = files_in(filled)
    settings = dict(spark.conf.getAll)
    for statement in statements(CHANGING, filled):
        with pytest.raises(ConfigurationError) as caught:
            run_query(spark, filled, statement)
        assert str(caught.value).startswith("SQL: only what reads is answered"), statement
        assert "\n" not in str(caught.value)
    with pytest.raises(ConfigurationError, match="Syntax error at or near 'DELETE'"):
        run_query(spark, filled, f"SELECT 1; DELETE FROM delta.`{filled.uri}/runs`")
    for explained in EXPLAINED:
        run_query(spark, filled, f"EXPLAIN {explained}".replace("$store", filled.uri))
    assert {name: filled.version(name) for name in SCHEMAS} == versions
    assert files_in(filled) == before
    assert dict(spark.conf.getAll) == settings


def files_in(store: Store) -> set[str]:
    """All but checksums that readers leave beside a table's log."""
    found = (str(path) for path in Path(store.uri).rglob("*") if path.is_file())
    return {path for path in found if not path.endswith(".crc")}


def test_a_store_on_s3_without_jars_for_it_is_refused_with_the_package(spark: SparkSession) -> None:
    with pytest.raises(StoreNotReady) as refused:
        run_query(spark, Store("s3://bucket/store"), "SELECT 1")
    said = str(refused.value)
    assert "Spark cannot read it: it has no jars for S3; add --packages" in said
    assert said.endswith(f"--packages {delta_set().hadoop_aws}")


def test_tables_and_views_are_known_to_a_catalog_by_the_printed_statements(
    spark: SparkSession, filled: Store
) -> None:
    beside = spark.newSession()
    try:
        for statement in registration(filled, "named"):
            beside.sql(statement)
        stored = filled.read("summary").num_rows
        assert stored
        assert beside.table("named.summary").count() == stored
        assert beside.table("named.latency_spec").columns == columns_of_the_view(spark, filled)
    finally:
        beside.sql("USE default")
        beside.sql("DROP SCHEMA IF EXISTS named CASCADE")
    assert filled.read("summary").num_rows == stored


def columns_of_the_view(spark: SparkSession, store: Store) -> list[str]:
    return run_query(spark, store, "SELECT * FROM latency_spec LIMIT 0").column_names


def test_delta_spark_registers_tables_and_views_in_the_catalog_of_the_session(
    spark: SparkSession, filled: Store, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ["tables", "register", "--schema", "by_delta", "--store", filled.uri]
    try:
        assert main([*command, "--execute"]) == 0
        assert capfd.readouterr().out == ""
        assert spark.table("by_delta.summary").count() == filled.read("summary").num_rows
        assert spark.table("by_delta.latency_spec").columns == columns_of_the_view(spark, filled)
        located = DeltaTable.forName(spark, "by_delta.events").detail().first()
        assert located is not None
        assert located["location"] == f"file:{filled.table_uri('events')}"
        assert main([*command, "--execute"]) == 0, "a second time changes nothing"
    finally:
        spark.sql("DROP SCHEMA IF EXISTS by_delta CASCADE")
    assert DeltaTable.isDeltaTable(spark, filled.table_uri("events"))


def test_the_history_of_a_table_is_that_of_its_log(
    spark: SparkSession, filled: Store, capfd: pytest.CaptureFixture[str]
) -> None:
    appended = filled.read("summary").num_rows
    capfd.readouterr()
    command = ["tables", "history", "summary", "--format", "json", "--store", filled.uri]
    assert main(command) == 0
    newest, *earlier = json.loads(capfd.readouterr().out)
    assert newest["version"] == filled.version("summary") == len(earlier)
    assert (newest["operation"], newest["rows_added"]) == ("WRITE", appended)
    assert newest["engine"].startswith("delta-rs:")
    assert earlier[-1]["operation"] == "CREATE TABLE"
    assert main(["tables", "history", "sumary", "--store", filled.uri]) == EXIT_CONFIGURATION
    assert "'sumary' is no table of a store; there are runs" in capfd.readouterr().err
