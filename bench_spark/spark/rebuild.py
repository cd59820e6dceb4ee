"""Metrics of a run computed from `events` in plain SQL: `bench-spark metrics rebuild RUN`.

The same windows, sums and ranks as the rolling metrics, written a second time in another language:
buckets are exploded, summed and ranked by window functions. It costs seconds of CPU for every
second of a run, so it is for a run whose rolling metrics are missing, and for the tests, where it
has to agree with them row by row.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from bench_spark.config.models import stored_scenario
from bench_spark.errors import ConfigurationError, StoreError
from bench_spark.results.document import timeline_at
from bench_spark.spark.merge import events_of
from bench_spark.spark.sql import arrow_table
from bench_spark.spark.windows import INTERVAL, ROLLING, RunWindows, Window, early_end_ns
from bench_spark.store.arrow import METRICS
from bench_spark.store.delta import Store
from bench_spark.store.schema import PERCENTILES

_PERCENTILE_COLUMNS = ",\n    ".join(
    # HdrHistogram's rank rule: the first bucket that the rank reaches.
    f"""min(CASE WHEN reached >= greatest(1, floor({percentile}D * count / 100D + 0.5D))
             THEN value_us END) AS {name}"""
    for name, percentile in PERCENTILES
)
_PERCENTILES_OR_BOUND = ",\n    ".join(
    # A rank beyond the last bucket lies in the overflow; no percentile exceeds the true maximum.
    f"least(coalesce({name}, greatest(highest_us, last_value_us), min_us), max_us) AS {name}"
    for name, _ in PERCENTILES
)

# {events}: the rows of the run, each once. {windows}: every window by number. {ticks}: which ticks
# are in which window; what arrives after the measured phase is measured in the last interval, but
# does not count as throughput.
_METRICS = f"""
WITH tick_throughput AS (
  SELECT tick, sum(sent) AS sent, sum(received) AS received FROM {{events}} GROUP BY tick
),
throughput AS (
  SELECT number, coalesce(sum(sent) FILTER (WHERE is_counted), 0) AS sent,
         coalesce(sum(received) FILTER (WHERE is_counted), 0) AS received
  FROM {{ticks}} LEFT JOIN tick_throughput USING (tick)
  GROUP BY number
),
histogram AS (
  SELECT tick, phase, inline(histograms) FROM {{events}}
),
tick_total AS (
  SELECT tick, phase, measure,
         sum(overflow) + sum(aggregate(counts, 0L, (sum, count) -> sum + count)) AS count,
         sum(negative) AS negative, sum(overflow) AS overflow,
         min(min_us) AS min_us, max(max_us) AS max_us, sum(sum_us) AS sum_us
  FROM histogram
  GROUP BY tick, phase, measure
  HAVING count > 0
),
total AS (
  SELECT number, measure, sum(count) AS count, sum(negative) AS negative,
         sum(overflow) AS overflow, min(min_us) AS min_us, max(max_us) AS max_us,
         sum(sum_us) / sum(count) AS mean_us
  FROM {{ticks}} JOIN tick_total USING (tick)
  WHERE every_phase OR phase = 'measure'
  GROUP BY number, measure
),
tick_bucket AS (
  SELECT tick, phase, measure, bucket.values_us AS value_us, sum(bucket.counts) AS count
  FROM (SELECT tick, phase, measure, explode(arrays_zip(values_us, counts)) AS bucket
        FROM histogram)
  GROUP BY tick, phase, measure, value_us
),
bucket AS (
  SELECT number, measure, value_us, sum(count) AS bucket_count
  FROM {{ticks}} JOIN tick_bucket USING (tick)
  WHERE every_phase OR phase = 'measure'
  GROUP BY number, measure, value_us
),
ranked AS (
  SELECT *, sum(bucket_count) OVER (PARTITION BY number, measure ORDER BY value_us) AS reached
  FROM bucket
),
percentile AS (
  SELECT number, measure, max(value_us) AS last_value_us,
    {_PERCENTILE_COLUMNS}
  FROM ranked JOIN (SELECT number, measure, count FROM total) USING (number, measure)
  GROUP BY number, measure
)
SELECT window, window_start, window_end, window_seconds, measure, sent, received,
    sent / window_seconds AS sent_per_second, received / window_seconds AS received_per_second,
    coalesce(count, 0) AS count, coalesce(negative, 0) AS negative,
    coalesce(overflow, 0) AS overflow, min_us, mean_us,
    {_PERCENTILES_OR_BOUND}, max_us
