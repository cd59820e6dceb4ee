"""A run second by second: charts whose time axes lie under each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench_spark.report import charts
from bench_spark.report.charts import Line
from bench_spark.report.formatting import UNKNOWN, byte_size, count, duration, per_cent, rate, words
from bench_spark.report.html_page import Charts
from bench_spark.report.markup import Child, Markup, tag
from bench_spark.report.measures import PERCENTILE_COLUMNS
from bench_spark.report.timeline import Row, Timeline

MOST_TABLE_ROWS = 60
MEASURES_OVER_TIME = ("latency", "delivery_latency", "confirm_latency")

_PERCENTILE_LINES = tuple(
    Line(field, label) for field, label in PERCENTILE_COLUMNS if field not in ("p75_us", "p90_us")
)


def over_time(timeline: Timeline, drawn: Charts) -> Iterator[Child]:
    yield tag("p", _about_windows(timeline), class_="faint")
    chart = _TimeCharts(timeline, drawn)
    yield chart.draw(
        "Throughput",
        "messages sent and received per second",
        timeline.throughput,
        (Line("sent_per_second", "sent"), Line("received_per_second", "received")),
        "rate",
    )
    for measure in MEASURES_OVER_TIME:
        yield chart.draw(
            f"{words(measure).capitalize()}",
            f"percentiles of {words(measure)}",
            timeline.durations.get(measure, ()),
            _PERCENTILE_LINES,
            "duration",
        )
    sources = list(timeline.broker)
    used = {f"broker: {name}": (rows, "cpu") for name, rows in timeline.broker.items()}
    used["generator's machine, all programs"] = (timeline.generator, "busy")
    yield chart.draw(
        "CPU",
        "CPU as a share of the machine",
        _together(used),
        [Line(name, name) for name in used],
        "share",
    )
    written = {
        f"{kind} {name}": (rows, f"{field}_per_second")
        for name, rows in timeline.broker.items()
        for kind, field in (("written", "written"), ("to disk", "device_written"))
    }
    yield chart.draw(
        "Disk",
        "bytes written by the broker: handed to the kernel, and arrived at a disk",
        _together(written),
        [Line(name, name) for name in written],
        "bytes_per_second",
    )
    yield chart.draw(
        "Memory",
        "resident memory of the broker",
        _together({name: (rows, "rss_bytes") for name, rows in timeline.broker.items()}),
        [Line(name, name) for name in sources],
        "bytes",
    )


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


class _TimeCharts:
    """Charts whose time axes lie under each other."""

    def __init__(self, timeline: Timeline, drawn: Charts) -> None:
        self._timeline = timeline
        self._drawn = drawn

    def draw(
        self,
        caption: str,
        description: str,
        rows: Sequence[Row],
        lines: Sequence[Line],
        kind: charts.Kind,
    ) -> Markup | None:
        known = [line for line in lines if any(row.get(line.field) is not None for row in rows)]
        if not known:
            return None
        timeline = self._timeline
        spec = charts.over_time(
            f"{caption} over time: {description}",
            rows,
            known,
            kind,
            timeline.span,
            timeline.measured,
        )
        every = max(1, -(-len(rows) // MOST_TABLE_ROWS))
        shown = [
            [f"{row['second']:.1f}", *(_NUMBERS[kind](row.get(line.field)) for line in known)]
            for row in rows[::every]
        ]
        headings = ["second", *(line.label for line in known)]
        title = f"{description} (every {every} rows)" if every > 1 else description
        unit = charts.UNITS[kind]
        headline = f"{caption}, {unit}" if unit else caption
        return self._drawn.figure(headline, spec, headings, shown, title)


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


def _per_second_size(value: float | None) -> str:
    return UNKNOWN if value is None else f"{byte_size(value)}/s"


_NUMBERS: Mapping[charts.Kind, Any] = {
    "duration": duration,
    "rate": rate,
    "share": per_cent,
    "bytes": byte_size,
    "bytes_per_second": _per_second_size,
    "number": count,
}
