"""Rows for charts: which windows count, where they lie in time, and how long runs are thinned."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_spark.core.hdr import Histogram, shape_for
from bench_spark.report.charts import distribution_rows, known_decades, percentile_of
from bench_spark.report.timeline import (
    GENERATOR_COLUMNS,
    MOST_POINTS,
    RESOURCE_COLUMNS,
    WINDOW_COLUMNS,
    RunTimes,
    TimeSeries,
    newest_windows,
    thinned,
    timeline_of,
)
from bench_spark.store.arrow import EVENTS, METRICS, RESOURCES

ORIGIN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TIMES = RunTimes(ORIGIN, ORIGIN, ORIGIN + timedelta(seconds=10))
HIGHEST_US = 10_000_000


def at(second: float) -> datetime:
    return ORIGIN + timedelta(seconds=second)


def window(
    end: float, measure: str | None = "latency", batch: int = 0, **more: Any
) -> dict[str, Any]:
    return {
        "window": "rolling",
        "window_start": at(end - 10),
        "window_end": at(end),
        "measure": measure,
        "written_at": at(end + batch),
        "batch_id": batch,
        **more,
    }


def of_schema(rows: list[dict[str, Any]], schema: pa.Schema, columns: list[str]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=schema).select(columns)


def tables(
    windows: list[dict[str, Any]], resources: list[dict[str, Any]], events: list[dict[str, Any]]
) -> tuple[pa.Table, pa.Table, pa.Table]:
    return (
        of_schema(windows, METRICS, WINDOW_COLUMNS),
        of_schema(resources, RESOURCES, RESOURCE_COLUMNS),
        of_schema(events, EVENTS, GENERATOR_COLUMNS),
    )


def timeline(
    windows: list[dict[str, Any]],
    resources: list[dict[str, Any]] | None = None,
    events: list[dict[str, Any]] | None = None,
) -> TimeSeries:
    found = timeline_of(*tables(windows, resources or [], events or []), TIMES)
    assert found is not None
    return found


def test_a_window_counts_as_it_was_published_last() -> None:
    rows = [window(1, batch=2, p99_us=20), window(1, batch=1, p99_us=10), window(2, p99_us=30)]
    rows.append(window(1) | {"window": "interval"})
    table = pa.Table.from_pylist(rows, schema=METRICS)
    assert [row["p99_us"] for row in newest_windows(table)] == [20, 30]


def test_seconds_count_from_the_measured_phase() -> None:
    found = timeline(
        [
            window(-1, received_per_second=5.0),
            window(3, received_per_second=7.0, p50_us=9),
            window(3, "send_lag", received_per_second=7.0, p50_us=1),
            window(12, None, received_per_second=0.0),
        ]
    )
    throughput = [(row["second"], row["received_per_second"]) for row in found.throughput]
    assert throughput == [(-1.0, 5.0), (3.0, 7.0), (12.0, 0.0)]
    assert [row["p50_us"] for row in found.durations["latency"]] == [None, 9]
    assert [row["p50_us"] for row in found.durations["send_lag"]] == [1]
    assert (found.measured, found.span) == ((0.0, 10.0), (-1.0, 12.0))


def test_a_run_that_never_started_has_no_timeline() -> None:
    assert timeline_of(*tables([], [], []), RunTimes(ORIGIN)) is None


def test_resources_are_told_per_second_and_source() -> None:
    row = {"source": "node", "interval_seconds": 2.0, "written_bytes": 100, "rss_bytes": 5}
    cpu = {"cpu_user_share_of_machine": 0.2, "cpu_system_share_of_machine": 0.1}
    found = timeline(
        [],
        [
            {**row, **cpu, "at": at(2)},
            {**row, "at": at(1)},
            {"source": "node", "at": at(3), "interval_seconds": None},
            {"source": "silent", "at": at(1), "interval_seconds": 1.0},
        ],
    )
    assert list(found.broker) == ["node"]
    first, second = found.broker["node"]
    assert (first["second"], first["cpu"], first["written_per_second"]) == (1.0, None, 50.0)
    assert (second["cpu"], second["rss_bytes"]) == (pytest.approx(0.3), 5)
    assert second["device_written_per_second"] is None


def test_the_busiest_machine_stands_for_the_generator() -> None:
    events = [
        {"agent": agent, "tick_start": at(1), "host_busy_share": share}
        for agent, share in ((0, 0.3), (1, 0.9))
    ]
    assert timeline([], events=events).generator == [{"second": 1.0, "busy": 0.9}]


def test_a_long_run_is_thinned_to_its_worst_durations_and_its_mean_throughput() -> None:
    windows = [window(n, received_per_second=float(n), p99_us=n) for n in range(MOST_POINTS * 3)]
    found = timeline(windows)
    assert found.windows_per_point == 3
    assert len(found.throughput) == len(found.durations["latency"]) == MOST_POINTS
    assert found.throughput[0] == {
        **{"second": 2.0, "received_per_second": 1.0},
        "sent_per_second": None,
    }
    assert found.durations["latency"][-1]["p99_us"] == MOST_POINTS * 3 - 1


@given(st.lists(st.integers(0, 100), min_size=1), st.integers(1, 9))
def test_thinning_keeps_the_highest_value_and_the_last_moment(
    values: list[int], per_point: int
) -> None:
    rows = [{"second": place, "us": value} for place, value in enumerate(values)]
    found = thinned(rows, (), ("us",), per_point)
    assert max(row["us"] for row in found) == max(values)
    assert found[-1]["second"] == len(values) - 1


# -- the distribution ------------------------------------------------------------------------------


@pytest.mark.parametrize(("decades", "percentile"), [(0, 0), (1, 90), (2, 99), (4, 99.99)])
def test_a_decade_is_a_nine(decades: float, percentile: float) -> None:
    assert percentile_of(decades) == pytest.approx(percentile)


@pytest.mark.parametrize(("count", "decades"), [(0, 0), (1, 0), (100, 2), (10**4, 4), (10**9, 4)])
def test_few_messages_tell_fewer_nines(count: int, decades: float) -> None:
    assert known_decades(count) == pytest.approx(decades)


@given(st.lists(st.integers(0, 20_000_000), min_size=1, max_size=200))
def test_a_distribution_rises_and_has_the_percentiles_of_its_histogram(values: list[int]) -> None:
    histogram = Histogram(shape_for(HIGHEST_US))
    histogram.record_ns(np.array(values, dtype=np.int64) * 1000)
    sparse = histogram.sparse()
    rows = distribution_rows({"latency": sparse}, HIGHEST_US)
    found = [row["latency"] for row in rows]
    assert found == sorted(found)
    for row, decades in ((rows[0], 0.0), (rows[-1], known_decades(len(values)))):
        told = sparse.percentile(percentile_of(decades), HIGHEST_US)
        assert row["latency"] == told.value_us
    assert rows[0]["percentile"] == 0.0


def test_a_measure_with_fewer_messages_ends_before_the_others() -> None:
    many, few = (Histogram(shape_for(HIGHEST_US)) for _ in range(2))
    many.record_ns(np.arange(20_000) * 1000)
    few.record_ns(np.arange(100) * 1000)
    rows = distribution_rows({"many": many.sparse(), "few": few.sparse()}, HIGHEST_US)
    assert rows[-1]["decades"] == 4.0
    assert "few" not in rows[-1]
    assert max(row["decades"] for row in rows if "few" in row) == pytest.approx(2.0)
    assert distribution_rows({}, HIGHEST_US) == []
