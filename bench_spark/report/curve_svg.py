"""A curve as an SVG image: throughput over the window, with the intervals of the medians."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TextIO
from xml.sax.saxutils import escape

from bench_spark.report.curve_text import LogAxis
from bench_spark.report.measures import Document

WIDTH, HEIGHT = 720, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 90, 690, 50, 360
_Y_TICKS = 5

_STYLE = (
    "text{font:13px sans-serif;fill:#333}.title{font-size:15px;font-weight:bold}"
    ".grid{stroke:#ddd}.axis{stroke:#333}.curve{fill:none;stroke:#2b6cb0;stroke-width:2}"
    ".interval{stroke:#2b6cb0;stroke-opacity:.5}.point{fill:#2b6cb0}.chosen{fill:#c53030}"
    ".smallest{fill:none;stroke:#c53030;stroke-width:2}"
)


def write_curve_svg(document: Document, writer: TextIO) -> None:
    """The curve of a window search."""
    name = f"{document['scenario']['name']} on {document['broker']['name']}"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" role="img">',
        f"<title>{escape(name)}: throughput by messages in flight</title>",
        f"<style>{_STYLE}</style>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text class="title" x="{_LEFT}" y="28">{escape(name)}</text>',
        *_Curve(document["curve"]).elements(document["in_flight"], document["smallest_in_flight"]),
        "</svg>",
    ]
    writer.write("\n".join(lines) + "\n")


class _Curve:
    def __init__(self, points: Sequence[Mapping[str, Any]]) -> None:
        self._points = points
        self._axis = LogAxis([point["in_flight"] for point in points], _RIGHT - _LEFT)
        highest = max((point["high_per_second"] for point in points), default=0.0)
        self._step = round_step(highest / _Y_TICKS)
        self._top = self._step * max(1, math.ceil(highest / self._step))

    def elements(self, chosen: int, smallest: int) -> Iterator[str]:
        yield from self._axes()
        line = " ".join(
            f"{self._x(point['in_flight'])},{self._y(point['median_per_second'])}"
            for point in self._points
        )
        yield f'<polyline class="curve" points="{line}"/>'
        for point in self._points:
            x, y = self._x(point["in_flight"]), self._y(point["median_per_second"])
            low, high = self._y(point["low_per_second"]), self._y(point["high_per_second"])
            yield f'<line class="interval" x1="{x}" y1="{low}" x2="{x}" y2="{high}"/>'
            is_chosen = point["in_flight"] == chosen
            kind, radius = ("chosen", 6) if is_chosen else ("point", 3.5)
            said = f"{point['in_flight']:,} in flight: {point['median_per_second']:,.0f} msg/s"
            yield f'<circle class="{kind}" cx="{x}" cy="{y}" r="{radius}">'
            yield f"<title>{said}</title></circle>"
            if point["in_flight"] == smallest:
                yield f'<circle class="smallest" cx="{x}" cy="{y}" r="9"/>'
        yield (
            f'<text x="{_LEFT}" y="{HEIGHT - 12}">messages in flight; filled: chosen '
            f"({chosen:,}), ring: smallest as good ({smallest:,})</text>"
        )

    def _axes(self) -> Iterator[str]:
        for number in range(round(self._top / self._step) + 1):
            value = number * self._step
            y = self._y(value)
            yield f'<line class="grid" x1="{_LEFT}" y1="{y}" x2="{_RIGHT}" y2="{y}"/>'
            yield f'<text x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{value:,.0f}</text>'
        for power in self._axis.powers:
            x = self._x(power)
            yield f'<line class="grid" x1="{x}" y1="{_TOP}" x2="{x}" y2="{_BOTTOM}"/>'
            yield f'<text x="{x}" y="{_BOTTOM + 18}" text-anchor="middle">{power:,}</text>'
        yield f'<text x="{_LEFT - 8}" y="{_TOP - 10}" text-anchor="end">msg/s</text>'
        yield f'<path class="axis" fill="none" d="M{_LEFT},{_TOP}V{_BOTTOM}H{_RIGHT}"/>'

    def _x(self, window: int) -> float:
        return round(_LEFT + self._axis.share(window) * (_RIGHT - _LEFT), 1)

    def _y(self, per_second: float) -> float:
        return round(_BOTTOM - per_second / self._top * (_BOTTOM - _TOP), 1)


def round_step(least: float) -> float:
    """The next of 1, 2, 5, 10, 20 ... that is not below it."""
    if least <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10, 20) if factor * power >= least)
