"""A run's rows in `runs` and `summary`, as a store takes them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hand_ticks import interval_statistics
from hdrh.histogram import HdrHistogram

from bench_spark.config.models import Scenario
from bench_spark.core.hdr import Histogram, shape_for
from bench_spark.driver_process import RUNNING
from bench_spark.errors import LoginRefused
from bench_spark.plan import make_plan
from bench_spark.results.document import RunSummary, TrialOf, run_row, summary_rows
from bench_spark.results.totals import statistics
from bench_spark.store.arrow import SUMMARY
from bench_spark.store.delta import Store

HIGHEST_US = 10_000_000
PLAN = make_plan(Scenario.model_validate({"name": "steady", "tags": {"team": "red"}}), "run-1")
STARTED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def made_summary(status: str = "valid", exit_code: int = 0) -> RunSummary:
    recorded = Histogram(shape_for(HIGHEST_US))
    recorded.record_ns(np.arange(1, 1001, dtype=np.int64) * 1000)
    latency = recorded.sparse()
    worst, mean = interval_statistics([latency], HIGHEST_US)
    document: dict[str, Any] = {
        "status": status,
        "reasons": [] if status == "valid" else ["why"],
        "counts": {"sent": 1000, "confirmed": None},
        "rates": {"send_rate": 10.5},
        "expected": 1000,
        "delivery_rate": 1.0,
        "measures": {"latency": statistics(latency, HIGHEST_US)},
        "percentiles": {
            "run": {},
            "interval_max": {"latency": worst},
            "interval_mean": {"latency": mean},
        },
        "environment": {"cores": 2},
    }
    return RunSummary(document, exit_code, {"latency": latency})


def test_a_run_has_one_row_that_changes_from_running_to_its_result(tmp_path: Path) -> None:
    store = Store(tmp_path / "store").open()
    broker = {"name": "here", "kind": "amqp"}
    store.replace_run(run_row(PLAN, broker, STARTED))
    (running,) = store.read("runs", run_id="run-1").to_pylist()
    assert (running["status"], running["exit_code"], running["ended_at"]) == (RUNNING, None, None)
    assert (running["scenario"], running["broker"]) == ("steady", "here")
    store.replace_run(
        run_row(PLAN, broker, STARTED, summary=made_summary("degraded", 4), measured=(10.5, 20.25))
    )
    (ended,) = store.read("runs", run_id="run-1").to_pylist()
    assert (ended["status"], ended["exit_code"], ended["reasons"]) == ("degraded", 4, ["why"])
    assert ended["measured_until"] == datetime(1970, 1, 1, 0, 0, 20, 250_000, tzinfo=UTC)
    assert dict(ended["counts"]) == {"sent": 1000}
    assert dict(ended["rates"]) == {"send_rate": 10.5}
    assert dict(ended["tags"]) == {"team": "red"}
    assert json.loads(ended["result_json"])["expected"] == 1000
    assert json.loads(ended["scenario_json"])["name"] == "steady"
    assert ended["started_at"] == STARTED
    assert ended["ended_at"] is not None


def test_a_run_that_could_not_start_says_why() -> None:
    row = run_row(PLAN, {"name": "here"}, STARTED, failure=LoginRefused("no such user"))
    assert (row["status"], row["exit_code"], row["reasons"]) == ("failed", 3, ["no such user"])
    assert row["result_json"] is None


def test_a_trial_says_what_it_is_a_part_of(tmp_path: Path) -> None:
    store = Store(tmp_path / "store").open()
    trial = TrialOf("search-1", 3, {"load.in_flight": "100"})
    store.replace_run(run_row(PLAN, {"name": "here"}, STARTED, trial=trial))
    (row,) = store.read("runs", run_id="run-1").to_pylist()
    assert (row["suite"], row["trial"]) == ("search-1", 3)
    assert dict(row["parameters"]) == {"load.in_flight": "100"}


def test_the_summary_has_a_row_per_aggregation_and_measure() -> None:
    table = summary_rows(PLAN, made_summary())
    assert table.schema == SUMMARY
    rows = {row["aggregation"]: row for row in table.to_pylist()}
    assert rows.keys() == {"run", "interval_max", "interval_mean"}
    for row in rows.values():
        assert (row["run_id"], row["measure"]) == ("run-1", "latency")
        assert (row["p50_us"], row["p99_us"]) == (500.0, 990.0)
        assert (row["min_us"], row["max_us"], row["lower_bounds"]) == (1, 1000, [])
    assert (rows["run"]["count"], rows["run"]["overflow"]) == (1000, 0)
    assert rows["interval_max"]["count"] is None


def test_the_whole_histogram_can_be_read_by_other_tools() -> None:
    encoded = summary_rows(PLAN, made_summary())["hdr_encoded"].to_pylist()
    assert encoded[1:] == [None, None]
    decoded = HdrHistogram.decode(encoded[0])
    assert decoded.get_total_count() == 1000
    assert decoded.get_value_at_percentile(99.0) == 990


def test_a_measure_without_values_has_empty_rows() -> None:
    made = made_summary()
    nothing = Histogram(shape_for(HIGHEST_US)).sparse()
    worst, mean = interval_statistics([], HIGHEST_US)
    made.document["measures"] = {"latency": statistics(nothing, HIGHEST_US)}
    made.document["percentiles"] = {
        "interval_max": {"latency": worst},
        "interval_mean": {"latency": mean},
    }
    rows = summary_rows(PLAN, RunSummary(made.document, 0, {"latency": nothing})).to_pylist()
    assert [row["p50_us"] for row in rows] == [None, None, None]
    assert pytest.approx(0) == rows[0]["count"]
