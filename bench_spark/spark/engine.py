"""Runs plans, one after the other, on one Spark session: what is started once serves all of them.

`run.py` carries out one run.
"""

from __future__ import annotations

import time
import uuid
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

from pyspark import InheritableThread
from pyspark.sql import SparkSession

from bench_spark.config.problems import plural
from bench_spark.errors import BenchError, StoreError, TooFewSlots
from bench_spark.plan import Plan
from bench_spark.process import watched
from bench_spark.results.document import RunSummary
from bench_spark.runs import RunConfig
from bench_spark.spark.datasets import DatasetRows
from bench_spark.spark.job import start_worker, start_workers
from bench_spark.spark.metrics import DEFAULT_TRIGGER_SECONDS, RollingMetrics
from bench_spark.spark.run import Display, Run
from bench_spark.spark.session import JVM_GONE, free_slots, master_of, start_timeout, wait_for_slots
from bench_spark.spark.sql import require_readable
from bench_spark.store.delta import Store

MOST_EXECUTORS_SECONDS = 60.0
"""How long to wait for executors that do not take tasks: they may be busy with somebody else's."""
TRIALS_PUBLISHED_TOGETHER = 10
"""Without live metrics: a query that is started for each trial would take two seconds of each."""


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
        # deltalake, which has opened the tables, needs neither jars nor Spark's credentials.
        require_readable(spark, store)
        self._trigger_seconds = trigger_seconds or DEFAULT_TRIGGER_SECONDS
        self._start_timeout = start_timeout(spark)
        self._spark = spark
        self._store = store
        self._display = display
        self._metrics: RollingMetrics | None = None
        self._rows = DatasetRows(spark, store)
        self._has_all_executors = False
        """Whether every executor has taken tasks."""
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

        def start() -> None:
            # Whatever is wrong with them, the first run meets it too, and says it.
            with suppress(Exception):
                context.parallelize(range(agents), agents).map(start_worker).count()

        job = InheritableThread(target=watched(start), name="workers", daemon=True)
        job.start()
        if live:
            self._ensure_metrics().make_ready(self._start_timeout)
        job.join()

    def run(self, config: RunConfig) -> RunSummary:
        """Run, summarise, store. Raises a PreflightError when the load could not start."""
        began_ns = time.monotonic_ns()
        self._check_slots(config.plan)
        config = replace(
            config, plan=self._rows.given_to(config.plan, config.ends.ingress[0].broker)
        )
        metrics = self._ensure_metrics()
        started_at = datetime.now(UTC)
        self._store.replace_run(config.row(started_at))
        run = Run(self._spark, self._store, self._display, config, metrics)
        try:
            summary = run.carry_out(started_at, began_ns)
        except BenchError as error:
            # A store that fails as well must not hide why the run did.
            with suppress(StoreError):
                self._store.replace_run(config.row(started_at, failure=error))
            raise
        if config.trial is not None and not config.live:
            self._unpublished.append(config.plan.run_id)
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
        needed, master = plan.slots_needed, master_of(self._spark)
        slots = free_slots(self._spark)
        if slots < needed and not master.startswith("local"):
            slots = wait_for_slots(self._spark, needed, self._start_timeout, self._display.step)
        if slots < needed:
            raise TooFewSlots(
                f"{plural(len(plan.assignments), 'agent')} and the rolling metrics need "
                f"{needed} slots, but {master} offers {slots}: add executors or cores, or use "
                "fewer agents"
            )
        if not master.startswith("local") and not self._has_all_executors:
            self._await_executors(slots)
            self._has_all_executors = True

    def _await_executors(self, slots: int) -> None:
        """Return when every executor takes tasks, or when they have had their time.

        An executor is known before it has unpacked what the job brings, and takes tasks only after
        that. Agents that are placed meanwhile would crowd on the first that is ready; a barrier
        stage that needs all slots is not launched before the last one is.
        """
        context = self._spark.sparkContext
        group = f"executors-{uuid.uuid4().hex}"

        def occupy_all() -> None:
            # Whatever is wrong with them, the run meets it too, and says it.
            with suppress(Exception):
                context.setJobGroup(group, "bench-spark: executors")
                stage = context.parallelize(range(slots), slots).barrier()
                stage.mapPartitions(start_workers).count()

        job = InheritableThread(target=watched(occupy_all), name="executors", daemon=True)
        job.start()
        job.join(min(MOST_EXECUTORS_SECONDS, self._start_timeout))
        if job.is_alive():
            with suppress(*JVM_GONE):
                context.cancelJobGroup(group)
