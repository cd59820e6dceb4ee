"""The metrics once more in SQL: the same rows as the rolling metrics, column by column."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession
from realistic import HIGHEST_US, Load, Row, events_table

from bench_spark.agent.timeline import Timeline
from bench_spark.config.models import Scenario
from bench_spark.core.clock import NANOSECONDS
from bench_spark.errors import ConfigurationError, StoreError
from bench_spark.spark.metrics import RollingMetrics
from bench_spark.spark.rebuild import rebuild_metrics, windows_of_run
from bench_spark.spark.windows import RunWindows
from bench_spark.store.delta import Store
from bench_spark.store.schema import PERCENTILES

SCENARIO = Scenario.model_validate(
    {
        "phases": {"warmup_seconds": 1.5, "measure_seconds": 3, "drain_seconds": 2},
        "interval_seconds": 2,
    }
)
TIMELINE = Timeline(
    start_ns=1_700_000_000_123_456_000,
    warmup_ns=3 * NANOSECONDS // 2,
    measure_ns=3 * NANOSECONDS,
    drain_ns=2 * NANOSECONDS,
)
STAMPS = {"query_id", "batch_id", "written_at"}


def remember_run(store: Store, run_id: str) -> None:
    store.replace_run({"run_id": run_id, "scenario_json": json.dumps(SCENARIO.dump())})


def with_overflow(row: Row) -> Row:
    """As if the broker had stood still: more than one in a hundred values above the range."""
    values = {
        measure: np.concatenate([values_us[:100], np.full(90, 4 * HIGHEST_US)])
        for measure, values_us in row.values_us.items()
    }
    return replace(row, values_us=values)


def newest(rows: list[dict[str, Any]]) -> dict[tuple[Any, ...], dict[str, Any]]:
    ordered = sorted(rows, key=lambda row: row["written_at"])
    return {
        (row["window"], row["window_start"], row["window_end"], row["measure"]): {
            name: value for name, value in row.items() if name not in STAMPS
        }
        for row in ordered
    }


def test_sql_and_the_rolling_metrics_agree_in_every_column(
    spark: SparkSession, store: Store
) -> None:
    load = Load("agree", TIMELINE, values=3_000)
    remember_run(store, "agree")
    # Tick 1 is half a second, tick 3 has no rows, tick 5 is the drain.
    ticks = [load.tick(range(2), tick) for tick in (0, 1, 2, 4, 5)]
    ticks[3] = [with_overflow(row) for row in ticks[3]]
    late = [load.row(0, "consumer", 2, phase="warmup")]
    for rows in (*ticks, late, ticks[2][:2]):
        store.append("events", events_table(rows, TIMELINE))
    metrics = RollingMetrics(spark, store)
    metrics.register_run(windows_of_run(store, "agree"))
    metrics.run_once()
    metrics.close()
    streamed = newest(store.read("metrics", run_id="agree").to_pylist())

    rebuilt = rebuild_metrics(spark, store, "agree")
    assert newest(rebuilt.to_pylist()) == streamed
    assert len(rebuilt) == len(streamed)
    assert any(row["overflow"] for row in streamed.values())
    above_max = [
        row
        for row in streamed.values()
        if row["measure"] and max(row[name] for name, _ in PERCENTILES) > row["max_us"]
    ]
    assert above_max == []
    assert {row["window_seconds"] for row in streamed.values()} >= {1.5, 2.0, 1.0}

    stored = store.read("metrics", run_id="agree").to_pylist()
    assert newest(stored) == streamed
    assert sum(row["query_id"].startswith("rebuild-") for row in stored) == len(rebuilt)


def test_sql_and_the_rolling_metrics_agree_on_a_phase_that_ended_early(
    spark: SparkSession, store: Store
) -> None:
    """After 2.3 of 3 s, in intervals of 2: there is one, with the rest and the drain."""
    load = Load("cut", TIMELINE, values=300)
    until_ns = TIMELINE.measure_start_ns + 23 * NANOSECONDS // 10
    store.replace_run(
        {
            "run_id": "cut",
            "scenario_json": json.dumps(SCENARIO.dump()),
            "measured_until": until_ns // 1000,
        }
    )
    for tick in range(6):
        store.append("events", events_table(load.tick(range(2), tick), TIMELINE))
    metrics = RollingMetrics(spark, store)
    metrics.register_run(RunWindows("cut", TIMELINE, 2, HIGHEST_US))
    metrics.end_measuring("cut", until_ns)
    metrics.run_once()
    metrics.close()
    streamed = newest(store.read("metrics", run_id="cut").to_pylist())
    assert newest(rebuild_metrics(spark, store, "cut").to_pylist()) == streamed
    intervals = [key for key in streamed if key[0] == "interval" and key[3] == "latency"]
    assert len(intervals) == 1


def test_the_windows_of_a_stored_run_are_those_it_was_run_with(store: Store) -> None:
    load = Load("stored", TIMELINE, values=10)
    remember_run(store, "stored")
    store.append("events", events_table(load.tick(range(1), 3), TIMELINE))
    assert windows_of_run(store, "stored").timeline == TIMELINE


@pytest.mark.parametrize("seen_tick", [1, 4], ids=["in the warm-up", "measured"])
def test_the_windows_of_a_load_that_had_to_settle_begin_where_it_did(
    store: Store, seen_tick: int
) -> None:
    dumped = SCENARIO.dump() | {"load": {"mode": "maximum"}}
    timeline = Timeline(TIMELINE.start_ns, 2_716 * 10**6, TIMELINE.measure_ns, TIMELINE.drain_ns)
    load = Load("settled", timeline, values=10)
    # As `runs` has it: rounded to microseconds, which ticks are not.
    measured_from = datetime.fromtimestamp(timeline.measure_start_ns / 1e9, UTC)
    row = {"run_id": "settled", "scenario_json": json.dumps(dumped)}
    store.replace_run(row | {"measured_from": measured_from})
    store.append("events", events_table(load.tick(range(1), seen_tick), timeline))
    found = windows_of_run(store, "settled").timeline
    exact_us = timeline.measure_start_ns // 1000
    assert found.measure_start_ns // 1000 == exact_us
    assert found.tick_start_ns(4) // 1000 == timeline.tick_start_ns(4) // 1000


def test_a_run_that_is_not_there_or_has_no_events_cannot_be_rebuilt(
    spark: SparkSession, store: Store
) -> None:
    with pytest.raises(ConfigurationError, match="no run 'ghost'"):
        rebuild_metrics(spark, store, "ghost")
    remember_run(store, "silent")
    with pytest.raises(StoreError, match="silent has no events"):
        rebuild_metrics(spark, store, "silent")
