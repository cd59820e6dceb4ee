"""Tables of a store: names, columns and properties, as plain data that every room may load.

A store is a directory (or URI) with one Delta table per name below. Rows are only ever appended,
except in `runs`, whose one row per run is replaced when the run ends. Schemas only grow by nullable
top-level columns; `SCHEMA_NUMBER` is kept as a table property so that an older program refuses a
newer store instead of misreading it.

Types are those of SQL. `arrow.py` makes Arrow schemas of them; what agents send, what is merged and
what SQL reads follow from `EVENT_COLUMNS` as well.
"""

from __future__ import annotations

from typing import NamedTuple

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
"""Every percentile of tables, views, reports and objectives: its column, and the percentile."""


class Array(NamedTuple):
    """The type of a list of structs."""

    of: Columns


Kind = str | Array
Columns = tuple[tuple[str, Kind], ...]

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

HISTOGRAM: Columns = (
    ("measure", "string"),
    ("min_us", "bigint"),
    ("max_us", "bigint"),
    ("sum_us", "bigint"),
    ("negative", "bigint"),
    ("overflow", "bigint"),
    ("values_us", "array<int>"),
    ("counts", "array<bigint>"),
)
"""A `SparseHistogram`: `values_us` are the highest equivalent values of its filled buckets."""

EVENT_COLUMNS: Columns = (
    ("run_id", "string"),
    ("agent", "int"),
    ("attempt", "int"),
    ("row_number", "bigint"),
    ("role", "string"),  # producer, consumer, or setup (one row before the load starts)
    ("phase", "string"),  # of the messages counted: warmup or measure (setup: setup)
    ("tick", "int"),
    ("tick_start", "timestamp"),
    ("tick_seconds", "double"),
    ("destination", "string"),
    *((name, "bigint") for name in COUNTERS),
    ("histograms", Array(HISTOGRAM)),
    ("cpu_seconds", "double"),
    ("host_busy_share", "double"),
    ("clock_offset_ns", "bigint"),
    ("clock_bound_ns", "bigint"),
)
"""One row per agent, role, phase and tick (second). A tick may have several rows: they add up."""

TICK_KEY = ("run_id", "role", "phase", "tick")
"""What event rows have in common that are merged."""
ROW_IDENTITY = ("agent", "attempt", "row_number")
"""Names an event row within its run, so that it counts once."""
_OF_ONE_AGENT = ("destination", "host_busy_share", "clock_offset_ns", "clock_bound_ns")
MERGED_COLUMNS = [name for name, _ in EVENT_COLUMNS if name not in _OF_ONE_AGENT]
"""What merging needs: all but what only makes sense for one agent."""

METRIC_COLUMNS: Columns = (
    ("run_id", "string"),
    ("query_id", "string"),
    ("batch_id", "bigint"),
    ("window", "string"),  # rolling (10 s, sliding by 1 s) or interval
    ("window_start", "timestamp"),
    ("window_end", "timestamp"),
    ("window_seconds", "double"),
    ("measure", "string"),
    ("sent", "bigint"),
    ("received", "bigint"),
    ("sent_per_second", "double"),
    ("received_per_second", "double"),
    ("count", "bigint"),
    ("negative", "bigint"),
    ("overflow", "bigint"),
    ("min_us", "bigint"),
    ("mean_us", "double"),
    *((name, "bigint") for name, _ in PERCENTILES),
    ("max_us", "bigint"),
    ("written_at", "timestamp"),
)
"""Rolling metrics: one row per run, window and measure; the newest batch of a window counts."""

OBJECTIVE: Columns = (
    ("objective", "string"),
    ("value", "double"),
    ("met", "boolean"),
)
"""What a run was to reach, and whether it did."""

