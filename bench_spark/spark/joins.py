"""Rows of single messages in the life of a run: where they go, what is timed late, the join.

The exact join of `messages` by ID: what was sent with what was confirmed and received. All rows of
a message are brought together, numpy joins them (`trace/joining.py`), and only sums leave the
executor. Where the store is a directory and the messages are not too many, each task reads the
files itself and keeps its share (`trace/files.py`); else Spark moves the rows. What executors call
is in `trace`: this module loads deltalake, which they need not have.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from bench_spark.agent.timeline import MEASURE, Timeline
from bench_spark.config.models import stored_scenario
from bench_spark.config.sections import ALL, traced_every
from bench_spark.driver.committer import Committer
from bench_spark.errors import StoreError
from bench_spark.plan import Plan, make_plan
from bench_spark.results.checks import Check
from bench_spark.results.facts import TraceFacts, trace_section
from bench_spark.spark.rebuild import windows_of_run
from bench_spark.spark.session import JVM_GONE
from bench_spark.spark.sql import arrow_table, read_table
from bench_spark.store import s3
from bench_spark.store.delta import Store
from bench_spark.trace.files import KINDS, MessageDirectory, join_shares
from bench_spark.trace.joining import (
    BLOCK_MESSAGES,
    PARTS,
    ROWS,
    JoinedMessages,
    JoinRule,
    join_parts,
    unite,
)
from bench_spark.trace.live import LiveFiles, LiveJoin

PARTITION_ROWS = 1_000_000
"""Rows that one worker holds at a time: some 100 MB."""
MOST_SHARES = 16
"""Every share reads all rows, so that work grows with the square of the rows."""

_PARTS_TYPE: StructType = from_arrow_schema(PARTS)

# A message that overtook another makes that one late; a message that comes again is a duplicate,
# and its order means nothing.
_OUT_OF_ORDER = """
SELECT producer, count(*) AS messages
FROM (
  SELECT producer, sequence, phase,
         max(sequence) OVER (
           PARTITION BY agent, attempt, subscription, producer ORDER BY number
           ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS highest,
         row_number() OVER (
           PARTITION BY agent, attempt, subscription, producer, sequence ORDER BY number) AS time
  FROM {received})
WHERE sequence < highest AND time = 1 AND phase = 'measure'
GROUP BY producer
"""


def join_messages(spark: SparkSession, store: Store, run_id: str, rule: JoinRule) -> JoinedMessages:
    """Every message of a run that is in `messages`."""
    files = store.rows_by_file("messages", run_id)
    rows = sum(files.values())
    join: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
    partitions = max(spark.sparkContext.defaultParallelism, -(-rows // PARTITION_ROWS))
    if store.is_local and partitions <= MOST_SHARES:
        directory = Path(store.table_uri("messages"))
        paths = [str(directory / path) for path in files]
        join = partial(join_shares, paths=paths, run_id=run_id, shares=partitions, rule=rule)
        together = spark.range(0, partitions, 1, partitions)
    else:
        join = partial(join_parts, rule=rule)
        together = _rows(_of_run(spark, store, run_id)).repartition(
            partitions, "producer", f.expr(f"sequence div {BLOCK_MESSAGES}")
        )
    joined = unite(arrow_table(together.mapInArrow(join, _PARTS_TYPE)))
    if joined.is_in_order:
        return joined
    return replace(joined, out_of_order=_out_of_order(spark, _of_run(spark, store, run_id)))


def rebuilt_section(
    spark: SparkSession, store: Store, run_id: str, dumped_scenario: dict[str, Any]
) -> dict[str, Any]:
    """The section `trace` of the run's result, made anew."""
    scenario = stored_scenario(run_id, dumped_scenario)
    timeline = windows_of_run(store, run_id).timeline
    rule = JoinRule(timeline, scenario.histogram.highest_us, scenario.load.mode == "rate")
    began = time.monotonic()
    joined = join_messages(spark, store, run_id, rule)
    facts = TraceFacts(joined, timeline, time.monotonic() - began)
    section = trace_section(make_plan(scenario, run_id), facts)
    assert section is not None, "the run is traced"
    return section


def _of_run(spark: SparkSession, store: Store, run_id: str) -> DataFrame:
    return read_table(spark, store, "messages").where(f.col("run_id") == run_id)


def _rows(messages: DataFrame) -> DataFrame:
    kinds = " ".join(f"WHEN '{kind}' THEN {number}" for kind, number in KINDS.items())
    made = {
        "kind": f.expr(f"CAST(CASE kind {kinds} END AS TINYINT)"),
        "is_measured": f.col("phase") == MEASURE,
    }
    return messages.select(*(made.get(name, f.col(name)).alias(name) for name in ROWS.names))


def _out_of_order(spark: SparkSession, messages: DataFrame) -> dict[int, int]:
    received = messages.where((f.col("kind") == "received") & f.col("producer").isNotNull())
    found = arrow_table(spark.sql(_OUT_OF_ORDER, received=received)).to_pylist()
    return {row["producer"]: row["messages"] for row in found}


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
        options = s3.for_executors(self._store.uri, os.environ)
        return MessageDirectory(self._store.table_uri(TABLE), self._store.is_local, options)

    def time_late(self, committer: Committer, timeline: Timeline) -> None:
        """From now on join what agents cannot time, as its files are committed."""
        directory = self.directory()
        if directory is not None and self.is_joined:
            join = LiveJoin(self._rule(timeline))
            committer.time_late(LiveFiles(directory.filesystem(), join))

    def remove_orphans(self, committer: Committer) -> None:
        """Files that an agent could not report any more. Those that cannot be deleted are in no
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
