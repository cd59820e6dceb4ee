"""Curves drawn with characters: throughput over the window, latency over the rate."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from bench_spark.report.chart_parts import log_axis
from bench_spark.report.formatting import duration

WIDTH, HEIGHT = 56, 12
POINT, CHOSEN = "o", "X"
NOT_KEPT = "-"
MOST_RATE_TICKS = 6


class Mark(NamedTuple):
    x: float
    y: float
    sign: str


class Axis(Protocol):
    """Where a value lies, from 0 to 1, and what stands beside the axis."""

    def share(self, value: float) -> float: ...

    @property
    def labels(self) -> Sequence[tuple[float, str]]:
        """Values and their texts, in order."""


def draw_curve(points: Sequence[tuple[int, float]], chosen: int) -> list[str]:
    """Lines of text. `points` are (window, throughput); the chosen window is marked."""
    across = LogAxis([window for window, _ in points])
    up = _FromZero(max((value for _, value in points), default=0.0) or 1.0)
    # The chosen one last: it may share its place with a neighbour.
    ordered = sorted(points, key=lambda point: point[0] == chosen)
    marks = [Mark(x, y, CHOSEN if x == chosen else POINT) for x, y in ordered]
    legend = f"messages in flight ({CHOSEN}: chosen)"
    return _drawn(marks, across, up, "msg/s", "0", legend)


def draw_latencies(
    points: Sequence[tuple[float, float, bool]], found: float | None, name: str
) -> list[str]:
    """Lines of text. `points` are (rate, latency in us, whether the rate was kept), and `name` is
    what the latency is called; the rate that was found is marked."""
    across = LinearAxis([rate for rate, _, _ in points])
    up = _Durations([latency_us for _, latency_us, _ in points])
    ordered = sorted(points, key=lambda point: point[0] == found)
    marks = [
        Mark(rate, latency_us, CHOSEN if rate == found else POINT if kept else NOT_KEPT)
        for rate, latency_us, kept in ordered
    ]
    answer = f", {CHOSEN}: highest kept" if found is not None else ""
    legend = f"msg/s ({POINT}: kept, {NOT_KEPT}: not kept{answer})"
    return _drawn(marks, across, up, name, "", legend)


def _drawn(
    marks: Iterable[Mark], across: Axis, up: Axis, heading: str, floor: str, legend: str
) -> list[str]:
    """Later marks cover earlier ones; `floor` is what stands beside the axis at the bottom."""
    grid = [[" "] * WIDTH for _ in range(HEIGHT)]
    for mark in marks:
        grid[_row(up.share(mark.y))][_column(across.share(mark.x))] = mark.sign
    labels = {_row(up.share(value)): text for value, text in up.labels}
    margin = max(map(len, [heading, *labels.values()]))
    lines = [f"{heading:>{margin}}"]
    lines += [
        f"{labels.get(row, ''):>{margin}} |{''.join(cells)}".rstrip()
        for row, cells in enumerate(grid)
    ]
    lines.append(f"{floor:>{margin}} +{'-' * WIDTH}")
    lines.append(f"{'':>{margin}}  {_below(across)}".rstrip())
    lines.append(f"{'':>{margin}}  {legend}")
    return lines


def _row(share: float) -> int:
    return HEIGHT - 1 - round(share * (HEIGHT - 1))


def _column(share: float) -> int:
    return round(share * (WIDTH - 1))


def _below(axis: Axis) -> str:
    line = [" "] * (WIDTH + 12)
    free_from = 0
    for value, label in axis.labels:
        at = _column(axis.share(value))
        if at >= free_from:
            line[at : at + len(label)] = label
            free_from = at + len(label) + 1
    return "".join(line)


class LogAxis:
    """Whole powers of ten that enclose the values."""

    def __init__(self, values: Sequence[float]) -> None:
        first, last = min(values, default=1), max(values, default=1)
        self._low = math.floor(math.log10(first))
        self._high = max(self._low + 1, math.ceil(math.log10(last)))

    @property
    def labels(self) -> list[tuple[float, str]]:
        powers = (10**exponent for exponent in range(self._low, self._high + 1))
        return [(power, f"{power:,}") for power in powers]

    def share(self, value: float) -> float:
        return (math.log10(value) - self._low) / (self._high - self._low)


class LinearAxis:
    """From the lowest value to the highest, with round numbers between."""

    def __init__(self, values: Sequence[float]) -> None:
        self._low, self._high = min(values, default=0.0), max(values, default=1.0)

    @property
    def labels(self) -> list[tuple[float, str]]:
        step = _round_step((self._high - self._low) / MOST_RATE_TICKS)
        first, last = math.ceil(self._low / step), math.floor(self._high / step)
        return [(number * step, f"{number * step:,.10g}") for number in range(first, last + 1)]

    def share(self, value: float) -> float:
        span = self._high - self._low
        return (value - self._low) / span if span else 0.5


def _round_step(least: float) -> float:
    """The first of 1, 2, 5, 10, 20 ... that is not below; 1 where all values are the same."""
    if least <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10, 20) if factor * power >= least)


class _FromZero:
    """Linear, with a label at the top and one half-way."""

    def __init__(self, top: float) -> None:
        self._top = top

    @property
    def labels(self) -> list[tuple[float, str]]:
        half = self._top * (HEIGHT - 1 - HEIGHT // 2) / (HEIGHT - 1)
        return [(value, f"{value:,.0f}") for value in (self._top, half)]

    def share(self, value: float) -> float:
        return value / self._top


class _Durations:
    """Logarithmic, in microseconds: what is too fast by a little is too slow by a lot."""

    def __init__(self, values_us: Sequence[float]) -> None:
        (self._low, self._high), self._ticks = log_axis(values_us)

    @property
    def labels(self) -> list[tuple[float, str]]:
        return [(tick, duration(tick)) for tick in self._ticks]

    def share(self, value: float) -> float:
        return math.log(max(1.0, value) / self._low) / math.log(self._high / self._low)
