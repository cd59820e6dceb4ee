"""Percentiles of a run in the three ways its readers ask for, from the same histograms.

`run` is one merged histogram; `interval_max` the worst interval's percentile; `interval_mean` the
plain mean over the intervals' percentiles.
"""

from __future__ import annotations

from typing import Any

from bench_spark.core.hdr import SparseHistogram
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


class IntervalStatistics:
    """`interval_max` and `interval_mean` over the intervals that have values, one after the other:
    nothing is kept of an interval but its share in the two."""

    _NAMES = ("min_us", "mean_us", *(name for name, _ in PERCENTILES), "max_us")

    def __init__(self, highest_us: int) -> None:
        self._highest_us = highest_us
        self._intervals = 0
        self._worst: Statistics = dict.fromkeys(self._NAMES)
        self._sums: Statistics = dict.fromkeys(self._NAMES, 0)
        self._lower_bounds: set[str] = set()

    def add(self, interval: SparseHistogram, never_seen: int = 0) -> None:
        """`never_seen`: messages that belong to the interval and have no value."""
        found = statistics(interval, self._highest_us, never_seen)
        if not interval.count:
            if never_seen:
                self._lower_bounds.update(name for name, _ in PERCENTILES)
            return
        for name in self._NAMES:
            worst = self._worst[name]
            self._worst[name] = found[name] if worst is None else max(worst, found[name])
            self._sums[name] += found[name]
        self._lower_bounds.update(found["lower_bounds"])
        self._intervals += 1

    def both(self, of_run: Statistics) -> tuple[Statistics, Statistics]:
        """`of_run`: the statistics of all intervals together.

        The worst interval's percentile is not below that of the run: if more than the share above
        lay higher in no interval, it would not in the run. A rank that is rounded down in each
        interval, or the edge of a bucket, can make it seem so; then the run's is the better one. So
        where the run's is only a lower bound, the worst interval's is not more than that.
        """
        count = self._intervals
        for name, _ in PERCENTILES:
            if count:
                self._worst[name] = max(self._worst[name], of_run[name])
        mean = {name: total / count if count else None for name, total in self._sums.items()}
        of_worst = self._lower_bounds.union(of_run["lower_bounds"])
        return (
            self._worst | {"intervals": count, "lower_bounds": sorted(of_worst)},
            mean | {"intervals": count, "lower_bounds": sorted(self._lower_bounds)},
        )
