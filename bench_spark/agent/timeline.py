"""Phases and ticks of a run, counted from the common start. Pure.

A message belongs to the phase of its *intended* time, whenever it arrives. A tick is one second
from the start of a phase, cut where the phase ends, so that no tick belongs to two phases.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from bench_spark.measure.clock import NANOSECONDS

WARMUP = "warmup"
MEASURE = "measure"
PHASES = (WARMUP, MEASURE)

I64 = npt.NDArray[np.int64]


def _ticks_in(length_ns: int) -> int:
    return -(-length_ns // NANOSECONDS)


@dataclass(frozen=True)
class Timeline:
    start_ns: int
    warmup_ns: int
    measure_ns: int
    drain_ns: int

    @property
    def measure_start_ns(self) -> int:
        return self.start_ns + self.warmup_ns

    @property
    def measure_end_ns(self) -> int:
        return self.measure_start_ns + self.measure_ns

    def phase_of(self, intended_ns: I64) -> npt.NDArray[np.bool_]:
        """True where the message belongs to the measured phase, False for warm-up."""
        return intended_ns >= self.measure_start_ns

    def tick_of(self, at_ns: I64) -> I64:
        """The tick in which each moment lies; moments before the start count to the first."""
        if len(at_ns):
            first, last = self.tick_at(int(at_ns.min())), self.tick_at(int(at_ns.max()))
            if first == last:  # as nearly always: these moments are some milliseconds apart
                return np.full(len(at_ns), first, dtype=np.int64)
        edges, firsts = self._segment_columns
        segment = np.searchsorted(edges, at_ns, side="right") - 1
        np.maximum(segment, 0, out=segment)
        within = np.maximum(at_ns - edges[segment], 0) // NANOSECONDS
        ticks: I64 = firsts[segment] + within
        return ticks

    def tick_at(self, at_ns: int) -> int:
        """`tick_of` for one moment, without the price of an array."""
        segment = len(self._segments) - 1
        while segment > 0 and at_ns < self._segments[segment][0]:
            segment -= 1
        edge_ns, first = self._segments[segment]
        return first + max(0, at_ns - edge_ns) // NANOSECONDS

    def tick_start_ns(self, tick: int) -> int:
        segment = len(self._segments) - 1
        while segment > 0 and tick < self._segments[segment][1]:
            segment -= 1
        edge_ns, first = self._segments[segment]
        return edge_ns + (tick - first) * NANOSECONDS

    def tick_end_ns(self, tick: int) -> int:
        return self.tick_start_ns(tick + 1)

    def tick_seconds(self, tick: int) -> float:
        return (self.tick_end_ns(tick) - self.tick_start_ns(tick)) / NANOSECONDS

    def is_measured_tick(self, tick: int) -> bool:
        return self.measure_start_ns <= self.tick_start_ns(tick) < self.measure_end_ns

    @cached_property
    def _segments(self) -> tuple[tuple[int, int], ...]:
        """Where warm-up, measured phase and drain begin, and the number of their first ticks."""
        warmup_ticks = _ticks_in(self.warmup_ns)
        segments = (
            (self.start_ns, 0),
            (self.measure_start_ns, warmup_ticks),
            (self.measure_end_ns, warmup_ticks + _ticks_in(self.measure_ns)),
        )
        return segments if self.warmup_ns else segments[1:]

    @cached_property
    def _segment_columns(self) -> tuple[I64, I64]:
        edges, firsts = zip(*self._segments, strict=True)
        return np.array(edges, dtype=np.int64), np.array(firsts, dtype=np.int64)
