"""A run over time: its rows by the second, the charts they make, and those that grow with it.

Seconds count from the beginning of the measured phase. A long run has more seconds than a chart has
pixels: its rows are thinned, and of those that fall together the worst counts for durations and the
mean for everything else.

A specification of `charts.py` holds its rows. Compiling one anew for every second of a run would
cost the reader's machine, which may be the one that is measured; so here rows and axes are named
and filled in later: `live_spec` is drawn once; rows and `Axes` are what changes.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bench_spark.config.objectives import Unit
from bench_spark.core.hdr import TOTALS, SparseHistogram
from bench_spark.report.charts import (
    PAGE,
    SECOND_TOOLTIP,
    Line,
    SeriesColours,
    Spec,
    chart,
    distribution_rows,
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
from bench_spark.report.formatting import PERCENTILE_COLUMNS, Document, words
from bench_spark.store.delta import Store
from bench_spark.store.schema import PERCENTILES

MOST_POINTS = 600
ROLLING = "rolling"

RATE_COLUMNS = ("sent_per_second", "received_per_second")
DURATION_COLUMNS = (*(name for name, _ in PERCENTILES), "max_us")
WINDOW_COLUMNS = [
    *("window", "window_start", "window_end", "measure", "written_at", "batch_id"),
    *RATE_COLUMNS,
    *DURATION_COLUMNS,
]
"""Of `metrics`: what a chart needs."""
RESOURCE_COLUMNS = [
    *("at", "source", "phase", "interval_seconds", "rss_bytes"),
    *("cpu_user_share_of_machine", "cpu_system_share_of_machine"),
    *("written_bytes", "device_written_bytes"),
]
GENERATOR_COLUMNS = ["agent", "tick_start", "host_busy_share"]
TIME_COLUMNS = ["started_at", "measured_from", "measured_until"]

Row = dict[str, Any]


@dataclass(frozen=True)
class TimeSeries:
    """What the charts of a run have in common."""

    throughput: Sequence[Row]
    """`second`, `sent_per_second`, `received_per_second`: over the last ten seconds."""
    durations: Mapping[str, Sequence[Row]]
    """Per measure: `second` and its percentiles, over the last ten seconds."""
    broker: Mapping[str, Sequence[Row]]
    """Per source: `second`, CPU as a share of the machine, memory, bytes written per second."""
    generator: Sequence[Row]
    """`second` and how busy the busiest machine of an agent was."""
    measured: tuple[float, float]
    windows_per_point: int = 1

    @property
    def span(self) -> tuple[float, float]:
        """From the first to the last second of any chart."""
        parts = [self.throughput, self.generator, *self.durations.values(), *self.broker.values()]
        known = [row["second"] for rows in parts for row in rows]
        return min([*known, self.measured[0]]), max([*known, self.measured[1]])


@dataclass(frozen=True)
class RunTimes:
    started_at: datetime | None = None
    measured_from: datetime | None = None
    measured_until: datetime | None = None


@dataclass(frozen=True)
class RunHistory:
    """What the tables know about a run beside its result."""

    times: RunTimes
    timeline: TimeSeries | None = None
    """None if the load never started."""
    distribution: Sequence[Row] = ()
    """`decades`, `percentile`, and a value per measure."""


def history_of(store: Store, document: Document) -> RunHistory:
    """What the tables know about the run of this document, beside it."""
    run_id = document["run_id"]
    [row] = store.read("runs", columns=TIME_COLUMNS, run_id=run_id).to_pylist() or [{}]
    times = RunTimes(**row)
    events = store.read("events", columns=GENERATOR_COLUMNS, run_id=run_id)
    series = timeline_of(
        store.read("metrics", columns=WINDOW_COLUMNS, run_id=run_id, window=ROLLING),
        store.read("resources", columns=RESOURCE_COLUMNS, run_id=run_id),
        events.filter(pc.is_valid(events["host_busy_share"])),
        times,
    )
    return RunHistory(times, series, distribution_rows(*_histograms(store, document)))


def _histograms(store: Store, document: Document) -> tuple[dict[str, SparseHistogram], int]:
    """Per measure the histogram of the run, and the end of their range."""
    rows = store.read("summary", run_id=document["run_id"], aggregation="run").to_pylist()
    found = {
        row["measure"]: SparseHistogram.decode(
            row["hdr_encoded"], {name: row.get(name) or 0 for name in TOTALS}
        )
        for row in rows
        if row["hdr_encoded"]
    }
    highest_seconds = document["scenario"]["histogram"]["highest_seconds"]
    return found, round(highest_seconds * 1_000_000)


def timeline_of(
    metrics: pa.Table, resources: pa.Table, generator: pa.Table, times: RunTimes
) -> TimeSeries | None:
    """From rows of one run, as the store has them; `generator`: of `events` those with a
    `host_busy_share`."""
    if times.measured_from is None or times.measured_until is None:
        return None
    origin = times.measured_from

    def second(moment: datetime) -> float:
        return round((moment - origin).total_seconds(), 3)

    windows = newest_windows(metrics)
    ends = sorted({row["window_end"] for row in windows})
    per_point = max(1, math.ceil(len(ends) / MOST_POINTS))
    by_measure: dict[str, list[Row]] = {}
    throughput: dict[float, Row] = {}
    for row in windows:
        moved = {"second": second(row["window_end"]), **row}
        throughput[moved["second"]] = moved
        if row["measure"] is not None:
            by_measure.setdefault(row["measure"], []).append(moved)
    return TimeSeries(
        throughput=thinned(
            [throughput[at] for at in sorted(throughput)],
            RATE_COLUMNS,
            (),
            per_point,
        ),
        durations={
            measure: thinned(rows, (), DURATION_COLUMNS, per_point)
            for measure, rows in sorted(by_measure.items())
        },
        broker=_broker(resources, second),
        generator=_generator(generator, second),
        measured=(0.0, second(times.measured_until)),
        windows_per_point=per_point,
    )


def newest_windows(metrics: pa.Table) -> list[Row]:
    """The rolling windows in order of time. One that was published again counts as it was last."""
    rolling = metrics.filter(pc.equal(metrics["window"], ROLLING))
    ordered = rolling.sort_by([("written_at", "ascending"), ("batch_id", "ascending")])
    newest: dict[tuple[Any, ...], Row] = {
        (row["window_start"], row["window_end"], row["measure"]): row for row in ordered.to_pylist()
    }
    return sorted(newest.values(), key=lambda row: (row["window_end"], row["measure"] or ""))


def thinned(
    rows: Sequence[Mapping[str, Any]],
    means: Sequence[str],
    worsts: Sequence[str],
    per_point: int,
) -> list[Row]:
    """One row for each `per_point` of them, at the time of the last."""
    found = []
    for start in range(0, len(rows), per_point):
        group = rows[start : start + per_point]
        row: Row = {"second": group[-1]["second"]}
        row |= {name: _over(group, name, statistics.fmean) for name in means}
        row |= {name: _over(group, name, max) for name in worsts}
        found.append(row)
    return found


def _over(group: Iterable[Mapping[str, Any]], name: str, fold: Any) -> float | None:
    known = [row[name] for row in group if row[name] is not None]
    return fold(known) if known else None


_BROKER_MEANS = ("cpu", "written_per_second", "device_written_per_second")


def _broker(resources: pa.Table, second: Any) -> dict[str, list[Row]]:
    by_source: dict[str, list[Row]] = {}
    for row in sorted(resources.to_pylist(), key=lambda row: row["at"]):
        if row["interval_seconds"]:
            by_source.setdefault(row["source"], []).append(broker_row(row, second(row["at"])))
    return {
        source: thinned(rows, _BROKER_MEANS, ("rss_bytes",), math.ceil(len(rows) / MOST_POINTS))
        for source, rows in by_source.items()
        if any(row[name] is not None for row in rows for name in (*_BROKER_MEANS, "rss_bytes"))
    }


def broker_row(row: Row, second: float) -> Row:
    """A row of `resources`, of an interval that was read, as it is drawn."""
    return {
        "second": second,
        "cpu": _sum(row["cpu_user_share_of_machine"], row["cpu_system_share_of_machine"]),
        "rss_bytes": row["rss_bytes"],
        "written_per_second": _per_second(row, "written_bytes"),
        "device_written_per_second": _per_second(row, "device_written_bytes"),
    }


def _sum(user: float | None, system: float | None) -> float | None:
    return None if user is None or system is None else user + system


def _per_second(row: Row, name: str) -> float | None:
    return None if row[name] is None else row[name] / row["interval_seconds"]


def _generator(events: pa.Table, second: Any) -> list[Row]:
    busiest: dict[float, float] = {}
    for row in events.to_pylist():
        at = second(row["tick_start"])
        busiest[at] = max(busiest.get(at, 0.0), row["host_busy_share"])
    rows = [{"second": at, "busy": busiest[at]} for at in sorted(busiest)]
    return thinned(rows, ("busy",), (), max(1, math.ceil(len(rows) / MOST_POINTS)))


MEASURES_OVER_TIME = ("latency", "delivery_latency", "confirm_latency")

_PERCENTILE_LINES = tuple(
    Line(field, label) for field, label in PERCENTILE_COLUMNS if field not in ("p75_us", "p90_us")
)


@dataclass(frozen=True)
class TimeChart:
    caption: str
    description: str
    unit: Unit
    rows: Sequence[Row]
    """`second`, and the fields of the lines."""
    lines: Sequence[Line]
    """Those that at least one row has a value for."""

    @property
    def title(self) -> str:
        return f"{self.caption} over time: {self.description}"


def time_charts(timeline: TimeSeries) -> Iterator[TimeChart]:
    """In the order of a page; one that would be empty is left out."""
    for described in _all_charts(timeline):
        known = [
            line
            for line in described.lines
            if any(row.get(line.field) is not None for row in described.rows)
        ]
        if known:
            yield replace(described, lines=known)


def _all_charts(timeline: TimeSeries) -> Iterator[TimeChart]:
    yield TimeChart(
        "Throughput",
        "messages sent and received per second",
        "per_second",
        timeline.throughput,
        (Line("sent_per_second", "sent"), Line("received_per_second", "received")),
    )
    for measure in MEASURES_OVER_TIME:
        yield TimeChart(
            words(measure).capitalize(),
            f"percentiles of {words(measure)}",
            "us",
            timeline.durations.get(measure, ()),
            _PERCENTILE_LINES,
        )
    used = {f"broker: {name}": (rows, "cpu") for name, rows in timeline.broker.items()}
    used["generator's machine, all programs"] = (timeline.generator, "busy")
    yield _of_several("CPU", "CPU as a share of the machine", "cpu_share", used)
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
    caption: str, description: str, unit: Unit, parts: Mapping[str, tuple[Sequence[Row], str]]
) -> TimeChart:
    lines = [Line(name, name) for name in parts]
    return TimeChart(caption, description, unit, _together(parts), lines)


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
    unit, lines = described.unit, described.lines
    x = time_axis({"domain": [{"expr": "span_from"}, {"expr": "span_to"}]})
    params: Spec = {"span_from": 0, "span_to": 1, "points": 1}
    params |= {"y_from": 1, "y_to": 10, "y_ticks": [1, 10]}
    domain = [{"expr": "y_from"}, {"expr": "y_to"}]
    y = y_encoding("value", unit, domain, {"expr": "y_ticks"})
    layers = line_layers({"name": ROWS}, lines, x, y, unit, SECOND_TOOLTIP, points="points")
    drawn = chart(described.title, [shade({"name": OUTSIDE}, x), *layers])
    drawn["params"] = [{"name": name, "value": value} for name, value in params.items()]
    return themed(drawn, PAGE, colours)


def drawn_row(described: TimeChart, row: Row) -> dict[str, Any]:
    """A row of the chart as its specification wants it."""
    [drawn] = plotted([row], described.lines, ("second",), described.unit)
    return drawn


def axes_of(
    described: TimeChart,
    drawn: Sequence[Row],
    span: tuple[float, float],
    measured: tuple[float, float],
) -> Axes:
    """For the rows that `drawn_row` gave."""
    keys = keys_of(described.lines)
    (low, high), ticks = y_axis((row[key] for row in drawn for key in keys), described.unit)
    signals: dict[str, Any] = {"span_from": span[0], "span_to": span[1], "points": len(drawn)}
    signals |= {"y_from": low, "y_to": high, "y_ticks": ticks}
    return Axes(tuple(outside_of(span, measured)), signals)
