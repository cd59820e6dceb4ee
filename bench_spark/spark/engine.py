"""Runs a plan: one barrier stage of agents, steered over their links, summed up from the tables.

The main thread stays in Python and only watches, so that Ctrl-C and SIGTERM are acted on at once;
the Spark job runs in a thread of its own, the collector and the committer in theirs.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from pyspark import InheritableThread
from pyspark.sql import SparkSession

from bench_spark import __version__
from bench_spark.agent.agent import AgentResult, AgentTask
from bench_spark.agent.rows import EventRow
from bench_spark.agent.timeline import Timeline
from bench_spark.agent.wire import new_token
from bench_spark.collector.committer import Committer, commit_samples
from bench_spark.collector.control import Failure, RunControl
from bench_spark.collector.evidence import (
    accounts_of,
    agent_entry,
    counted_while_measured,
    measured_span,
    samples_of,
    uses_confirms,
)
from bench_spark.collector.health import AgentHealth
from bench_spark.collector.server import CollectorServer
from bench_spark.errors import (
    EXIT_INTERRUPTED,
    EXIT_TERMINATED,
    BenchError,
    RunError,
    StoreError,
    TooFewSlots,
    error_of_kind,
)
from bench_spark.measure.clock import NANOSECONDS, Clock, WallClockWatch, WallStep
from bench_spark.monitor.monitor import Monitor
from bench_spark.plan import Plan, timeline_of
from bench_spark.scenario.ends import Ends
from bench_spark.spark.agent_task import in_task, start_worker
from bench_spark.spark.collector_address import collector_address
from bench_spark.spark.dataset_rows import DatasetRows
from bench_spark.spark.environment import driver_environment
from bench_spark.spark.housekeeping import compact_if_alone, compact_overdue
from bench_spark.spark.marker import StoreMarker, store_marker
from bench_spark.spark.metrics import DEFAULT_TRIGGER_SECONDS, RollingMetrics
from bench_spark.spark.overhead import SparkOverhead
from bench_spark.spark.run_messages import RunMessages
from bench_spark.spark.session import free_slots, wait_for_slots
from bench_spark.spark.ticks import merged_ticks, merged_ticks_here
from bench_spark.spark.windows import ROLLING_SECONDS, LiveWindow, RunWindows
from bench_spark.store import Store
from bench_spark.summary.audit import Check
from bench_spark.summary.document import RunFacts, RunSummary, summarise
from bench_spark.summary.objectives import MissedWhileRunning, missed_in_window
from bench_spark.summary.rows import TrialOf, run_row, summary_rows

SLOTS_TIMEOUT_SECONDS = 10.0
JOIN_TIMEOUT_SECONDS = 60.0
"""How long tasks may take to start their Python workers and join."""
CLOSING_SECONDS = 10.0
WATCH_SECONDS = 0.1
TRIALS_PUBLISHED_TOGETHER = 10
"""Without live metrics: a query that is started for each trial would take two seconds of each."""
SMALL_RUN_ROWS = 4_000
"""Event rows (100 kB each at most) that the driver sums up itself; more are merged by executors."""


class Display(Protocol):
    """What the engine tells the person who waits."""

    def step(self, text: str) -> None: ...

    def opening(self, plan: Plan, opened: int) -> None: ...

    def started(self, plan: Plan, timeline: Timeline, now_ns: Callable[[], int]) -> None: ...

    def update(self, window: LiveWindow | None, is_draining: bool) -> None: ...

    def counted(self, totals: Mapping[str, int]) -> None: ...

    def ended(self) -> None: ...


@dataclass(frozen=True)
class RunRequest:
    plan: Plan
    ends: Ends
    live: bool = True
    trial: TrialOf | None = None
    """What the run is a part of, if it is. Others follow then, so the rolling metrics need not be
    waited for."""
    stops_on_slo: bool = False
    """End the run as soon as a rolling window misses an objective of the scenario."""

    def row(self, started_at: datetime, **outcome: Any) -> dict[str, Any]:
        """The run's row in `runs`; `outcome` as `run_row` takes it."""
        brokers = self.ends.all_shown
        return run_row(
            self.plan, self.ends.shown, started_at, brokers=brokers, trial=self.trial, **outcome
        )


