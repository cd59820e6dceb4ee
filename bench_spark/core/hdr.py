"""Latency histograms: HdrHistogram's buckets, filled by the kernels of `hdr_kernels`.

Bucket for bucket the same as the `hdrhistogram` package with a lowest value of 1 us and 3
significant figures, whose `record_value` costs a microsecond a value; here it is a few nanoseconds.
The package itself is only used to write the encoded form that other tools read.

`Histogram` is the accumulator of one agent, `SparseHistogram` the immutable form that travels,
merges and is stored. Neither forgets a value: what lies above the range is counted as overflow,
takes part in ranks and means, and keeps its true maximum; what lies below zero (clocks that
disagree) is recorded as zero and counted as negative.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
from hdrh.histogram import HdrHistogram

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]

SIGNIFICANT_FIGURES = 3
LOWEST_US = 1
TOTALS = ("min_us", "max_us", "sum_us", "negative", "overflow")
"""The plain numbers of a SparseHistogram, in the order of its fields."""
HIGHEST_LIMIT_US = 2**31 - 1
"""Bucket values are stored as 32-bit numbers, so no range may end above this (35 minutes)."""

_SUM_LIMIT_US = 2**63 - 1

# Three significant figures need 2048 steps: values below 2048 have a bucket each, and from there on
# every doubling is cut into 1024 buckets of equal width.
_HALF_BITS = 10
HALF = 1 << _HALF_BITS

# A double's exponent and the first ten bits of its fraction, read as one number, grow by one per
# bucket from 1024 upwards; this is what is left to subtract to reach HdrHistogram's own index.
FRACTION_SHIFT = 52 - _HALF_BITS
DOUBLE_BIAS = ((1023 + _HALF_BITS) << _HALF_BITS) - HALF


@dataclass(frozen=True, eq=False)
class HistogramShape:
    """The buckets of all histograms with the same end of range; get it from `shape_for`."""

    highest_us: int
    size: int
    highest_equivalent_us: I64
    """Per bucket the largest value that falls into it."""

    @property
    def words(self) -> int:
        """Of a histogram that is being filled."""
        return HISTOGRAM_HEADER + self.size


@cache
def shape_for(highest_us: int) -> HistogramShape:
    """The one shape for a range of 1 us .. `highest_us`."""
    if not 2 * LOWEST_US <= highest_us <= HIGHEST_LIMIT_US:
        raise ValueError(
            f"a histogram's range must end at {2 * LOWEST_US} .. {HIGHEST_LIMIT_US} us, "
            f"not at {highest_us}"
        )
    doublings = max(0, highest_us.bit_length() - (_HALF_BITS + 1))
    size = (doublings + 2) * HALF
    highest_equivalent_us = _lowest_equivalent_of_index(np.arange(1, size + 1)) - 1
    highest_equivalent_us.setflags(write=False)
    return HistogramShape(highest_us, size, highest_equivalent_us)


def index_of(values_us: I64) -> I64:
    """The bucket of each value; the values must lie in the range of the shape."""
    index: I64 = values_us.astype(np.float64).view(np.int64)
    index >>= FRACTION_SHIFT
    index -= DOUBLE_BIAS
    # Below 1024 the bucket is the value itself, and the bits of the double are less than that.
    return np.maximum(index, np.minimum(values_us, HALF - 1), out=index)


def _lowest_equivalent_of_index(index: I64) -> I64:
    shift = np.maximum((index >> _HALF_BITS) - 1, 0)
    step = np.where(index < HALF, index, (index & (HALF - 1)) | HALF)
    lowest: I64 = step << shift
    return lowest


def _lowest_equivalent_us(value_us: int) -> int:
    shift = max(0, value_us.bit_length() - (_HALF_BITS + 1))
    return value_us >> shift << shift


# -- recording -------------------------------------------------------------------------------------

# A histogram that is being filled is a run of 64-bit words: these, and the counts of its buckets.
# Several of them may lie one behind the other in an array that a kernel takes.
HIGHEST = 0
RECORDED = 1
NEGATIVE = 2
OVERFLOW = 3
SUM = 4
SUM_CARRY = 5
"""How often the sum has been cut by 2^62: a garbled send time may be centuries off."""
MIN = 6
MAX = 7
HISTOGRAM_HEADER = 8

SUM_STEP = 1 << 62


class Histogram:
    """Adds up values of one measure. Mutable and single-threaded: one owner, merged by `merge`."""

    def __init__(self, shape: HistogramShape, words: I64 | None = None) -> None:
        """`words`: where it lies, `shape.words` of them; somewhere of its own without."""
        self.shape = shape
        self._words: I64 = np.zeros(shape.words, np.int64) if words is None else words
        self._words[HIGHEST] = shape.highest_us
        self.counts: I64 = self._words[HISTOGRAM_HEADER:]

    @property
    def recorded(self) -> int:
        """Values in `counts`: everything but the overflow."""
        return int(self._words[RECORDED])

    @property
    def negative(self) -> int:
        return int(self._words[NEGATIVE])

    @property
    def overflow(self) -> int:
        return int(self._words[OVERFLOW])

    @property
    def sum_us(self) -> int:
        return int(self._words[SUM]) + int(self._words[SUM_CARRY]) * SUM_STEP

    @property
    def min_us(self) -> int:
        return int(self._words[MIN])

    @property
    def max_us(self) -> int:
        return int(self._words[MAX])

    @property
    def count(self) -> int:
        """All values ever recorded, overflow included. `min_us` and `max_us` mean nothing at 0."""
        return self.recorded + self.overflow

    def record_ns(self, values_ns: I64) -> None:
        """Record durations, rounded down to microseconds."""
        # Here, so that whoever only reads histograms does not wait for numba.
        from bench_spark.core.hdr_kernels import record_values_ns

        record_values_ns(self._words, np.ascontiguousarray(values_ns, np.int64))

    def merge(self, other: Histogram) -> None:
        """Add everything that `other` has recorded; it must have the same range."""
        if other.shape.highest_us != self.shape.highest_us:
            raise ValueError(
                f"cannot merge histograms that end at {self.shape.highest_us} us "
                f"and at {other.shape.highest_us} us"
            )
        if not other.count:
            return
        words, others = self._words, other._words
        if self.count:
            words[MIN] = min(words[MIN], others[MIN])
            words[MAX] = max(words[MAX], others[MAX])
        else:
            words[MIN], words[MAX] = others[MIN], others[MAX]
        sum_us = self.sum_us + other.sum_us
        words[SUM_CARRY], words[SUM] = divmod(sum_us, SUM_STEP)
        for word in (RECORDED, NEGATIVE, OVERFLOW):
            words[word] += others[word]
        self.counts += other.counts

    def clear(self) -> None:
        self._words[HIGHEST + 1 :] = 0

    def sparse(self) -> SparseHistogram:
        """The present state, independent of what is recorded afterwards."""
        filled = np.flatnonzero(self.counts)
        return SparseHistogram(
            min_us=self.min_us,
            max_us=self.max_us,
            sum_us=min(self.sum_us, _SUM_LIMIT_US),
            negative=self.negative,
            overflow=self.overflow,
            values_us=self.shape.highest_equivalent_us[filled].astype(np.int32),
            counts=self.counts[filled],
        )


@dataclass(frozen=True)
class Percentile:
    """A value that this share of all values does not exceed.

    With `is_lower_bound` the true one lies above the histogram's range: read it as "> value".
    """

    value_us: int
    is_lower_bound: bool


@dataclass(frozen=True, eq=False)
class SparseHistogram:
    """Filled buckets only, in ascending order, with the totals of `Histogram`.

    `values_us` are the buckets' highest equivalent values. An empty histogram has no buckets and
    zeros everywhere; ask `count` before reading its extremes. `sum_us` saturates at 64 bits.
    """

    min_us: int
    max_us: int
    sum_us: int
    negative: int
    overflow: int
    values_us: I32
    counts: I64

    @classmethod
    def empty(cls) -> SparseHistogram:
        return cls(0, 0, 0, 0, 0, np.zeros(0, np.int32), np.zeros(0, np.int64))

    @property
    def count(self) -> int:
        """All values, overflow included."""
        return int(self.counts.sum()) + self.overflow

    @property
    def mean_us(self) -> float | None:
        """The mean of the values themselves, not of their buckets; None without any."""
        count = self.count
        return self.sum_us / count if count else None

    def percentile(self, percentile: float, highest_us: int | None = None) -> Percentile:
        """The value at a percentile, by HdrHistogram's rank rule: the highest value of its bucket,
        but never above the true maximum. 0 without any value.

        Of a value in the overflow only a bound is known: `highest_us`, the end of the range it was
        recorded with. Without it the bound is the largest filled bucket, which is all that is known
        here, or the smallest value if every one lies in the overflow.
        """
        if not 0 <= percentile <= 100:
            raise ValueError(f"a percentile lies in 0 .. 100, not at {percentile}")
        if not self.count:
            return Percentile(0, is_lower_bound=False)
        rank = max(1, int(percentile * self.count / 100 + 0.5))
        bucket = int(np.searchsorted(np.cumsum(self.counts), rank))
        if bucket == len(self.counts):
            bound_us = self._overflow_bound_us(highest_us)
            return Percentile(min(bound_us, self.max_us), is_lower_bound=True)
        value_us = int(self.values_us[bucket])
        if not percentile:
            value_us = _lowest_equivalent_us(value_us)
        return Percentile(min(value_us, self.max_us), is_lower_bound=False)

    def _overflow_bound_us(self, highest_us: int | None) -> int:
        # The last bucket may reach beyond the range: what overflowed is not below what did not.
        if not len(self.values_us):
            return self.min_us if highest_us is None else highest_us
        return max(highest_us or 0, int(self.values_us[-1]))

    def encode(self, highest_us: int) -> str:
        """HdrHistogram's own compressed form (V2, base64) for a range of 1 us .. `highest_us`.

        That form has no place for overflow: it holds the values inside the range.
        """
        shape = shape_for(highest_us)
        encoder = HdrHistogram(LOWEST_US, highest_us, SIGNIFICANT_FIGURES)
        if len(self.counts):
            index = index_of(self.values_us.astype(np.int64))
            if index[-1] >= shape.size:
                raise ValueError(
                    f"a bucket at {self.values_us[-1]} us lies outside 1 .. {highest_us} us"
                )
            np.ctypeslib.as_array(encoder.counts)[index] = self.counts
            encoder.total_count = int(self.counts.sum())
            encoder.min_value = _lowest_equivalent_us(int(self.values_us[0]))
            encoder.max_value = int(self.values_us[-1])
        encoded: bytes = encoder.encode()
        return encoded.decode("ascii")

    @classmethod
    def decode(cls, text: str, totals: Mapping[str, int]) -> SparseHistogram:
        """What `encode` wrote; `totals` are the plain numbers, which that form does not keep."""
        decoder = HdrHistogram.decode(text)
        counts: I64 = np.ctypeslib.as_array(decoder.counts).astype(np.int64)
        shape = shape_for(decoder.highest_trackable_value)
        filled = np.flatnonzero(counts)
        return cls(
            **{name: totals[name] for name in TOTALS},
            values_us=shape.highest_equivalent_us[filled].astype(np.int32),
            counts=counts[filled],
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SparseHistogram):
            return NotImplemented
        return (
            self._totals() == other._totals()
            and np.array_equal(self.values_us, other.values_us)
            and np.array_equal(self.counts, other.counts)
        )

    __hash__ = None  # type: ignore[assignment]  # arrays may be views of someone's buffer

    def _totals(self) -> tuple[int, int, int, int, int]:
        return self.min_us, self.max_us, self.sum_us, self.negative, self.overflow


def merge_sparse(parts: Sequence[SparseHistogram]) -> SparseHistogram:
    """The histogram of all values of all parts, exactly as if one had recorded them."""
    filled = [part for part in parts if part.count]
    if not filled:
        return SparseHistogram.empty()
    values_us, counts = _added_up(filled)
    return SparseHistogram(
        min_us=min(part.min_us for part in filled),
        max_us=max(part.max_us for part in filled),
        sum_us=min(sum(part.sum_us for part in filled), _SUM_LIMIT_US),
        negative=sum(part.negative for part in filled),
        overflow=sum(part.overflow for part in filled),
        values_us=values_us,
        counts=counts,
    )


def _added_up(parts: Sequence[SparseHistogram]) -> tuple[I32, I64]:
    """The filled buckets of all parts together.

    By way of a full histogram: 5 ns a bucket, where sorting them took 30.
    """
    values_us = np.concatenate([part.values_us for part in parts])
    if not len(values_us):
        return np.zeros(0, np.int32), np.zeros(0, np.int64)
    index = index_of(values_us.astype(np.int64))
    total: I64 = np.zeros(int(index.max()) + 1, np.int64)
    # Not bincount: its weights are doubles, which lose counts above 2^53.
    np.add.at(total, index, np.concatenate([part.counts for part in parts]))
    filled = np.flatnonzero(total)
    highest_us = _lowest_equivalent_of_index(filled + 1) - 1
    return highest_us.astype(np.int32), total[filled]
