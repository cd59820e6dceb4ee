"""What is known of a run while it goes on, folded from the rows that its tables get. Pure.

Bounded: of what is drawn over time only the last minutes are kept, so that a watcher costs the same
after a second and after a day. The whole run is what `show` is for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bench_spark import tables
from bench_spark.agent.timeline import Timeline
from bench_spark.measure.clock import NANOSECONDS
from bench_spark.plan import Plan, make_plan, timeline_of
from bench_spark.report.measures import Document
from bench_spark.report.timeline import RESOURCE_COLUMNS, ROLLING, WINDOW_COLUMNS
from bench_spark.scenario.models import Scenario
from bench_spark.summary.rows import RUNNING
from bench_spark.tables import PERCENTILES
from bench_spark.watch.agent_rows import CONSUMER, PRODUCER, Agents

KEPT_SECONDS = 599
"""Of what is drawn: as many windows as a chart has points."""

RUN_COLUMNS = [
    *("run_id", "scenario", "broker", "status", "reasons", "exit_code", "started_at"),
    *("measured_from", "measured_until", "tags", "scenario_json", "broker_json", "result_json"),
]
EVENT_COLUMNS = [
    *("agent", "role", "tick", "tick_start", "tick_seconds", "sent", "received", "duplicates"),
    *("errors", "reconnects", "cpu_seconds", "host_busy_share"),
]
SETUP = "setup"
"""Role of marker rows, which count nothing."""


@dataclass(frozen=True)
class StoredWindow:
    """The newest rolling window, from its rows in `metrics`."""

    ended_at: datetime
    sent_per_second: float
    received_per_second: float
    measures: Mapping[str, Mapping[str, int]]


@dataclass
class RunState:
    run: Mapping[str, Any] | None = None
    """The run's row in `runs`; None before there is one."""
    plan: Plan | None = None
    timeline: Timeline | None = None
    """None before the load starts."""
    newest_ns: int = 0
    """Up to when events are known. The watcher's own clock is not asked: it may differ."""
    agents: Agents = field(default_factory=Agents)
    window: StoredWindow | None = None
    metrics: pa.Table = field(default_factory=lambda: _empty("metrics", WINDOW_COLUMNS))
    resources: pa.Table = field(default_factory=lambda: _empty("resources", RESOURCE_COLUMNS))

    @property
    def is_over(self) -> bool:
        return self.run is not None and self.run["status"] != RUNNING

    @property
    def document(self) -> Document | None:
        """The result, once there is one."""
        text = self.run["result_json"] if self.run is not None else None
        return json.loads(text) if text else None

    def add_run(self, rows: pa.Table) -> None:
        if not rows.num_rows:
            return
        self.run = rows.to_pylist(maps_as_pydicts="strict")[-1]
        if self.plan is None:
            scenario = Scenario.model_validate(json.loads(self.run["scenario_json"]))
            self.plan = make_plan(scenario, self.run["run_id"])
            self.agents.counted_role = PRODUCER if scenario.only_publishes else CONSUMER

    def add_events(self, rows: pa.Table) -> None:
        """Rows of the run's plan: it must be known already."""
        counted = rows.filter(pc.not_equal(rows["role"], SETUP)).to_pylist()
        if not counted:
            return
        if self.timeline is None:
            assert self.plan is not None
            self.timeline = _timeline_from(self.plan, counted[0])
        for row in counted:
            self.newest_ns = max(self.newest_ns, _ns(row["tick_start"]) + _length_ns(row))
        self.agents.add(counted, KEPT_SECONDS)

    def add_metrics(self, rows: pa.Table) -> None:
        rolling = rows.filter(pc.equal(rows["window"], ROLLING))
        if not rolling.num_rows:
            return
        newest_end = pc.max(rolling["window_end"]).as_py()
        if self.window is None or newest_end >= self.window.ended_at:
            newest = rolling.filter(pc.equal(rolling["window_end"], newest_end))
            self.window = _window(newest_end, newest.to_pylist())
        self.metrics = _last_minutes(pa.concat_tables([self.metrics, rolling]), "window_end")

    def add_resources(self, rows: pa.Table) -> None:
        if rows.num_rows:
            self.resources = _last_minutes(pa.concat_tables([self.resources, rows]), "at")


def _empty(table: str, columns: list[str]) -> pa.Table:
    return pa.schema([tables.TABLES[table].field(name) for name in columns]).empty_table()


def _last_minutes(rows: pa.Table, column: str) -> pa.Table:
    oldest = pc.max(rows[column]).as_py() - timedelta(seconds=KEPT_SECONDS)
    bound = pa.scalar(oldest, rows.schema.field(column).type)
    return rows.filter(pc.greater_equal(rows[column], bound)).combine_chunks()


def _window(ended_at: datetime, rows: list[dict[str, Any]]) -> StoredWindow:
    """Rows of one window, those of its last publication behind the others."""
    return StoredWindow(
        ended_at,
        rows[-1]["sent_per_second"],
        rows[-1]["received_per_second"],
        {
            row["measure"]: {name: row[name] for name, _ in PERCENTILES}
            for row in rows
            if row["measure"] is not None
        },
    )


def _timeline_from(plan: Plan, row: Mapping[str, Any]) -> Timeline:
    """Any tick tells when the run started: how long phases last is known from the plan."""
    from_zero = timeline_of(plan.scenario, 0)
    start_ns = _ns(row["tick_start"]) - from_zero.tick_start_ns(row["tick"])
    return timeline_of(plan.scenario, start_ns)


def _ns(moment: datetime) -> int:
    return round(moment.timestamp() * 1_000_000) * 1000


def _length_ns(row: Mapping[str, Any]) -> int:
    return round(float(row["tick_seconds"]) * NANOSECONDS)


def moment_of(at_ns: int) -> datetime:
    return datetime.fromtimestamp(at_ns / NANOSECONDS, UTC)
