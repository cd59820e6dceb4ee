"""The block bootstrap over the intervals of a run, thousands of resamples at a time.

Neighbouring seconds of a run resemble each other: a garbage collection, a flush or a full buffer
lasts longer than one of them. Drawing single seconds would take them for independent and give
intervals that are too narrow. So blocks of neighbours are drawn (circular moving blocks: every
second has the same chance, those at the ends too), and what is computed of a run is computed of
each resample in the same way: percentiles from merged histograms, never from other percentiles.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

FEWEST_BLOCKS = 5
"""Below, a bootstrap says nothing: there are too few different resamples."""
_CELLS_AT_ONCE = 4_000_000
"""Resamples times buckets that are held in memory: some 100 MB with what numpy adds."""


def block_length(values: F64) -> int:
    """Intervals per block, for a run with these values in its intervals.

    The cube root of their number, and more where neighbours resemble each other strongly: the
    length that is best for a mean when each value is so much like the one before (Carlstein's rule
    for a first-order autoregression, with the factor for moving blocks). A fifth of the run at
    most, so that there are blocks to choose from; a run of less than ten intervals has too few.
    """
    intervals = len(values)
    likeness = min(0.95, max(0.0, _likeness_of_neighbours(values)))
    stretch = math.cbrt(3 / 2) * math.cbrt(2 * likeness / (1 - likeness**2)) ** 2
    return max(
        1, min(round(math.cbrt(intervals) * max(1.0, stretch)), max(2, intervals // FEWEST_BLOCKS))
    )


def _likeness_of_neighbours(values: F64) -> float:
    """The correlation of each value with the next."""
    away = values - values.mean() if len(values) else values
    spread = float(away @ away)
    return float(away[1:] @ away[:-1]) / spread if spread > 0 else 0.0


def block_weights(intervals: int, length: int, resamples: int, random: np.random.Generator) -> I64:
    """How often each resample (row) has each interval (column); rows add up to their number."""
    blocks = math.ceil(intervals / length)
    starts = random.integers(0, intervals, (resamples, blocks, 1))
    drawn = (starts + np.arange(length)) % intervals
    drawn = drawn.reshape(resamples, -1)[:, :intervals]
    numbered = drawn + np.arange(resamples)[:, None] * intervals
    counted = np.bincount(numbered.ravel(), minlength=resamples * intervals)
    return counted.reshape(resamples, intervals)


def ratios(weights: I64, numerators: F64, denominators: F64) -> F64:
    """Per resample the sum of one divided by the sum of the other: a rate, a mean."""
    below = weights @ denominators
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(below > 0, (weights @ numerators) / below, np.nan)


@dataclass(frozen=True, eq=False)
class IntervalHistograms:
    """Histograms of one measure, an interval to a row."""

    values_us: I64
    """Of the buckets, ascending."""
    counts: I64
    """Intervals by buckets."""
    overflow: I64
    """Per interval: values above the range."""
    sum_us: F64
    """Per interval: of the values themselves."""
    highest_us: int
    max_us: I64
    """Per interval: the largest value itself."""

    def percentiles(self, weights: I64, percentiles: Sequence[float]) -> F64:
        """A row per percentile, a column per resample, by HdrHistogram's rule of ranks.

        What falls into the overflow is given as the end of the range, and nothing exceeds the
        largest value drawn.
        """
        parts = [self._percentiles(part, percentiles) for part in self._portions(weights)]
        return np.concatenate(parts, axis=1)

    def _percentiles(self, weights: I64, percentiles: Sequence[float]) -> F64:
        merged = weights.astype(np.float64) @ self.counts
        up_to = np.cumsum(merged, axis=1)
        total = weights @ (self.counts.sum(axis=1) + self.overflow)
        # What overflowed is not below the last bucket that is filled, and that may reach beyond the
        # range.
        beyond_us = np.where(merged > 0, self.values_us, 0).max(axis=1, initial=self.highest_us)
        values = np.append(self.values_us, 0).astype(np.float64)
        largest_us = np.where(weights > 0, self.max_us, 0).max(axis=1, initial=0)
        found = np.full((len(percentiles), len(weights)), np.nan)
        for row, percentile in zip(found, percentiles, strict=True):
            rank = np.maximum(1, np.floor(percentile * total / 100 + 0.5))
            bucket = (up_to < rank[:, None]).sum(axis=1)
            reached_us = np.where(bucket < len(self.values_us), values[bucket], beyond_us)
            row[:] = np.where(total > 0, np.minimum(reached_us, largest_us), np.nan)
        return found

    def means(self, weights: I64) -> F64:
        messages = (self.counts.sum(axis=1) + self.overflow).astype(np.float64)
        return ratios(weights, self.sum_us, messages)

    def _portions(self, weights: I64) -> Iterator[I64]:
        rows = max(1, _CELLS_AT_ONCE // max(1, len(self.values_us)))
        for start in range(0, len(weights), rows):
            yield weights[start : start + rows]
