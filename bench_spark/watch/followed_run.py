"""The state of a run that goes on, kept up to date by what its tables have got since.

What was added to a table since it was last looked at, by any writer. A Delta table's log has a
numbered file per commit that names the data files which the commit added. Reading the next ones
costs what is new, however long the table is; asking deltalake for the whole table would cost more
with every second of a run. Of what is drawn over time only the last minutes are kept, so that a
watcher costs the same after a second and after a day.
"""

from __future__ import annotations

import json
import statistics
import time
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from bench_spark.agent.timeline import CONSUMER, PRODUCER, Timeline
from bench_spark.config.models import stored_scenario
from bench_spark.core.clock import NANOSECONDS
from bench_spark.driver_process import AS_ABANDONED, RUNNING, has_vanished
from bench_spark.errors import StoreError
from bench_spark.plan import Plan, has_to_settle, make_plan
from bench_spark.report.formatting import Document
from bench_spark.report.timeline import (
    DURATION_COLUMNS,
    RATE_COLUMNS,
    RESOURCE_COLUMNS,
    ROLLING,
    WINDOW_COLUMNS,
    broker_row,
)
from bench_spark.results.document import timeline_at
from bench_spark.store.arrow import SCHEMAS
from bench_spark.store.delta import Store
from bench_spark.store.schema import PERCENTILES

OPEN_TICKS = 10
"""Rows of a tick may come late; ticks older than this count as complete."""


@dataclass
class AgentTotals:
    """Of one agent, since the start."""

    sent: int = 0
    received: int = 0
    """Without the duplicates that it saw itself."""
    errors: int = 0
    reconnects: int = 0
    cpu_seconds: float = 0.0
    host_busy_share: float | None = None
    """In the last second that it reported."""
    tick: int = -1
    """The newest that it reported; the rates are of that second."""
    tick_seconds: float = 1.0
    sent_in_tick: int = 0
    received_in_tick: int = 0

    @property
    def sent_per_second(self) -> float:
        return self.sent_in_tick / self.tick_seconds

    @property
    def received_per_second(self) -> float:
        return self.received_in_tick / self.tick_seconds

    def add(self, row: Mapping[str, Any]) -> None:
        once = row["received"] - row["duplicates"]
        self.sent += row["sent"]
        self.received += once
        self.errors += row["errors"]
        self.reconnects += row["reconnects"] or 0
        self.cpu_seconds += row["cpu_seconds"] or 0.0
        if row["host_busy_share"] is not None:
            self.host_busy_share = row["host_busy_share"]
        if row["tick"] > self.tick:
            self.tick, self.tick_seconds = row["tick"], row["tick_seconds"] or 1.0
            self.sent_in_tick = self.received_in_tick = 0
        if row["tick"] == self.tick:
            self.sent_in_tick += row["sent"]
            self.received_in_tick += once


@dataclass
class AgentsInTick:
    """One tick over all agents."""

    started_at: datetime
    seconds: float
    busiest_share: float | None = None
    """How busy the busiest machine of an agent was."""
    handled: dict[int, int] = field(default_factory=dict)
    """Per agent, while rows may still come: messages received; without consumers, sent."""
    spread: tuple[float, float, float] | None = None
    """Slowest, middle and fastest agent, in messages per second."""

    def close(self) -> None:
        if self.handled:
            self.spread = self.spread_now
            self.handled = {}

    @property
    def spread_now(self) -> tuple[float, float, float] | None:
        if not self.handled:
            return self.spread
        rates = [messages / self.seconds for messages in self.handled.values()]
        return min(rates), statistics.median(rates), max(rates)


@dataclass
class Agents:
    counted_role: str = CONSUMER
    """Whose messages the agents are compared by."""
    by_number: dict[int, AgentTotals] = field(default_factory=dict)
    by_tick: dict[int, AgentsInTick] = field(default_factory=dict)

    @property
    def totals(self) -> dict[str, int]:
        """Under the names that displays use."""
        return {
            "sent": sum(agent.sent for agent in self.by_number.values()),
            "received_once": sum(agent.received for agent in self.by_number.values()),
        }

    def add(self, rows: Iterable[Mapping[str, Any]], kept_ticks: int) -> None:
        """Rows of `events`; older ticks than so many are forgotten."""
        for row in rows:
            self.by_number.setdefault(row["agent"], AgentTotals()).add(row)
            self._add_to_second(row)
        newest = max(self.by_tick, default=0)
        for tick in [tick for tick in self.by_tick if tick < newest - kept_ticks]:
            del self.by_tick[tick]
        for tick, second in self.by_tick.items():
            if tick < newest - OPEN_TICKS:
                second.close()

    def _add_to_second(self, row: Mapping[str, Any]) -> None:
        length = row["tick_seconds"] or 1.0
        second = self.by_tick.setdefault(row["tick"], AgentsInTick(row["tick_start"], length))
        if row["host_busy_share"] is not None:
            second.busiest_share = max(second.busiest_share or 0.0, row["host_busy_share"])
        if row["role"] == self.counted_role and second.spread is None:
            messages = row["received" if self.counted_role == CONSUMER else "sent"]
            second.handled[row["agent"]] = second.handled.get(row["agent"], 0) + messages


