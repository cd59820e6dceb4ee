"""Which charts a run has over time, and what is drawn in each. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bench_spark.report.chart_parts import Kind, Line
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
    for chart in _all_charts(timeline):
        known = [
            line
            for line in chart.lines
            if any(row.get(line.field) is not None for row in chart.rows)
        ]
        if known:
            yield TimeChart(chart.caption, chart.description, chart.kind, chart.rows, known)


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
    resident = {name: (rows, "rss_bytes") for name, rows in timeline.broker.items()}
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
