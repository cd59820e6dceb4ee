"""The throughput of a trial, from its samples and its ticks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

import numpy as np

from bench_spark.agent.timeline import CONSUMER, MEASURE, PRODUCER
from bench_spark.core.throughput import F64, throughput, throughput_of_all
from bench_spark.results.totals import Tick


@dataclass(frozen=True)
class Second:
    """What happened in one tick, all agents together."""

    seconds: float
    sent: int
    received: int


def measured_ticks(ticks: Iterable[Tick]) -> list[Second]:
    """The ticks of the measured phase in order of time, whatever phase their messages belong to.

    They are known by what was sent: messages of the measured phase are received, and confirmed, in
    the drain as well.
    """
    lengths: dict[float, float] = {}
    sent: Counter[float] = Counter()
    received: Counter[float] = Counter()
    for tick in ticks:
        start = tick.start_seconds
        if tick.role == CONSUMER:
            received[start] += tick.counter("received")
        elif tick.role == PRODUCER:
            sent[start] += tick.counter("sent")
            if tick.phase == MEASURE and tick.counter("sent"):
                lengths[start] = tick.tick_seconds
    return [
        Second(seconds, sent[start], received[start]) for start, seconds in sorted(lengths.items())
    ]


AS_GOOD = 0.99
"""A window with this share of the best throughput is as good; a smaller difference is not worth
measuring again for."""
STILL_AS_GOOD = 0.985
"""The same where noise hides the difference: below this share it counts, however noisy."""
SHORTEST_TICK_SECONDS = 0.5
"""A tick that the end of the phase has cut shorter says little about a rate."""

_NO_SAMPLES: F64 = np.zeros(0)


@dataclass(frozen=True)
class Throughput:
    """What was measured with so many messages in flight."""

    in_flight: int
    median_per_second: float
    mean_per_second: float
    stddev_per_second: float
    samples: int
    low_per_second: float
    """The confidence interval of the median, down to here ..."""
    high_per_second: float
    """... and up to here."""
    pairs: tuple[F64, ...] = field(repr=False, compare=False)
    """The samples of each pair, in messages per second."""

    @property
    def uncertainty(self) -> float:
        """Width of the confidence interval, in messages per second."""
        return self.high_per_second - self.low_per_second

    def is_clearly_above(self, other: Throughput) -> bool:
        return self.low_per_second > other.high_per_second

    def is_as_good_as(self, best: Throughput) -> bool:
        share = self.median_per_second / best.median_per_second if best.median_per_second else 1.0
        return share >= AS_GOOD or (share >= STILL_AS_GOOD and not best.is_clearly_above(self))

    def as_dict(self) -> dict[str, Any]:
        """The figures, without the samples."""
        return {name: value for name, value in vars(self).items() if name != "pairs"}


def throughput_of(in_flight: int, pairs: Sequence[F64]) -> Throughput:
    """From the samples of each pair, in messages per second."""
    found = throughput_of_all([throughput(samples) for samples in pairs])
    # A trial that ended before its first sample has no numbers, and moved next to nothing.
    median = found.median_per_second or 0.0
    stddev = found.stddev_per_second or 0.0
    low, high = found.low_per_second, found.high_per_second
    return Throughput(
        in_flight=in_flight,
        median_per_second=median,
        mean_per_second=found.mean_per_second or 0.0,
        stddev_per_second=stddev,
        samples=found.samples,
        # Too few samples for an interval of the median: how they scatter has to do instead.
        low_per_second=max(0.0, median - stddev) if low is None else low,
        high_per_second=median + stddev if high is None else high,
        pairs=tuple(pairs),
    )


def united(one: Throughput, other: Throughput) -> Throughput:
    """Two trials of the same window as one: the figures of all samples of both.

    What differs from trial to trial as a whole is not in the scatter of the samples, so the
    interval reaches at least from the one median to the other.
    """
    pairs = [
        np.concatenate(both) for both in zip_longest(one.pairs, other.pairs, fillvalue=_NO_SAMPLES)
    ]
    found = throughput_of(one.in_flight, pairs)
    medians = one.median_per_second, other.median_per_second
    return replace(
        found,
        low_per_second=min(found.low_per_second, *medians),
        high_per_second=max(found.high_per_second, *medians),
    )


def rates_of_ticks(ticks: Sequence[Second]) -> F64:
    """Each second of the measured phase as a sample: coarser, but there for every run."""
    whole = [tick for tick in ticks if tick.seconds >= SHORTEST_TICK_SECONDS] or ticks
    return np.array([tick.received / tick.seconds for tick in whole], dtype=np.float64)
