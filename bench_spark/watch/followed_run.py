"""A run in a store, brought up to date by what its tables have got since."""

from __future__ import annotations

import time

from bench_spark.report.timeline import RESOURCE_COLUMNS, WINDOW_COLUMNS
from bench_spark.store import Store
from bench_spark.watch.added_rows import AddedRows
from bench_spark.watch.run_state import EVENT_COLUMNS, RUN_COLUMNS, RunState


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
        """Take in what is new; says whether there was anything."""
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
