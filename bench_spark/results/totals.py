"""What the ticks of a run add up to, and the percentiles of that.

A soak of hours has more histograms than memory holds, so nothing is kept of a tick: counters are
added, histograms merged, and of an interval that is over only its statistics remain.

Percentiles of a run in the three ways its readers ask for, from the same histograms. `run` is one
merged histogram; `interval_max` the worst interval's percentile; `interval_mean` the plain mean
over the intervals' percentiles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol

from bench_spark.agent.timeline import MEASURE
from bench_spark.core.hdr import SparseHistogram, merge_sparse
from bench_spark.store.schema import PERCENTILES

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
        # In whole thousandths of a percent: as fractions, 10 of 100 would be more than a tenth.
        beyond = 100_000 - round(percentile * 1000)
        reaches_unseen = never_seen * 100_000 > beyond * (count + never_seen)
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


MERGED_TOGETHER = 64
"""Histograms held back of each measure, to be merged at once."""


class Tick(Protocol):
    """What one role saw of one phase in one tick, all agents together."""

    @property
    def role(self) -> str: ...

    @property
    def phase(self) -> str: ...

    @property
    def start_seconds(self) -> float:
        """Seconds between the epoch and the start of the tick."""

    @property
    def tick_seconds(self) -> float: ...

    @property
    def measures(self) -> Iterable[str]: ...

    def counter(self, name: str) -> int: ...

    def histogram(self, measure: str) -> SparseHistogram: ...


class _Pile:
    """Histograms that become one."""

    def __init__(self) -> None:
        self._parts: list[SparseHistogram] = []

    def add(self, histogram: SparseHistogram) -> None:
        self._parts.append(histogram)
        if len(self._parts) >= MERGED_TOGETHER:
            self._parts = [merge_sparse(self._parts)]

    def merged(self) -> SparseHistogram:
        return merge_sparse(self._parts)


class TickTotals:
    """Ticks must come in order of time: an interval is over when a later one begins."""

    def __init__(
        self,
        counters: Collection[str],
        is_in_window: Callable[[Tick], bool],
        interval_of: Callable[[float], int | None],
        intervals: int,
        highest_us: int,
        left_out: Collection[str] = (),
    ) -> None:
        """`is_in_window`: whether what a tick carried counts for rates. `interval_of`: which of the
        `intervals` of the measured phase a tick that starts then belongs to; None: no load.
        `left_out`: measures whose histograms are known better from elsewhere (`add_measured`)."""
        self._counters = counters
        self._is_in_window = is_in_window
        self._interval_of = interval_of
        self._last_interval = intervals - 1
        self._highest_us = highest_us
        self._left_out = left_out
        self._of_all: Counter[tuple[str, str]] = Counter()
        self._of_measured: Counter[tuple[str, str]] = Counter()
        self._of_window: Counter[tuple[str, str]] = Counter()
        self._of_window_measured: Counter[tuple[str, str]] = Counter()
        self._piles: dict[str, _Pile] = {}
        self._open: dict[str, tuple[int, _Pile]] = {}
        self._intervals: dict[str, IntervalStatistics] = {}

    def add(self, tick: Tick) -> None:
        found = Counter({(tick.role, name): tick.counter(name) for name in self._counters})
        self._of_all.update(found)
        if self._is_in_window(tick):
            self._of_window.update(found)
        if tick.phase != MEASURE:
            return
        if self._is_in_window(tick):
            self._of_window_measured.update(found)
        self._of_measured.update(found)
        for measure in tick.measures:
            if measure not in self._left_out:
                self.add_measured(measure, tick.start_seconds, tick.histogram(measure))

    def add_measured(self, measure: str, start_seconds: float, histogram: SparseHistogram) -> None:
        """A measure of messages of the measured phase, in the tick that starts then."""
        self._piles.setdefault(measure, _Pile()).add(histogram)
        interval = self._interval_of(start_seconds)
        if interval is None:
            return
        if measure in self._open and self._open[measure][0] != interval:
            self._close(measure)
        self._open.setdefault(measure, (interval, _Pile()))[1].add(histogram)

    def _close(self, measure: str, never_seen: int = 0) -> None:
        _, pile = self._open.pop(measure)
        of_measure = self._intervals.setdefault(measure, IntervalStatistics(self._highest_us))
        of_measure.add(pile.merged(), never_seen)

    def of_all(self, role: str, counter: str) -> int:
        return self._of_all[role, counter]

    def of_measured(self, role: str, counter: str) -> int:
        """Of messages of the measured phase, whenever they arrived."""
        return self._of_measured[role, counter]

    def of_window(self, role: str, counter: str) -> int:
        """In the seconds of the measured phase, whatever they carried."""
        return self._of_window[role, counter]

    def of_measured_in_window(self, role: str, counter: str) -> int:
        """Of messages of the measured phase, in its own seconds."""
        return self._of_window_measured[role, counter]

    def histograms(self) -> dict[str, SparseHistogram]:
        return {measure: self._piles[measure].merged() for measure in sorted(self._piles)}

    def interval_statistics(
        self, measure: str, of_run: Statistics, never_seen: int = 0
    ) -> tuple[Statistics, Statistics]:
        """`interval_max` and `interval_mean`; to be asked once, when all ticks are in. `of_run` are
        the statistics of the whole run; the messages `never_seen` would have arrived last."""
        if measure in self._open and self._open[measure][0] != self._last_interval:
            self._close(measure)
        self._open.setdefault(measure, (self._last_interval, _Pile()))
        self._close(measure, never_seen)
        return self._intervals[measure].both(of_run)
