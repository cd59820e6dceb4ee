"""A run in a store, brought up to date by what its tables have got since.

What was added to a table since it was last looked at, whoever added it. A Delta table's log has a
numbered file per commit that names the data files which the commit added. Reading the next ones
costs what is new, however long the table is; asking deltalake for the whole table would cost more
with every second of a run.
"""

from __future__ import annotations

import json
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from bench_spark.errors import StoreError
from bench_spark.report.timeline import RESOURCE_COLUMNS, WINDOW_COLUMNS
from bench_spark.store.arrow import SCHEMAS
from bench_spark.store.delta import Store
from bench_spark.watch.run_state import EVENT_COLUMNS, RUN_COLUMNS, RunState

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
