"""Charts that grow while they are looked at: drawn once, then fed. Pure.

A specification of `charts.py` holds its rows. Compiling one anew for every second of a run would
cost the reader's machine, which may be the one that is measured; so here rows and axes are named
and filled in later: `live_spec` is drawn once, and `Feed` is what changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bench_spark.report.chart_parts import (
    TOLD_SECOND,
    chart,
    duration_encoding,
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
class Feed:
    """What a chart is to show now."""

    rows: tuple[dict[str, Any], ...]
    outside: tuple[Any, ...]
    """What of the time axis is shaded."""
    signals: dict[str, Any]
    """Values of the specification's parameters: where the axes begin and end."""


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


def feed(described: TimeChart, span: tuple[float, float], measured: tuple[float, float]) -> Feed:
    seconds = [row for row in described.rows if span[0] <= row["second"] <= span[1]]
    rows = plotted(seconds, described.lines, ("second",), described.kind)
    signals: dict[str, Any] = {
        "span_from": span[0],
        "span_to": span[1],
        "points": max(1, len(rows)),
    }
    if described.kind == "duration":
        values = [value for row in rows for name, value in row.items() if name != "second"]
        (low, high), ticks = log_axis(values)
        signals |= {"y_from": low, "y_to": high, "y_ticks": ticks}
    return Feed(tuple(rows), tuple(outside_of(span, measured)), signals)
