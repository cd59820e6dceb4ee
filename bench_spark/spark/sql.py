"""SQL over a store: its tables and the views of views.sql, and answers to a user's query."""

from __future__ import annotations

import re
from importlib import resources
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from bench_spark import tables
from bench_spark.errors import ConfigurationError
from bench_spark.spark.delta import read_table
from bench_spark.store import Store

_SQL_STATE = re.compile(r"\s*SQLSTATE: \w+.*")

_SAY_IT_TWICE = ("org.apache.spark.executor.Executor", "org.apache.spark.scheduler.TaskSetManager")
"""Loggers that print the stack of a failed task, which also comes back as the query's error."""


def create_views(spark: SparkSession, store: Store) -> None:
    """Make the tables of this store, and the views over them, known by name in the session."""
    for name in tables.TABLES:
        read_table(spark, store, name).createOrReplaceTempView(name)
    for statement in view_statements():
        spark.sql(statement)


def view_statements() -> list[str]:
    text = resources.files(__package__).joinpath("views.sql").read_text()
    without_comments = re.sub(r"^--.*$", "", text, flags=re.MULTILINE)
    statements = re.split(r";\s*$", without_comments, flags=re.MULTILINE)
    return [statement.strip() for statement in statements if statement.strip()]


def run_query(spark: SparkSession, store: Store, query: str) -> pa.Table:
    """The answer to a query; what is wrong with it comes back as one line."""
    create_views(spark, store)
    _quiet_failing_tasks(spark)
    try:
        return spark.sql(query).toArrow()
    except PySparkException as error:
        raise ConfigurationError(f"SQL: {one_line(error.getMessage() or str(error))}") from error
    except Py4JJavaError as error:
        cause = error.java_exception
        raise ConfigurationError(f"SQL: {one_line(cause.getMessage() or cause.toString())}") from (
            error
        )


def _quiet_failing_tasks(spark: SparkSession) -> None:
    jvm: Any = spark.sparkContext._jvm
    log4j = jvm.org.apache.logging.log4j
    for logger in _SAY_IT_TWICE:
        log4j.core.config.Configurator.setLevel(logger, log4j.Level.OFF)


def one_line(message: str) -> str:
    """The first line says it; a drawing of the query, a plan or a stack of Java follows."""
    first = message.strip().splitlines()[0]
    return _SQL_STATE.sub("", first).strip()
