"""Ticks of a run, merged over all agents: the batch read of `events` behind every result.

Merging happens on the executors (`merge.py`); the driver unites one row per partition and tick.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from bench_spark.agent.timeline import PHASES
from bench_spark.spark.merge import (
    TICK_ROWS,
    TickRows,
    merge_event_batches,
    merge_event_files,
    named_files,
    read_tick_rows,
    unite,
)
from bench_spark.spark.sql import arrow_table, read_table
from bench_spark.store.delta import Store
from bench_spark.store.schema import MERGED_COLUMNS

TICKS_AT_ONCE = 600
"""Ticks united in the driver at a time: some 100 kB per role, whatever the number of agents."""

STRETCH_TICKS = 60
"""Ticks merged in this process at a time: some 100 kB for each agent and role."""

TICK_ROWS_TYPE: StructType = from_arrow_schema(TICK_ROWS)


def merge_on_executors(events: DataFrame) -> DataFrame:
    """Rows of `events` as rows of `TICK_ROWS`, one per partition and key; batch or streaming."""
    return events.select(*MERGED_COLUMNS).mapInArrow(merge_event_batches, TICK_ROWS_TYPE)


def merge_files_on_executors(events: DataFrame) -> DataFrame:
    """The same for tables in a directory that executors share, at a fraction of the cost."""
    return named_files(events).mapInArrow(merge_event_files, TICK_ROWS_TYPE)


def merged_ticks_here(store: Store, run_id: str) -> list[TickRows]:
    """`merged_ticks` in this process: for a small run that is done before Spark has planned it."""
    return _merged_here(store.read("events", columns=MERGED_COLUMNS, run_id=run_id))


def ticks_here(
    store: Store, run_id: str, last: int, unwritten: pa.Table | None = None
) -> Iterator[TickRows]:
    """The same up to a tick, a stretch at a time: for a run of any length, without Spark.

    `unwritten`: rows that the store may not have; those that it has after all count once.
    """
    for begin in range(0, last + 1, STRETCH_TICKS):
        end = min(begin + STRETCH_TICKS - 1, last)
        stretch = ("tick", begin, end)
        events = store.read("events", columns=MERGED_COLUMNS, between=stretch, run_id=run_id)
        if unwritten is not None:
            ticks = unwritten["tick"]
            is_in = pc.and_(pc.greater_equal(ticks, begin), pc.less_equal(ticks, end))
            events = pa.concat_tables([events, unwritten.filter(is_in).select(MERGED_COLUMNS)])
        yield from _merged_here(events)


def ticks_and_unwritten(store: Store, run_id: str, unwritten: pa.Table) -> Iterator[TickRows]:
    """Every tick of a run whose store has not taken all of its rows."""
    stored = store.read("events", columns=["tick"], run_id=run_id)["tick"]
    last = max([*stored.to_pylist(), *unwritten["tick"].to_pylist()], default=-1)
    return ticks_here(store, run_id, last, unwritten)


def _merged_here(events: pa.Table) -> list[TickRows]:
    counted = events.filter(pc.is_in(events["phase"], pa.array(PHASES)))
    ticks = list(
        chain.from_iterable(
            read_tick_rows(pa.Table.from_batches([batch]))
            for batch in merge_event_batches(iter(counted.combine_chunks().to_batches()))
        )
    )
    return sorted(ticks, key=_in_order_of_time)


def merged_ticks(spark: SparkSession, store: Store, run_id: str) -> Iterator[TickRows]:
    """Every (role, phase, tick) of a run, merged exactly, in order of time.

    Reads a stretch of the run at a time, so that a soak of days needs no more memory than ten
    minutes of it: consume it as it comes.
    """
    # One narrow column, without a JVM: as a Spark job this would take longer than the merging.
    ticks = store.read("events", columns=["tick"], run_id=run_id)["tick"]
    bounds = pc.min_max(ticks)
    if not len(ticks):
        return
    first, last = max(0, bounds["min"].as_py()), bounds["max"].as_py()
    for begin in range(first, last + 1, TICKS_AT_ONCE):
        yield from ticks_between(spark, store, run_id, begin, min(begin + TICKS_AT_ONCE - 1, last))


def ticks_between(
    spark: SparkSession, store: Store, run_id: str, first: int, last: int
) -> list[TickRows]:
    """The merged rows of the ticks `first` to `last`, both included."""
    events = events_of(spark, store, run_id).where(f.col("tick").between(first, last))
    united = unite(read_tick_rows(arrow_table(merge_on_executors(events))))
    if united is None:
        # Some row is in two partitions. Bringing each tick's rows together lets the merge drop the
        # copies; that moves every bucket through a shuffle, so it is not the usual way.
        together = merge_on_executors(events.repartition("tick"))
        united = unite(read_tick_rows(arrow_table(together)))
        assert united is not None, "a tick's rows are in one partition"
    return sorted(united.values(), key=_in_order_of_time)


def events_of(spark: SparkSession, store: Store, run_id: str) -> DataFrame:
    """The rows that count: without the one that only wakes the rolling metrics."""
    events = read_table(spark, store, "events")
    return events.where((f.col("run_id") == run_id) & f.col("phase").isin(*PHASES))


def _in_order_of_time(ticks: TickRows) -> tuple[int, str, str]:
    return ticks.key.tick, ticks.role, ticks.phase
