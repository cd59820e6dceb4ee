"""Throughput from samples taken at the consumer: statistics of one pair, and of all together. Pure.

A sample is a number of messages and the time they took. Its throughput is the inverse of the time
between messages, and all figures here are of the samples' throughputs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

CONFIDENCE = 0.95

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SampledThroughput:
    """Figures of the samples of one pair, or sums over several; None where there are too few."""

    samples: int
    median_per_second: float | None
    mean_per_second: float | None
    stddev_per_second: float | None
    """Of the samples (n - 1)."""
    low_per_second: float | None
    high_per_second: float | None
    """Confidence interval of the median, see `median_interval`."""

    def as_dict(self) -> dict[str, float | int | None]:
        return dict(vars(self))


def throughput(per_second: F64) -> SampledThroughput:
    """What the samples of one pair say, each given as messages per second."""
    count = len(per_second)
    low, high = median_interval(per_second)
    return SampledThroughput(
        samples=count,
        median_per_second=float(np.median(per_second)) if count else None,
        mean_per_second=float(np.mean(per_second)) if count else None,
        stddev_per_second=float(np.std(per_second, ddof=1)) if count > 1 else None,
        low_per_second=low,
        high_per_second=high,
    )


def throughput_of_all(pairs: Sequence[SampledThroughput]) -> SampledThroughput:
    """Pairs that work side by side: their medians, means and interval ends added up.

    The standard deviation is that of a sum of pairs that vary independently of each other. A figure
    that one pair lacks has no sum.
    """
    return SampledThroughput(
        samples=sum(pair.samples for pair in pairs),
        median_per_second=_sum([pair.median_per_second for pair in pairs]),
        mean_per_second=_sum([pair.mean_per_second for pair in pairs]),
        stddev_per_second=_root_of_squares([pair.stddev_per_second for pair in pairs]),
        low_per_second=_sum([pair.low_per_second for pair in pairs]),
        high_per_second=_sum([pair.high_per_second for pair in pairs]),
    )


def median_interval(
    values: F64, confidence: float = CONFIDENCE
) -> tuple[float, float] | tuple[None, None]:
    """An interval that holds the true median with at least this confidence, whatever the
    distribution: two of the values themselves, chosen by their rank.

    Too few values (five, for 95 %) cannot give that confidence and give no interval.
    """
    rank = median_rank(len(values), confidence)
    if rank is None:
        return None, None
    ordered = np.sort(values)
    return float(ordered[rank - 1]), float(ordered[-rank])


def median_rank(count: int, confidence: float = CONFIDENCE) -> int | None:
    """The highest k for which the k-th lowest and the k-th highest of so many values hold the
    median between them with this confidence; None if even the extremes do not.

    How many values lie below the median is binomial with p = 1/2: the interval misses it when fewer
    than k do, or fewer than k lie above.
    """
    most_outside = math.floor((1 - confidence) / 2 * 2**60) << count >> 60
    """Of the 2**count equally likely ways, how many may miss on one side."""
    rank, ways, outside = 0, 1, 0
    while outside + ways <= most_outside:
        outside += ways
        ways = ways * (count - rank) // (rank + 1)
        rank += 1
    return rank or None


def _sum(figures: Sequence[float | None]) -> float | None:
    known = [figure for figure in figures if figure is not None]
    return math.fsum(known) if known and len(known) == len(figures) else None


def _root_of_squares(figures: Sequence[float | None]) -> float | None:
    return _root(_sum([None if figure is None else figure**2 for figure in figures]))


def _root(figure: float | None) -> float | None:
    return None if figure is None else math.sqrt(figure)
