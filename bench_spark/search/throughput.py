"""The throughput of one trial, from what its run has left behind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bench_spark.measure.throughput import throughput
from bench_spark.search.ticks import Second
from bench_spark.search.window import Throughput

SHORTEST_TICK_SECONDS = 0.5
"""A tick that the end of the phase has cut shorter says little about a rate."""


def throughput_of(
    document: Mapping[str, Any], in_flight: int, ticks: Callable[[], Sequence[Second]]
) -> Throughput:
    """From the samples taken at the consumers where the result has them, else from its ticks.

    `ticks` gives the measured ticks; it is only asked when there are no samples.
    """
    sampled = document.get("throughput")
    if sampled is not None:
        return _of_samples(sampled, in_flight)
    return _of_ticks(ticks(), in_flight)


def _of_samples(sampled: Mapping[str, Any], in_flight: int) -> Throughput:
    # A trial that ended before its first sample has no numbers, and moved next to nothing.
    median = sampled["median_per_second"] or 0.0
    stddev = sampled["stddev_per_second"] or 0.0
    low, high = sampled["low_per_second"], sampled["high_per_second"]
    return Throughput(
        in_flight=in_flight,
        median_per_second=median,
        mean_per_second=sampled["mean_per_second"] or 0.0,
        stddev_per_second=stddev,
        samples=sampled["samples"],
        # Too few samples for an interval of the median: how they scatter has to do instead.
        low_per_second=max(0.0, median - stddev) if low is None else low,
        high_per_second=median + stddev if high is None else high,
    )


def _of_ticks(ticks: Sequence[Second], in_flight: int) -> Throughput:
    """Each second of the measured phase is a sample: coarser, but there for every run."""
    whole = [tick for tick in ticks if tick.seconds >= SHORTEST_TICK_SECONDS] or ticks
    rates = [tick.received / tick.seconds for tick in whole]
    return _of_samples(throughput(np.array(rates, dtype=np.float64)).as_dict(), in_flight)
