"""How a run went, second by second: rows for charts, from the tables `metrics`, `resources` and
`events`. Pure.

Seconds count from the beginning of the measured phase. A long run has more seconds than a chart has
pixels: its rows are thinned, and of those that fall together the worst counts for durations and the
mean for everything else.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

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

Row = dict[str, Any]


@dataclass(frozen=True)
class Timeline:
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
class RunTables:
    """Rows of one run, as the store has them."""

    metrics: pa.Table
    resources: pa.Table
    generator: pa.Table
    """Rows of `events` with a `host_busy_share`."""


@dataclass(frozen=True)
class RunTimes:
    started_at: datetime | None = None
    measured_from: datetime | None = None
    measured_until: datetime | None = None


@dataclass(frozen=True)
class RunHistory:
    """What the tables know about a run beside its result."""

    times: RunTimes
    timeline: Timeline | None = None
    """None if the load never started."""
    distribution: Sequence[Row] = ()
    """`decades`, `percentile`, and a value per measure."""


def timeline_of(tables: RunTables, times: RunTimes) -> Timeline | None:
    if times.measured_from is None or times.measured_until is None:
        return None
    origin = times.measured_from

    def second(moment: datetime) -> float:
        return round((moment - origin).total_seconds(), 3)

    windows = newest_windows(tables.metrics)
    ends = sorted({row["window_end"] for row in windows})
    per_point = max(1, math.ceil(len(ends) / MOST_POINTS))
    by_measure: dict[str, list[Row]] = {}
    throughput: dict[float, Row] = {}
    for row in windows:
        moved = {"second": second(row["window_end"]), **row}
        throughput[moved["second"]] = moved
        if row["measure"] is not None:
            by_measure.setdefault(row["measure"], []).append(moved)
    return Timeline(
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
        broker=_broker(tables.resources, second),
        generator=_generator(tables.generator, second),
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
