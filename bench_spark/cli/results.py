"""Commands about what a store holds. Only `sql` and `metrics` need Spark."""

from __future__ import annotations

from typing import Annotated

import typer

from bench_spark.cli.options import (
    DEFAULT_STORE,
    FormatsOption,
    JarsOption,
    PackagesOption,
    RunArgument,
    StoreOption,
)
from bench_spark.cli.output import parse_formats, to_stdout
from bench_spark.cli.progress import QuietOption, VerboseOption, display_of
from bench_spark.cli.spark_session import spark_session
from bench_spark.cli.stored import (
    existing_store,
    listed_runs,
    run_report,
    shown_run,
    stored_run,
)
from bench_spark.errors import EXIT_DEGRADED
from bench_spark.report.rows import RowFormat, Rows, write_rows, write_runs

LOCAL_MASTER = "local[*]"


RowFormatOption = Annotated[RowFormat, typer.Option("--format", help="How to print the rows.")]

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
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="End with the exit code of the run.")
    ] = False,
) -> None:
    """Print the result of a stored run, or the result so far of one that goes on or was killed."""
    outputs = parse_formats(formats)
    found = shown_run(existing_store(store), run)
    outputs.write(run_report(found.document, store))
    if exit_code:
        raise typer.Exit(EXIT_DEGRADED if found.exit_code is None else found.exit_code)


def sql(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="One SQL statement.")],
    store: StoreOption = DEFAULT_STORE,
    packages: PackagesOption = None,
    jars: JarsOption = None,
    row_format: RowFormatOption = RowFormat.TABLE,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Answer a query over the store's tables and views; statements that change them are refused.

    Tables: runs, events, metrics, summary, samples, resources, messages. Views: metrics_latest,
    latency_by_interval, latency_spec, message_times, latency_by_rate, broker_costs, interval_means.
    """
    opened = existing_store(store)
    with spark_session(LOCAL_MASTER, display_of(quiet, verbose, live=False)) as spark:
        from bench_spark.spark.sql import run_query

        answer = Rows.of_table(run_query(spark, opened, query))
        to_stdout(lambda writer: write_rows(answer, row_format, writer))


@metrics.command()
def rebuild(
    run: RunArgument,
    store: StoreOption = DEFAULT_STORE,
    packages: PackagesOption = None,
    jars: JarsOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Compute the rolling metrics of a run anew from its events."""
    opened = existing_store(store)
    stored_run(opened, run)
    with spark_session(LOCAL_MASTER, display_of(quiet, verbose, live=False)) as spark:
        from bench_spark.spark.rebuild import rebuild_metrics

        rebuilt = rebuild_metrics(spark, opened, run)
        to_stdout(lambda writer: writer.writelines([f"{run}: {len(rebuilt)} rows of metrics\n"]))
