"""The one writer of the tables `events` and `samples`: rows from all agents.

Events are appended when the rows of a tick have come, once a second or so; samples once per run.

A single committer means no conflicting commits however many executors there are. Every row is kept
exactly once: it is known by agent, attempt and number, whether it came over the link or, later, as
the result of a task.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa

from bench_spark.agent.rows import EventRow
from bench_spark.agent.sampling import seconds_of
from bench_spark.collector.evidence import AgentSamples
from bench_spark.errors import BenchError
from bench_spark.histogram_column import histogram_array
from bench_spark.store import Store
from bench_spark.tables import COUNTERS, EVENTS, SAMPLES

COMMIT_SECONDS = 1.0
"""How long rows wait for others at most."""
QUIET_SECONDS = 0.1
"""No row has come for so long: those of a tick are all there, for agents send them together."""


def timestamp(ns: int) -> datetime:
    """Microseconds are what tables hold; integer arithmetic keeps them exact."""
    return datetime.fromtimestamp(ns // 1_000_000_000, UTC).replace(
        microsecond=ns % 1_000_000_000 // 1000
    )


class Committer:
    """Gathers rows from any thread; commits them in a thread of its own while the run goes on."""

    def __init__(self, store: Store, run_id: str, live: bool = True) -> None:
        self._store = store
        self._run_id = run_id
        self._waiting: list[tuple[int, int, EventRow]] = []
        self._committing: list[tuple[int, int, EventRow]] = []
        self._next_row: dict[tuple[int, int], int] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._has_rows = threading.Event()
        self._commits = 0
        self.rows = 0
        self.error: BenchError | None = None
        self._thread = threading.Thread(target=self._work, name="committer", daemon=True)
        if live:
            self._thread.start()

    def add(self, agent: int, attempt: int, rows: list[EventRow]) -> None:
        with self._lock:
            for row in rows:
                # An agent numbers its rows and sends them in order: a lower number came before.
                if row.row_number >= self._next_row.get((agent, attempt), 0):
                    self._next_row[agent, attempt] = row.row_number + 1
                    self._waiting.append((agent, attempt, row))
                    self.rows += 1
        self._has_rows.set()

    def close(self) -> None:
        """Commit what is left; raises the error of a commit that failed to the end."""
        self._stop.set()
        self._has_rows.set()
        if self._thread.is_alive():
            self._thread.join()
        self._commit_waiting()
        if self.error is None:
            self._commit_waiting()
        if self.error is not None:
            raise self.error

    def _work(self) -> None:
        while not self._stop.is_set():
            if self._has_rows.wait(COMMIT_SECONDS) and not self._stop.is_set():
                self._gather()
                self._has_rows.clear()
                self._commit_waiting()
                if self.error is not None:
                    self._stop.wait(COMMIT_SECONDS)

    def _gather(self) -> None:
        """Let the rows of a tick come together, so that each is in one commit and soon in it."""
        deadline = time.monotonic() + COMMIT_SECONDS
        seen = 0
        while seen != self.rows and time.monotonic() < deadline:
            seen = self.rows
            self._stop.wait(min(QUIET_SECONDS, COMMIT_SECONDS))

    def _commit_waiting(self) -> None:
        # A commit that failed is tried again with the very same rows: it may have succeeded after
        # all, and then its number tells the store that it has them.
        with self._lock:
            if not self._committing:
                self._committing, self._waiting = self._waiting, []
        if not self._committing:
            return
        try:
            self._store.append(
                "events",
                events_table(self._run_id, self._committing),
                app_id=self._run_id,
                version=self._commits,
            )
        except BenchError as error:
            self.error = error
            self._has_rows.set()
            return
        self.error = None
        self._committing = []
        self._commits += 1


def events_table(run_id: str, rows: list[tuple[int, int, EventRow]]) -> pa.Table:
    """Event rows as Arrow; histogram columns are copied as blocks, not number by number."""
    plain: dict[str, list[Any]] = {name: [] for name in EVENTS.names if name != "histograms"}
    for agent, attempt, row in rows:
        plain["run_id"].append(run_id)
        plain["agent"].append(agent)
        plain["attempt"].append(attempt)
        plain["tick_start"].append(timestamp(row.tick_start_ns))
        for name in (
            "row_number",
            "role",
            "phase",
            "tick",
            "tick_seconds",
            "destination",
            "cpu_seconds",
            "host_busy_share",
            "clock_offset_ns",
            "clock_bound_ns",
        ):
            plain[name].append(getattr(row, name))
        for name in COUNTERS:
            plain[name].append(row.counters.get(name, 0))
    columns = [
        histogram_array([row.histograms for _, _, row in rows])
        if field.name == "histograms"
        else pa.array(plain[field.name], field.type)
        for field in EVENTS
    ]
    return pa.Table.from_arrays(columns, schema=EVENTS)


def commit_samples(store: Store, run_id: str, found: Sequence[AgentSamples] | None) -> None:
    """Append the samples of a run, once however often this is tried."""
    table = samples_table(run_id, found or ())
    if table.num_rows:
        store.append("samples", table, app_id=run_id, version=0)


def samples_table(run_id: str, found: Sequence[AgentSamples]) -> pa.Table:
    return pa.concat_tables(
        [
            SAMPLES.empty_table(),
            *(
                pa.table(
                    {
                        "run_id": [run_id] * len(samples),
                        "agent": [agent] * len(samples),
                        "attempt": [attempt] * len(samples),
                        **{
                            name: np.ascontiguousarray(samples[name])
                            for name in ("pair", "number", "messages")
                        },
                        "seconds": seconds_of(samples),
                        "started_at": (samples["started_ns"] // 1000).astype("datetime64[us]"),
                    }
                ).cast(SAMPLES)
                for agent, attempt, samples in found
            ),
        ]
    )
