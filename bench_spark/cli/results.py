"""Commands about what a store holds, and how runs are read back from it."""

from __future__ import annotations

import json
import re
from enum import StrEnum
from typing import Annotated, TextIO

import typer

from bench_spark.cache import DEFAULT_STORE
from bench_spark.cli.options import (
    FormatsOption,
    RunArgument,
    SparkOptions,
    StoreOption,
    argument,
    option,
    with_options,
)
from bench_spark.cli.output import parse_formats, to_stdout
from bench_spark.config.problems import shown_value
from bench_spark.config.sections import ALL
from bench_spark.errors import EXIT_DEGRADED, ConfigurationError
from bench_spark.report.formats import RowFormat, Rows, write_rows, write_runs
from bench_spark.report.run import report_of
from bench_spark.report.terminal import write_trace
from bench_spark.results.stored import existing_store, listed_runs, stored_run
from bench_spark.runs import shown_run
from bench_spark.spark.launch import settled_master, spark_session
from bench_spark.store.schema import TABLES

tables = typer.Typer(
    help="The store's tables: their history, their names in a catalog.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

LOCAL_MASTER = "local[*]"

RowFormatOption = Annotated[RowFormat, option("--format", "How to print the rows.")]

_SCHEMA = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)?")


@tables.command()
@with_options
def register(
    session: SparkOptions,
    schema: Annotated[
        str, option("--schema NAME", "Schema for them, with its catalog or without.")
    ] = "bench_spark",
    execute: Annotated[
        bool, option("--execute", "With spark-submit: do it in the catalog of that Spark.")
    ] = False,
) -> None:
    """Print the SQL that makes tables and views of the store known to a catalog."""
    if not _SCHEMA.fullmatch(schema):
        raise ConfigurationError(
            f"--schema: {schema!r} is no name such as bench_spark or main.bench_spark"
        )
    opened = existing_store(session.store)
    if not execute:
        from bench_spark.spark.sql import registration

        statements = registration(opened, schema)
        to_stdout(lambda writer: writer.writelines(f"{one};\n" for one in statements))
        return
    if settled_master() is None:
        raise ConfigurationError(
            "--execute: a catalog of Spark on this machine ends with the command; call it by "
            "spark-submit, or give the SQL that is printed without --execute to your catalog"
        )
    with spark_session(None, session.display()) as spark:
        from bench_spark.spark.sql import register_tables

        register_tables(spark, opened, schema)


@tables.command()
@with_options
def history(
    table: Annotated[str, argument("TABLE", "One of the store's tables.")],
    session: SparkOptions,
    row_format: RowFormatOption = RowFormat.TABLE,
) -> None:
    """List the commits of a table, newest first, as far back as its log goes."""
    if table not in TABLES:
        raise ConfigurationError(
            f"{shown_value(table)} is no table of a store; there are {', '.join(TABLES)}"
        )
    opened = existing_store(session.store)
    with spark_session(LOCAL_MASTER, session.display()) as spark:
        from bench_spark.spark.sql import table_history

        commits = Rows.of_table(table_history(spark, opened, table))
        to_stdout(lambda writer: write_rows(commits, row_format, writer))


metrics = typer.Typer(
    help="Rolling metrics of stored runs.", no_args_is_help=True, rich_markup_mode=None
)


def runs(store: StoreOption = DEFAULT_STORE, row_format: RowFormatOption = RowFormat.TABLE) -> None:
    """List the runs of the store, newest first."""
    found = listed_runs(existing_store(store))
    if row_format is RowFormat.TABLE:
        to_stdout(lambda writer: write_runs(found, writer))
        return
    columns = list(found[0]) if found else []
    rows = Rows(columns, [list(run.values()) for run in found])
    to_stdout(lambda writer: write_rows(rows, row_format, writer))


def show(
    run: RunArgument,
    store: StoreOption = DEFAULT_STORE,
    formats: FormatsOption = None,
    exit_code: Annotated[bool, option("--exit-code", "End with the exit code of the run.")] = False,
) -> None:
    """Print the result of a stored run, or the result so far of one that goes on or was killed."""
    outputs = parse_formats(formats)
    found = shown_run(existing_store(store), run)
    outputs.write(report_of(found.document, store))
    if exit_code:
        raise typer.Exit(EXIT_DEGRADED if found.exit_code is None else found.exit_code)


@with_options
def sql(
    query: Annotated[str, argument("QUERY", "One SQL statement.")],
    session: SparkOptions,
    row_format: RowFormatOption = RowFormat.TABLE,
) -> None:
    """Answer a query over the store's tables and views; statements that change them are refused.

    Tables: runs, events, metrics, summary, samples, resources, messages. Views: metrics_latest,
    latency_by_interval, latency_spec, message_times, latency_by_rate, broker_costs, interval_means.
    """
    opened = existing_store(session.store)
    with spark_session(LOCAL_MASTER, session.display()) as spark:
        from bench_spark.spark.sql import run_query

        answer = Rows.of_table(run_query(spark, opened, query))
        to_stdout(lambda writer: write_rows(answer, row_format, writer))


@metrics.command()
@with_options
def rebuild(run: RunArgument, session: SparkOptions) -> None:
    """Compute the rolling metrics of a run anew from its events."""
    opened = existing_store(session.store)
    stored_run(opened, run)
    with spark_session(LOCAL_MASTER, session.display()) as spark:
        from bench_spark.spark.rebuild import rebuild_metrics

        rebuilt = rebuild_metrics(spark, opened, run)
        to_stdout(lambda writer: writer.writelines([f"{run}: {len(rebuilt)} rows of metrics\n"]))


# -- messages -------------------------------------------------------------------------------------


class MessagesFormat(StrEnum):
    TERMINAL = "terminal"
    JSON = "json"


@with_options
def messages(
    run: RunArgument,
    session: SparkOptions,
    messages_format: Annotated[
        MessagesFormat, option("--format", "How to print what was found.")
    ] = MessagesFormat.TERMINAL,
) -> None:
    """Join the traced messages of a run again, exactly, from the table `messages`."""
    opened = existing_store(session.store)
    document = stored_run(opened, run).document
    if document["scenario"].get("trace") != ALL:
        raise ConfigurationError(
            f"messages: run {run} has no rows of every message; `--set trace={ALL}` makes them"
        )
    with spark_session(LOCAL_MASTER, session.display()) as spark:
        from bench_spark.spark.joins import rebuilt_section

        section = rebuilt_section(spark, opened, run, document["scenario"])

    def write(writer: TextIO) -> None:
        if messages_format is MessagesFormat.JSON:
            json.dump({"run_id": run, "trace": section}, writer, indent=2)
            writer.write("\n")
        else:
            write_trace(section, writer)

    to_stdout(write)
