"""The one writer of the tables `events`, `messages` and `samples`: rows from all agents.

Events are appended when the rows of a tick have come, once a second or so; samples once per run.
Files of messages are written by the agents themselves, and added to their table in the same rhythm.

A single committer means no conflicting commits however many executors there are. Every row is kept
exactly once: it is known by agent, attempt and number, whether it came over the link or, later, as
the result of a task.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

from bench_spark.agent.protocol import EventRow
from bench_spark.agent.sampler import seconds_of
from bench_spark.agent.tracer import MessageFile
from bench_spark.driver.accounts import AgentSamples
from bench_spark.errors import BenchError
from bench_spark.process import watched
from bench_spark.store.arrow import EVENTS, SAMPLES, histogram_array
from bench_spark.store.delta import Store, TableFile
from bench_spark.store.schema import COUNTERS
from bench_spark.trace.live import DRIVER, LiveFiles

ItemT = TypeVar("ItemT")

COMMIT_SECONDS = 1.0
"""How long rows wait for others at most."""
QUIET_SECONDS = 0.1
"""No row has come for so long: those of a tick are all there, for agents send them together."""


def timestamp(ns: int) -> datetime:
    """Microseconds are what tables hold; integer arithmetic keeps them exact."""
    return datetime.fromtimestamp(ns // 1_000_000_000, UTC).replace(
        microsecond=ns % 1_000_000_000 // 1000
    )


class _Queue(Generic[ItemT]):
    """What agents send to a table, each item once: an agent numbers its items and sends them in
    order, so a number below the highest came before."""

    def __init__(self, number_of: Callable[[ItemT], int]) -> None:
        self._number_of = number_of
        self._next: dict[tuple[int, int], int] = {}
        self.waiting: list[tuple[int, int, ItemT]] = []
        """Agent, attempt and item."""
        self.committing: list[tuple[int, int, ItemT]] = []
        self.commits = 0

    def add(self, agent: int, attempt: int, items: Sequence[ItemT]) -> None:
        for item in items:
            if self._number_of(item) >= self._next.get((agent, attempt), 0):
                self._next[agent, attempt] = self._number_of(item) + 1
                self.waiting.append((agent, attempt, item))

    def take(self) -> None:
        """Commit what waits, unless a commit failed: then the very same items are tried again. It
        may have succeeded after all, and the store knows by its number that it has them."""
        if not self.committing:
            self.committing, self.waiting = self.waiting, []

    def committed(self) -> None:
        self.committing = []
        self.commits += 1

    @property
    def unwritten(self) -> list[tuple[int, int, ItemT]]:
        """What is not known to be in the table."""
        return [*self.committing, *self.waiting]


class Committer:
    """Gathers rows from any thread; commits them in a thread of its own while the run goes on."""

    def __init__(
        self,
        store: Store,
        run_id: str,
        live: bool = True,
        tidy_up: Callable[[], None] | None = None,
    ) -> None:
        """`tidy_up` is called after each commit of a run that goes on."""
        self._store = store
        self._run_id = run_id
        self._tidy_up = tidy_up
        self._rows: _Queue[EventRow] = _Queue(attrgetter("row_number"))
        self._files: _Queue[MessageFile] = _Queue(attrgetter("number"))
        self.message_paths: set[str] = set()
        """Of the files of messages that were committed."""
        self._live_files: LiveFiles | None = None
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._has_rows = threading.Event()
        self.rows = 0
        self.error: BenchError | None = None
        """Of the last commit, if it failed."""
        self._failing_since: float | None = None
        self._thread = threading.Thread(target=watched(self._work), name="committer", daemon=True)
        if live:
            self._thread.start()

    def add(self, agent: int, attempt: int, rows: list[EventRow]) -> None:
        with self._lock:
            before = len(self._rows.waiting)
            self._rows.add(agent, attempt, rows)
            self.rows += len(self._rows.waiting) - before
        self._has_rows.set()

    def add_files(self, agent: int, attempt: int, files: Sequence[MessageFile]) -> None:
        with self._lock:
            self._files.add(agent, attempt, files)
        self._has_rows.set()

    @property
    def failing_seconds(self) -> float:
        """How long no commit has succeeded any more; 0 if the last one has."""
        since = self._failing_since
        return 0.0 if since is None else time.monotonic() - since

    @property
    def unwritten(self) -> list[tuple[int, int, EventRow]]:
        """Rows that are not known to be in the table."""
        with self._lock:
            return self._rows.unwritten

    @property
    def unwritten_files(self) -> int:
        """Files of messages that are not known to be in their table."""
        with self._lock:
            return len(self._files.unwritten)

    def close(self) -> None:
        """Commit what is left. Where that fails to the end, `error` says why and `unwritten` has
        the rows."""
        self._stop.set()
        self._has_rows.set()
        if self._thread.is_alive():
            self._thread.join()
        self._commit_waiting()
        if self.error is None:
            # What came meanwhile, and the last files' statistics.
            self._commit_waiting()

    def _work(self) -> None:
        while not self._stop.is_set():
            if self._has_rows.wait(COMMIT_SECONDS) and not self._stop.is_set():
                self._gather()
                self._has_rows.clear()
                self._commit_waiting()
                if self.error is not None:
                    self._stop.wait(COMMIT_SECONDS)
                elif self._tidy_up is not None:
                    self._tidy_up()

    def _gather(self) -> None:
        """Let the rows of a tick come together, so that each is in one commit and soon in it."""
        deadline = time.monotonic() + COMMIT_SECONDS
        seen = 0
        while seen != self.rows and time.monotonic() < deadline:
            seen = self.rows
            self._stop.wait(min(QUIET_SECONDS, COMMIT_SECONDS))

    def _commit_waiting(self) -> None:
        with self._lock:
            self._rows.take()
            self._files.take()
        try:
            self._commit_events()
            self._note_late_timings(self._commit_files())
        except BenchError as error:
            self.error = error
            self._failing_since = self._failing_since or time.monotonic()
            self._has_rows.set()
            return
        self.error = self._failing_since = None

    def time_late(self, files: LiveFiles) -> None:
        """From now on join what agents could not time, as its files are committed."""
        self._live_files = files

    def _note_late_timings(self, paths: list[str]) -> None:
        if self._live_files is not None and paths:
            found = self._live_files.added(paths)
            with self._lock:
                self._rows.waiting += [(DRIVER, 0, row) for row in found]
                self.rows += len(found)

    def _commit_events(self) -> None:
        if not self._rows.committing:
            return
        self._store.append(
            "events",
            events_table(self._run_id, self._rows.committing),
            app_id=self._run_id,
            version=self._rows.commits,
        )
        self._rows.committed()

    def _commit_files(self) -> list[str]:
        """Paths of what was committed."""
        if not self._files.committing:
            return []
        added = [
            TableFile(file.path, file.size_bytes, file.rows, {"run_id": self._run_id})
            for _, _, file in self._files.committing
        ]
        self._store.add_files("messages", added, app_id=self._run_id, version=self._files.commits)
        self._files.committed()
        paths = [file.path for file in added]
        self.message_paths.update(paths)
        return paths


def events_table(run_id: str, rows: list[tuple[int, int, EventRow]]) -> pa.Table:
    """Event rows as Arrow; histogram columns are copied as blocks, not number by number."""
    known: dict[str, Any] = {
        "run_id": [run_id] * len(rows),
        "agent": [agent for agent, _, _ in rows],
        "attempt": [attempt for _, attempt, _ in rows],
        "tick_start": [timestamp(row.tick_start_ns) for _, _, row in rows],
        "histograms": histogram_array([row.histograms for _, _, row in rows]),
        **{name: [row.counters.get(name, 0) for _, _, row in rows] for name in COUNTERS},
    }
    attributes = {
        name: [getattr(row, name) for _, _, row in rows]
        for name in EVENTS.names
        if name not in known
    }
    return pa.Table.from_pydict(known | attributes, schema=EVENTS)


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
