"""Rolling metrics: one streaming query from `events` to `metrics`, for all runs of an application.

Executors merge each micro-batch (`merge.py`), the driver keeps the last ticks of every run, slides
the windows over them (`windows.py`) and appends the windows that changed by deltalake.

The query is disposable and `events` is the truth. Its checkpoint belongs to this application; after
a restart the ticks it needs are read back from `events`, and a batch that had reached `metrics`
before the end is not written twice, because each carries the query's id and its own number.
"""

from __future__ import annotations

import itertools
import math
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from bench_spark.core.clock import NANOSECONDS, Clock
from bench_spark.errors import EnvironmentNotReady, RunError, StoreError
from bench_spark.results.checks import Check
from bench_spark.spark.merge import (
    TickRows,
    merge_files_on_executors,
    merge_on_executors,
    read_tick_rows,
    ticks_between,
)
from bench_spark.spark.session import executors, is_alive, log_hint, master_of
from bench_spark.spark.sql import arrow_table, read_table, spark_uri, why_unreadable
from bench_spark.spark.windows import ROLLING, LiveWindow, RunWindows, TickSlots, metric_rows
from bench_spark.store.arrow import EVENTS, METRICS
from bench_spark.store.delta import Store

USUAL_DELAY_SECONDS = 5.0
"""A second for its rows to be committed, up to a trigger to be noticed, a batch, and as much again
on a busy machine. What takes longer is late."""
WINDOW_EVERY_SECONDS = 1.0
"""A rolling window ends with every tick."""


def late_after(trigger_seconds: float) -> float:
    """After so many seconds a window is late, where batches are so far apart."""
    return max(USUAL_DELAY_SECONDS, 2.5 * trigger_seconds)


@dataclass
class LiveDelay:
    """Of the rolling windows of one run, each counted when it was first written."""

    late_after_seconds: float = USUAL_DELAY_SECONDS
    windows: int = 0
    late: int = 0
    first_written_ns: int | None = None
    newest_end_ns: int = 0
    newest_delay_seconds: float = 0.0
    longest_delay_seconds: float = 0.0

    def written(self, window_end_ns: int, now_ns: int) -> None:
        if window_end_ns <= self.newest_end_ns:
            return  # another measure of the same window, or one that has changed since
        # The last tick of a run may end before its second does.
        delay = max(0.0, (now_ns - window_end_ns) / NANOSECONDS)
        self.windows += 1
        self.late += delay > self.late_after_seconds
        self.first_written_ns = self.first_written_ns or now_ns
        self.newest_end_ns = window_end_ns
        self.newest_delay_seconds = delay
        self.longest_delay_seconds = max(self.longest_delay_seconds, delay)


def live_check(delay: LiveDelay, start_ns: int, measured_until_ns: int, now_ns: int) -> Check:
    """Whether a run could be watched: `start_ns` is when its load began."""
    limit = delay.late_after_seconds
    first_ns = delay.first_written_ns
    if first_ns is None or first_ns > measured_until_ns:
        load_seconds = (measured_until_ns - start_ns) / NANOSECONDS
        text = "no live metrics before the measured phase ended"
        if load_seconds < WINDOW_EVERY_SECONDS + limit:
            short = f"{load_seconds:.1f} s of load are too few to be watched"
            return Check("live", "pass", f"{text}: {short}")
        return Check("live", "warn", f"{text}, {load_seconds:.0f} s after the load began")
    unwritten_ns = min(measured_until_ns, now_ns - round(limit * NANOSECONDS)) - delay.newest_end_ns
    missing = max(0, int(unwritten_ns / NANOSECONDS / WINDOW_EVERY_SECONDS))
    late = delay.late + missing
    text = f"the newest live metrics came {delay.newest_delay_seconds:.1f} s after their window"
    if not late:
        return Check("live", "pass", text)
    counted = f"{late} of {delay.windows + missing} windows were late (more than {limit:g} s)"
    longest = f"the longest by {delay.longest_delay_seconds:.1f} s"
    absent = f", {missing} of them not written at all" if missing else ""
    return Check("live", "warn", f"{text}; {counted}, {longest}{absent}")


