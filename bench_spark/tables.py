"""Names and schemas of every table in a store.

A store is a directory (or URI) with one Delta table per name below. Rows are only ever appended,
except in `runs`, whose one row per run is replaced when the run ends. Schemas only grow by nullable
top-level columns; `SCHEMA_NUMBER` is kept as a table property so that an older program refuses a
newer store instead of misreading it.
"""

from __future__ import annotations

import pyarrow as pa

SCHEMA_NUMBER = 1
SCHEMA_PROPERTY = "bench_spark.schema"

PERCENTILES: tuple[tuple[str, float], ...] = (
    ("p50_us", 50.0),
    ("p75_us", 75.0),
    ("p90_us", 90.0),
    ("p95_us", 95.0),
    ("p99_us", 99.0),
    ("p999_us", 99.9),
)
"""Every percentile the product reports: name of the field, and the percentile."""

COUNTERS = (
    "due",
    "sent",
    "confirmed",
    "refused",
    "returned",
    "received",
    "acked",
    "redelivered",
    "duplicates",
    "out_of_order",
    "malformed",
    "foreign",
    "errors",
    "blocked_ns",
    "bytes",
    "reconnects",
    "disconnected_ns",
    "corrupted",
    "unexpected",
    "repeats_dropped",
    "given_up",
)
"""Counters of one event row; they add up over rows."""

HISTOGRAM = pa.struct(
    [
        pa.field("measure", pa.string()),
        pa.field("min_us", pa.int64()),
        pa.field("max_us", pa.int64()),
        pa.field("sum_us", pa.int64()),
        pa.field("negative", pa.int64()),
        pa.field("overflow", pa.int64()),
        pa.field("values_us", pa.list_(pa.int32())),
        pa.field("counts", pa.list_(pa.int64())),
    ]
)
"""A sparse histogram: `values_us` are the highest equivalent values of its filled buckets."""

_TIMESTAMP = pa.timestamp("us", tz="UTC")

EVENTS = pa.schema(
    [
        ("run_id", pa.string()),
        ("agent", pa.int32()),
        ("attempt", pa.int32()),
        ("row_number", pa.int64()),
        ("role", pa.string()),  # producer, consumer, or setup (one row before the load starts)
        ("phase", pa.string()),  # of the messages counted: warmup or measure (setup: setup)
        ("tick", pa.int32()),
        ("tick_start", _TIMESTAMP),
        ("tick_seconds", pa.float64()),
        ("destination", pa.string()),
        *((name, pa.int64()) for name in COUNTERS),
        ("histograms", pa.list_(HISTOGRAM)),
        ("cpu_seconds", pa.float64()),
        ("host_busy_share", pa.float64()),
        ("clock_offset_ns", pa.int64()),
        ("clock_bound_ns", pa.int64()),
    ]
)
"""One row per agent, role, phase and tick (second). A tick may have several rows: they add up."""

METRICS = pa.schema(
    [
        ("run_id", pa.string()),
        ("query_id", pa.string()),
        ("batch_id", pa.int64()),
        ("window", pa.string()),  # rolling (10 s, sliding by 1 s) or interval
        ("window_start", _TIMESTAMP),
        ("window_end", _TIMESTAMP),
        ("window_seconds", pa.float64()),
        ("measure", pa.string()),
        ("sent", pa.int64()),
        ("received", pa.int64()),
        ("sent_per_second", pa.float64()),
        ("received_per_second", pa.float64()),
        ("count", pa.int64()),
        ("negative", pa.int64()),
        ("overflow", pa.int64()),
        ("min_us", pa.int64()),
        ("mean_us", pa.float64()),
        *((name, pa.int64()) for name, _ in PERCENTILES),
        ("max_us", pa.int64()),
        ("written_at", _TIMESTAMP),
    ]
)
"""Rolling metrics: one row per run, window and measure; the newest batch of a window counts."""

OBJECTIVE = pa.struct(
    [
        pa.field("objective", pa.string()),
        pa.field("value", pa.float64()),
        pa.field("met", pa.bool_()),
    ]
)
"""What a run was to reach, and whether it did."""

RUNS = pa.schema(
    [
        ("run_id", pa.string()),
        ("scenario", pa.string()),
        ("broker", pa.string()),
        ("status", pa.string()),  # running, valid, degraded, failed, aborted, abandoned
        ("reasons", pa.list_(pa.string())),
        ("exit_code", pa.int32()),
        ("started_at", _TIMESTAMP),
        ("measured_from", _TIMESTAMP),
        ("measured_until", _TIMESTAMP),
        ("ended_at", _TIMESTAMP),
        ("suite", pa.string()),
        ("trial", pa.int32()),
        ("parameters", pa.map_(pa.string(), pa.string())),
        ("tags", pa.map_(pa.string(), pa.string())),
        ("counts", pa.map_(pa.string(), pa.int64())),
        ("rates", pa.map_(pa.string(), pa.float64())),
        ("expected", pa.int64()),
        ("delivery_rate", pa.float64()),
        ("scenario_json", pa.string()),
        ("broker_json", pa.string()),
        ("brokers", pa.list_(pa.string())),
        ("brokers_json", pa.string()),
        ("environment_json", pa.string()),
        ("result_json", pa.string()),
        ("bench_spark_version", pa.string()),
        ("slo", pa.list_(OBJECTIVE)),
        ("driver_json", pa.string()),
    ]
)
"""One row per run, with the whole result document in `result_json`."""