FROM {{windows}} JOIN throughput USING (number)
LEFT JOIN total USING (number)
LEFT JOIN percentile USING (number, measure)
ORDER BY window, window_end, measure
"""  # noqa: S608 (only names of this program's own go in)


def rebuild_metrics(spark: SparkSession, store: Store, run_id: str) -> pa.Table:
    """Compute the metrics of a run anew and append them, so that they are its newest batch."""
    windows = windows_of_run(store, run_id)
    computed = metrics_by_sql(spark, store, windows)
    rows = len(computed)
    stamped = {
        "run_id": pa.array([run_id] * rows, pa.string()),
        "query_id": pa.array([f"rebuild-{uuid.uuid4()}"] * rows, pa.string()),
        "batch_id": pa.array([0] * rows, pa.int64()),
        "written_at": pa.array([datetime.now(UTC)] * rows, pa.timestamp("us", tz="UTC")),
    }
    columns = [
        stamped[field.name]
        if field.name in stamped
        else computed[field.name].cast(field.type).combine_chunks()
        for field in METRICS
    ]
    table = pa.Table.from_arrays(columns, schema=METRICS)
    store.append("metrics", table)
    return table


def metrics_by_sql(spark: SparkSession, store: Store, windows: RunWindows) -> pa.Table:
    """Every window of a run, computed by Spark SQL; nothing is written."""
    identity = ["agent", "attempt", "row_number"]
    keys = store.read("events", columns=["tick", *identity], run_id=windows.run_id)
    newest = pc.max(keys["tick"]).as_py()
    if newest is None or newest < 0:
        raise StoreError(f"run {windows.run_id} has no events")
    events = events_of(spark, store, windows.run_id)
    if len(keys.group_by(identity).aggregate([])) < len(keys):
        # Sorts every bucket of the run, so only where some row has been written twice.
        events = events.dropDuplicates(identity)
    found = list(windows.published_until(newest))
    query = spark.sql(
        _METRICS,
        events=events,
        windows=_windows_frame(spark, windows, found, newest),
        ticks=_ticks_frame(spark, windows, found, newest),
    )
    return arrow_table(query)


def windows_of_run(store: Store, run_id: str) -> RunWindows:
    """Where the windows of a stored run lie: its scenario, anchored at its first event."""
    columns = ["scenario_json", "measured_from", "measured_until"]
    found = store.read("runs", columns=columns, run_id=run_id)
    if not len(found):
        raise ConfigurationError(f"there is no run {run_id!r} in this store")
    scenario = stored_scenario(run_id, json.loads(found["scenario_json"][0].as_py()))
    measured_from = found["measured_from"][0]
    until_us = found["measured_until"][0].cast(pa.int64()).as_py()
    events = store.read("events", columns=["tick", "tick_start"], run_id=run_id)
    events = events.filter(pc.field("tick") >= 0)
    if not len(events):
        raise StoreError(f"run {run_id} has no events")
    first = events.sort_by("tick").slice(0, 1)
    tick, tick_start_us = first["tick"][0].as_py(), first["tick_start"][0].value
    timeline = timeline_at(
        scenario,
        tick,
        tick_start_us * 1000,
        measured_from.value * 1000 if measured_from.is_valid else None,
    )
    return RunWindows(
        run_id=run_id,
        timeline=timeline,
        interval_seconds=scenario.interval_seconds,
        highest_us=scenario.histogram.highest_us,
        measured_until_ns=None if until_us is None else early_end_ns(timeline, until_us * 1000),
    )


def _windows_frame(
    spark: SparkSession, windows: RunWindows, found: list[Window], newest_tick: int
) -> DataFrame:
    columns = {
        "number": pa.array(range(len(found)), pa.int32()),
        "window": pa.array([window.kind for window in found]),
        "window_start": _timestamps(window.start_ns for window in found),
        "window_end": _timestamps(window.end_ns for window in found),
        "window_seconds": pa.array(
            [windows.seconds_covered(window, newest_tick) for window in found]
        ),
        "highest_us": pa.array([windows.highest_us] * len(found), pa.int64()),
    }
    return spark.createDataFrame(pa.table(columns))


def _ticks_frame(
    spark: SparkSession, windows: RunWindows, found: list[Window], newest_tick: int
) -> DataFrame:
    last = windows.last_measured_tick
    rows = [
        {
            "number": number,
            "every_phase": window.kind == ROLLING,
            "is_counted": tick <= window.last_tick,
            "tick": tick,
        }
        for number, window in enumerate(found)
        for tick in range(
            window.first_tick,
            1
            + (
                max(window.last_tick, newest_tick)
                if window.kind == INTERVAL and window.last_tick == last
                else window.last_tick
            ),
        )
    ]
    schema = pa.schema(
        [
            ("number", pa.int32()),
            ("every_phase", pa.bool_()),
            ("is_counted", pa.bool_()),
            ("tick", pa.int32()),
        ]
    )
    return spark.createDataFrame(pa.Table.from_pylist(rows, schema=schema))


def _timestamps(instants_ns: Iterable[int]) -> pa.Array:
    return pa.array([ns // 1000 for ns in instants_ns], pa.timestamp("us", tz="UTC"))
