"""SQL over a store: how Spark reads its tables, the views of views.sql, answers to a query.

A user's statement may only read. Spark's parser decides what it is: its first word does not say so
(`WITH a AS (...) INSERT ...`, `FROM a INSERT ...`), and some statements run while being analysed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import resources
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from bench_spark.errors import ConfigurationError, EnvironmentNotReady, StoreNotReady
from bench_spark.spark.session import cause_of
from bench_spark.store import s3
from bench_spark.store.schema import PERCENTILES, TABLES

if TYPE_CHECKING:
    from bench_spark.store.delta import Store


def arrow_table(frame: DataFrame) -> pa.Table:
    """The rows of a DataFrame; Spark 3.5 has no DataFrame.toArrow."""
    if hasattr(frame, "toArrow"):
        return frame.toArrow()
    old: Any = frame
    return pa.Table.from_batches(old._collect_as_arrow(), to_arrow_schema(frame.schema))


def spark_uri(uri: str) -> str:
    """The same place in Hadoop's words: what deltalake calls s3:// is s3a:// there, and a mere path
    would be one of HDFS where that is a cluster's default."""
    if uri.startswith("s3://"):
        return f"s3a://{uri[len('s3://') :]}"
    return f"file://{uri}" if uri.startswith("/") else uri


def require_readable(spark: SparkSession, store: Store) -> None:
    """Raise StoreNotReady where Spark cannot read what deltalake can, which needs no jars."""
    context = spark.sparkContext
    jvm: Any = context._jvm
    log = jvm.org.apache.hadoop.fs.Path(spark_uri(f"{store.table_uri('runs')}/_delta_log"))
    try:
        log.getFileSystem(context._jsc.hadoopConfiguration()).exists(log)
    except Py4JJavaError as error:
        why = why_unreadable(spark, error)
        raise StoreNotReady(f"{store!r} can be opened, but Spark cannot read it: {why}") from error


def why_unreadable(spark: SparkSession, error: BaseException) -> str:
    """What keeps Spark's driver or executors from reading a store, in one line."""
    words = cause_of(error)
    if "S3AFileSystem" in words:
        jvm: Any = spark.sparkContext._jvm
        hadoop = jvm.org.apache.hadoop.util.VersionInfo.getVersion()
        return (
            "its class path has no jars for S3; add --packages "
            f"org.apache.hadoop:hadoop-aws:{hadoop}"
        )
    return s3.refusal(words) or one_line(words)


def read_table(spark: SparkSession, store: Store, name: str) -> DataFrame:
    return spark.read.format("delta").load(spark_uri(store.table_uri(name)))


_SQL_STATE = re.compile(r"\s*SQLSTATE: \w+.*")

_SAY_IT_TWICE = ("org.apache.spark.executor.Executor", "org.apache.spark.scheduler.TaskSetManager")
"""Loggers that print the stack of a failed task, which also comes back as the query's error."""

READING_COMMANDS = ("Describe", "Show", "ExplainCommand")
"""How the names of Spark's and Delta's commands begin that change nothing."""

RUN_BY_ANALYSIS = frozenset({"Call", "UnresolvedExecuteImmediate"})
"""Statements that run when they are analysed, so that even EXPLAIN would carry them out."""

_QUERY_PARTS = """
    Aggregate Deduplicate Distinct Except Filter Generate GlobalLimit Intersect Join LateralJoin
    LimitAll LocalLimit LocalRelation Offset OneRowRelation PipeOperator Pivot Project Range
    RelationTimeTravel Repartition RepartitionByExpression Sample Sort SubqueryAlias Tail Union
    Unpivot UnresolvedHaving UnresolvedHint UnresolvedInlineTable UnresolvedRelation
    UnresolvedSubqueryColumnAliases UnresolvedTVFAliases UnresolvedTableValuedFunction
    UnresolvedWith Window WithWindowDefinition
"""
QUERY_PARTS = frozenset(_QUERY_PARTS.split())
"""What the parsed plan of a query consists of. Everything else is refused: INSERT hides in a plan
as a statement, INSERT OVERWRITE DIRECTORY, RESTORE and CALL are no commands either, and behind
IDENTIFIER(...) is whatever Spark makes of it later."""


JAVA_FUNCTIONS = frozenset({"reflect", "try_reflect", "java_method"})
"""Functions that call any static method of Java, which may do anything."""
_NAMED_LATER = "ExpressionWithUnresolvedIdentifier"
"""IDENTIFIER(...) in place of the name of a function or column."""


def create_views(spark: SparkSession, store: Store) -> None:
    """Make the tables of this store, and the views over them, known by name in the session."""
    for name in TABLES:
        read_table(spark, store, name).createOrReplaceTempView(name)
    for statement in view_statements():
        spark.sql(statement)


def view_statements() -> list[str]:
    text = resources.files(__package__).joinpath("views.sql").read_text()
    names = [name for name, _ in PERCENTILES]
    without_comments = re.sub(r"^--.*$", "", text, flags=re.MULTILINE).format(
        percentiles=", ".join(names),
        bounded_percentiles=", ".join(f"least({name}, max_us) AS {name}" for name in names),
    )
    statements = re.split(r";\s*$", without_comments, flags=re.MULTILINE)
    return [statement.strip() for statement in statements if statement.strip()]


