"""How Spark reads the tables of a store. It never writes them: that is `bench_spark.store`."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from bench_spark.store import Store


def spark_uri(uri: str) -> str:
    """The same place in Hadoop's words: what deltalake calls s3:// is s3a:// there."""
    return f"s3a://{uri[len('s3://') :]}" if uri.startswith("s3://") else uri


def read_table(spark: SparkSession, store: Store, name: str) -> DataFrame:
    return spark.read.format("delta").load(spark_uri(store.table_uri(name)))
