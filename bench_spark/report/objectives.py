"""How an objective and what became of it are written."""

from __future__ import annotations

from bench_spark.report.formatting import count, duration, rate, share
from bench_spark.report.measures import Document
from bench_spark.scenario.result_paths import UNIT_OF_PATH


def objective_text(one: Document) -> str:
    """`p99 < 50ms: 12.3 ms`, and what else is to be said."""
    note = f" ({one['note']})" if one.get("note") else ""
    return f"{one['objective']}: {objective_value(one)}{note}"


def objective_value(one: Document) -> str:
    value, unit = one["value"], UNIT_OF_PATH[one["path"]]
    if value is None:
        return "unknown"
    if unit == "us":
        return duration(value)
    if unit == "per_second":
        return f"{rate(value)} msg/s"
    return share(value) if unit == "share" else count(round(value))