def registration(store: Store, schema: str) -> list[str]:
    """Statements that make tables and views known by name in a schema of a catalog."""
    located = store.uri.replace("'", r"\'")
    return [
        f"CREATE SCHEMA IF NOT EXISTS {schema}",
        *(
            f"CREATE TABLE IF NOT EXISTS {schema}.{name} USING DELTA LOCATION '{located}/{name}'"
            for name in TABLES
        ),
        *_view_registration(schema),
    ]


def _view_registration(schema: str) -> list[str]:
    made = [
        statement.replace("CREATE OR REPLACE TEMPORARY VIEW", "CREATE OR REPLACE VIEW", 1)
        for statement in view_statements()
    ]
    return [f"USE {schema}", *made]


def register_tables(spark: SparkSession, store: Store, schema: str) -> None:
    """Make tables and views known by name in a schema of this session's catalog."""
    delta_table = _delta_table_class()
    with _one_line_errors():
        spark.sql(f"CREATE SCHEMA IF NOT EXISTS {schema}")
        for name in TABLES:
            table = delta_table.createIfNotExists(spark).tableName(f"{schema}.{name}")
            table.location(spark_uri(store.table_uri(name))).execute()
        for statement in _view_registration(schema):
            spark.sql(statement)


def table_history(spark: SparkSession, store: Store, name: str) -> pa.Table:
    """The commits of a table that its log still has, newest first."""
    found = _delta_table_class().forPath(spark, spark_uri(store.table_uri(name))).history()
    return arrow_table(
        found.selectExpr(
            "version",
            "timestamp AS committed_at",
            "operation",
            "CAST(operationMetrics['num_added_rows'] AS BIGINT) AS rows_added",
            "engineInfo AS engine",
        ).orderBy("version", ascending=False)
    )


def _delta_table_class() -> Any:
    try:
        from delta import DeltaTable
    except ImportError as error:
        raise EnvironmentNotReady(
            "the Python package delta-spark is missing, whose DeltaTable reads Delta's log"
        ) from error
    return DeltaTable


def run_query(spark: SparkSession, store: Store, query: str) -> pa.Table:
    """The answer to a query; what is wrong with it comes back as one line."""
    with _one_line_errors():
        refuse_unless_reading(spark, query)
        create_views(spark, store)
        with _quiet_failing_tasks(spark):
            return arrow_table(spark.sql(query))


@contextmanager
def _one_line_errors() -> Iterator[None]:
    try:
        yield
    except PySparkException as error:
        raise ConfigurationError(f"SQL: {one_line(error.getMessage() or str(error))}") from error
    except Py4JJavaError as error:
        cause = error.java_exception
        raise ConfigurationError(f"SQL: {one_line(cause.getMessage() or cause.toString())}") from (
            error
        )


def refuse_unless_reading(spark: SparkSession, query: str) -> None:
    """Refuses a statement that may change anything: tables, views, settings or files."""
    parsed = spark._jsparkSession.sessionState().sqlParser().parsePlan(query)
    changing = _changing_part(parsed)
    if changing is not None:
        raise ConfigurationError(
            "SQL: only what reads is answered (SELECT, WITH, VALUES, DESCRIBE, SHOW, EXPLAIN); "
            f"Spark reads this statement as {changing}"
        )


def _changing_part(plan: Any) -> str | None:
    """The first part of a parsed plan that does more than read."""
    name = _name_of(plan)
    if name == "ExplainCommand":
        explained = list(_parts(plan.logicalPlan()))
        run = (part for part in map(_name_of, explained) if part in RUN_BY_ANALYSIS)
        return next(run, None) or _function_of_java(explained)
    if name.startswith(READING_COMMANDS):
        return None
    parts = list(_parts(plan))
    changing = (part for part in map(_name_of, parts) if part not in QUERY_PARTS)
    return next(changing, None) or _function_of_java(parts)


def _function_of_java(parts: Iterable[Any]) -> str | None:
    for part in parts:
        for expression in _all_in(part.expressions()):
            name = _name_of(expression)
            if name == _NAMED_LATER:
                return name
            if name == "UnresolvedFunction":
                function = str(expression.nameParts().last())
                if function.lower() in JAVA_FUNCTIONS:
                    return f"a call of {function}, which runs any program of Java"
    return None


def _all_in(expressions: Any) -> Iterator[Any]:
    """Expressions and all that they are made of."""
    each = expressions.iterator()
    while each.hasNext():
        expression = each.next()
        yield expression
        yield from _all_in(expression.children())


def _parts(plan: Any) -> Iterator[Any]:
    """A plan and all below it: its children, and the subqueries in its expressions."""
    yield plan
    for below in (plan.children(), plan.innerChildren()):
        each = below.iterator()
        while each.hasNext():
            yield from _parts(each.next())


def _name_of(plan: Any) -> str:
    return str(plan.getClass().getSimpleName()).removesuffix("$")


@contextmanager
def _quiet_failing_tasks(spark: SparkSession) -> Iterator[None]:
    jvm: Any = spark.sparkContext._jvm
    log4j = jvm.org.apache.logging.log4j
    set_level = log4j.core.config.Configurator.setLevel
    before = {name: log4j.LogManager.getLogger(name).getLevel() for name in _SAY_IT_TWICE}
    for name in before:
        set_level(name, log4j.Level.OFF)
    try:
        yield
    finally:
        for name, level in before.items():
            set_level(name, level)


def one_line(message: str) -> str:
    """The first line says it; a drawing of the query, a plan or a stack of Java follows."""
    first = message.strip().splitlines()[0]
    return _SQL_STATE.sub("", first).strip()
