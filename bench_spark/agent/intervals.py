"""Counters and histograms that become event rows: one interval per tick, role, phase and, where
the scenario asks for it, destination.

What is recorded message by message lies in a run of 64-bit words that kernels fill: which messages
belong to the interval, counters, histograms. A kernel stops at the first message that belongs to
another interval, and Python hands it that one.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bench_spark.agent.protocol import EventRow
from bench_spark.agent.timeline import MEASURE, WARMUP, Timeline
from bench_spark.core.hdr import Histogram, HistogramShape, record_value_ns
from bench_spark.core.kernels import inlined, kernel
from bench_spark.transports.batches import I64

# The first words of an interval.
TICK_FROM = 0
TICK_END = 1
IS_MEASURED = 2
DESTINATION = 3
"""The number of the only destination whose messages belong here, or ANY_DESTINATION."""
SECOND_HISTOGRAM = 4
"""Where the second one begins; the first begins at FIRST_HISTOGRAM."""
HAS_HISTOGRAMS = 5
MEASURED_FROM = 6
"""When the measured phase begins."""
IS_BY_SENDING = 7
"""Whether messages belong to the phase in which they were sent, not to that of their due time."""
ONCE = 8
"""Different messages received: no column of its own."""
COUNTERS = 9
FIRST_HISTOGRAM = COUNTERS + 12

ANY_DESTINATION = -1
_EARLIEST_NS = -(1 << 62)


@inlined
def belongs(interval: I64, at_ns: int, is_measured: int, destination: int) -> bool:
    """Whether a message of this moment, phase and destination is recorded here."""
    return bool(
        interval[TICK_FROM] <= at_ns < interval[TICK_END]
        and interval[IS_MEASURED] == is_measured
        and (interval[DESTINATION] == ANY_DESTINATION or interval[DESTINATION] == destination)
    )


@kernel
def record_alike(interval: I64, at_ns: int, value_ns: int, times: int) -> bool:
    """Record one duration for several messages of a moment, in the first histogram; False where the
    moment is in another tick."""
    is_here = interval[TICK_FROM] <= at_ns < interval[TICK_END]
    if is_here:
        record_value_ns(interval[FIRST_HISTOGRAM:], value_ns, times)
    return bool(is_here)


@dataclass(frozen=True)
class Kind:
    """What a kernel records: the names of its counters and of up to two histograms."""

    role: str
    counters: tuple[str, ...]
    measures: tuple[str, ...]


IntervalKey = tuple[Kind, int, bool, int]
"""What is recorded, the tick, whether it is of the measured phase, the destination's number."""
RowKey = tuple[int, str, str, str]


class Intervals:
    def __init__(
        self,
        shape: HistogramShape,
        timeline: Timeline,
        destinations: tuple[str, ...],
        is_by_sending: bool,
    ) -> None:
        """`destinations`: by number, where they are kept apart."""
        self._shape = shape
        self._timeline = timeline
        self._destinations = destinations
        self._is_by_sending = is_by_sending
        self._intervals: dict[IntervalKey, I64] = {}
        self._counts: dict[RowKey, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        """What is not counted by kernels, likewise."""
        self._row_number = 0
        self.taken_once = 0
        """Different messages received, in intervals that have become rows."""

    def at(self, kind: Kind, at_ns: int, is_measured: bool, destination: int) -> I64:
        """The interval of such messages, made if there is none."""
        tick = self._timeline.tick_at(at_ns)
        key = (kind, tick, is_measured, destination)
        interval = self._intervals.get(key)
        if interval is None:
            interval = self._intervals[key] = self._made(kind)
            interval[IS_MEASURED], interval[DESTINATION] = is_measured, destination
        interval[MEASURED_FROM] = self._timeline.measure_start_ns
        # Ticks move with the beginning of the measured phase.
        interval[TICK_FROM] = self._timeline.tick_start_ns(tick) if tick else _EARLIEST_NS
        interval[TICK_END] = self._timeline.tick_end_ns(tick)
        return interval

    def scratch(self, kind: Kind) -> I64:
        """An interval that no message belongs to."""
        return self._made(kind)

    def _made(self, kind: Kind) -> I64:
        words = self._shape.words
        interval = np.zeros(FIRST_HISTOGRAM + len(kind.measures) * words, np.int64)
        interval[SECOND_HISTOGRAM] = FIRST_HISTOGRAM + words
        interval[HAS_HISTOGRAMS] = bool(kind.measures)
        interval[IS_BY_SENDING] = self._is_by_sending
        self._histograms(kind, interval)
        return interval

    def _histograms(self, kind: Kind, interval: I64) -> dict[str, Histogram]:
        words = self._shape.words
        return {
            measure: Histogram(self._shape, interval[FIRST_HISTOGRAM + place * words :][:words])
            for place, measure in enumerate(kind.measures)
        }

    def once(self) -> int:
        """Different messages received until now."""
        return self.taken_once + sum(int(words[ONCE]) for words in self._intervals.values())

    def count(self, role: str, phase: str, at_ns: int, counter: str, amount: int) -> None:
        self._counts[self._timeline.tick_at(at_ns), role, phase, ""][counter] += amount

    def take_before(self, tick: int) -> list[EventRow]:
        """Rows of the ticks before that one."""
        return self._take(
            [key for key in self._intervals if key[1] < tick],
            [key for key in self._counts if key[0] < tick],
        )

    def take_all(self) -> list[EventRow]:
        return self._take(list(self._intervals), list(self._counts))

    def _take(self, keys: list[IntervalKey], counted: list[RowKey]) -> list[EventRow]:
        found: dict[RowKey, _Content] = defaultdict(_Content)
        for row in counted:
            found[row].counters.update(self._counts.pop(row))
        for key in keys:
            kind, tick, is_measured, destination = key
            name = self._destinations[destination] if destination != ANY_DESTINATION else ""
            row = (tick, kind.role, MEASURE if is_measured else WARMUP, name)
            interval = self._intervals.pop(key)
            self.taken_once += int(interval[ONCE])
            found[row].add(kind, interval, self._histograms(kind, interval))
        return [self._row(key, found[key]) for key in sorted(found)]

    def _row(self, key: RowKey, content: _Content) -> EventRow:
        tick, role, phase, destination = key
        number, self._row_number = self._row_number, self._row_number + 1
        return EventRow(
            row_number=number,
            role=role,
            phase=phase,
            tick=tick,
            tick_start_ns=self._timeline.tick_start_ns(tick),
            tick_seconds=self._timeline.tick_seconds(tick),
            destination=destination or None,
            counters=content.counters,
            histograms=content.histograms,
        )


@dataclass
class _Content:
    """Of one row."""

    counters: dict[str, int] = field(default_factory=dict)
    histograms: dict[str, Any] = field(default_factory=dict)

    def add(self, kind: Kind, interval: I64, histograms: dict[str, Histogram]) -> None:
        for place, name in enumerate(kind.counters):
            self.counters[name] = self.counters.get(name, 0) + int(interval[COUNTERS + place])
        for measure, histogram in histograms.items():
            if histogram.count:
                self.histograms[measure] = histogram.sparse()
