"""Tables and views by name, and what a user sees of a mistake."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from delta import DeltaTable
from pyspark.sql import SparkSession
from views_in_memory import views_in_memory

from bench_spark.cli import main
from bench_spark.errors import EXIT_CONFIGURATION, ConfigurationError, StoreNotReady
from bench_spark.jars import delta_set
from bench_spark.spark.sql import (
    create_views,
    refuse_unless_reading,
    registration,
    require_readable,
    run_query,
    view_statements,
)
from bench_spark.store.arrow import METRICS, RESOURCES, SCHEMAS, SUMMARY
from bench_spark.store.delta import Store
from bench_spark.store.schema import PERCENTILES

STARTED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def summary(aggregation: str, measure: str, **values: float) -> dict[str, Any]:
    return {"run_id": "r1", "aggregation": aggregation, "measure": measure} | values


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


def resource(
    source: str, host: str, second: int, user: float | None, written: int | None, **values: Any
) -> dict[str, Any]:
    return {
        "run_id": "r1",
        "at": STARTED + timedelta(seconds=second),
        "source": source,
        "host": host,
        "phase": "measure",
        "interval_seconds": 1.0,
        "cpu_user_share_of_machine": user,
        "device_written_bytes": written,
    } | values


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store with run `r1`, and `old`, whose percentiles are above their maximum."""
    store = Store(tmp_path_factory.mktemp("sql") / "store").open()
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
    store.replace_run({"run_id": "old", "started_at": STARTED, "scenario_json": "{}"})
    above = dict.fromkeys((name for name, _ in PERCENTILES), 11_403_263) | {"max_us": 11_396_122}
    rows = [
        summary("run", "latency", min_us=1, max_us=90, mean_us=5.0, p50_us=4, p99_us=80),
        summary("interval_max", "latency", p75_us=70, p95_us=80, p99_us=90),
        summary("interval_mean", "latency", min_us=2, mean_us=6.0, p95_us=60.5, p99_us=70.5),
        summary("interval_mean", "confirm_latency", mean_us=3.5, p99_us=9.0),
        *(
            summary(aggregation, "latency", **above) | {"run_id": "old"}
            for aggregation in ("run", "interval_max", "interval_mean")
        ),
    ]
    store.append("summary", pa.Table.from_pylist(rows, schema=SUMMARY))
    windows = [
        metric(1, second=0, p99_us=10),
        metric(2, second=0, p99_us=20),
        metric(2, second=1, p99_us=30),
        metric(3, second=1, window="rolling", p99_us=40),
        metric(4, second=11, p99_us=50),
        metric(5, second=2, measure=None),
        metric(1, second=0, **above) | {"run_id": "old"},
    ]
    store.append("metrics", pa.Table.from_pylist(windows, schema=METRICS))
    used = [
        resource("node", "a", 0, 1.0, 9_000_000, phase="warmup"),
        resource("node", "a", 1, 0.2, 3_000_000),
        resource("node", "a", 2, 0.4, 1_000_000),
        # The same machine once more, seen by another source that was read more rarely.
        resource("process", "a", 2, 0.1, 2_000_000, interval_seconds=2.0),
        resource("node", "b", 1, 0.5, 500_000),
        # A reading that failed weighs nothing.
        resource("node", "b", 2, None, None, problem="unreachable"),
    ]
    store.append("resources", pa.Table.from_pylist(used, schema=RESOURCES))
    return store


Ask = Callable[[str], list[dict[str, Any]]]


@pytest.fixture
def ask(spark: SparkSession, filled: Store) -> Iterator[Ask]:
    """Answers queries in rows, of tables that are read once."""
    with views_in_memory(spark, filled):
        yield lambda query: [row.asDict() for row in spark.sql(query).collect()]


def test_every_table_and_view_answers_by_name(spark: SparkSession, filled: Store) -> None:
    create_views(spark, filled)
    for name in SCHEMAS:
        assert spark.table(name).columns == SCHEMAS[name].names
    assert len(view_statements()) == 7


def test_latency_spec_has_the_fields_of_the_specification(
    spark: SparkSession, filled: Store
) -> None:
    query = "SELECT * FROM latency_spec WHERE run_id = 'r1'"
    [row] = run_query(spark, filled, query).to_pylist()
    names = """latency_min_us latency_max_us latency_mean_us latency_p50_us latency_p95_us
        latency_p99_us latency_p999_us messages_sent messages_received messages_acked bytes_sent
        bytes_received errors send_rate receive_rate delivery_rate"""
    assert set(names.split()) <= set(row)
    assert row["latency_p99_us"] == 80
    assert row["messages_sent"] == 100
    assert row["messages_acked"] is None
    assert row["delivery_rate"] == 0.99
    assert (row["sent_per_second"], row["received_per_second"]) == (10.0, 9.9)
    assert (row["send_rate"], row["receive_rate"]) == (100 / 8, 99 / 8)


