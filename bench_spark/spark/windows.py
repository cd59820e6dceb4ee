"""Windows over the ticks of a run, and the sums in them. Pure: no Spark, no clock, no table.

Two kinds: `rolling` windows of 10 s end with every tick and cover warm-up and drain as well, for
people who watch; `interval` windows lie side by side in the measured phase, for the results.
Throughput counts whatever was sent and received in the window's time. Measures follow the phase of
the message: a rolling window takes every phase, an interval only messages of the measured one, and
the last interval also those that arrive after the phase.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bench_spark.agent.timeline import MEASURE, Timeline
from bench_spark.core.clock import NANOSECONDS
from bench_spark.core.hdr import SparseHistogram, merge_sparse
from bench_spark.spark.merge import TickRows
from bench_spark.store.schema import PERCENTILES

ROLLING = "rolling"
INTERVAL = "interval"
ROLLING_SECONDS = 10

KEPT_TICKS = 60
"""Ticks held in memory behind the newest one. Rows that come later still are read from `events`."""

_NEVER = 2**31 - 1
"""No run reaches this tick: they are 32-bit numbers in `events`."""


@dataclass(frozen=True)
class Window:
    """Consecutive ticks. `start_ns` and `end_ns` name the window and never change."""

    kind: str
    first_tick: int
    last_tick: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class RunWindows:
    """Where the windows of one run lie."""

    run_id: str
    timeline: Timeline
    interval_seconds: int
    highest_us: int | None = None
    """End of the histograms' range, if known: percentiles that lie above are given as this."""
    measured_until_ns: int | None = None
    """When the measured phase ended, if that was before the end on its timeline."""

    def rolling(self, last_tick: int) -> Window:
        """The window that ends with this tick; shorter than 10 s only at the start of a run."""
        end_ns = self.timeline.tick_end_ns(last_tick)
        earliest_ns = end_ns - ROLLING_SECONDS * NANOSECONDS
        first = last_tick
        while first > 0 and self.timeline.tick_start_ns(first - 1) >= earliest_ns:
            first -= 1
        return Window(ROLLING, first, last_tick, self.timeline.tick_start_ns(first), end_ns)

    def interval(self, tick: int) -> Window | None:
        """The interval that what arrives in this tick belongs to; None before the measured phase.

        A rest that is shorter than half an interval is part of the last one, and what arrives after
        the phase belongs to it as well.
        """
        begin = self.timeline.tick_at(self.timeline.measure_start_ns)
        if tick < begin:
            return None
        length_ns = self._measure_end_ns - self.timeline.measure_start_ns
        whole, rest_ns = divmod(length_ns, self.interval_seconds * NANOSECONDS)
        intervals = max(1, whole + (2 * rest_ns >= self.interval_seconds * NANOSECONDS))
        number = min((tick - begin) // self.interval_seconds, intervals - 1)
        first = begin + number * self.interval_seconds
        is_last = number == intervals - 1
        last = self.last_measured_tick if is_last else first + self.interval_seconds - 1
        return Window(
            INTERVAL,
            first,
            last,
            self.timeline.tick_start_ns(first),
            self.timeline.tick_end_ns(last),
        )

    @property
    def _measure_end_ns(self) -> int:
        planned_ns = self.timeline.measure_end_ns
        if self.measured_until_ns is None:
            return planned_ns
        return max(self.timeline.measure_start_ns, min(self.measured_until_ns, planned_ns))

    @property
    def last_measured_tick(self) -> int:
        """What later ticks carry raises no throughput."""
        begin_ns = self.timeline.measure_start_ns
        return self.timeline.tick_at(max(begin_ns, self._measure_end_ns - 1))

    def seconds_covered(self, window: Window, newest_tick: int) -> float:
        """How much of the window the events reach into: what rates are divided by."""
        until_ns = min(window.end_ns, self.timeline.tick_end_ns(newest_tick))
        return (until_ns - window.start_ns) / NANOSECONDS

    def published_until(self, newest_tick: int) -> Iterator[Window]:
        """Every window there is to publish once the events reach this tick."""
        return self.touched(set(), -1, newest_tick)

    def touched(self, ticks: set[int], known_until: int, newest_tick: int) -> Iterator[Window]:
        """The windows that change when these ticks do and the newest tick moves on.

        Ticks without any row between `known_until` and `newest_tick` have windows too.
        """
        moved = range(known_until + 1, newest_tick + 1)
        intervals = (self.interval(tick) for tick in sorted(ticks.union(moved)))
        yield from dict.fromkeys(window for window in intervals if window is not None)
        for last_tick in range(min(ticks.union(moved)), newest_tick + 1):
            window = self.rolling(last_tick)
            if last_tick > known_until or any(
                window.first_tick <= tick <= last_tick for tick in ticks
            ):
                yield window


def early_end_ns(timeline: Timeline, measured_until_ns: int) -> int | None:
    """When the measured phase ended, if before its time; seconds since the epoch, as floating
    point numbers or cut to microseconds, tell that only roughly."""
    return measured_until_ns if measured_until_ns < timeline.measure_end_ns - 2_000 else None


@dataclass
class WindowSum:
    """What was counted in a window."""

    sent: int = 0
    received: int = 0
    histograms: dict[str, SparseHistogram] = field(default_factory=dict)

    def add(self, rows: Iterable[TickRows], kind: str, last_counted_tick: int = _NEVER) -> None:
        """Messages of later ticks than the last counted one are measured but not counted."""
        parts = {measure: [histogram] for measure, histogram in self.histograms.items()}
        for row in rows:
            if row.key.tick <= last_counted_tick:
                self.sent += row.counter("sent")
                self.received += row.counter("received")
            if kind == ROLLING or row.phase == MEASURE:
                for measure in row.measures:
                    parts.setdefault(measure, []).append(row.histogram(measure))
        merged = {measure: merge_sparse(parts[measure]) for measure in sorted(parts)}
        self.histograms = {measure: whole for measure, whole in merged.items() if whole.count}


@dataclass(frozen=True)
class LiveWindow:
    """The newest rolling window of a run, for the people who watch it."""

    run_id: str
    window_end_us: int
    sent_per_second: float
    received_per_second: float
    measures: dict[str, dict[str, int]]
    """Per measure the percentiles by their names (`p50_us` ...)."""

    @property
    def ended_ns(self) -> int:
        return self.window_end_us * 1000

    def as_result(self) -> dict[str, Any]:
        """What is known of it under the names that a result has."""
        rates = {"send_rate": self.sent_per_second, "receive_rate": self.received_per_second}
        return {"measures": self.measures, "rates": rates}

    @classmethod
    def of_rows(cls, rows: Sequence[Mapping[str, Any]]) -> LiveWindow:
        """From the rows of `metrics` of one window."""
        first = rows[0]
        return cls(
            run_id=first["run_id"],
            window_end_us=first["window_end"],
            sent_per_second=first["sent_per_second"],
            received_per_second=first["received_per_second"],
            measures={
                row["measure"]: {name: row[name] for name, _ in PERCENTILES}
                for row in rows
                if row["measure"] is not None
            },
        )


class TickSlots:
    """The ticks of one run that windows are still made of.

    Rows arrive merged by partition, now and then late, and after a restart partly for the second
    time. `add` takes what is certainly new, ignores what is certainly known, and names the ticks
    where it cannot tell (`doubtful`): the caller reads those from `events` again and calls
    `replace`. So every window is exact whatever happened on the way.
    """

    def __init__(self, windows: RunWindows, is_restarted: bool = False) -> None:
        self.windows = windows
        self.newest_tick = -1
        self._known_until: int | None = None if is_restarted else -1
        self._exact_from = _NEVER if is_restarted else 0
        self._is_cut_short = False
        self._ticks: dict[int, dict[tuple[str, str], TickRows]] = {}
        self._intervals: dict[int, WindowSum] = {}

    def add(self, parts: Sequence[TickRows]) -> set[int]:
        """Add merged rows; returns the ticks that must be read again before windows are made."""
        doubtful: set[int] = set()
        for part in parts:
            tick = part.key.tick
            self.newest_tick = max(self.newest_tick, tick)
            if self.windows.rolling(tick).first_tick < self._exact_from:
                doubtful.add(tick)
                continue
            present = self._ticks.setdefault(tick, {}).get((part.role, part.phase))
            if present is None:
                self._ticks[tick][part.role, part.phase] = part
            elif not present.overlaps(part):
                present.add(part)
            elif part.rows <= present.rows:
                continue
            else:
                doubtful.add(tick)
                continue
            self._add_to_interval(tick, part)
        return doubtful

    def cut_short(self, measured_until_ns: int) -> None:
        """The measured phase has ended before its time: its last interval is another one."""
        self.windows = replace(self.windows, measured_until_ns=measured_until_ns)
        self._is_cut_short = self.newest_tick >= 0

    def last_interval_to_read(self) -> set[int]:
        """Ticks whose interval has changed since their rows came; they are named once."""
        was_cut_short, self._is_cut_short = self._is_cut_short, False
        interval = self.windows.interval(self.newest_tick) if was_cut_short else None
        return set() if interval is None else {interval.first_tick, self.newest_tick}

    def range_to_read(self, doubtful: set[int]) -> tuple[int, int]:
        """First and last tick of what must be read so that windows over these ticks are exact."""
        first = self.windows.rolling(min(doubtful)).first_tick
        if self._known_until is None:
            # The windows that end with the ticks before are published once more.
            first = self.windows.rolling(first).first_tick
        if interval := self.windows.interval(first):
            first = interval.first_tick
        return first, max(max(doubtful), self._exact_from - 1)

    def replace(self, first: int, last: int, parts: Iterable[TickRows]) -> None:
        """Take these rows for all there is in the ticks `first` to `last`."""
        self._ticks = {
            tick: rows for tick, rows in self._ticks.items() if not first <= tick <= last
        }
        for part in parts:
            self._ticks.setdefault(part.key.tick, {})[part.role, part.phase] = part
            self.newest_tick = max(self.newest_tick, part.key.tick)
        self._exact_from = min(self._exact_from, first)
        self._rebuild_intervals(first, min(last, self.newest_tick))

    def windows_touched(self, ticks: set[int]) -> list[Window]:
        """What to publish now that these ticks have changed."""
        if self._known_until is None:
            # After a restart nobody knows what was published: the last ones go out once more.
            self._known_until = self.windows.rolling(min(ticks)).first_tick - 1
        touched = list(self.windows.touched(ticks, self._known_until, self.newest_tick))
        self._known_until = max(self._known_until, self.newest_tick)
        return touched

    def sum_of(self, window: Window) -> WindowSum:
        if window.kind == INTERVAL:
            return self._intervals.get(window.first_tick, WindowSum())
        total = WindowSum()
        total.add(self._rows_between(window.first_tick, window.last_tick), ROLLING)
        return total

    def forget_old(self) -> None:
        oldest = self.newest_tick - KEPT_TICKS
        if oldest <= self._exact_from:
            return
        self._ticks = {tick: rows for tick, rows in self._ticks.items() if tick >= oldest}
        newest = self.windows.interval(self.newest_tick)
        self._intervals = {
            first: total
            for first, total in self._intervals.items()
            if first + self.windows.interval_seconds > oldest
            or (newest is not None and first == newest.first_tick)
        }
        self._exact_from = oldest

    def _rows_between(self, first: int, last: int) -> Iterator[TickRows]:
        for tick in range(first, last + 1):
            yield from self._ticks.get(tick, {}).values()

    def _add_to_interval(self, tick: int, part: TickRows) -> None:
        if interval := self.windows.interval(tick):
            total = self._intervals.setdefault(interval.first_tick, WindowSum())
            total.add([part], INTERVAL, self.windows.last_measured_tick)

    def _rebuild_intervals(self, first: int, last: int) -> None:
        counted = self.windows.last_measured_tick
        intervals = (self.windows.interval(tick) for tick in range(first, last + 1))
        for interval in dict.fromkeys(found for found in intervals if found is not None):
            until = self.newest_tick if interval.last_tick == counted else interval.last_tick
            total = self._intervals[interval.first_tick] = WindowSum()
            total.add(self._rows_between(interval.first_tick, until), INTERVAL, counted)


def metric_rows(
    windows: RunWindows, window: Window, total: WindowSum, seconds: float
) -> list[dict[str, Any]]:
    """Rows of `metrics` for a window, one per measure; a window without any has one of its own."""
    common = {
        "run_id": windows.run_id,
        "window": window.kind,
        "window_start": window.start_ns // 1000,
        "window_end": window.end_ns // 1000,
        "window_seconds": seconds,
        "sent": total.sent,
        "received": total.received,
        "sent_per_second": total.sent / seconds,
        "received_per_second": total.received / seconds,
    }
    if not total.histograms:
        return [common | {"measure": None, "count": 0, "negative": 0, "overflow": 0}]
    return [
        common
        | {
            "measure": measure,
            "count": histogram.count,
            "negative": histogram.negative,
            "overflow": histogram.overflow,
            "min_us": histogram.min_us,
            "mean_us": histogram.mean_us,
            "max_us": histogram.max_us,
        }
        | percentiles(histogram, windows.highest_us)
        for measure, histogram in total.histograms.items()
    ]


def percentiles(histogram: SparseHistogram, highest_us: int | None) -> dict[str, int]:
    return {
        name: histogram.percentile(percentile, highest_us).value_us
        for name, percentile in PERCENTILES
    }
