"""How Spark reads the tables of a store. It never writes them: that is `bench_spark.store`."""

from __future__ import annotations

from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from bench_spark.errors import EnvironmentNotReady
from bench_spark.store import Store

DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"


def require_delta(spark: SparkSession, session: str, remedy: str) -> None:
    """Raise EnvironmentNotReady where the session has no Delta classes: Spark itself only logs a
    warning when it starts, and fails much later. `session`: how the error calls it."""
    jvm: Any = spark.sparkContext._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    try:
        jvm.java.lang.Class.forName(DELTA_EXTENSION, False, loader)
    except Py4JJavaError as error:
        raise EnvironmentNotReady(
            f"{session} has no Delta Lake, which the tables need: {remedy}"
        ) from error


def spark_uri(uri: str) -> str:
    """The same place in Hadoop's words: what deltalake calls s3:// is s3a:// there."""
    return f"s3a://{uri[len('s3://') :]}" if uri.startswith("s3://") else uri


def read_table(spark: SparkSession, store: Store, name: str) -> DataFrame:
    return spark.read.format("delta").load(spark_uri(store.table_uri(name)))
