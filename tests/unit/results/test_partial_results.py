"""The result so far of a run that is not over: from its events alone."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pytest

from bench_spark.agent.protocol import EventRow
from bench_spark.cli.options import duration_changes, parse_duration, refuse_other_end
from bench_spark.config.loader import load_scenario
from bench_spark.config.models import Scenario
from bench_spark.core.clock import NANOSECONDS
from bench_spark.core.hdr import Histogram, shape_for
from bench_spark.driver.committer import events_table
from bench_spark.errors import ConfigurationError
from bench_spark.plan import make_plan
from bench_spark.results.document import run_row
from bench_spark.spark.stored import shown_run
from bench_spark.store.delta import Store

START_NS = 1_700_000_000 * NANOSECONDS
SCENARIO = Scenario.model_validate(
    {
        "name": "soak",
        "load": {"rate_per_second": 100},
        "phases": {"warmup_seconds": 2, "measure_seconds": 8 * 3600},
    }
)


@pytest.fixture
def running(store: Store) -> Store:
    """A run whose driver was killed after three measured seconds."""
    plan = make_plan(SCENARIO, "soak-1")
    store.replace_run(run_row(plan, {"name": "here", "kind": "loopback"}, datetime.now(UTC)))
    latency = Histogram(shape_for(SCENARIO.histogram.highest_us))
    latency.record_ns(np.full(100, 5_000_000))
    rows = [
        EventRow(
            row_number=2 * tick + place,
            role=role,
            phase="warmup" if tick < 2 else "measure",
            tick=tick,
            tick_start_ns=START_NS + tick * NANOSECONDS,
            tick_seconds=1.0,
            counters={"sent": 100, "due": 100} if role == "producer" else {"received": 100},
            histograms={} if role == "producer" else {"latency": latency.sparse()},
        )
        for tick in range(5)
        for place, role in enumerate(("producer", "consumer"))
    ]
    store.append("events", events_table("soak-1", [(0, 0, row) for row in rows]))
    return store


def test_a_load_that_had_to_settle_counts_from_when_its_driver_began_to_measure(
    running: Store,
) -> None:
    scenario = Scenario.model_validate(SCENARIO.dump() | {"load": {"mode": "maximum"}})
    row = run_row(make_plan(scenario, "soak-1"), {"name": "here"}, datetime.now(UTC))
    running.replace_run(row)
    untold = shown_run(running, "soak-1").document
    assert untold["measured_seconds"] == 0
    running.replace_run(row | {"measured_from": datetime.fromtimestamp(1_700_000_002, UTC)})
    document = shown_run(running, "soak-1").document
    assert document["measured_seconds"] == 3
    assert document["counts"]["sent"] == 300


def test_a_run_that_was_killed_has_a_result_of_what_it_measured(running: Store) -> None:
    document = shown_run(running, "soak-1").document
    assert (document["status"], document["is_partial"], document["exit_code"]) == (
        "running",
        True,
        None,
    )
    assert document["measured_seconds"] == 3
    assert (document["counts"]["sent"], document["counts"]["received"]) == (300, 300)
    assert document["rates"]["send_rate"] == pytest.approx(100)
    assert document["measures"]["latency"]["count"] == 300
    assert document["percentiles"]["interval_max"]["latency"]["intervals"] == 3


def test_it_says_that_it_is_partial_and_claims_nothing_about_losses(running: Store) -> None:
    document = shown_run(running, "soak-1").document
    assert document["counts"]["lost"] is None
    assert document["expected"] == 300
    [check] = document["audit"]["checks"]
    assert (check["name"], check["verdict"]) == ("partial", "warn")
    assert "3 of 28800 s" in check["text"]


def test_a_run_without_any_event_has_nothing_to_show(store: Store) -> None:
    plan = make_plan(SCENARIO, "soak-2")
    store.replace_run(run_row(plan, {"name": "here", "kind": "loopback"}, datetime.now(UTC)))
    assert "counts" not in shown_run(store, "soak-2").document


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("15m", 900), ("8h", 28_800), ("1h30m", 5_400), ("1h1m1.5s", 3_661.5)],
)
def test_a_duration_is_hours_minutes_and_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds
    assert load_scenario("steady", duration_changes(text, [])).phases.measure_seconds == seconds


@pytest.mark.parametrize("text", ["", "8", "8 hours", "0s", "-1h", "1m1h", "1e3s"])
def test_any_other_duration_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"--duration: .*allowed: numbers with s, m or h"):
        parse_duration(text)


def test_a_duration_and_another_end_exclude_each_other() -> None:
    with pytest.raises(ConfigurationError, match="give one of them"):
        duration_changes("8h", ["phases.measure_seconds=3"])
    with pytest.raises(ConfigurationError, match=r"load\.messages ends"):
        refuse_other_end("8h", load_scenario("steady", ["load.messages=10"]))
