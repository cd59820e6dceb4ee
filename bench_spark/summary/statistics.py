"""Percentiles of a run in the three ways its readers ask for (F1), from the same histograms.

`run` is one merged histogram; `interval_max` the worst interval's percentile; `interval_mean` the
plain mean over the intervals' percentiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench_spark.measure.hdr import SparseHistogram
from bench_spark.tables import PERCENTILES

Statistics = dict[str, Any]


def statistics(histogram: SparseHistogram, highest_us: int, never_seen: int = 0) -> Statistics:
    """The numbers of one histogram.

    `never_seen` messages belong to it but have no value: they were not sent or had not arrived at
    the end, so they are slower than all that is known. A percentile that they reach is only a lower
    bound, and named in `lower_bounds`; so is one that falls above the histogram's range.
    """
    count = histogram.count
    found: Statistics = {
        "min_us": histogram.min_us if count else None,
        "mean_us": histogram.mean_us,
    }
    lower_bounds: list[str] = []
    for name, percentile in PERCENTILES:
        if not count:
            found[name] = None
            continue
        value = histogram.percentile(percentile, highest_us)
        found[name] = value.value_us
        # In whole tenths of a percent: as fractions, 10 of 100 would be more than a tenth.
        beyond = 1000 - round(percentile * 10)
        reaches_unseen = never_seen * 1000 > beyond * (count + never_seen)
        if value.is_lower_bound or reaches_unseen:
            lower_bounds.append(name)
    found["max_us"] = histogram.max_us if count else None
    return found | {
        "count": count,
        "negative": histogram.negative,
        "overflow": histogram.overflow,
        "lower_bounds": lower_bounds,
    }


def interval_statistics(
    intervals: Sequence[SparseHistogram], highest_us: int
) -> tuple[Statistics, Statistics]:
    """`interval_max` and `interval_mean` over the intervals that have values."""
    per_interval = [statistics(interval, highest_us) for interval in intervals if interval.count]
    names = ["min_us", "mean_us", *(name for name, _ in PERCENTILES), "max_us"]
    worst: Statistics = {}
    mean: Statistics = {}
    for name in names:
        values = [entry[name] for entry in per_interval]
        worst[name] = max(values) if values else None
        mean[name] = sum(values) / len(values) if values else None
    lower_bounds = sorted({name for entry in per_interval for name in entry["lower_bounds"]})
    for entry in (worst, mean):
        entry["intervals"] = len(per_interval)
        entry["lower_bounds"] = lower_bounds
    return worst, mean