class Engine:
    """One Spark session, one store and one rolling-metrics query, for any number of runs."""

    def __init__(
        self,
        spark: SparkSession,
        store: Store,
        display: Display,
        trigger_seconds: float | None = None,
    ) -> None:
        """`trigger_seconds`: time between two batches of the rolling metrics."""
        self._trigger_seconds = trigger_seconds or DEFAULT_TRIGGER_SECONDS
        self._spark = spark
        self._store = store
        self._display = display
        self._metrics: RollingMetrics | None = None
        self._rows = DatasetRows(spark, store)
        self._unpublished: list[str] = []
        """Trials without live metrics, whose rows are still to be made."""

    def close(self) -> None:
        self._publish_trials()
        self._rows.close()
        if self._metrics is not None:
            self._metrics.close()

    def warm_up(self, agents: int, live: bool) -> None:
        """Start once what the first of many runs would else wait for, and the others not: the
        Python workers of so many agents, and with `live` the rolling metrics."""
        context = self._spark.sparkContext

        def start_workers() -> None:
            # Whatever is wrong with them, the first run meets it too, and says it.
            with suppress(Exception):
                context.parallelize(range(agents), agents).map(start_worker).count()

        job = InheritableThread(target=start_workers, name="workers", daemon=True)
        job.start()
        if live:
            self._ensure_metrics().make_ready()
        job.join()

    def run(self, request: RunRequest) -> RunSummary:
        """Run, summarise, store. Raises a PreflightError when the load could not start."""
        began_ns = time.monotonic_ns()
        self._check_slots(request.plan)
        request = replace(
            request, plan=self._rows.given_to(request.plan, request.ends.ingress[0].broker)
        )
        metrics = self._ensure_metrics()
        started_at = datetime.now(UTC)
        self._store.replace_run(request.row(started_at))
        run = _Run(self._spark, self._store, self._display, request, metrics)
        try:
            summary = run.carry_out(started_at, began_ns)
        except BenchError as error:
            # A store that fails as well must not hide why the run did.
            with suppress(StoreError):
                self._store.replace_run(request.row(started_at, failure=error))
            raise
        if request.trial is not None and not request.live:
            self._unpublished.append(request.plan.run_id)
            if len(self._unpublished) >= TRIALS_PUBLISHED_TOGETHER:
                self._publish_trials()
        return summary

    def _publish_trials(self) -> None:
        """Make the metrics of trials that have none yet. They repeat what events say: failing costs
        no result."""
        run_ids, self._unpublished = self._unpublished, []
        if not run_ids:
            return
        metrics = self._ensure_metrics()
        try:
            metrics.run_once()
        except BenchError as error:
            advice = "bench-spark metrics rebuild RUN makes them again"
            self._display.step(f"{len(run_ids)} trials have no metrics: {error}; {advice}")
        for run_id in run_ids:
            metrics.forget_run(run_id)

    def _ensure_metrics(self) -> RollingMetrics:
        if self._metrics is None:
            self._metrics = RollingMetrics(self._spark, self._store, self._trigger_seconds)
        return self._metrics

    def _check_slots(self, plan: Plan) -> None:
        needed = plan.slots_needed
        slots = free_slots(self._spark)
        is_local = _master(self._spark).startswith("local")
        if slots < needed and not is_local:
            slots = wait_for_slots(self._spark, needed, SLOTS_TIMEOUT_SECONDS)
        if slots < needed:
            raise TooFewSlots(
                f"{len(plan.assignments)} agent(s) and the rolling metrics need {needed} slots, "
                f"but {_master(self._spark)} offers {slots}: add executors or cores, or use fewer "
                "agents"
            )


