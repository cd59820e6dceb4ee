"""The tables of a store in Spark's memory, for tests that ask many small questions about them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
from pyspark.sql import SparkSession

from bench_spark.spark.sql import view_statements
from bench_spark.store.arrow import SCHEMAS
from bench_spark.store.delta import Store

_WHOLE_STAGE = "spark.sql.codegen.wholeStage"


@contextmanager
def views_in_memory(spark: SparkSession, store: Store) -> Iterator[None]:
    """As `create_views` makes them, but each table is read once: for a query of a few rows, to find
    the files of a Delta table and to compile a program takes longer than everything else."""
    for name in SCHEMAS:
        spark.createDataFrame(_with_chunks(store.read(name))).createOrReplaceTempView(name)
    for statement in view_statements():
        spark.sql(statement)
    usual = spark.conf.get(_WHOLE_STAGE, "true")
    spark.conf.set(_WHOLE_STAGE, "false")
    try:
        yield
    finally:
        spark.conf.set(_WHOLE_STAGE, usual)


def _with_chunks(table: pa.Table) -> pa.Table:
    """Spark takes no column that consists of nothing at all, as those of an empty table do."""
    if table.num_rows:
        return table
    return pa.table([pa.array([], field.type) for field in table.schema], schema=table.schema)
