"""The kernels that fill histograms; `hdr` says how one lies in memory."""

from __future__ import annotations

import numpy as np

from bench_spark.core.hdr import (
    DOUBLE_BIAS,
    FRACTION_SHIFT,
    HALF,
    HIGHEST,
    HISTOGRAM_HEADER,
    I64,
    MAX,
    MIN,
    NEGATIVE,
    OVERFLOW,
    RECORDED,
    SUM,
    SUM_CARRY,
    SUM_STEP,
)
from bench_spark.core.kernels import inlined, kernel


@inlined
def bucket_of(value_us: int) -> int:
    """The bucket of a value that is not negative."""
    bits = np.float64(value_us).view(np.int64)
    return max(int(bits >> FRACTION_SHIFT) - DOUBLE_BIAS, min(value_us, HALF - 1))


@inlined
def add_to_sum(words: I64, value_us: int) -> None:
    """Add to a sum of two words."""
    words[SUM] += value_us
    if words[SUM] >= SUM_STEP:
        words[SUM] -= SUM_STEP
        words[SUM_CARRY] += 1


@inlined
def record_value_ns(words: I64, value_ns: int, times: int) -> None:
    """Record a duration so many times in the histogram that begins with these words."""
    value_us = value_ns // 1000
    if value_us < 0:
        words[NEGATIVE] += times
        value_us = 0
    if value_us < words[MIN] or words[RECORDED] + words[OVERFLOW] == 0:
        words[MIN] = value_us
    if value_us > words[MAX]:
        words[MAX] = value_us
    if value_us > words[HIGHEST]:
        words[OVERFLOW] += times
        for _ in range(times):
            add_to_sum(words, value_us)
    else:
        words[RECORDED] += times
        words[HISTOGRAM_HEADER + bucket_of(value_us)] += times
        add_to_sum(words, value_us * times)


@kernel
def record_values_ns(words: I64, values_ns: I64) -> None:
    """Record durations in one histogram."""
    for place in range(len(values_ns)):
        record_value_ns(words, values_ns[place], 1)
