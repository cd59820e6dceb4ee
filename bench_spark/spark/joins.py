"""The exact join of `messages` by ID: what was sent with what was confirmed and received.

Spark brings all rows of a message together, numpy joins them (`messages/joining.py`): some hundred
bytes of Arrow a message, and no row leaves its executor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from bench_spark.agent.timeline import MEASURE
from bench_spark.agent.tracing import MessageEvent
from bench_spark.messages.joining import (
    BLOCK_MESSAGES,
    PARTS,
    ROWS,
    JoinedMessages,
    JoinRule,
    join_parts,
    unite,
)
from bench_spark.spark.delta import read_table
from bench_spark.store import Store

PARTITION_ROWS = 1_000_000
"""Rows that one worker holds at a time: some 100 MB."""

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
    messages = read_table(spark, store, "messages").where(f.col("run_id") == run_id)
    rows = store.rows_at_most("messages", run_id)
    partitions = max(spark.sparkContext.defaultParallelism, -(-rows // PARTITION_ROWS))
    together = _rows(messages).repartition(
        partitions, "producer", f.expr(f"sequence div {BLOCK_MESSAGES}")
    )
    parts = together.mapInArrow(partial(_join, rule=rule), _PARTS_TYPE).toArrow()
    joined = unite(parts)
    if joined.is_in_order:
        return joined
    return replace(joined, out_of_order=_out_of_order(spark, messages))


def _join(batches: Iterator[pa.RecordBatch], rule: JoinRule) -> Iterator[pa.RecordBatch]:
    return join_parts(batches, rule)


def _rows(messages: DataFrame) -> DataFrame:
    kinds = " ".join(f"WHEN '{event.name.lower()}' THEN {int(event)}" for event in MessageEvent)
    made = {
        "kind": f.expr(f"CAST(CASE kind {kinds} END AS TINYINT)"),
        "is_measured": f.col("phase") == MEASURE,
    }
    return messages.select(*(made.get(name, f.col(name)).alias(name) for name in ROWS.names))


def _out_of_order(spark: SparkSession, messages: DataFrame) -> dict[int, int]:
    received = messages.where((f.col("kind") == "received") & f.col("producer").isNotNull())
    found = spark.sql(_OUT_OF_ORDER, received=received).toArrow().to_pylist()
    return {row["producer"]: row["messages"] for row in found}