KEPT_SECONDS = 599
"""Of what is drawn: as many windows as a chart has points."""

RUN_COLUMNS = [
    *("run_id", "scenario", "broker", "status", "reasons", "exit_code", "started_at"),
    *("measured_from", "measured_until", "tags", "scenario_json", "broker_json", "result_json"),
    "driver_json",
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

    @property
    def ended_ns(self) -> int:
        return _ns(self.ended_at)


BySecond = dict[float, dict[str, Any]]
"""Rows of a chart by their second, counted from the beginning of the measured phase."""


@dataclass
class RunState:
    run: Mapping[str, Any] | None = None
    """The run's row in `runs`; None before there is one."""
    plan: Plan | None = None
    timeline: Timeline | None = None
    """None before the load starts."""
    origin_ns: int = 0
    """Second 0 of the charts, once the load has started: where the measured phase begins, or as
    long as that is unknown, where it would begin at the earliest. It stays where it is."""
    newest_ns: int = 0
    """The end of the newest event. The watcher's own clock may differ, and is not used."""
    agents: Agents = field(default_factory=Agents)
    window: StoredWindow | None = None
    throughput: BySecond = field(default_factory=dict)
    durations: dict[str, BySecond] = field(default_factory=dict)
    """By measure."""
    broker: dict[str, BySecond] = field(default_factory=dict)
    """By source of resources."""
    _unplaced: list[dict[str, Any]] = field(default_factory=list)
    """Rows of `resources` before it is known when the load started."""

    @property
    def is_over(self) -> bool:
        return self.run is not None and self.run["status"] != RUNNING

    def notice_vanished_driver(self) -> None:
        """A run whose driver was killed gets no rows any more, not even its last."""
        if self.run is not None and has_vanished(self.run):
            self.run = {**self.run, **AS_ABANDONED}

    @property
    def document(self) -> Document | None:
        """The result, once there is one."""
        text = self.run["result_json"] if self.run is not None else None
        return json.loads(text) if text else None

    def second_of(self, moment: datetime) -> float:
        """Only once the load has started."""
        assert self.timeline is not None
        return round((_ns(moment) - self.origin_ns) / NANOSECONDS, 3)

    def add_run(self, rows: pa.Table) -> None:
        if not rows.num_rows:
            return
        self.run = rows.to_pylist(maps_as_pydicts="strict")[-1]
        if self.plan is None:
            scenario = stored_scenario(self.run["run_id"], json.loads(self.run["scenario_json"]))
            self.plan = make_plan(scenario, self.run["run_id"])
            self.agents.counted_role = PRODUCER if scenario.only_publishes else CONSUMER
        began_ns = self._measured_from_ns
        if self.timeline is not None and began_ns is not None and has_to_settle(self.plan.scenario):
            self.timeline.measure_from(began_ns)

    @property
    def _measured_from_ns(self) -> int | None:
        """When the measured phase began, once the driver has said so."""
        began = self.run["measured_from"] if self.run is not None else None
        return None if began is None else _ns(began)

    def add_events(self, rows: pa.Table) -> None:
        """Rows of the run's plan: it must be known already."""
        counted = rows.filter(pc.not_equal(rows["role"], SETUP)).to_pylist()
        if not counted:
            return
        if self.timeline is None:
            assert self.plan is not None
            scenario, first = self.plan.scenario, min(counted, key=lambda row: int(row["tick"]))
            began_ns = self._measured_from_ns
            self.timeline = timeline_at(scenario, first["tick"], _ns(first["tick_start"]), began_ns)
            self.origin_ns = self.timeline.measure_start_ns
            if began_ns is None:
                warmup_ns = round(scenario.phases.warmup_seconds * NANOSECONDS)
                self.origin_ns = self.timeline.start_ns + warmup_ns
        for row in counted:
            self.newest_ns = max(self.newest_ns, _ns(row["tick_start"]) + _length_ns(row))
        self.agents.add(counted, KEPT_SECONDS)

    def add_metrics(self, rows: pa.Table) -> None:
        """Windows of events that are known. One that was published again replaces itself."""
        rolling = rows.filter(pc.equal(rows["window"], ROLLING)).to_pylist()
        if not rolling:
            return
        ended_at = max(row["window_end"] for row in rolling)
        if self.window is None or ended_at >= self.window.ended_at:
            self.window = _window(ended_at, [r for r in rolling if r["window_end"] == ended_at])
        for row in rolling:
            second = self.second_of(row["window_end"])
            self.throughput[second] = {"second": second, **{n: row[n] for n in RATE_COLUMNS}}
            if row["measure"] is not None:
                of_measure = self.durations.setdefault(row["measure"], {})
                of_measure[second] = {"second": second, **{n: row[n] for n in DURATION_COLUMNS}}
        for drawn in (self.throughput, *self.durations.values()):
            _forget_old(drawn)

    def add_resources(self, rows: pa.Table) -> None:
        """They come from the driver, events from the agents: the first of them may have to wait."""
        self._unplaced += rows.to_pylist()
        if self.timeline is None:
            return
        placed, self._unplaced = self._unplaced, []
        for row in placed:
            if row["interval_seconds"]:
                second = self.second_of(row["at"])
                of_source = self.broker.setdefault(row["source"], {})
                of_source[second] = broker_row(row, second)
                _forget_old(of_source)


def _forget_old(rows: BySecond) -> None:
    """Rows come in the order of time, or nearly so: the oldest are in front."""
    oldest = max(rows, default=0.0) - KEPT_SECONDS
    while rows and (first := next(iter(rows))) < oldest:
        del rows[first]


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


def _ns(moment: datetime) -> int:
    return round(moment.timestamp() * 1_000_000) * 1000


def _length_ns(row: Mapping[str, Any]) -> int:
    return round(float(row["tick_seconds"]) * NANOSECONDS)


_CERTAINLY_WHOLE = 30
"""Statistics may hold the beginning of a long text only, but never of one that is so short."""


class AddedRows:
    """Rows of one run in one table: first all that there are, then those that were added.

    A row that a commit wrote again (the run's own in `runs`) comes again.
    """

    def __init__(self, store: Store, table: str, columns: Sequence[str], run_id: str) -> None:
        self._store = store
        self._table = table
        self._columns = list(columns)
        self._run_id = run_id
        self._files = store.files(table)
        self._version: int | None = None
        self._schema = SCHEMAS[table]

    def read(self) -> pa.Table:
        if self._version is None:
            found, self._version = self._store.read_with_version(
                self._table, self._columns, run_id=self._run_id
            )
            return found
        paths: list[str] = []
        version = self._version
        while (commit := self._commit(version + 1)) is not None:
            paths += added_files(commit, self._run_id)
            version += 1
        found = self._rows_of(paths)
        self._version = version
        return found

    def _commit(self, version: int) -> str | None:
        try:
            with self._files.open_input_stream(f"_delta_log/{version:020d}.json") as stream:
                return bytes(stream.read()).decode()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unreadable(error) from error

    def _rows_of(self, paths: list[str]) -> pa.Table:
        # With the schema given: what writers put into their files differs (a merge in `runs` has
        # texts of another type), and a column that an older one did not know is null.
        try:
            files = ds.dataset(paths, self._schema, format="parquet", filesystem=self._files)
            return files.to_table(
                columns=self._columns,
                filter=ds.field("run_id") == self._run_id,
                use_threads=False,
            )
        except (OSError, pa.ArrowException) as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> StoreError:
        text = " ".join(str(error).split())[:300]
        return StoreError(f"{self._store!r}: {self._table} cannot be read: {text}")


def added_files(commit: str, run_id: str) -> Iterator[str]:
    """Data files that a commit added and that may hold rows of the run.

    Compaction adds files too, of rows that were there before: it says that no data changed.
    """
    for line in commit.splitlines():
        action = json.loads(line).get("add")
        if action and action["dataChange"] and not _is_of_another_run(action, run_id):
            yield urllib.parse.unquote(action["path"])


def _is_of_another_run(action: dict[str, Any], run_id: str) -> bool:
    """Whether the file's statistics say that all its rows are of one run, and not of this."""
    statistics = json.loads(action.get("stats") or "{}")
    lowest = statistics.get("minValues", {}).get("run_id")
    highest = statistics.get("maxValues", {}).get("run_id")
    if lowest is None or lowest != highest:
        return False
    return bool(lowest[:_CERTAINLY_WHOLE] != run_id[:_CERTAINLY_WHOLE])


class FollowedRun:
    """Not safe to use from several threads."""

    def __init__(self, store: Store, run_id: str) -> None:
        self.state = RunState()
        self.run_id = run_id
        self._runs = AddedRows(store, "runs", RUN_COLUMNS, run_id)
        self._events = AddedRows(store, "events", EVENT_COLUMNS, run_id)
        self._metrics = AddedRows(store, "metrics", WINDOW_COLUMNS, run_id)
        self._resources = AddedRows(store, "resources", RESOURCE_COLUMNS, run_id)
        self._last_news = time.monotonic()

    @property
    def seconds_without_news(self) -> float:
        return time.monotonic() - self._last_news

    def refresh(self) -> bool:
        """Read new rows; returns whether there were any."""
        was_over = self.state.is_over
        has_news = self._take_in()
        if self.state.is_over and not was_over:
            # Its last word is written behind all others, and was read behind them too.
            self._take_in()
        if has_news:
            self._last_news = time.monotonic()
        else:
            self.state.notice_vanished_driver()
        return has_news

    def _take_in(self) -> bool:
        # What a row needs is written before it, and so read after it: windows are made of events,
        # and events belong to a run.
        metrics = self._metrics.read()
        resources = self._resources.read()
        events = self._events.read()
        runs = self._runs.read()
        self.state.add_run(runs)
        self.state.add_events(events)
        self.state.add_metrics(metrics)
        self.state.add_resources(resources)
        return any(part.num_rows for part in (runs, events, metrics, resources))