def test_views_answer_from_their_own_aggregation_and_the_newest_publication(ask: Ask) -> None:
    """And show no percentile above the maximum, which rows that were written before have."""
    columns = "rate_per_second, max_p99_us, max_p95_us, max_p75_us"
    assert ask(f"SELECT {columns} FROM latency_by_rate WHERE run_id = 'r1'") == [
        {"rate_per_second": 10.0, "max_p99_us": 90.0, "max_p95_us": 80.0, "max_p75_us": 70.0}
    ]
    means = ask("SELECT * FROM interval_means WHERE run_id = 'r1'")
    expected = {
        **{"queue": 3, "avg_us": 6.0, "p95_us": 60.5, "confirm_avg_us": 3.5, "confirm_p99_us": 9.0},
        # What the run cost its broker.
        **{"disk_mb": 4.5, "handed_mb": None, "cpu_system_percent": None},
        "cpu_user_percent": pytest.approx(100 * (0.3 + 0.5) / 2),
    }
    assert [{name: row[name] for name in expected} for row in means] == [expected]
    latest = ask("SELECT p99_us FROM metrics_latest WHERE run_id = 'r1' ORDER BY batch_id, 1")
    assert [row["p99_us"] for row in latest] == [20, 30, 40, 50, None]
    by_interval = ask(
        "SELECT p99_us FROM latency_by_interval WHERE run_id = 'r1' ORDER BY interval_start"
    )
    assert [row["p99_us"] for row in by_interval] == [20, 30]
    names = ", ".join(name for name, _ in PERCENTILES)
    for query in (
        f"SELECT {names} FROM metrics_latest",
        f"SELECT {names} FROM latency_by_interval",
        "SELECT latency_p50_us, latency_p95_us, latency_p99_us, latency_p999_us FROM latency_spec",
        "SELECT max_p99_us, max_p95_us, max_p75_us FROM latency_by_rate",
        "SELECT p95_us, p99_us FROM interval_means",
    ):
        [row] = ask(f"{query} WHERE run_id = 'old'")
        assert set(row.values()) == {11_396_122}, query


MISTAKES = {
    "SELEC 1": "Syntax error at or near 'SELEC'",
    "SELECT p98_us FROM summary": "`p98_us` cannot be resolved",
    "SELECT * FROM run": "The table or view `run` cannot be found",
    "SELECT 1 / (count(*) - 2) FROM runs": "Division by zero",
}


def test_a_mistake_in_a_query_is_told_in_one_line_without_java(
    spark: SparkSession, filled: Store, capfd: pytest.CaptureFixture[str]
) -> None:
    for query, said in MISTAKES.items():
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
SELECT reflect('java.lang.System', 'getProperty', 'user.dir')
EXPLAIN SELECT reflect('java.lang.System', 'getProperty', 'user.dir')
SELECT 1 FROM runs WHERE run_id = upper(`JAVA_METHOD`('java.lang.System', 'lineSeparator'))
SELECT (SELECT max(system.builtin.try_reflect('java.lang.System', 'gc')) FROM runs)
SELECT IDENTIFIER('reflect')('java.lang.System', 'getProperty', 'user.dir')
SELECT TRANSFORM(run_id) USING 'tee $store/x' AS (a) FROM runs
SELECT (SELECT max(a) FROM (SELECT TRANSFORM(run_id) USING 'tee $store/x' AS (a) FROM runs))
WITH a AS (SELECT TRANSFORM(run_id) USING 'tee $store/x' AS (a) FROM runs) SELECT * FROM a
"""


def statements(table: str, store: Store) -> list[str]:
    return table.replace("$store", store.uri).strip().splitlines()


def test_what_reads_is_let_through(spark: SparkSession, filled: Store) -> None:
    for statement in statements(READING, filled):
        refuse_unless_reading(spark, statement)


def test_what_reads_is_answered(spark: SparkSession, filled: Store) -> None:
    for query in (
        "WITH one AS (SELECT * FROM runs) SELECT count(*) FROM one",
        f"DESCRIBE HISTORY delta.`{filled.uri}/runs`",
        "SHOW COLUMNS IN runs",
    ):
        assert len(run_query(spark, filled, query)), query


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
        require_readable(spark, Store("s3://bucket/store"))
    said = str(refused.value)
    assert "Spark cannot read it: its class path has no jars for S3; add --packages" in said
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
