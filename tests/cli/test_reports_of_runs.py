"""Reports of real runs: made by the commands, and every number answered again by SQL."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from views_in_memory import views_in_memory

from bench_spark.cli import main
from bench_spark.report.queries import queries_of_run, queries_of_suite
from bench_spark.spark.sql import create_views
from bench_spark.store.delta import Store
from bench_spark.store.schema import PERCENTILES

LOAD = (
    *("--set", "load.rate_per_second=2000", "--set", "phases.warmup_seconds=0.5"),
    *("--set", "phases.measure_seconds=2", "--set", "agents=2", "--set", "producers=2"),
    *("--set", "consumers=2", "--set", "destinations=2"),
)
SUITE = """
name: grid
base:
  phases: {warmup_seconds: 0.1, measure_seconds: 0.6, drain_seconds: 2}
axes:
  load.rate_per_second: [200, 400]
report:
  columns: [{value: receive_rate}, {value: latency.p99}]
"""


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory, spark: Any) -> Path:
    """A directory with a store of two runs and a suite, and the files that the first run wrote."""
    directory = tmp_path_factory.mktemp("reports")
    store = ("--store", str(directory / "store"))
    (directory / "grid.yaml").write_text(SUITE)
    written = [f"--format={name}={directory / f'run.{name}'}" for name in ("html", "parquet")]
    run = ("run", "steady", "--broker", "loopback", *LOAD, *store)
    # 4: a busy machine may not keep the rate, and the run says so; it is complete all the same.
    assert main([*run, "--run-id", "first", *written]) in (0, 4)
    assert main([*run, "--run-id", "second", "--no-live"]) in (0, 4)
    suite = ("suite", "run", str(directory / "grid.yaml"), "--broker", "loopback", "--no-live")
    assert main([*suite, *store]) in (0, 4)
    return directory


def document_of(reports: Path, run_id: str) -> dict[str, Any]:
    [row] = Store(reports / "store").read("runs", run_id=run_id).to_pylist()
    document: dict[str, Any] = json.loads(row["result_json"])
    return document


@pytest.fixture(scope="module")
def answers(reports: Path, spark: Any) -> dict[str, list[dict[str, Any]]]:
    """Rows of every query of the first run's report, by its title."""
    with views_in_memory(spark, Store(reports / "store")):
        queries = queries_of_run(document_of(reports, "first"))
        return {
            query.title: [row.asDict() for row in spark.sql(query.sql).collect()]
            for query in queries
        }


@pytest.mark.slow
def test_every_number_of_a_report_is_answered_by_its_query(
    reports: Path, answers: dict[str, list[dict[str, Any]]]
) -> None:
    document = document_of(reports, "first")
    asked: set[str] = set()
    for query in queries_of_run(document):
        rows = answers[query.title]
        asked |= query.answer.keys()
        if query.answer:
            [row] = rows
            wrong = {
                name: (row[name], value)
                for name, value in query.answer.items()
                if row[name] != pytest.approx(value, rel=1e-6)
            }
            assert (query.title, wrong) == (query.title, {})
        else:
            assert rows or "resources" in query.sql, query.title
    known = {name for name, value in document["counts"].items() if value is not None}
    assert known <= asked


@pytest.mark.slow
def test_no_percentile_of_any_row_is_above_its_maximum(reports: Path, spark: Any) -> None:
    above = " OR ".join(f"{name} > max_us" for name, _ in PERCENTILES)
    with views_in_memory(spark, Store(reports / "store")):
        for table in ("summary", "metrics"):
            found = spark.sql(
                f"SELECT count(*) AS rows, count_if({above}) AS above FROM {table} "
                "WHERE max_us IS NOT NULL"
            ).collect()[0]
            assert found["rows"] > 0, table
            assert found["above"] == 0, table


@pytest.mark.slow
def test_the_view_of_the_specification_says_what_the_document_says(
    reports: Path, spark: Any
) -> None:
    document = document_of(reports, "first")
    with views_in_memory(spark, Store(reports / "store")):
        [row] = spark.sql("SELECT * FROM latency_spec WHERE run_id = 'first'").collect()
    for name, value in document["spec"].items():
        assert row[name] == (None if value is None else pytest.approx(value, rel=1e-9)), name
    seconds = document["measured_seconds"]
    assert row["send_rate"] == pytest.approx(document["counts"]["sent"] / seconds)
    assert document["rates"]["send_rate"] <= 2000


@pytest.mark.slow
def test_agents_are_answered_by_their_query(
    reports: Path, answers: dict[str, list[dict[str, Any]]]
) -> None:
    document = document_of(reports, "first")
    rows = {row["agent"]: row for row in answers["Agents"]}
    for agent in document["agents"]:
        row = rows[agent["agent"]]
        assert (row["sent"], row["received_once"]) == (agent["sent"], agent["received_once"])


@pytest.mark.slow
def test_the_page_of_a_run_is_written_with_the_run(reports: Path) -> None:
    text = (reports / "run.html").read_text()
    charts = json.loads(text.split('id="charts">')[1].split("</script>")[0])
    descriptions = [chart["description"].split(":")[0] for chart in charts.values()]
    assert descriptions == [
        *("Throughput over time", "Latency over time", "Delivery latency over time"),
        *("CPU over time", "Durations by percentile"),
    ]
    assert "SELECT" in text


