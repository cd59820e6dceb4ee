"""Phases and ticks of a run, counted from the common start. Pure.

A message belongs to the phase of its *intended* time, whenever it arrives. A tick is one second
from the start of a phase, cut where the phase ends, so that no tick belongs to two phases.

In mode `maximum` the driver says in the course of the warm-up when the measured phase begins
(`measure_from`). All parts of an agent hold the same timeline, and so do those of the driver, so
that each learns of it at once; it is changed before that moment, and ticks that are over keep their
numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from bench_spark.core.clock import NANOSECONDS

WARMUP = "warmup"
MEASURE = "measure"
PHASES = (WARMUP, MEASURE)

PRODUCER = "producer"
CONSUMER = "consumer"

I64 = npt.NDArray[np.int64]


def _ticks_in(length_ns: int) -> int:
    return -(-length_ns // NANOSECONDS)


@dataclass
class Timeline:
    start_ns: int
    warmup_ns: int
    measure_ns: int
    drain_ns: int
    measure_start_ns: int = field(init=False, repr=False, compare=False)
    measure_end_ns: int = field(init=False, repr=False, compare=False)
    _segments: tuple[tuple[int, int], ...] = field(init=False, repr=False, compare=False)
    """Where warm-up, measured phase and drain begin, and the number of their first ticks."""

    def __post_init__(self) -> None:
        self._lay_out()

    def measure_from(self, at_ns: int) -> None:
        """Begin the measured phase at this moment; it lasts as long as before."""
        self.warmup_ns = at_ns - self.start_ns
        self._lay_out()

    def phase_of(self, intended_ns: I64) -> npt.NDArray[np.bool_]:
        """True where the message belongs to the measured phase, False for warm-up."""
        return intended_ns >= self.measure_start_ns

    def tick_of(self, at_ns: I64) -> I64:
        """The tick in which each moment lies; moments before the start count to the first."""
        if len(at_ns):
            first, last = self.tick_at(int(at_ns.min())), self.tick_at(int(at_ns.max()))
            if first == last:  # as nearly always: these moments are some milliseconds apart
                return np.full(len(at_ns), first, dtype=np.int64)
        edges, firsts = np.array(self._segments, dtype=np.int64).T
        segment = np.searchsorted(edges, at_ns, side="right") - 1
        np.maximum(segment, 0, out=segment)
        within = np.maximum(at_ns - edges[segment], 0) // NANOSECONDS
        ticks: I64 = firsts[segment] + within
        return ticks

    def tick_at(self, at_ns: int) -> int:
        """`tick_of` for one moment, without the price of an array."""
        segments = self._segments
        segment = len(segments) - 1
        while segment > 0 and at_ns < segments[segment][0]:
            segment -= 1
        edge_ns, first = segments[segment]
        return first + max(0, at_ns - edge_ns) // NANOSECONDS

    def tick_start_ns(self, tick: int) -> int:
        segments = self._segments
        segment = len(segments) - 1
        while segment > 0 and tick < segments[segment][1]:
            segment -= 1
        edge_ns, first = segments[segment]
        return edge_ns + (tick - first) * NANOSECONDS

    def tick_end_ns(self, tick: int) -> int:
        return self.tick_start_ns(tick + 1)

    def tick_seconds(self, tick: int) -> float:
        return (self.tick_end_ns(tick) - self.tick_start_ns(tick)) / NANOSECONDS

    def _lay_out(self) -> None:
        self.measure_start_ns = self.start_ns + self.warmup_ns
        self.measure_end_ns = self.measure_start_ns + self.measure_ns
        warmup_ticks = _ticks_in(self.warmup_ns)
        segments = (
            (self.start_ns, 0),
            (self.measure_start_ns, warmup_ticks),
            (self.measure_end_ns, warmup_ticks + _ticks_in(self.measure_ns)),
        )
        self._segments = segments if self.warmup_ns else segments[1:]
