"""The Spark job of a run: one barrier stage, a task for each agent, in a thread of its own."""

from __future__ import annotations

from contextlib import suppress

from pyspark import InheritableThread
from pyspark.sql import SparkSession

from bench_spark.agent.agent import AgentResult, AgentTask
from bench_spark.agent.tracer import MakeMessageWriter
from bench_spark.spark.agent_task import in_task
from bench_spark.spark.marker import StoreMarker
from bench_spark.spark.session import JVM_GONE
from bench_spark.threads import watched

CLOSING_SECONDS = 10.0


class AgentsJob:
    """Started when made. Its outcome is complete once `end` has returned."""

    def __init__(
        self,
        spark: SparkSession,
        run_id: str,
        tasks: list[AgentTask],
        marker: StoreMarker | None,
        messages: MakeMessageWriter | None,
    ) -> None:
        self.results: list[AgentResult] = []
        self.error: Exception | None = None
        self._context = spark.sparkContext
        self._run_id = run_id
        # Credentials travel in the closure of the tasks: never in a conf value or a description.
        stage = self._context.parallelize(range(len(tasks)), len(tasks)).barrier()
        self._job = stage.mapPartitions(in_task(tasks, marker, messages))
        self._thread = InheritableThread(target=watched(self._collect), name="agents", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return bool(self._thread.is_alive())

    def cancel(self) -> None:
        with suppress(*JVM_GONE):
            self._context.cancelJobGroup(self._run_id)

    def end(self) -> None:
        """The agents have said goodbye: their tasks end by themselves, or else are ended."""
        self._thread.join(CLOSING_SECONDS)
        if self.is_alive:
            self.cancel()
            self._thread.join(CLOSING_SECONDS)

    def _collect(self) -> None:
        run_id = self._run_id
        self._context.setJobGroup(run_id, f"bench-spark run {run_id}", interruptOnCancel=False)
        try:
            self.results = self._job.collect()
        except Exception as error:  # Spark's own errors have no common type here.
            self.error = error
