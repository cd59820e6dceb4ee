"""What a trial's samples say: median, mean, spread, and how sure the median is.

The confidence interval of the median comes from order statistics: how many of n samples lie below
the true median is binomial with p = 1/2 whatever the distribution, so two of the sorted samples
enclose it with a known probability. Nothing is assumed about the samples but that they are
independent; throughput is anything but normal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

CONFIDENCE = 0.95
LARGEST_EXACT = 1000
"""Samples up to which the binomial is summed up: a float still holds 2 to this power."""


@dataclass(frozen=True)
class SampleStatistics:
    median: float
    mean: float
    stddev: float
    """Of the samples (n - 1 in the denominator); 0 for a single one."""
    low: float
    """Lower end of the median's confidence interval."""
    high: float
    samples: int


def describe(values: Sequence[float], confidence: float = CONFIDENCE) -> SampleStatistics:
    if not values:
        raise ValueError("there are no samples to describe")
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    count = len(ordered)
    outside = samples_outside(count, confidence)
    return SampleStatistics(
        median=float(np.median(ordered)),
        mean=float(np.mean(ordered)),
        stddev=float(np.std(ordered, ddof=1)) if count > 1 else 0.0,
        low=float(ordered[outside]),
        high=float(ordered[count - 1 - outside]),
        samples=count,
    )


def samples_outside(count: int, confidence: float = CONFIDENCE) -> int:
    """How many of so many sorted samples lie beyond each end of the median's interval.

    The most for which the interval still covers the median with the confidence asked for. Five
    samples or fewer cannot give 95 %: all they have is the span from the least to the greatest.
    """
    if count > LARGEST_EXACT:
        # The binomial's normal limit, off by less than one sample here.
        quantile = NormalDist().inv_cdf((1 + confidence) / 2)
        return math.floor(count / 2 - quantile * math.sqrt(count) / 2)
    outside, exactly = 0, 0.5**count
    at_most = exactly
    while True:
        exactly *= (count - outside) / (outside + 1)
        at_most += exactly
        if at_most > (1 - confidence) / 2:
            return outside
        outside += 1
