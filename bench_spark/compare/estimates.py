"""Numbers with a 95 % confidence interval: of a run, of repetitions, and of the ratio of two.

Two ways, by what there is:

- One run on a side has only its own intervals to tell how much it varies: percentiles of the block
  bootstrap, taken further out by as much as Student's t is wider than the normal distribution for
  so many blocks (Hesterberg's expanded percentiles; a bootstrap of few blocks is too narrow).
- Repetitions on both sides: Welch's t interval of the means of the logarithms, a repetition being
  one value. It holds from two on, where a bootstrap of so few values does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, variance

import numpy as np

from bench_spark.compare.resampling import F64, FEWEST_BLOCKS

CONFIDENCE = 0.95
_MOST_DEGREES = 400
"""From here on Student's t is the normal distribution to three digits."""


@dataclass(frozen=True)
class Estimate:
    """A number and the ends of its interval; without ends where nothing tells how sure it is."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def has_interval(self) -> bool:
        return self.low is not None and self.high is not None

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
    reach = student_quantile(len(logs) - 1) * math.sqrt(variance(logs) / len(logs))
    return Estimate(math.exp(centre), math.exp(centre - reach), math.exp(centre + reach))


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
    reach = 0.0
    if sum(errors) > 0:
        parts = (error**2 / (len(side) - 1) for error, side in zip(errors, sides, strict=True))
        # Cut to whole degrees, which errs on the wide side.
        degrees = max(1, math.floor(sum(errors) ** 2 / sum(parts)))
        reach = student_quantile(degrees) * math.sqrt(sum(errors))
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