SETUP = "setup"
"""Role and phase of the marker rows: they count nothing, but their batch can be awaited."""

DEFAULT_TRIGGER_SECONDS = 2.0

CLOCKS_DIFFER_BY = timedelta(minutes=2)
"""Times of commits may be given by a file server: look so much further back for a run's first."""

START_SECONDS = 300.0
"""How long a query may take to start on a slow machine."""

MOST_PROOFS = 10
"""Rows that are sent through a query until it is warm; then the run starts in any case, and its
audit says how late the metrics were."""
MOST_WARMED = 64
"""Executors that are warmed; each is a part of one query."""
STILL_FASTER = 0.8
"""A row that took less than this part of the time of the one before: the next may again."""

_PLAIN_EXECUTION = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
"""Settings of the query alone. Its batches are a few rows each: generating, compiling and adapting
code for them costs more than it saves (0.28 against 0.35 core, and seconds of the first batch)."""

_ONE_TASK = {"spark.sql.files.minPartitionNum": "1"}
"""On one machine a second task per batch only takes another core from the load."""

_Marker = tuple[str, int]
"""Run id and row number of a marker row."""


class RollingMetrics:
    """Keeps `metrics` up to date with `events` for the runs that are registered here.

    Runs of other applications in the same store are theirs to publish. Methods may be called from
    any thread; the windows are made in the thread that Spark calls back.
    """

    def __init__(
        self,
        spark: SparkSession,
        store: Store,
        trigger_seconds: float = DEFAULT_TRIGGER_SECONDS,
        checkpoint: str | None = None,
    ) -> None:
        self._spark = spark
        self._store = store
        self._trigger_seconds = trigger_seconds
        application = spark.sparkContext.applicationId
        self._application = application
        self._checkpoint = spark_uri(checkpoint or f"{_checkpoints_of(store)}/{application}")
        self._lock = threading.RLock()
        self._progress = threading.Condition(self._lock)
        self._slots: dict[str, TickSlots] = {}
        self._latest: dict[str, LiveWindow] = {}
        self._delays: dict[str, LiveDelay] = {}
        self._now_ns = Clock.local().now_ns
        self._seen_markers: set[_Marker] = set()
        self._last_markers: set[_Marker] = set()
        """Of runs that are to be forgotten when their marker has been seen."""
        self._marker_numbers = itertools.count()
        self._query: StreamingQuery | None = None
        self._query_id = ""
        self._has_id = threading.Event()

    # -- runs ------------------------------------------------------------------------------------

    def register_run(self, windows: RunWindows) -> None:
        """From now on publish this run. To be called before its load starts.

        Registering a run again changes where its windows lie and keeps what is known of its ticks.
        """
        with self._lock:
            known = self._slots.get(windows.run_id)
            if known is not None:
                known.windows = windows
            else:
                self._slots[windows.run_id] = TickSlots(windows)

    def end_measuring(self, run_id: str, measured_until_ns: int) -> None:
        """The measured phase of this run ended then, before its time; to be called before the run
        is caught up with or done."""
        with self._lock:
            if (slots := self._slots.get(run_id)) is not None:
                slots.cut_short(measured_until_ns)

    def forget_run(self, run_id: str) -> None:
        """The run is over and caught up with: keep nothing of it."""
        with self._lock:
            self._slots.pop(run_id, None)
            self._latest.pop(run_id, None)
            self._delays.pop(run_id, None)
            self._seen_markers = {marker for marker in self._seen_markers if marker[0] != run_id}

    def forget_when_done(self, run_id: str) -> None:
        """The run is over: forget it once every event committed before this call is in."""
        self._restart_if_ended()
        with self._lock:
            self._last_markers.add(self._append_marker(run_id))

    def latest(self, run_id: str) -> LiveWindow | None:
        """The newest rolling window of a run, as soon as there is one."""
        return self._latest.get(run_id)

    def delay(self, run_id: str) -> LiveDelay:
        """How soon the windows of a run were written after their end."""
        with self._lock:
            return replace(self._delays.get(run_id) or self._new_delay())

    # -- the query -------------------------------------------------------------------------------

    def start(self) -> _Marker:
        """Start the query, or start it again where its checkpoint says it was stopped.

        Returns the marker row that the query will meet in its first batch.
        """
        start_from = {}
        if not self._prepare_start():
            # Not "latest": Spark would look that up some time after the start, and what was
            # committed in between would be missing. The version asked for must exist, though.
            start_from = {"startingVersion": str(self._store.version("events") + 1)}
        marker = self._append_marker(self._application)
        self._begin(start_from, is_live=True)
        return marker

    def run_once(self, timeout_seconds: int = 600) -> None:
        """Publish everything up to now of the runs registered, and end.

        The rows are the same that a live query would have written.
        """
        start_from = {}
        if not self._prepare_start() and self._slots:
            first_ns = min(slots.windows.timeline.start_ns for slots in self._slots.values())
            earliest = datetime.fromtimestamp(first_ns // NANOSECONDS, UTC) - CLOCKS_DIFFER_BY
            start_from = {"startingTimestamp": earliest.strftime("%Y-%m-%dT%H:%M:%SZ")}
        # There must be a commit after that time, or the query would not start.
        self._append_marker(self._application)
        query = self._begin(start_from, is_live=False)
        if not query.awaitTermination(timeout_seconds):
            raise RunError(f"rolling metrics did not end within {timeout_seconds} s")
        self.raise_if_failed()

    @property
    def is_running(self) -> bool:
        return self._query is not None and bool(self._query.isActive)

    def make_ready(self, timeout_seconds: float = START_SECONDS) -> None:
        """Start the query if it is not running, and see one row all the way through it.

        The first batch of a cold query takes seconds; without this a short run would be over
        before anyone has seen a window of it. Raises an EnvironmentNotReady with the reason.
        """
        if not self.is_running:
            self._prove(self.start, timeout_seconds)

    def prove_ready(self, timeout_seconds: float) -> None:
        """See one more row all the way through the query that is running, in due time.

        Agents that have started since the last one may have taken the Python worker that it went
        through: the executor then starts another, which is to be ready before the load as well. The
        JVMs of a cluster get faster with use: a row is followed by another until one is in time
        and took as long as the one before.
        """
        self._prove(self._warm_executors, timeout_seconds)
        before = math.inf
        for _ in range(MOST_PROOFS):
            began = time.monotonic()
            self._prove(lambda: self._append_marker(self._application), timeout_seconds)
            took = time.monotonic() - began
            if STILL_FASTER * before <= took <= late_after(self._trigger_seconds):
                return
            before = took

    def _warm_executors(self) -> _Marker:
        """Read the markers on every executor at once; returns another.

        Any executor with a free slot may get the next batch. The first on it waits for a Python
        worker and for the classes that read `events`: 15 s on a busy machine, with all later rows
        behind it.
        """
        spark = self._spark
        events = read_table(spark, self._store, "events")
        merged = _merged(self._store, events.where(f.col("run_id") == self._application))
        with _settings(spark, _PLAIN_EXECUTION):
            copies = [merged] * min(executors(spark), MOST_WARMED)
            arrow_table(reduce(DataFrame.unionAll, copies))
        return self._append_marker(self._application)

    def _prove(self, begin: Callable[[], _Marker], timeout_seconds: float) -> None:
        try:
            self._await_marker(begin(), timeout_seconds)
        except RunError as error:
            raise EnvironmentNotReady(str(error)) from error
        except (Py4JError, PySparkException) as error:
            raise EnvironmentNotReady(
                f"the rolling metrics could not start: {why_unreadable(self._spark, error)}"
            ) from error

    def catch_up(self, timeout_seconds: float = 60.0) -> None:
        """Return when every event committed before this call is in `metrics`."""
        self._restart_if_ended()
        self._await_marker(self._append_marker(self._application), timeout_seconds)

    def stop(self) -> None:
        """End the query as it is; `start` goes on from its checkpoint."""
        query, self._query = self._query, None
        if query is not None:
            query.stop()

    def close(self) -> None:
        """End the query for good and remove its checkpoint; runs that are not done yet first."""
        if not is_alive(self._spark):
            return  # The query ended with the JVM; its checkpoint is deleted with the store.
        if self._last_markers:
            # A query that failed has said so where its run was summed up, or its rows can be made
            # again: nothing here is worth a failure at the very end.
            with suppress(RunError, StoreError):
                self.catch_up()
        self.stop()
        path = self._hadoop_path(self._checkpoint)
        # Where Spark cannot reach the store at all, that was said when the query was to start.
        with suppress(Py4JJavaError):
            path.getFileSystem(self._hadoop_conf).delete(path, True)

    def raise_if_failed(self) -> None:
        query = self._query
        error = query.exception() if query is not None else None
        if error is not None:
            why = why_unreadable(self._spark, error)
            text = f"rolling metrics stopped: {why}{log_hint()}"
            raise RunError(text) from error

    def _restart_if_ended(self) -> None:
        """One failed batch must not cost the runs that follow their metrics."""
        if self._query is None:
            raise RunError("rolling metrics are not running")
        if not self._query.isActive:
            self.start()

    def _prepare_start(self) -> bool:
        """Get ready for a query; says whether there is a checkpoint it will go on from."""
        self.stop()
        offsets = self._hadoop_path(f"{self._checkpoint}/offsets")
        has_checkpoint = bool(offsets.getFileSystem(self._hadoop_conf).exists(offsets))
        if has_checkpoint:
            with self._lock:
                self._slots = {
                    run_id: TickSlots(slots.windows, is_restarted=True)
                    for run_id, slots in self._slots.items()
                }
        return has_checkpoint

    def _begin(self, start_from: dict[str, str], is_live: bool) -> StreamingQuery:
        events = (
            self._spark.readStream.format("delta")
            .options(**start_from)
            .load(spark_uri(self._store.table_uri("events")))
        )
        writer = (
            _merged(self._store, events)
            .writeStream.queryName("rolling-metrics")
            .option("checkpointLocation", self._checkpoint)
            .foreachBatch(self._on_batch)
        )
        if is_live:
            writer = writer.trigger(processingTime=f"{self._trigger_seconds} seconds")
        else:
            writer = writer.trigger(availableNow=True)
        self._has_id.clear()
        master = master_of(self._spark)
        is_shared = is_live and master.startswith("local")
        with _settings(self._spark, _PLAIN_EXECUTION | (_ONE_TASK if is_shared else {})):
            # The query takes a copy of the session's settings with it.
            self._query = writer.start()
        self._query_id = str(self._query.id)
        self._has_id.set()
        return self._query

    @property
    def _hadoop_conf(self) -> Any:
        return self._spark.sparkContext._jsc.hadoopConfiguration()

    def _hadoop_path(self, path: str) -> Any:
        jvm: Any = self._spark.sparkContext._jvm
        return jvm.org.apache.hadoop.fs.Path(path)

    # -- markers ---------------------------------------------------------------------------------

    def _append_marker(self, run_id: str) -> _Marker:
        marker = (run_id, next(self._marker_numbers))
        row = {
            "run_id": run_id,
            "agent": -1,
            "attempt": 0,
            "row_number": marker[1],
            "role": SETUP,
            "phase": SETUP,
            "tick": -1,
            "tick_start": datetime.now(UTC),
            "tick_seconds": 0.0,
        }
        self._store.append("events", pa.Table.from_pylist([row], schema=EVENTS))
        return marker

    def _await_marker(self, marker: _Marker, timeout_seconds: float) -> None:
        deadline = time.monotonic() + timeout_seconds
        with self._progress:
            while marker not in self._seen_markers:
                self.raise_if_failed()
                if time.monotonic() > deadline:
                    raise RunError(f"rolling metrics did not catch up within {timeout_seconds:g} s")
                self._progress.wait(0.2)
            self._seen_markers.discard(marker)

    # -- one batch -------------------------------------------------------------------------------

    def _on_batch(self, merged: DataFrame, batch_id: int) -> None:
        parts = list(read_tick_rows(arrow_table(merged)))
        self._has_id.wait()
        with self._lock:
            rows = [
                row
                for run_id, slots in self._slots.items()
                for row in self._rows_of_run(slots, [p for p in parts if p.key.run_id == run_id])
            ]
            if rows:
                self._publish(rows, batch_id)
                self._note_delay(rows)
            self._seen_markers.update(
                (part.key.run_id, row.row_number)
                for part in parts
                if part.phase == SETUP
                for row in part.rows
            )
            done = self._last_markers & self._seen_markers
            self._last_markers -= done
            for run_id, _ in done:
                self.forget_run(run_id)
            self._progress.notify_all()

    def _rows_of_run(self, slots: TickSlots, parts: list[TickRows]) -> list[dict[str, Any]]:
        counted = [part for part in parts if part.phase != SETUP]
        run_id = slots.windows.run_id
        doubtful = slots.add(counted)
        changed = slots.last_interval_to_read()
        if not counted and not changed:
            return []
        if doubtful := doubtful | changed:
            first, last = slots.range_to_read(doubtful)
            slots.replace(first, last, ticks_between(self._spark, self._store, run_id, first, last))
        rows: list[dict[str, Any]] = []
        for window in slots.windows_touched(changed | {part.key.tick for part in counted}):
            total = slots.sum_of(window)
            seconds = slots.windows.seconds_covered(window, slots.newest_tick)
            made = metric_rows(slots.windows, window, total, seconds)
            rows += made
            if window.kind == ROLLING and window.last_tick == slots.newest_tick:
                self._latest[run_id] = LiveWindow.of_rows(made)
        slots.forget_old()
        return rows

    def _note_delay(self, rows: list[dict[str, Any]]) -> None:
        now_ns = self._now_ns()
        for row in rows:
            if row["window"] == ROLLING:
                delay = self._delays.setdefault(row["run_id"], self._new_delay())
                delay.written(row["window_end"] * 1000, now_ns)

    def _new_delay(self) -> LiveDelay:
        return LiveDelay(late_after_seconds=late_after(self._trigger_seconds))

    def _publish(self, rows: list[dict[str, Any]], batch_id: int) -> None:
        now = datetime.now(UTC)
        stamp = {"query_id": self._query_id, "batch_id": batch_id, "written_at": now}
        self._store.append(
            "metrics",
            pa.Table.from_pylist([row | stamp for row in rows], schema=METRICS),
            app_id=self._query_id,
            version=batch_id,
        )


def _checkpoints_of(store: Store) -> str:
    """Beside the tables of a directory. Of other stores on the driver's machine: nobody else reads
    them, and on HDFS or S3 each batch would wait for its files (0.4 s for each on HDFS)."""
    if store.is_local:
        return f"{store.uri}/_checkpoints"
    return str(Path(tempfile.gettempdir()) / "bench-spark-checkpoints")


@contextmanager
def _settings(spark: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    """Settings of a session for the length of a `with`."""
    before = {key: spark.conf.get(key, None) for key in values}
    for key, value in values.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, earlier in before.items():
            if earlier is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, earlier)


def _merged(store: Store, events: DataFrame) -> DataFrame:
    merge = merge_files_on_executors if store.is_local else merge_on_executors
    return merge(events)