RUN_COLUMNS: Columns = (
    ("run_id", "string"),
    ("scenario", "string"),
    ("broker", "string"),
    ("status", "string"),  # running, valid, degraded, failed, aborted, abandoned
    ("reasons", "array<string>"),
    ("exit_code", "int"),
    ("started_at", "timestamp"),
    ("measured_from", "timestamp"),
    ("measured_until", "timestamp"),
    ("ended_at", "timestamp"),
    ("suite", "string"),
    ("trial", "int"),
    ("parameters", "map<string,string>"),
    ("tags", "map<string,string>"),
    ("counts", "map<string,bigint>"),
    ("rates", "map<string,double>"),
    ("expected", "bigint"),
    ("delivery_rate", "double"),
    ("scenario_json", "string"),
    ("broker_json", "string"),
    ("brokers", "array<string>"),
    ("brokers_json", "string"),
    ("environment_json", "string"),
    ("result_json", "string"),
    ("bench_spark_version", "string"),
    ("slo", Array(OBJECTIVE)),
    ("driver_json", "string"),
)
"""One row per run, with the whole result document in `result_json`."""

SUMMARY_COLUMNS: Columns = (
    ("run_id", "string"),
    ("aggregation", "string"),  # run, interval_max or interval_mean
    ("measure", "string"),
    ("count", "bigint"),
    ("negative", "bigint"),
    ("overflow", "bigint"),
    ("min_us", "bigint"),
    ("mean_us", "double"),
    *((name, "double") for name, _ in PERCENTILES),
    ("max_us", "bigint"),
    ("lower_bounds", "array<string>"),
    ("hdr_encoded", "string"),
)
"""One row per run, aggregation and measure. `lower_bounds` names the columns to be read as ">=";
`hdr_encoded` (aggregation `run`) is HdrHistogram's own compressed form, for other tools."""

SAMPLE_COLUMNS: Columns = (
    ("run_id", "string"),
    ("agent", "int"),
    ("attempt", "int"),
    ("pair", "int"),  # number of the destination
    ("number", "int"),
    ("messages", "bigint"),
    ("seconds", "double"),
    ("started_at", "timestamp"),
)
"""Throughput at the consumer: one row per run, pair and sample."""

RESOURCE_COLUMNS: Columns = (
    ("run_id", "string"),
    ("at", "timestamp"),  # the end of the interval, on the driver's clock
    ("source", "string"),
    ("host", "string"),
    ("phase", "string"),  # warmup or measure
    ("interval_seconds", "double"),
    ("cpu_user_share_of_machine", "double"),
    ("cpu_system_share_of_machine", "double"),
    ("cpu_user_share_of_core", "double"),
    ("cpu_system_share_of_core", "double"),
    ("rss_bytes", "bigint"),
    ("read_bytes", "bigint"),
    ("written_bytes", "bigint"),
    ("device_read_bytes", "bigint"),
    ("device_written_bytes", "bigint"),
    ("network_received_bytes", "bigint"),
    ("network_sent_bytes", "bigint"),
    ("processes", "bigint"),
    ("threads", "bigint"),
    ("open_files", "bigint"),
    ("values", "map<string,double>"),
    ("unreadable", "array<string>"),
    ("problem", "string"),
)
"""The broker's use of its machine: one row per source and second. Bytes and CPU are of the
interval, the rest is at its end; null is what could not be read."""

MESSAGE_COLUMNS: Columns = (
    ("run_id", "string"),
    ("agent", "int"),
    ("attempt", "int"),
    ("number", "bigint"),  # of the agent's rows, in the order in which things happened
    ("kind", "string"),  # sent, confirmed, refused, returned or received
    ("phase", "string"),  # of the message: warmup or measure
    ("producer", "int"),  # null: a message without an ID of this run
    ("sequence", "bigint"),
    ("subscription", "int"),  # of what was received
    ("destination", "string"),
    ("intended_ns", "bigint"),  # null: not known to this agent
    ("sent_ns", "bigint"),
    ("at_ns", "bigint"),
    ("insert_ns", "bigint"),  # of what was sent: how long the call took
    ("size", "bigint"),
    ("content_hash", "bigint"),
)
"""With `trace`: one row per event of a message. Times are nanoseconds since the epoch, on the run's
clock; Parquet files come straight from the agents and are added in place."""

TABLES: dict[str, Columns] = {
    "runs": RUN_COLUMNS,
    "events": EVENT_COLUMNS,
    "metrics": METRIC_COLUMNS,
    "summary": SUMMARY_COLUMNS,
    "samples": SAMPLE_COLUMNS,
    "resources": RESOURCE_COLUMNS,
    "messages": MESSAGE_COLUMNS,
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
