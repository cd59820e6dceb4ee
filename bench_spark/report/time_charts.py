"""Charts of a run over time: which ones a run has, and those that grow while it goes on. Pure.

A specification of `charts.py` holds its rows. Compiling one anew for every second of a run would
cost the reader's machine, which may be the one that is measured; so here rows and axes are named
and filled in later: `live_spec` is drawn once; rows and `Axes` are what changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench_spark.report.charts import (
    PAGE,
    TOLD_SECOND,
    Kind,
    Line,
    SeriesColours,
    Spec,
    chart,
    keys_of,
    line_layers,
    outside_of,
    plotted,
    shade,
    themed,
    time_axis,
    y_axis,
    y_encoding,
)
from bench_spark.report.formatting import words
from bench_spark.report.measures import PERCENTILE_COLUMNS
from bench_spark.report.timeline import Row, Timeline

MEASURES_OVER_TIME = ("latency", "delivery_latency", "confirm_latency")

_PERCENTILE_LINES = tuple(
    Line(field, label) for field, label in PERCENTILE_COLUMNS if field not in ("p75_us", "p90_us")
)


@dataclass(frozen=True)
class TimeChart:
    caption: str
    description: str
    kind: Kind
    rows: Sequence[Row]
    """`second`, and the fields of the lines."""
    lines: Sequence[Line]
    """Those that at least one row has a value for."""

    @property
    def title(self) -> str:
        return f"{self.caption} over time: {self.description}"


def time_charts(timeline: Timeline) -> Iterator[TimeChart]:
    """In the order of a page; one that would be empty is left out."""
    for described in _all_charts(timeline):
        known = [
            line
            for line in described.lines
            if any(row.get(line.field) is not None for row in described.rows)
        ]
        if known:
            yield replace(described, lines=known)


def _all_charts(timeline: Timeline) -> Iterator[TimeChart]:
    yield TimeChart(
        "Throughput",
        "messages sent and received per second",
        "rate",
        timeline.throughput,
        (Line("sent_per_second", "sent"), Line("received_per_second", "received")),
    )
    for measure in MEASURES_OVER_TIME:
        yield TimeChart(
            words(measure).capitalize(),
            f"percentiles of {words(measure)}",
            "duration",
            timeline.durations.get(measure, ()),
            _PERCENTILE_LINES,
        )
    used = {f"broker: {name}": (rows, "cpu") for name, rows in timeline.broker.items()}
    used["generator's machine, all programs"] = (timeline.generator, "busy")
    yield _of_several("CPU", "CPU as a share of the machine", "share", used)
    written = {
        f"{kind} {name}": (rows, f"{field}_per_second")
        for name, rows in timeline.broker.items()
        for kind, field in (("written", "written"), ("to disk", "device_written"))
    }
    described = "bytes written by the broker: handed to the kernel, and arrived at a disk"
    yield _of_several("Disk", described, "bytes_per_second", written)
    resident = {f"broker: {name}": (rows, "rss_bytes") for name, rows in timeline.broker.items()}
    yield _of_several("Memory", "resident memory of the broker", "bytes", resident)


def _of_several(
    caption: str, description: str, kind: Kind, parts: Mapping[str, tuple[Sequence[Row], str]]
) -> TimeChart:
    lines = [Line(name, name) for name in parts]
    return TimeChart(caption, description, kind, _together(parts), lines)


def _together(parts: Mapping[str, tuple[Sequence[Row], str]]) -> list[Row]:
    """One field of several lists as the fields of one, under the names of the lists.

    Their moments differ by parts of a second, and count as the same one.
    """
    merged: dict[int, Row] = {}
    for name, (rows, field) in parts.items():
        for row in rows:
            second = round(row["second"])
            merged.setdefault(second, {"second": second})[name] = row[field]
    return [merged[second] for second in sorted(merged)]


ROWS, OUTSIDE = "rows", "outside"
"""Names of the data sets that are filled in later."""


@dataclass(frozen=True)
class Axes:
    """Where the axes of a chart begin and end, and what is shaded."""

    outside: tuple[Any, ...]
    signals: dict[str, Any]
    """Values of the specification's parameters."""


def live_spec(described: TimeChart, colours: SeriesColours) -> Spec:
    kind, lines = described.kind, described.lines
    x = time_axis({"domain": [{"expr": "span_from"}, {"expr": "span_to"}]})
    params: Spec = {"span_from": 0, "span_to": 1, "points": 1}
    params |= {"y_from": 1, "y_to": 10, "y_ticks": [1, 10]}
    domain = [{"expr": "y_from"}, {"expr": "y_to"}]
    y = y_encoding("value", kind, domain, {"expr": "y_ticks"})
    layers = line_layers({"name": ROWS}, lines, x, y, kind, TOLD_SECOND, points="points")
    drawn = chart(described.title, [shade({"name": OUTSIDE}, x), *layers])
    drawn["params"] = [{"name": name, "value": value} for name, value in params.items()]
    return themed(drawn, PAGE, colours)


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
    keys = keys_of(described.lines)
    (low, high), ticks = y_axis((row[key] for row in drawn for key in keys), described.kind)
    signals: dict[str, Any] = {"span_from": span[0], "span_to": span[1], "points": len(drawn)}
    signals |= {"y_from": low, "y_to": high, "y_ticks": ticks}
    return Axes(tuple(outside_of(span, measured)), signals)
