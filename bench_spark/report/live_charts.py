"""Charts that grow while they are looked at: drawn once, then fed. Pure.

A specification of `charts.py` holds its rows. Compiling one anew for every second of a run would
cost the reader's machine, which may be the one that is measured; so here rows and axes are named
and filled in later: `live_spec` is drawn once; rows and `Axes` are what changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench_spark.report.chart_parts import (
    TOLD_SECOND,
    Row,
    chart,
    duration_encoding,
    keys_of,
    line_layers,
    log_axis,
    number_encoding,
    outside_of,
    plotted,
    shade,
    time_axis,
)
from bench_spark.report.chart_theme import PAGE, Spec, themed
from bench_spark.report.time_charts import TimeChart

ROWS, OUTSIDE = "rows", "outside"
"""Names of the data sets that are filled in later."""


@dataclass(frozen=True)
class Axes:
    """Where the axes of a chart begin and end, and what is shaded."""

    outside: tuple[Any, ...]
    signals: dict[str, Any]
    """Values of the specification's parameters."""


def live_spec(described: TimeChart) -> Spec:
    kind, lines = described.kind, described.lines
    x = time_axis({"domain": [{"expr": "span_from"}, {"expr": "span_to"}]})
    params: Spec = {"span_from": 0, "span_to": 1, "points": 1}
    if kind == "duration":
        params |= {"y_from": 1, "y_to": 10, "y_ticks": [1, 10]}
        domain = [{"expr": "y_from"}, {"expr": "y_to"}]
        scale = {"type": "log", "domain": domain, "nice": False}
        y = duration_encoding("value", scale, {"values": {"expr": "y_ticks"}})
    else:
        y = number_encoding("value", kind)
    layers = line_layers({"name": ROWS}, lines, x, y, kind, TOLD_SECOND, points="points")
    drawn = chart(described.title, [shade({"name": OUTSIDE}, x), *layers])
    drawn["params"] = [{"name": name, "value": value} for name, value in params.items()]
    return themed(drawn, PAGE)


def drawn_row(described: TimeChart, row: Row) -> dict[str, Any]:
    """A row of the chart as its specification wants it."""
    [drawn] = plotted([row], described.lines, ("second",), described.kind)
    return drawn


def axes_of(
    described: TimeChart,
    drawn: Sequence[Row],
    span: tuple[float, float],
    measured: tuple[float, float],
) -> Axes:
    """For the rows that `drawn_row` gave."""
    signals: dict[str, Any] = {"span_from": span[0], "span_to": span[1], "points": len(drawn)}
    if described.kind == "duration":
        keys = keys_of(described.lines)
        (low, high), ticks = log_axis(row[key] for row in drawn for key in keys)
        signals |= {"y_from": low, "y_to": high, "y_ticks": ticks}
    return Axes(tuple(outside_of(span, measured)), signals)
