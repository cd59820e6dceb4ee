"""A curve drawn with characters: throughput over the window, whose axis is logarithmic."""

from __future__ import annotations

import math
from collections.abc import Sequence

WIDTH, HEIGHT = 56, 12
POINT, CHOSEN = "o", "X"


def draw_curve(points: Sequence[tuple[int, float]], chosen: int) -> list[str]:
    """Lines of text. `points` are (window, throughput); the chosen window is marked."""
    axis = LogAxis([window for window, _ in points], WIDTH - 1)
    top = max((value for _, value in points), default=0.0) or 1.0
    grid = [[" "] * WIDTH for _ in range(HEIGHT)]
    # The chosen one last: it may share its place with a neighbour.
    for window, value in sorted(points, key=lambda point: point[0] == chosen):
        row = HEIGHT - 1 - round(value / top * (HEIGHT - 1))
        grid[row][axis.place(window)] = CHOSEN if window == chosen else POINT
    labels = {0: f"{top:,.0f}", HEIGHT // 2: f"{top * _share_at(HEIGHT // 2):,.0f}"}
    margin = max(len("msg/s"), *(len(label) for label in labels.values()))
    lines = [f"{'msg/s':>{margin}}"]
    lines += [
        f"{labels.get(row, ''):>{margin}} |{''.join(cells)}".rstrip()
        for row, cells in enumerate(grid)
    ]
    lines.append(f"{'0':>{margin}} +{'-' * WIDTH}")
    lines.append(f"{'':>{margin}}  {_ticks(axis)}".rstrip())
    lines.append(f"{'':>{margin}}  messages in flight ({CHOSEN}: chosen)")
    return lines


def _share_at(row: int) -> float:
    return (HEIGHT - 1 - row) / (HEIGHT - 1)


def _ticks(axis: LogAxis) -> str:
    line = [" "] * (WIDTH + 12)
    free_from = 0
    for power in axis.powers:
        label, at = f"{power:,}", axis.place(power)
        if at >= free_from:
            line[at : at + len(label)] = label
            free_from = at + len(label) + 1
    return "".join(line)


class LogAxis:
    """Whole powers of ten that enclose the windows, spread over so many steps."""

    def __init__(self, windows: Sequence[int], steps: int) -> None:
        first, last = min(windows, default=1), max(windows, default=1)
        self.low = math.floor(math.log10(first))
        self.high = max(self.low + 1, math.ceil(math.log10(last)))
        self._steps = steps

    @property
    def powers(self) -> list[int]:
        return [10**exponent for exponent in range(self.low, self.high + 1)]

    def share(self, window: float) -> float:
        """How far along the axis a window lies, from 0 to 1."""
        return (math.log10(window) - self.low) / (self.high - self.low)

    def place(self, window: float) -> int:
        return round(self.share(window) * self._steps)
