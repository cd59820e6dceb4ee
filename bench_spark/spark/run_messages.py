"""Rows of single messages in the life of a run: where they go, what is timed late, the join."""

from __future__ import annotations

import time
from contextlib import suppress

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from bench_spark.agent.timeline import Timeline
from bench_spark.collector.committer import Committer
from bench_spark.errors import StoreError
from bench_spark.messages.files import MessageDirectory
from bench_spark.messages.joining import JoinRule
from bench_spark.messages.live import LiveFiles, LiveJoin
from bench_spark.plan import Plan
from bench_spark.scenario.trace_section import ALL, traced_every
from bench_spark.spark.joins import join_messages
from bench_spark.spark.session import JVM_GONE
from bench_spark.store import Store
from bench_spark.summary.checks import Check
from bench_spark.summary.facts import TraceFacts

TABLE = "messages"


class RunMessages:
    """Of one run; nothing happens where its scenario traces nothing."""

    def __init__(self, store: Store, plan: Plan) -> None:
        self._store = store
        self._plan = plan
        self._is_traced = bool(traced_every(plan.scenario.trace))

    @property
    def is_joined(self) -> bool:
        """Whether every message has rows, so that all can be joined."""
        return self._plan.scenario.trace == ALL

    def directory(self) -> MessageDirectory | None:
        """Where agents put their files; None if they write none."""
        if not self._is_traced:
            return None
        return MessageDirectory(self._store.table_uri(TABLE), self._store.is_local)

    def time_late(self, committer: Committer, timeline: Timeline) -> None:
        """From now on join what agents cannot time, as its files are committed."""
        directory = self.directory()
        if directory is not None and self.is_joined:
            join = LiveJoin(self._rule(timeline))
            committer.time_late(LiveFiles(directory.filesystem(), join))

    def remove_orphans(self, committer: Committer) -> None:
        """Files that an agent could not tell of any more. Those that cannot be deleted are in no
        reader's way."""
        if not self._is_traced or committer.error is not None:
            return
        with suppress(StoreError):
            self._store.remove_unnamed(TABLE, self._plan.run_id, committer.message_paths)

    def join(
        self, spark: SparkSession, timeline: Timeline
    ) -> tuple[TraceFacts | None, tuple[Check, ...]]:
        """Every message by its ID, where all are traced; if that fails, what to say. It repeats
        what the agents have counted: failing costs no result."""
        if not self.is_joined:
            return None, ()
        began = time.monotonic()
        try:
            joined = join_messages(spark, self._store, self._plan.run_id, self._rule(timeline))
        except (PySparkException, *JVM_GONE) as error:
            text = next(iter(str(error).splitlines()), type(error).__name__)[:200]
            advice = f"bench-spark messages {self._plan.run_id} tries again"
            return None, (Check("trace", "warn", f"messages were not joined: {text}; {advice}"),)
        return TraceFacts(joined, timeline, time.monotonic() - began), ()

    def _rule(self, timeline: Timeline) -> JoinRule:
        scenario = self._plan.scenario
        return JoinRule(timeline, scenario.histogram.highest_us, scenario.load.mode == "rate")
