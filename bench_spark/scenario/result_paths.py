"""Numbers of a result document by their paths, for files and options that refer to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench_spark.scenario.conditions import Unit
from bench_spark.scenario.suite_file import MEASURES, STATISTICS

COUNTS = (
    "due",
    "unsent",
    "sent",
    "confirmed",
    "unconfirmed",
    "refused",
    "returned",
    "received",
    "received_once",
    "duplicates",
    "left_in_broker",
    "lost",
    "indeterminate",
    "acked",
    "redelivered",
    "out_of_order",
    "corrupted",
    "malformed",
    "foreign",
    "errors",
    "reconnects",
    "bytes_sent",
    "bytes_received",
    "unexpected",
    "repeats_dropped",
    "given_up",
)
"""Every count of the document; columns of files are in this order, so new ones come last."""

TRACED_COUNTS = ("missing", "duplicates", "out_of_order", "corrupted", "unexpected")
"""Of `trace`, where every message is traced."""

_RATES = ("send_rate", "receive_rate")
_SAMPLED = ("median", "mean", "low", "high")
_AGGREGATIONS = ("run", "interval_max", "interval_mean")
_HEADLINE = ("latency", "confirm_latency")
"""Measures that a statistic without one is about: the first that the run has."""

UNIT_OF_PATH: Mapping[str, Unit] = {
    **{f"measures.{name}.{one}_us": "us" for name in MEASURES for one in STATISTICS},
    **{
        f"percentiles.{aggregation}.{name}.{one}_us": "us"
        for aggregation in _AGGREGATIONS
        for name in MEASURES
        for one in STATISTICS
        if aggregation != "run" or one.startswith("p")
    },
    **{f"counts.{name}": "count" for name in COUNTS},
    **{f"rates.{name}": "per_second" for name in _RATES},
    **{f"throughput.{name}_per_second": "per_second" for name in _SAMPLED},
    **{f"trace.{name}": "count" for name in TRACED_COUNTS},
    "delivery_rate": "share",
    "expected": "count",
}

SHORT_NAMES: Mapping[str, tuple[str, ...]] = {
    **{name: (f"trace.{name}",) for name in TRACED_COUNTS},
    **{name: (f"counts.{name}",) for name in COUNTS},
    **{name: (f"rates.{name}",) for name in _RATES},
    **{f"{name}.{one}": (f"measures.{name}.{one}_us",) for name in MEASURES for one in STATISTICS},
    **{one: tuple(f"measures.{name}.{one}_us" for name in _HEADLINE) for one in STATISTICS},
}


def paths_named(name: str) -> tuple[str, ...]:
    """The paths that a name may mean: the first that a document has counts. None: no such name."""
    plain = name.replace("99.9", "999")
    return (plain,) if plain in UNIT_OF_PATH else SHORT_NAMES.get(plain, ())


def value_at(document: Mapping[str, Any], path: str) -> float | None:
    """The number there; None if there is none."""
    found: Any = document
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found if isinstance(found, int | float) and not isinstance(found, bool) else None
