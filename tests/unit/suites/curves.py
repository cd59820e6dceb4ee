"""WindowThroughput curves whose best window is known, and trials of them, with noise or without."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from bench_spark.suites.window import RunTrial, WindowThroughput, throughput_of

Curve = Callable[[int], float]

SAMPLES = 100


def bell(peak: float, decades: float) -> Curve:
    """A maximum of 100 000 at `peak`, that wide on the logarithmic scale."""
    return lambda f: 1e5 * math.exp(-((math.log10(f / peak) / decades) ** 2) / 2)


def pipeline(half: float, overload: float) -> Curve:
    """As brokers do: throughput saturates once the pipe is full, and suffers when it overflows."""
    return lambda f: 1e5 * f / (f + half) / (1 + (f / overload) ** 1.5)


def knee(at: int) -> Curve:
    return lambda f: 1000.0 * min(f, at)


def flat(in_flight: int) -> float:
    return 50_000.0


def rising(in_flight: int) -> float:
    return math.sqrt(in_flight)


def falling(in_flight: int) -> float:
    return 1e5 / in_flight**0.3


def highest_of(curve: Curve, highest: int = 1_000_000) -> float:
    windows = np.unique(np.round(np.logspace(0, math.log10(highest), 4000)).astype(int))
    return max(curve(int(window)) for window in windows)


def exact(curve: Curve) -> RunTrial:
    def run(in_flight: int) -> WindowThroughput:
        return throughput_of(in_flight, [np.full(SAMPLES, curve(in_flight))])

    return run


def noisy(curve: Curve, seed: int, noise: float = 0.05, samples: int = SAMPLES) -> RunTrial:
    """Samples that are off by so much of the true value, as a standard deviation."""
    random = np.random.default_rng(seed)

    def run(in_flight: int) -> WindowThroughput:
        factors = np.maximum(0.01, 1 + noise * random.standard_normal(samples))
        return throughput_of(in_flight, [curve(in_flight) * factors])

    return run


def spread(
    in_flight: int, median: float, margin: float, samples: int = SAMPLES
) -> WindowThroughput:
    """Samples that lie evenly around the median, whose interval reaches about so far."""
    if not margin:
        return throughput_of(in_flight, [np.full(samples, median)])
    # The interval of the median of n even samples is about sqrt(n) of them wide to each side.
    reach = margin * np.sqrt(samples) / 2
    return throughput_of(in_flight, [np.linspace(median - reach, median + reach, samples)])