SUMMARY = pa.schema(
    [
        ("run_id", pa.string()),
        ("aggregation", pa.string()),  # run, interval_max or interval_mean
        ("measure", pa.string()),
        ("count", pa.int64()),
        ("negative", pa.int64()),
        ("overflow", pa.int64()),
        ("min_us", pa.int64()),
        ("mean_us", pa.float64()),
        *((name, pa.float64()) for name, _ in PERCENTILES),
        ("max_us", pa.int64()),
        ("lower_bounds", pa.list_(pa.string())),
        ("hdr_encoded", pa.string()),
    ]
)
"""One row per run, aggregation and measure. `lower_bounds` names the columns to be read as ">=";
`hdr_encoded` (aggregation `run`) is HdrHistogram's own compressed form, for other tools."""

SAMPLES = pa.schema(
    [
        ("run_id", pa.string()),
        ("agent", pa.int32()),
        ("attempt", pa.int32()),
        ("pair", pa.int32()),  # number of the destination
        ("number", pa.int32()),
        ("messages", pa.int64()),
        ("seconds", pa.float64()),
        ("started_at", _TIMESTAMP),
    ]
)
"""Throughput at the consumer: one row per run, pair and sample."""

RESOURCES = pa.schema(
    [
        ("run_id", pa.string()),
        ("at", _TIMESTAMP),  # the end of the interval, on the driver's clock
        ("source", pa.string()),
        ("host", pa.string()),
        ("phase", pa.string()),  # warmup or measure
        ("interval_seconds", pa.float64()),
        ("cpu_user_share_of_machine", pa.float64()),
        ("cpu_system_share_of_machine", pa.float64()),
        ("cpu_user_share_of_core", pa.float64()),
        ("cpu_system_share_of_core", pa.float64()),
        ("rss_bytes", pa.int64()),
        ("read_bytes", pa.int64()),
        ("written_bytes", pa.int64()),
        ("device_read_bytes", pa.int64()),
        ("device_written_bytes", pa.int64()),
        ("network_received_bytes", pa.int64()),
        ("network_sent_bytes", pa.int64()),
        ("processes", pa.int64()),
        ("threads", pa.int64()),
        ("open_files", pa.int64()),
        ("values", pa.map_(pa.string(), pa.float64())),
        ("unreadable", pa.list_(pa.string())),
        ("problem", pa.string()),
    ]
)
"""The broker's use of its machine: one row per source and second. Bytes and CPU are of the
interval, the rest is at its end; null is what could not be read."""

MESSAGES = pa.schema(
    [
        ("run_id", pa.string()),
        ("agent", pa.int32()),
        ("attempt", pa.int32()),
        ("number", pa.int64()),  # of the agent's rows, in the order in which things happened
        ("kind", pa.string()),  # sent, confirmed, refused, returned or received
        ("phase", pa.string()),  # of the message: warmup or measure
        ("producer", pa.int32()),  # null: a message without an ID of this run
        ("sequence", pa.int64()),
        ("subscription", pa.int32()),  # of what was received
        ("destination", pa.string()),
        ("intended_ns", pa.int64()),  # null: not known to this agent
        ("sent_ns", pa.int64()),
        ("at_ns", pa.int64()),
        ("insert_ns", pa.int64()),  # of what was sent: how long the call took
        ("size", pa.int64()),
        ("content_hash", pa.int64()),
    ]
)
"""With `trace`: one row per event of a message. Times are nanoseconds since the epoch, on the run's
clock; Parquet files come straight from the agents and are added in place."""

TABLES: dict[str, pa.Schema] = {
    "runs": RUNS,
    "events": EVENTS,
    "metrics": METRICS,
    "summary": SUMMARY,
    "samples": SAMPLES,
    "resources": RESOURCES,
    "messages": MESSAGES,
}

KEPT_SHORT = {
    "delta.logRetentionDuration": "interval 15 minutes",
    "delta.deletedFileRetentionDuration": "interval 15 minutes",
}
"""A table that gets a commit every second must forget its old versions: a commit looks through the
whole log, and each took twice as long after half an hour. No row is lost by it, only the way back
to how the table was before."""

PROPERTIES: dict[str, dict[str, str]] = dict.fromkeys(
    ("events", "metrics", "resources", "messages"), KEPT_SHORT
)
"""Of tables that are made; one without them gets them when its store is opened."""


def table_uri(store: str, table: str) -> str:
    return f"{store.rstrip('/')}/{table}"
