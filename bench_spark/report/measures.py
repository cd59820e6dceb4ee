"""Which numbers of a result document are shown, in which order, and how one of them is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bench_spark.config.objectives import COUNTS, MEASURES
from bench_spark.report import formatting as formatting
from bench_spark.store.schema import PERCENTILES

__all__ = [
    "AGGREGATIONS",
    "COUNTS",
    "PERCENTILE_COLUMNS",
    "Document",
    "in_order",
    "shown_statistic",
    "statistics_of",
]

Document = Mapping[str, Any]

AGGREGATIONS = ("run", "interval_max", "interval_mean")

PERCENTILE_COLUMNS = (
    *((name, f"p{percentile:g}") for name, percentile in PERCENTILES),
    ("max_us", "max"),
)
"""Field of a measure, and what its column is called."""

STATISTIC_LABELS = {field.removesuffix("_us"): label for field, label in PERCENTILE_COLUMNS}


def in_order(names: Iterable[str]) -> list[str]:
    """Measures in the order people ask for them; ones that are not known here come last."""
    return sorted(names, key=lambda name: (*MEASURES, name).index(name))


def statistics_of(document: Document, aggregation: str, measure: str) -> Mapping[str, Any]:
    """The numbers of a measure in one of the three aggregations."""
    if aggregation == "run":
        found: Mapping[str, Any] = document["measures"][measure]
        return found
    aggregated: Mapping[str, Any] = document["percentiles"][aggregation][measure]
    return aggregated


def shown_statistic(statistics: Mapping[str, Any], field: str) -> str:
    """A duration, with >= where slower messages are missing from it."""
    is_lower_bound = field in (statistics.get("lower_bounds") or ())
    return formatting.duration(statistics.get(field), is_lower_bound)
