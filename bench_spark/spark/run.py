"""The life of one run in the driver: agents started, steered over their links, summed up.

The main thread stays in Python and only watches, so that Ctrl-C and SIGTERM are acted on at once;
the Spark job runs in a thread of its own, the collector and the committer in theirs.

Tidying up a store that other applications may be using. Two applications must not compact a table
at once (see `Store.compact`), and no lock reaches every kind of store. But whoever compacts has a
run in `runs` that is `running`, put there long before and changed only afterwards: of two
applications that come to compact, one at least sees the other, and whoever sees another leaves the
files as they are. The next run will compact them.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Protocol

from pyspark import InheritableThread
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from bench_spark.agent.agent import AgentTask
from bench_spark.agent.protocol import EventRow, new_token
from bench_spark.agent.timeline import Timeline
from bench_spark.config.problems import plural
from bench_spark.core.clock import NANOSECONDS, Clock
from bench_spark.driver.accounts import measured_span
from bench_spark.driver.committer import Committer, commit_samples, events_table
from bench_spark.driver.control import DRIVER, Failure, RunControl
from bench_spark.driver.server import CollectorServer
from bench_spark.driver_process import COLUMNS, RUNNING, has_vanished
from bench_spark.errors import (
    EXIT_INTERRUPTED,
    EXIT_TERMINATED,
    BenchError,
    EnvironmentNotReady,
    RunError,
    StoreError,
    error_of_kind,
)
from bench_spark.plan import Plan
from bench_spark.process import ENDING_SIGNALS, handled, thread_errors, watched
from bench_spark.results.checks import Check
from bench_spark.results.document import RunSummary, summarise, summary_rows
from bench_spark.results.facts import MissedWhileRunning, missed_in_window
from bench_spark.runs import RunConfig
from bench_spark.spark.job import (
    CLOSING_SECONDS,
    AgentsJob,
    StoreMarker,
    collector_address,
    store_marker,
)
from bench_spark.spark.joins import RunMessages
from bench_spark.spark.merge import (
    TickRows,
    merged_ticks,
    merged_ticks_here,
    ticks_and_unwritten,
)
from bench_spark.spark.metrics import LiveDelay, RollingMetrics, live_check
from bench_spark.spark.observer import RunObserver
from bench_spark.spark.session import (
    JVM_GONE,
    START_TIMEOUT,
    WAITING_WORD_SECONDS,
    cause_of,
    is_alive,
    log_hint,
    master_of,
    start_timeout,
)
from bench_spark.spark.windows import ROLLING_SECONDS, LiveWindow, RunWindows, early_end_ns
from bench_spark.store.delta import Store
from bench_spark.transports.leftovers import KnownRun, delete_left_by
from bench_spark.transports.registry import sweeper_of


class Display(Protocol):
    """Shows progress to the person who waits."""

    def step(self, text: str) -> None: ...

    def opening(self, plan: Plan, opened: int) -> None: ...

    def started(self, plan: Plan, timeline: Timeline, now_ns: Callable[[], int]) -> None: ...

    def update(self, window: LiveWindow | None, is_draining: bool) -> None: ...

    def counted(self, totals: Mapping[str, int]) -> None: ...

    def ended(self) -> None: ...


def compact_if_alone(store: Store, run_id: str, tables: Sequence[str] = ("events",)) -> bool:
    """To be called while this run is `running`; whether its tables were compacted."""
    running = store.read("runs", columns=list(COLUMNS), status=RUNNING).to_pylist()
    if not all(has_vanished(row) for row in running if row["run_id"] != run_id):
        return False
    for name in tables:
        store.compact(name)
    return True


def compact_overdue(store: Store, run_id: str) -> None:
    """In a soak: what has grown since it was last looked at. Whatever comes of it, no row is lost
    by it, so a failure is no reason to end the run; the next look tries again."""
    overdue = store.overdue()
    if overdue:
        with suppress(StoreError):
            compact_if_alone(store, run_id, overdue)


class Unstored:
    """Of one run, from when its committer is closed until its row is in `runs`."""

    def __init__(self, committer: Committer) -> None:
        self.error: BenchError | None = committer.error
        self._first_words = None if self.error is None else str(self.error)
        self._parts: list[str] = []
        rows = [row for _, _, row in committer.unwritten]
        if rows:
            self._parts.append(f"the last {_length_seconds(rows):.0f} s of its events")
        if committer.unwritten_files:
            self._parts.append(f"{plural(committer.unwritten_files, 'file')} of messages")

    def keep(self, part: str, write: Callable[[], object]) -> bool:
        """Write a part of the result; whether the store took it."""
        try:
            write()
        except StoreError as error:
            self.error = self.error or error
            self._parts.append(part)
            return False
        return True

    def told_in(self, summary: RunSummary) -> RunSummary:
        """The result with one sentence about all that is missing in the store, if anything is."""
        if self.error is None:
            return summary
        *others, last = self._parts
        missing = f"{', '.join(others)} and {last}" if others else last
        reason = f"{self.error}; this result is whole, but the store lacks {missing}"
        return summary.not_stored(reason, instead_of=self._first_words)


def _length_seconds(rows: list[EventRow]) -> float:
    first_ns = min(row.tick_start_ns for row in rows)
    last_ns = max(row.tick_start_ns + round(row.tick_seconds * NANOSECONDS) for row in rows)
    return max(1.0, (last_ns - first_ns) / NANOSECONDS)


WATCH_SECONDS = 0.1
ENDING_SECONDS = 60.0
"""How long agents may take to close, once a thread of the driver has died."""
STORE_PATIENCE_SECONDS = 5.0
"""How long commits may fail before the load ends; as long, and no longer, rows pile up here."""
SMALL_RUN_ROWS = 4_000
"""Event rows (100 kB each at most) that the driver sums up itself; more are merged by executors."""


class Run:
    """One run; to be carried out once."""

    def __init__(
        self,
        spark: SparkSession,
        store: Store,
        display: Display,
        config: RunConfig,
        metrics: RollingMetrics,
    ) -> None:
        self._spark = spark
        self._store = store
        self._display = display
        self._config = config
        self._plan = config.plan
        self._metrics = metrics
        self._clock = Clock.local()
        self._observer = RunObserver(spark, store, config, self._clock)
        self._messages = RunMessages(store, config.plan)
        self._interrupted_by: int | None = None
        self._stopped_by: MissedWhileRunning | None = None
        self._start_error: BenchError | None = None
        """Why the load could not start, where the driver knows better than its agents."""
        self._warming: threading.Thread | None = None
        self._is_over = threading.Event()
        self._thread_error: BenchError | None = None
        self._ending_until = 0.0
        self._live_delay = LiveDelay()
        self._start_timeout = start_timeout(spark)
        self._has_told_when_measured = False
        self._has_lost_store = False
        self._left: list[str] = []
        """What killed agents have left in the broker, and why it is still there."""

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
            live=self._config.live,
            tidy_up=lambda: compact_overdue(self._store, self._plan.run_id),
        )
        control = RunControl(
            self._plan,
            self._clock.now_ns,
            server.send,
            self._rows_to(committer),
            holds_start=self._config.live,
            on_files=committer.add_files,
        )
        with self._heed_signals(server, control):
            try:
                server.start(control)
                with store_marker(self._directory_to_share(master)) as marker:
                    job = self._start_job((address.called, server.port), token, marker)
                    if self._config.live:
                        self._warm_metrics(server, control)
                    self._watch(control, server, committer, job, started_at)
                    job.end()
            finally:
                server.close()
                self._observer.close()
                self._display.ended()
                self._is_over.set()
                if self._warming is not None:
                    self._warming.join(CLOSING_SECONDS)
            self._take_back_results(job, control, committer)
            self._delete_left(control)
            committer.close()
            self._messages.remove_orphans(committer)
            if committer.error is not None:
                error = committer.error
                control.failures.append(Failure(DRIVER, error.kind, str(error)))
            self._refuse_if_never_started(control)
            return self._sum_up(control, committer, started_at, began_ns)

    def _directory_to_share(self, master: str) -> Path | None:
        """Where the store is a directory, and the executors are on other machines."""
        return None if master.startswith("local") else self._store.directory

    # -- the stage -------------------------------------------------------------------------------

    def _start_job(
        self, collector: tuple[str, int], token: str, marker: StoreMarker | None
    ) -> AgentsJob:
        tasks = [
            AgentTask(assignment, self._config.ends, collector, token)
            for assignment in self._plan.assignments
        ]
        messages = self._messages.directory()
        return AgentsJob(self._spark, self._plan.run_id, tasks, marker, messages)

    def _warm_metrics(self, server: CollectorServer, control: RunControl) -> None:
        """Get the query going while the agents get ready; the load starts when both are.

        Unwarmed, a short run would be over before the query's first batch. On a cluster agents are
        placed first: slots that the query's first batch has taken would crowd them on the others.
        What is left then, one slot at least, is what the query will have during the load. A row is
        sent through it again, until one is in time: the first batches of a cold cluster are slow.
        """
        is_cluster = not master_of(self._spark).startswith("local")

        def warm() -> None:
            try:
                while is_cluster and not control.all_joined.wait(WATCH_SECONDS):
                    if self._is_over.is_set():
                        return
                self._metrics.make_ready(self._start_timeout)
                if is_cluster:
                    self._metrics.prove_ready(self._start_timeout)
            except BenchError as error:
                # What an agent has found comes first: a store that its machine does not see, say,
                # ends the query too.
                if not control.failures:
                    self._start_error = error
                server.call(lambda: control.stop("the rolling metrics did not start"))
            else:
                server.call(control.allow_start)

        self._warming = InheritableThread(target=watched(warm), name="warming", daemon=True)
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
        started_at: datetime,
    ) -> None:
        what = " and the rolling metrics" if self._config.live else ""
        self._display.step(f"starting {plural(len(control.agents), 'agent')}{what}")
        began = time.monotonic()
        next_word = began + WAITING_WORD_SECONDS
        is_started = False
        while not control.finished.wait(WATCH_SECONDS):
            self._observer.look_at_clock()
            if control.started.is_set() and not is_started:
                is_started = True
                self._begin(control, committer)
            if is_started:
                self._tell_when_measured(control, started_at)
                self._observer.weigh_spark(self._timeline(control), control.produced.is_set())
                window = self._metrics.latest(self._plan.run_id)
                self._display.counted(control.totals)
                self._display.update(window, is_draining=control.produced.is_set())
                self._stop_on_miss(window, control, server)
                self._stop_without_store(committer, control, server)
            else:
                self._display.opening(self._plan, control.opened_lanes)
            if not job.is_alive:
                return
            if self._has_lost_a_thread(control, server):
                job.cancel()
                return
            waited = time.monotonic() - began
            if not is_started and time.monotonic() >= next_word:
                next_word += WAITING_WORD_SECONDS
                self._display.step(f"waiting for {_awaited(control)} after {waited:.0f} s")
            if not control.all_joined.is_set() and waited > self._start_timeout:
                self._start_error = EnvironmentNotReady(
                    f"{_awaited(control)} did not start within {self._start_timeout:g} s: is the "
                    "cluster busy, or can executors not reach the driver? "
                    f"{START_TIMEOUT} sets how long to wait"
                )
                server.call(lambda: control.stop("not every agent started"))
                job.cancel()
                return

    def _has_lost_a_thread(self, control: RunControl, server: CollectorServer) -> bool:
        """End the run because of an unexpected error in a thread of the driver; says whether its
        agents have had time enough to close."""
        error = thread_errors().take()
        if error is not None and self._thread_error is None:
            self._thread_error = error
            self._ending_until = time.monotonic() + ENDING_SECONDS
            server.call(lambda: control.stop(str(error)))
        return self._thread_error is not None and time.monotonic() > self._ending_until

    def _stop_on_miss(
        self, window: LiveWindow | None, control: RunControl, server: CollectorServer
    ) -> None:
        """End the run at the first whole window of the measured phase that misses an objective."""
        if not self._config.stops_on_slo or window is None or self._stopped_by is not None:
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

    def _stop_without_store(
        self, committer: Committer, control: RunControl, server: CollectorServer
    ) -> None:
        """End the run when what it measures cannot be kept."""
        is_lost = committer.failing_seconds > STORE_PATIENCE_SECONDS
        if is_lost and not self._has_lost_store and control.stop_reason is None:
            self._has_lost_store = True
            reason = str(committer.error)
            self._display.step(f"ending the load: {reason}")
            server.call(lambda: control.stop(reason))

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

    def _tell_when_measured(self, control: RunControl, started_at: datetime) -> None:
        """Whoever reads the tables of a run that goes on cannot know when its load has settled."""
        settling = control.settling
        if self._has_told_when_measured or settling is None or settling.outcome is None:
            return
        self._has_told_when_measured = True
        measured_from = self._timeline(control).measure_start_ns / NANOSECONDS
        # The result says it again: a store that fails now need not end the run.
        with suppress(StoreError):
            self._store.replace_run(self._config.row(started_at, measured=(measured_from, None)))

    def _timeline(self, control: RunControl) -> Timeline:
        assert control.timeline is not None
        return control.timeline

    @contextmanager
    def _heed_signals(self, server: CollectorServer, control: RunControl) -> Iterator[None]:
        """Ctrl-C, SIGTERM and SIGHUP stop the load, but not the summing up of what was measured.

        PySpark's own handler would kill the agents.
        """

        def stop(number: int, frame: FrameType | None) -> None:
            code = EXIT_INTERRUPTED if number == signal.SIGINT else EXIT_TERMINATED
            self._interrupted_by = self._interrupted_by or code
            server.call(lambda: control.stop("interrupted"))

        with handled(stop, signal.SIGINT, *ENDING_SIGNALS):
            yield

    # -- afterwards ------------------------------------------------------------------------------

    def _take_back_results(self, job: AgentsJob, control: RunControl, committer: Committer) -> None:
        """What the links did not deliver comes back as the results of the tasks."""
        for result in job.results:
            state = control.agents[result.agent]
            self._rows_to(committer)(result.agent, state.attempt, result.rows)
            committer.add_files(result.agent, state.attempt, result.files)
            if result.failure is not None:
                self._add_failure(Failure(result.agent, *result.failure), control)
        if self._thread_error is not None:
            error = self._thread_error
            control.failures.insert(0, Failure(DRIVER, error.kind, str(error)))
        if not is_alive(self._spark):
            text = "Spark's JVM has ended, killed perhaps: is memory short?"
            control.failures.insert(0, Failure(DRIVER, "RunError", text))
        elif job.error is not None and not control.failures:
            # Before the load it is the cluster that is not ready: no Python, no package, no memory.
            kind = "RunError" if control.start_at_ns is not None else "EnvironmentNotReady"
            text = f"the Spark stage failed: {cause_of(job.error)}{log_hint()}"
            control.failures.append(Failure(DRIVER, kind, text))

    @staticmethod
    def _add_failure(failure: Failure, control: RunControl) -> None:
        """Add the failure that a task returned, unless the agent has reported it over its link. A
        bug is added in any case: if it ended the link, the driver knows no more than that."""
        reported = [known for known in control.failures if known.agent == failure.agent]
        is_told = failure.text in [known.text for known in reported]
        if not reported or (failure.kind == BenchError.__name__ and not is_told):
            control.failures.append(failure)

    def _delete_left(self, control: RunControl) -> None:
        """What agents have declared that were killed: nobody else will delete it."""
        scenario = self._plan.scenario
        gone = any(state.has_left and "inspected" not in state.reached for state in control.agents)
        if not gone or scenario.keep_destinations:
            return
        self._display.step("deleting what killed agents have left")
        sweepers = [sweeper_of(end.broker, end.credentials) for end in self._config.ends.once]
        run = KnownRun(self._plan.run_id, scenario)
        self._left = delete_left_by(run, sweepers, CLOSING_SECONDS)

    def _refuse_if_never_started(self, control: RunControl) -> None:
        if control.start_at_ns is not None or self._interrupted_by is not None:
            return
        if self._thread_error is not None:
            raise self._thread_error
        if self._start_error is not None:
            raise self._start_error
        if not control.failures:
            raise RunError(control.stop_reason or "the agents ended before the load started")
        first = control.failures[0]
        raise error_of_kind(first.kind, first.text)

    def _sum_up(
        self, control: RunControl, committer: Committer, started_at: datetime, began_ns: int
    ) -> RunSummary:
        self._display.step("summing up")
        unstored = Unstored(committer)
        left = f"; bench-spark cleanup --run-prefix {self._plan.run_id} tries again"
        notes = (
            *self._finish_metrics(control, unstored.error),
            *(() if unstored.error is not None else self._live_notes(control)),
            *(Check("connections", "warn", f"left in the broker: {it}{left}") for it in self._left),
        )
        facts = self._observer.facts(control, self._interrupted_by, self._stopped_by, notes)
        if self._messages.is_joined and unstored.error is not None:
            note = Check("trace", "warn", f"messages were not joined: {unstored.error}")
            facts = replace(facts, notes=(*facts.notes, note))
        elif self._messages.is_joined and control.start_at_ns is not None:
            self._display.step("joining messages")
            trace, remarks = self._messages.join(self._spark, self._timeline(control))
            messages = replace(facts.messages, trace=trace)
            facts = replace(facts, messages=messages, notes=(*facts.notes, *remarks))
        summary = summarise(self._ticks(committer), facts)
        store, run_id = self._store, self._plan.run_id
        unstored.keep("its samples", lambda: commit_samples(store, run_id, facts.messages.samples))
        rows = summary_rows(self._plan, summary)
        unstored.keep("its rows of `summary`", lambda: store.append("summary", rows))
        # A store that has no room for it keeps its small files.
        with suppress(StoreError):
            compact_if_alone(store, run_id)
        summary = summary.with_overhead(_overhead_seconds(control, began_ns))
        told = unstored.told_in(summary)
        measured = (facts.measured_from, facts.measured_until)
        row = self._config.row(started_at, summary=told, measured=measured)
        if unstored.keep("its row of `runs`", lambda: store.replace_run(row)):
            return told
        return unstored.told_in(summary)

    def _ticks(self, committer: Committer) -> Iterable[TickRows]:
        """What was counted: by the store, and by rows that it has not taken."""
        run_id = self._plan.run_id
        if rows := committer.unwritten:
            return ticks_and_unwritten(self._store, run_id, events_table(run_id, rows))
        if committer.rows <= SMALL_RUN_ROWS or not is_alive(self._spark):
            return merged_ticks_here(self._store, run_id)
        return merged_ticks(self._spark, self._store, run_id)

    def _live_notes(self, control: RunControl) -> tuple[Check, ...]:
        """What those who watched the run have seen of it."""
        _, measured_until = measured_span(self._plan, control)
        if not self._config.live or control.start_at_ns is None or measured_until is None:
            return ()
        until_ns = round(measured_until * NANOSECONDS)
        now_ns = self._clock.now_ns()
        return (live_check(self._live_delay, control.start_at_ns, until_ns, now_ns),)

    def _finish_metrics(
        self, control: RunControl, store_error: BenchError | None
    ) -> tuple[Check, ...]:
        """Complete the rolling metrics. They repeat what events say: failing costs no result."""
        if store_error is not None:
            self._live_delay = self._metrics.delay(self._plan.run_id)
            self._metrics.forget_run(self._plan.run_id)
            return (Check("metrics", "warn", f"the rolling metrics are not whole: {store_error}"),)
        _, measured_until = measured_span(self._plan, control)
        if measured_until is not None:
            until_ns = early_end_ns(self._timeline(control), round(measured_until * NANOSECONDS))
            if until_ns is not None:
                self._metrics.end_measuring(self._plan.run_id, until_ns)
        try:
            if self._config.trial is not None:
                # Others follow: the metrics need not be waited for.
                if self._config.live:
                    self._live_delay = self._metrics.delay(self._plan.run_id)
                    self._metrics.forget_when_done(self._plan.run_id)
                return ()
            if self._config.live:
                self._metrics.catch_up()
            else:
                self._metrics.run_once()
        except (BenchError, PySparkException, *JVM_GONE) as error:
            advice = f"bench-spark metrics rebuild {self._plan.run_id} makes them again"
            why = "Spark's JVM has ended"
            if isinstance(error, BenchError):
                why = str(error)
            elif is_alive(self._spark):
                why = cause_of(error)
            return (Check("metrics", "warn", f"{why}; {advice}"),)
        finally:
            self._live_delay = self._metrics.delay(self._plan.run_id)
        self._metrics.forget_run(self._plan.run_id)
        return ()


def _awaited(control: RunControl) -> str:
    """Who the start is waiting for."""
    absent = sum(not state.is_here for state in control.agents)
    if absent:
        return f"{absent} of {plural(len(control.agents), 'agent')}"
    return "agents to connect, or for the rolling metrics,"


def _overhead_seconds(control: RunControl, began_ns: int) -> float | None:
    """How long a run has taken until now beside warm-up, measured phase and drain."""
    if control.start_at_ns is None or control.drained_at_ns is None:
        return None
    load_ns = control.drained_at_ns - control.start_at_ns
    return round((time.monotonic_ns() - began_ns - load_ns) / NANOSECONDS, 3)
