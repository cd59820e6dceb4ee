"""The life of one run in the driver: agents started, steered over their links, summed up.

The main thread stays in Python and only watches, so that Ctrl-C and SIGTERM are acted on at once;
the Spark job runs in a thread of its own, the collector and the committer in theirs.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import FrameType

from pyspark import InheritableThread
from pyspark.sql import SparkSession

from bench_spark.agent.agent import AgentTask
from bench_spark.agent.rows import EventRow
from bench_spark.agent.timeline import Timeline
from bench_spark.agent.wire import new_token
from bench_spark.collector.committer import Committer, commit_samples
from bench_spark.collector.control import Failure, RunControl
from bench_spark.collector.server import CollectorServer
from bench_spark.errors import (
    EXIT_INTERRUPTED,
    EXIT_TERMINATED,
    BenchError,
    RunError,
    error_of_kind,
)
from bench_spark.load_course import timeline_of
from bench_spark.measure.clock import NANOSECONDS, Clock
from bench_spark.spark.agents_job import CLOSING_SECONDS, AgentsJob
from bench_spark.spark.collector_address import collector_address
from bench_spark.spark.housekeeping import compact_if_alone, compact_overdue
from bench_spark.spark.marker import StoreMarker, store_marker
from bench_spark.spark.metrics import RollingMetrics
from bench_spark.spark.observer import RunObserver
from bench_spark.spark.request import Display, RunRequest
from bench_spark.spark.run_messages import RunMessages
from bench_spark.spark.session import master_of
from bench_spark.spark.ticks import merged_ticks, merged_ticks_here
from bench_spark.spark.windows import ROLLING_SECONDS, LiveWindow, RunWindows
from bench_spark.store import Store
from bench_spark.summary.checks import Check
from bench_spark.summary.document import RunSummary, summarise
from bench_spark.summary.objectives import MissedWhileRunning, missed_in_window
from bench_spark.summary.rows import summary_rows

JOIN_TIMEOUT_SECONDS = 60.0
"""How long tasks may take to start their Python workers and join."""
WATCH_SECONDS = 0.1
SMALL_RUN_ROWS = 4_000
"""Event rows (100 kB each at most) that the driver sums up itself; more are merged by executors."""


class Run:
    """One run; to be carried out once."""

    def __init__(
        self,
        spark: SparkSession,
        store: Store,
        display: Display,
        request: RunRequest,
        metrics: RollingMetrics,
    ) -> None:
        self._spark = spark
        self._store = store
        self._display = display
        self._request = request
        self._plan = request.plan
        self._metrics = metrics
        self._clock = Clock.local()
        self._observer = RunObserver(spark, store, request, self._clock)
        self._messages = RunMessages(store, request.plan)
        self._interrupted_by: int | None = None
        self._stopped_by: MissedWhileRunning | None = None
        self._metrics_error: BenchError | None = None
        self._warming: threading.Thread | None = None

    def carry_out(self, started_at: datetime, began_ns: int) -> RunSummary:
        """`began_ns`: on the monotonic clock, when the first was done for this run."""
        master = master_of(self._spark)
        address = collector_address(master, self._spark.sparkContext.getConf().get)
        token = new_token()
        server = CollectorServer(
            (address.listens_on, address.port), token, len(self._plan.assignments), self._clock
        )
        committer = Committer(
            self._store,
            self._plan.run_id,
            live=self._request.live,
            tidy_up=lambda: compact_overdue(self._store, self._plan.run_id),
        )
        control = RunControl(
            self._plan,
            self._clock.now_ns,
            server.send,
            self._rows_to(committer),
            holds_start=self._request.live,
            on_files=committer.add_files,
        )
        with self._heed_signals(server, control):
            try:
                server.start(control)
                with store_marker(self._directory_to_share(master)) as marker:
                    job = self._start_job((address.called, server.port), token, marker)
                    if self._request.live:
                        self._warm_metrics(server, control)
                    self._watch(control, server, committer, job)
                    job.end()
            finally:
                server.close()
                self._observer.close()
                self._display.ended()
                if self._warming is not None:
                    self._warming.join(CLOSING_SECONDS)
            self._take_back_results(job, control, committer)
            committer.close()
            self._messages.remove_orphans(committer)
            self._refuse_if_never_started(control)
            is_small = committer.rows <= SMALL_RUN_ROWS
            return self._sum_up(control, started_at, began_ns, is_small)

    def _directory_to_share(self, master: str) -> Path | None:
        """Where the store is a directory, and the executors are on other machines."""
        uri = self._store.uri.removeprefix("file://")
        is_directory = self._store.is_local or uri != self._store.uri
        return Path(uri) if is_directory and not master.startswith("local") else None

    # -- the stage -------------------------------------------------------------------------------

    def _start_job(
        self, collector: tuple[str, int], token: str, marker: StoreMarker | None
    ) -> AgentsJob:
        tasks = [
            AgentTask(assignment, self._request.ends, collector, token)
            for assignment in self._plan.assignments
        ]
        messages = self._messages.directory()
        return AgentsJob(self._spark, self._plan.run_id, tasks, marker, messages)

    def _warm_metrics(self, server: CollectorServer, control: RunControl) -> None:
        """Get the query going while the agents get ready; the load starts when both are.

        Unwarmed, a short run would be over before the query's first batch.
        """

        def warm() -> None:
            try:
                self._metrics.make_ready()
            except BenchError as error:
                self._metrics_error = error
                server.call(lambda: control.stop("the rolling metrics did not start"))
            else:
                server.call(control.allow_start)

        self._warming = InheritableThread(target=warm, name="warming", daemon=True)
        self._warming.start()

    def _rows_to(self, committer: Committer) -> Callable[[int, int, list[EventRow]], None]:
        def take(agent: int, attempt: int, rows: list[EventRow]) -> None:
            self._observer.see_rows(agent, rows)
            committer.add(agent, attempt, rows)

        return take

    # -- watching --------------------------------------------------------------------------------

    def _watch(
        self,
        control: RunControl,
        server: CollectorServer,
        committer: Committer,
        job: AgentsJob,
    ) -> None:
        what = " and the rolling metrics" if self._request.live else ""
        self._display.step(f"starting {len(control.agents)} agent(s){what}")
        join_deadline = time.monotonic() + JOIN_TIMEOUT_SECONDS
        is_started = False
        while not control.finished.wait(WATCH_SECONDS):
            self._observer.look_at_clock()
            if control.started.is_set() and not is_started:
                is_started = True
                self._begin(control, committer)
            if is_started:
                self._observer.weigh_spark(self._timeline(control), control.produced.is_set())
                window = self._metrics.latest(self._plan.run_id)
                self._display.counted(control.totals)
                self._display.update(window, is_draining=control.produced.is_set())
                self._stop_on_miss(window, control, server)
            else:
                self._display.opening(self._plan, control.opened_lanes)
            if not job.is_alive:
                return
            if not control.all_joined.is_set() and time.monotonic() > join_deadline:
                server.call(lambda: control.stop("not every agent started"))
                job.cancel()
                return

    def _stop_on_miss(
        self, window: LiveWindow | None, control: RunControl, server: CollectorServer
    ) -> None:
        """End the run at the first whole window of the measured phase that misses an objective."""
        if not self._request.stops_on_slo or window is None or self._stopped_by is not None:
            return
        if control.produced.is_set() or control.stop_reason is not None:
            return
        after_seconds = window.window_end_us / 1e6 - (
            self._timeline(control).measure_start_ns / NANOSECONDS
        )
        if after_seconds < ROLLING_SECONDS:
            return
        scenario = self._plan.scenario
        missed = missed_in_window(scenario.slo, window.as_result(), after_seconds)
        if missed is not None:
            self._stopped_by = missed
            server.call(lambda: control.stop(f"objective missed: {missed.objective}"))

    def _begin(self, control: RunControl, committer: Committer) -> None:
        timeline = self._timeline(control)
        self._messages.time_late(committer, timeline)
        scenario = self._plan.scenario
        self._metrics.register_run(
            RunWindows(
                run_id=self._plan.run_id,
                timeline=timeline,
                interval_seconds=scenario.interval_seconds,
                highest_us=scenario.histogram.highest_us,
            )
        )
        self._observer.begin(timeline)
        self._display.started(self._plan, timeline, self._clock.now_ns)

    def _timeline(self, control: RunControl) -> Timeline:
        assert control.start_at_ns is not None
        return timeline_of(self._plan.scenario, control.start_at_ns)

    @contextmanager
    def _heed_signals(self, server: CollectorServer, control: RunControl) -> Iterator[None]:
        """Ctrl-C and SIGTERM stop the load, but not the summing up of what was measured.

        PySpark's own handler would kill the agents.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def stop(number: int, frame: FrameType | None) -> None:
            code = EXIT_INTERRUPTED if number == signal.SIGINT else EXIT_TERMINATED
            self._interrupted_by = self._interrupted_by or code
            server.call(lambda: control.stop("interrupted"))

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    # -- afterwards ------------------------------------------------------------------------------

    def _take_back_results(self, job: AgentsJob, control: RunControl, committer: Committer) -> None:
        """What the links did not deliver comes back as the results of the tasks."""
        for result in job.results:
            state = control.agents[result.agent]
            self._rows_to(committer)(result.agent, state.attempt, result.rows)
            committer.add_files(result.agent, state.attempt, result.files)
            reported = {failure.agent for failure in control.failures}
            if result.failure is not None and result.agent not in reported:
                control.failures.append(Failure(result.agent, *result.failure))
        if job.error is not None and not control.failures:
            text = str(job.error).splitlines()[0][:300]
            control.failures.append(Failure(0, "RunError", f"the Spark stage failed: {text}"))

    def _refuse_if_never_started(self, control: RunControl) -> None:
        if control.start_at_ns is not None or self._interrupted_by is not None:
            return
        if self._metrics_error is not None:
            raise self._metrics_error
        if not control.failures:
            raise RunError(control.stop_reason or "the agents ended before the load started")
        first = control.failures[0]
        raise error_of_kind(first.kind, first.text)

    def _sum_up(
        self, control: RunControl, started_at: datetime, began_ns: int, is_small: bool
    ) -> RunSummary:
        self._display.step("summing up")
        notes = self._finish_metrics()
        facts = self._observer.facts(control, self._interrupted_by, self._stopped_by, notes)
        if self._messages.is_joined and control.start_at_ns is not None:
            self._display.step("joining messages")
            trace, remarks = self._messages.join(self._spark, self._timeline(control))
            facts = replace(facts, trace=trace, notes=(*facts.notes, *remarks))
        run_id = self._plan.run_id
        ticks = (
            merged_ticks_here(self._store, run_id)
            if is_small
            else merged_ticks(self._spark, self._store, run_id)
        )
        summary = summarise(ticks, facts)
        commit_samples(self._store, run_id, facts.samples)
        self._store.append("summary", summary_rows(self._plan, summary))
        compact_if_alone(self._store, run_id)
        summary = summary.with_overhead(_overhead_seconds(control, began_ns))
        self._store.replace_run(
            self._request.row(
                started_at,
                summary=summary,
                measured=(facts.measured_from, facts.measured_until),
            )
        )
        return summary

    def _finish_metrics(self) -> tuple[Check, ...]:
        """Complete the rolling metrics. They repeat what events say: failing costs no result."""
        try:
            if self._request.trial is not None:
                # Others follow: the metrics need not be waited for.
                if self._request.live:
                    self._metrics.forget_when_done(self._plan.run_id)
                return ()
            if self._request.live:
                self._metrics.catch_up()
            else:
                self._metrics.run_once()
        except BenchError as error:
            advice = f"bench-spark metrics rebuild {self._plan.run_id} makes them again"
            return (Check("metrics", "warn", f"{error}; {advice}"),)
        self._metrics.forget_run(self._plan.run_id)
        return ()


def _overhead_seconds(control: RunControl, began_ns: int) -> float | None:
    """How long a run has taken until now beside warm-up, measured phase and drain."""
    if control.start_at_ns is None or control.drained_at_ns is None:
        return None
    load_ns = control.drained_at_ns - control.start_at_ns
    return round((time.monotonic_ns() - began_ns - load_ns) / NANOSECONDS, 3)