@pytest.mark.slow
def test_a_stored_run_is_shown_as_the_same_page(reports: Path) -> None:
    again = reports / "again.html"
    store = str(reports / "store")
    assert main(["show", "first", "--store", store, f"--format=html={again}"]) == 0
    assert again.read_text() == (reports / "run.html").read_text()


@pytest.mark.slow
def test_parquet_has_a_row_per_aggregation_and_measure(reports: Path) -> None:
    rows = pq.read_table(reports / "run.parquet").to_pylist()
    document = document_of(reports, "first")
    assert len(rows) == 3 * len(document["measures"])
    [latency] = [row for row in rows if (row["aggregation"], row["measure"]) == ("run", "latency")]
    assert latency["p99_us"] == document["measures"]["latency"]["p99_us"]
    assert latency["sent"] == document["counts"]["sent"]


@pytest.mark.slow
def test_a_suite_is_reported_as_page_table_and_figures(
    reports: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    page, figures = reports / "suite.html", reports / "new" / "figures"
    report = ("suite", "report", str(reports / "grid.yaml"), "--broker", "loopback")
    store = ("--store", str(reports / "store"))
    formats = ("--format", "csv", f"--format=html={page}", "--figures", str(figures))
    assert main([*report, *store, *formats]) == 0
    assert capfd.readouterr().out.startswith("load.rate_per_second,status")
    assert "<svg" not in page.read_text()[:2000]
    assert "machine: " in page.read_text()
    assert "What the audits of the trials warn of" in page.read_text(), "so short a warm-up"
    assert sorted(path.name for path in figures.iterdir()) == [
        f"{name}{ending}"
        for name in ("latency_p99_us", "receive_rate", "send_rate")
        for ending in (".png", ".svg")
    ]


@pytest.mark.slow
def test_queries_of_a_suite_answer_its_trials(reports: Path, spark: Any) -> None:
    create_views(spark, Store(reports / "store"))
    trials, statistics = queries_of_suite("grid", "loopback")
    assert spark.sql(trials.sql).count() == 2
    assert spark.sql(statistics.sql).count() >= 2 * 3


@pytest.mark.slow
def test_runs_are_compared_and_gates_decide_the_exit_code(
    reports: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # A busy machine may not keep the rate of so short a run.
    command = ("compare", "first", "second", "--store", str(reports / "store"), "--degraded")
    assert main([*command, "--fail-if", "lost > 0"]) == 0
    assert "second against first" in capfd.readouterr().out
    page = reports / "compared.html"
    gate = ("--fail-if", "receive_rate > 1", "--format", "json", f"--format=html={page}")
    assert main([*command, *gate]) == 1
    document = json.loads(capfd.readouterr().out)
    assert (document["passed"], document["gates"][0]["missed"]) == (False, True)
    by_name = {entry["metric"]: entry for entry in document["comparisons"][0]["metrics"]}
    p99 = document_of(reports, "second")["measures"]["latency"]["p99_us"]
    assert by_name["latency.p99"]["candidate"]["value"] == p99
    assert "gate missed" in page.read_text()


@pytest.mark.slow
def test_runs_of_other_loads_are_not_comparable_unless_that_is_asked_for(
    reports: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    [trial] = Store(reports / "store").read("runs", suite="grid", trial=1).to_pylist()
    command = ("compare", "first", trial["run_id"], "--store", str(reports / "store"))
    assert main([*command]) == 0, "nothing was asked of them"
    assert "NOT COMPARABLE  the runs differ in what was asked: " in capfd.readouterr().out
    gate = ("--fail-if", "receive_rate > 99x", "--format", "json")
    assert main([*command, *gate]) == 1
    document = json.loads(capfd.readouterr().out)
    [comparison] = document["comparisons"]
    assert {"load.rate_per_second", "producers"} <= comparison["differs_in"].keys()
    assert {entry["verdict"] for entry in comparison["metrics"]} == {"not comparable"}
    assert document["gates"][0]["reason"].startswith("not comparable: what was asked differs in ")
    assert main([*command, *gate, "--across", "--degraded"]) == 0
    [comparison] = json.loads(capfd.readouterr().out)["comparisons"]
    by_name = {entry["metric"]: entry for entry in comparison["metrics"]}
    assert by_name["latency.p99"]["verdict"] == "cannot tell"
    assert by_name["latency.p99"]["reason"] == "a run under 10 s has no interval"


@pytest.mark.slow
def test_a_suite_is_compared_with_itself_in_another_store(
    reports: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ("suite", "compare", str(reports / "grid.yaml"), "--broker", "loopback")
    stores = ("--store", str(reports / "store"), "--baseline-store", str(reports / "store"))
    assert main([*command, *stores, "--fail-if", "lost > 0", "--degraded"]) == 0
    said = capfd.readouterr().out
    assert "load.rate_per_second 400" in said
    assert "delivery latency p99" in said
    assert "cannot tell: a run under 10 s has no interval" in " ".join(said.split())
    assert "machine of the candidate: " in said
    assert "passed" in said
