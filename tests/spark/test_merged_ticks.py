"""Ticks of a run, merged by Spark: exact, whatever was written twice and wherever it lies."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from realistic import Load, Row, events_table, recorded, timeline

from bench_spark.core.hdr import merge_sparse
from bench_spark.spark import merge
from bench_spark.spark.merge import TickRows, merged_ticks, ticks_and_unwritten
from bench_spark.store.delta import Store

TIMELINE = timeline(warmup_seconds=2, measure_seconds=4)


def assert_merged(spark: SparkSession, store: Store, run_id: str, rows: list[Row]) -> None:
    assert_same(list(merged_ticks(spark, store, run_id)), rows)


def assert_same(found: list[TickRows], rows: list[Row]) -> None:
    keys = [(tick.key.tick, tick.role, tick.phase) for tick in found]
    assert keys == sorted({(row.tick, row.role, row.phase) for row in rows})
    for tick in found:
        parts = [
            row
            for row in rows
            if (row.tick, row.role, row.phase) == (tick.key.tick, tick.role, tick.phase)
        ]
        counted = tick.counter("sent") + tick.counter("received")
        assert counted == sum(row.messages for row in parts)
        assert tick.cpu_seconds == pytest.approx(0.25 * len(parts))
        assert tick.tick_start_us == TIMELINE.tick_start_ns(tick.key.tick) // 1000
        assert set(tick.measures) == set(parts[0].values_us)
        for measure in tick.measures:
            assert tick.histogram(measure) == merge_sparse(
                [recorded(part.values_us[measure]).sparse() for part in parts]
            )


def test_rows_written_twice_count_once_in_one_file_or_in_two(
    spark: SparkSession, store: Store
) -> None:
    load = Load("twice", TIMELINE, values=3_000)
    ticks = [load.tick(range(3), tick) for tick in range(6)]
    split = [load.row(0, "consumer", 4)]
    rows = [row for tick in ticks for row in tick] + split
    for committed in (ticks[0] + ticks[0][:2], *ticks[1:], split, ticks[3][1:4] + ticks[5]):
        store.append("events", events_table(committed, TIMELINE))
    other = Load("other", TIMELINE, seed=9, values=100)
    store.append("events", events_table(other.tick(range(2), 1), TIMELINE))
    assert_merged(spark, store, "twice", rows)
    store.compact("events")
    assert_merged(spark, store, "twice", rows)


def test_rows_that_the_store_did_not_take_count_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it has some of them after all, and where it has later ticks of other agents."""
    monkeypatch.setattr(merge, "STRETCH_TICKS", 2)
    load = Load("unwritten", TIMELINE, values=50)
    ticks = [load.tick(range(3), tick) for tick in range(6)]
    late = [row for row in ticks[3] if row.agent == 2]
    in_time = [row for row in ticks[3] if row.agent != 2]
    stored = [row for tick in (*ticks[:3], in_time, ticks[5]) for row in tick]
    store.append("events", events_table(stored, TIMELINE))
    unwritten = events_table([*ticks[2], *late, *ticks[4]], TIMELINE)
    found = list(ticks_and_unwritten(store, "unwritten", unwritten))
    assert_same(found, [row for tick in ticks for row in tick])
    assert list(ticks_and_unwritten(store, "none", unwritten.slice(0, 0))) == []


def test_a_long_run_is_read_a_stretch_at_a_time(
    spark: SparkSession, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge, "TICKS_AT_ONCE", 4)
    load = Load("long", TIMELINE, values=50)
    rows = [row for tick in range(6) for row in load.tick(range(1), tick)]
    store.append("events", events_table(rows, TIMELINE))
    assert_merged(spark, store, "long", rows)


def test_a_run_id_is_a_value_and_never_a_piece_of_sql(spark: SparkSession, store: Store) -> None:
    load = Load("plain", TIMELINE, values=50)
    store.append("events", events_table(load.tick(range(1), 0), TIMELINE))
    assert list(merged_ticks(spark, store, "x' OR '1'='1")) == []