class _Run:
    """The life of one run in the driver."""

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
        self._wall_clock = WallClockWatch(self._clock.now_ns)
        self._health = AgentHealth()
        self._overhead = SparkOverhead()
        self._monitor = Monitor(
            request.ends,
            request.plan.run_id,
            store,
            self._clock.now_ns,
        )
        self._results: list[AgentResult] = []
        self._job_error: Exception | None = None
        self._interrupted_by: int | None = None
        self._stopped_by: MissedWhileRunning | None = None
        self._messages = RunMessages(store, request.plan)
        self._metrics_error: BenchError | None = None
        self._warming: threading.Thread | None = None

    def carry_out(self, started_at: datetime, began_ns: int) -> RunSummary:
        """`began_ns`: on the monotonic clock, when the first was done for this run."""
        master = _master(self._spark)
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
                    self._await_end(job)
            finally:
                server.close()
                self._monitor.close()
                self._display.ended()
                if self._warming is not None:
                    self._warming.join(CLOSING_SECONDS)
            self._take_back_results(control, committer)
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

    def _await_end(self, job: threading.Thread) -> None:
        """The agents have said goodbye: their tasks end by themselves, or else are ended."""
        job.join(CLOSING_SECONDS)
        if job.is_alive():
            self._spark.sparkContext.cancelJobGroup(self._plan.run_id)
            job.join(CLOSING_SECONDS)

    # -- the stage -------------------------------------------------------------------------------

    def _start_job(
        self, collector: tuple[str, int], token: str, marker: StoreMarker | None
    ) -> threading.Thread:
        tasks = [
            AgentTask(assignment, self._request.ends, collector, token)
            for assignment in self._plan.assignments
        ]
        context = self._spark.sparkContext
        run_id = self._plan.run_id
        # Credentials travel in the closure of the tasks: never in a conf value or a description.
        stage = context.parallelize(range(len(tasks)), len(tasks)).barrier()
        job = stage.mapPartitions(in_task(tasks, marker, self._messages.directory()))

        def collect() -> None:
            context.setJobGroup(run_id, f"bench-spark run {run_id}", interruptOnCancel=False)
            try:
                self._results = job.collect()
            except Exception as error:  # Spark's own errors have no common type here.
                self._job_error = error

        thread = InheritableThread(target=collect, name="agents", daemon=True)
        thread.start()
        return thread

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
            self._health.add(agent, rows)
            committer.add(agent, attempt, rows)

        return take

    # -- watching --------------------------------------------------------------------------------

    def _watch(
        self,
        control: RunControl,
        server: CollectorServer,
        committer: Committer,
        job: threading.Thread,
    ) -> None:
        what = " and the rolling metrics" if self._request.live else ""
        self._display.step(f"starting {len(control.agents)} agent(s){what}")
        join_deadline = time.monotonic() + JOIN_TIMEOUT_SECONDS
        is_started = False
        while not control.finished.wait(WATCH_SECONDS):
            self._wall_clock.look()
            if control.started.is_set() and not is_started:
                is_started = True
                self._begin(control, committer)
            if is_started:
                self._weigh_spark(control)
                window = self._metrics.latest(self._plan.run_id)
                self._display.counted(control.totals)
                self._display.update(window, is_draining=control.produced.is_set())
                self._stop_on_miss(window, control, server)
            else:
                self._display.opening(self._plan, control.opened_lanes)
            if not job.is_alive():
                return
            if not control.all_joined.is_set() and time.monotonic() > join_deadline:
                server.call(lambda: control.stop("not every agent started"))
                self._spark.sparkContext.cancelJobGroup(self._plan.run_id)
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

    def _weigh_spark(self, control: RunControl) -> None:
        """Count Spark's own CPU over the measured phase."""
        if control.produced.is_set():
            self._overhead.end()
            self._monitor.end()
        elif self._clock.now_ns() >= self._timeline(control).measure_start_ns:
            self._overhead.begin()

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
        self._monitor.begin(timeline)
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

    def _take_back_results(self, control: RunControl, committer: Committer) -> None:
        """What the links did not deliver comes back as the results of the tasks."""
        for result in self._results:
            state = control.agents[result.agent]
            self._rows_to(committer)(result.agent, state.attempt, result.rows)
            committer.add_files(result.agent, state.attempt, result.files)
            reported = {failure.agent for failure in control.failures}
            if result.failure is not None and result.agent not in reported:
                control.failures.append(Failure(result.agent, *result.failure))
        if self._job_error is not None and not control.failures:
            text = str(self._job_error).splitlines()[0][:300]
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
        facts = self._facts(control, notes)
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

    def _facts(self, control: RunControl, notes: tuple[Check, ...]) -> RunFacts:
        measured_from, measured_until = measured_span(self._plan, control)
        return RunFacts(
            plan=self._plan,
            broker=self._request.ends.shown,
            brokers=self._request.ends.all_shown,
            measured_from=measured_from,
            measured_until=measured_until,
            accounts=accounts_of(self._plan, control),
            confirms=uses_confirms(control),
            failures=tuple(control.failures),
            interrupted_by=self._interrupted_by,
            stopped_by=self._stopped_by,
            busiest_agent_share=self._health.busiest_share,
            busiest_host_share=self._health.busiest_host_share,
            spark_cores=self._overhead.cores,
            clock_bound_ns=self._health.clock_bound_ns,
            environment=self._environment(control),
            counted=counted_while_measured(self._plan, control),
            samples=samples_of(self._plan, control),
            notes=(
                *notes,
                *(Check("resources", "warn", it) for it in self._monitor.problems()),
                *(_told_step(step, measured_from) for step in self._wall_clock.steps),
            ),
            broker_resources=self._monitor.document(),
            agents=[
                agent_entry(control, agent, self._health) for agent in range(len(control.agents))
            ],
        )

    def _environment(self, control: RunControl) -> dict[str, Any]:
        probed = [state.reports["probed"] for state in control.agents if "probed" in state.reports]
        hosts = {json.dumps(report["host"], sort_keys=True): report["host"] for report in probed}
        return driver_environment(self._spark) | {
            "bench_spark": __version__,
            "broker": probed[0]["brokers"][0] if probed else None,
            "brokers": probed[0]["brokers"] if probed else [],
            "hosts": list(hosts.values()),
        }


def _told_step(step: WallStep, measured_from: float | None) -> Check:
    when = "before the measured phase"
    if measured_from is not None and step.at_ns / NANOSECONDS >= measured_from:
        when = f"{step.at_ns / NANOSECONDS - measured_from:.0f} s into the measured phase"
    return Check(
        "wall_clock",
        "warn",
        f"the driver's wall clock was set {step.by_ns / NANOSECONDS:+.1f} s, {when}; the run's own "
        "clock did not follow: pacing and latencies hold, times in the tables are of before",
    )


def _overhead_seconds(control: RunControl, began_ns: int) -> float | None:
    """How long a run has taken until now beside warm-up, measured phase and drain."""
    if control.start_at_ns is None or control.drained_at_ns is None:
        return None
    load_ns = control.drained_at_ns - control.start_at_ns
    return round((time.monotonic_ns() - began_ns - load_ns) / NANOSECONDS, 3)


def _master(spark: SparkSession) -> str:
    return spark.sparkContext.master or ""
