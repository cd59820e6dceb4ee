"""Numbers with a 95 % confidence interval: of a run, of repetitions, and of the ratio of two.

Two ways, by what there is:

- One run on a side has only its own intervals to tell how much it varies: percentiles of the block
  bootstrap, taken further out by as much as Student's t is wider than the normal distribution for
  so many blocks (Hesterberg's expanded percentiles; a bootstrap of few blocks is too narrow).
- Repetitions on both sides: Welch's t interval of the means of the logarithms, a repetition being
  one value. It holds from two on, where a bootstrap of so few values does not.

The block bootstrap over the intervals of a run, thousands of resamples at a time. Neighbouring
seconds of a run resemble each other: a garbage collection, a flush or a full buffer lasts longer
than one of them. Drawing single seconds would take them for independent and give intervals that are
too narrow. So blocks of neighbours are drawn (circular moving blocks: every second has the same
chance, those at the ends too), and what is computed of a run is computed of each resample in the
same way: percentiles from merged histograms, never from other percentiles.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, variance

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


CONFIDENCE = 0.95
_MOST_DEGREES = 400
"""From here on Student's t is the normal distribution to three digits."""


@dataclass(frozen=True)
class Estimate:
    """A number and the ends of its interval; without ends where nothing says how sure it is."""

    value: float
    low: float | None = None
    high: float | None = None

    def is_vague_below(self, limit: float, practical: float) -> bool:
        """Whether it may be above the limit, or below it by a change of practical size."""
        if self.low is None or self.high is None:
            return True
        return self.high >= limit and self.low < limit / practical

    def is_vague_above(self, limit: float, practical: float) -> bool:
        """Whether it may be below the limit, or above it by a change of practical size."""
        if self.low is None or self.high is None:
            return True
        return self.low <= limit and self.high > limit * practical


def exact(value: float) -> Estimate:
    """What was counted and not sampled."""
    return Estimate(value, value, value)


@dataclass(frozen=True, eq=False)
class Resampled:
    """What a run's number becomes in each resample, and from how many blocks."""

    value: float
    samples: F64
    blocks: int

    @property
    def is_enough(self) -> bool:
        return self.blocks >= FEWEST_BLOCKS and bool(np.isfinite(self.samples).all())


def of_resamples(found: Resampled) -> Estimate:
    if not found.is_enough:
        return Estimate(found.value)
    return _between(found.value, found.samples, found.blocks)


def ratio_of_resamples(baseline: Resampled, candidate: Resampled) -> Estimate | None:
    """None where the baseline is zero: nothing is so many times nothing."""
    if baseline.value <= 0:
        return None
    value = candidate.value / baseline.value
    if not (baseline.is_enough and candidate.is_enough) or (baseline.samples <= 0).any():
        return Estimate(value)
    blocks = min(baseline.blocks, candidate.blocks)
    return _between(value, candidate.samples / baseline.samples, blocks)


def _between(value: float, samples: F64, blocks: int) -> Estimate:
    tail = expanded_tail(blocks)
    low, high = np.quantile(samples, [tail, 1 - tail])
    # With few distinct values the number itself may lie at, or a step outside, an end.
    return Estimate(value, min(float(low), value), max(float(high), value))


def expanded_tail(values: int) -> float:
    """What to leave out at each end of a bootstrap of so many values."""
    wider = math.sqrt(values / (values - 1)) * student_quantile(values - 1)
    return NormalDist().cdf(-wider)


def of_repetitions(values: Sequence[float]) -> Estimate:
    """The geometric mean of repetitions, one value each."""
    if min(values) <= 0:
        return Estimate(fmean(values))
    logs = [math.log(value) for value in values]
    centre = fmean(logs)
    if len(logs) < 2:
        return Estimate(math.exp(centre))
    return _geometric(centre, len(logs) - 1, math.sqrt(variance(logs) / len(logs)))


def ratio_of_repetitions(baseline: Sequence[float], candidate: Sequence[float]) -> Estimate | None:
    """Of the geometric means, by Welch's t interval of the logarithms."""
    if min(baseline) <= 0:
        return None
    if min(candidate) <= 0:
        return Estimate(fmean(candidate) / math.exp(fmean(map(math.log, baseline))))
    sides = [[math.log(value) for value in side] for side in (baseline, candidate)]
    centre = fmean(sides[1]) - fmean(sides[0])
    if min(map(len, sides)) < 2:
        return Estimate(math.exp(centre))
    errors = [variance(side) / len(side) for side in sides]
    parts = sum(error**2 / (len(side) - 1) for error, side in zip(errors, sides, strict=True))
    # Cut to whole degrees, which errs on the wide side.
    degrees = max(1, math.floor(sum(errors) ** 2 / parts)) if parts else 1
    return _geometric(centre, degrees, math.sqrt(sum(errors)))


def _geometric(centre: float, degrees: int, error: float) -> Estimate:
    """From a mean of logarithms and its standard error."""
    reach = student_quantile(degrees) * error
    return Estimate(math.exp(centre), math.exp(centre - reach), math.exp(centre + reach))


def student_quantile(degrees: int, confidence: float = CONFIDENCE) -> float:
    """How many standard errors Student's t reaches to each side with so many degrees of freedom."""
    degrees = min(degrees, _MOST_DEGREES)
    low, high = 0.0, 1.0
    while _share_within(high, degrees) < confidence:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _share_within(middle, degrees) < confidence else (low, middle)
    return high


def _share_within(reach: float, degrees: int) -> float:
    """P(|t| < reach), by the finite series for whole degrees (Abramowitz and Stegun, 26.7.3-4)."""
    angle = math.atan2(reach, math.sqrt(degrees))
    sine, cosine = math.sin(angle), math.cos(angle)
    is_odd = degrees % 2 == 1
    term = cosine if is_odd else 1.0
    total = 0.0 if degrees == 1 else term
    for step in range(3 if is_odd else 2, degrees - 1, 2):
        term *= cosine**2 * (step - 1) / step
        total += term
    return 2 / math.pi * (angle + sine * total) if is_odd else sine * total
