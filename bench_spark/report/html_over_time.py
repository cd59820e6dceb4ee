"""A run second by second: charts whose time axes lie under each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bench_spark.report import charts
from bench_spark.report.chart_parts import UNITS, Kind
from bench_spark.report.formatting import UNKNOWN, byte_size, count, duration, per_cent, rate
from bench_spark.report.html_page import Charts
from bench_spark.report.markup import Child, Markup, tag
from bench_spark.report.time_charts import TimeChart, time_charts
from bench_spark.report.timeline import Timeline

MOST_TABLE_ROWS = 60


def over_time(timeline: Timeline, drawn: Charts) -> Iterator[Child]:
    yield tag("p", _about_windows(timeline), class_="faint")
    for chart in time_charts(timeline):
        yield _figure(chart, timeline, drawn)


def _about_windows(timeline: Timeline) -> str:
    text = (
        "Throughput and percentiles are of the last 10 seconds at each moment, resources of each "
        "second. What lies outside the measured phase is shaded."
    )
    if timeline.windows_per_point > 1:
        text += (
            f" Each point stands for {timeline.windows_per_point} seconds: the worst for "
            "durations, the mean for the rest."
        )
    return text


def _figure(chart: TimeChart, timeline: Timeline, drawn: Charts) -> Markup:
    spec = charts.over_time(
        chart.title, chart.rows, chart.lines, chart.kind, timeline.span, timeline.measured
    )
    every = max(1, -(-len(chart.rows) // MOST_TABLE_ROWS))
    shown = [
        [
            f"{row['second']:.1f}",
            *(_NUMBERS[chart.kind](row.get(line.field)) for line in chart.lines),
        ]
        for row in chart.rows[::every]
    ]
    headings = ["second", *(line.label for line in chart.lines)]
    described = f"{chart.description} (every {every} rows)" if every > 1 else chart.description
    return drawn.figure(caption_of(chart), spec, headings, shown, described)


def caption_of(chart: TimeChart) -> str:
    """What stands above a chart: its name, and the unit where numbers have one."""
    unit = UNITS[chart.kind]
    return f"{chart.caption}, {unit}" if unit else chart.caption


def _per_second_size(value: float | None) -> str:
    return UNKNOWN if value is None else f"{byte_size(value)}/s"


_NUMBERS: Mapping[Kind, Any] = {
    "duration": duration,
    "rate": rate,
    "share": per_cent,
    "bytes": byte_size,
    "bytes_per_second": _per_second_size,
    "number": count,
}
