"""Commands about what a store holds: its runs shown, queried and compared, and its tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from bench_spark.cache import DEFAULT_STORE
from bench_spark.cli.options import (
    FormatsOption,
    RunArgument,
    SparkOptions,
    StoreOption,
    Texts,
    argument,
    option,
    with_options,
)
from bench_spark.cli.output import parse_formats, to_stdout
from bench_spark.compare.comparison import Group, comparison_document, parse_gate
from bench_spark.config.problems import shown_value
from bench_spark.config.sections import ALL
from bench_spark.errors import EXIT_DEGRADED, EXIT_GATE_MISSED, EXIT_VALID, ConfigurationError
from bench_spark.report.comparison import ComparisonReport
from bench_spark.report.formats import Rows, RunList
from bench_spark.report.run import TraceReport, report_of
from bench_spark.results.stored import existing_store, listed_runs, stored_run
from bench_spark.spark.launch import settled_master, spark_session
from bench_spark.store.delta import Store
from bench_spark.store.schema import TABLES

tables = typer.Typer(
    help="The store's tables: their history, their names in a catalog.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

LOCAL_MASTER = "local[*]"


@contextmanager
def _reading(store: Store, session: SparkOptions) -> Iterator[Any]:
    """A session of this machine that can read the store."""
    with spark_session(LOCAL_MASTER, session.display()) as spark:
        from bench_spark.spark.sql import require_readable

        require_readable(spark, store)
        yield spark


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
    formats: FormatsOption = None,
) -> None:
    """List the commits of a table, newest first, as far back as its log goes."""
    if table not in TABLES:
        raise ConfigurationError(
            f"{shown_value(table)} is no table of a store; there are {', '.join(TABLES)}"
        )
    outputs = parse_formats(formats)
    opened = existing_store(session.store)
    with _reading(opened, session) as spark:
        from bench_spark.spark.sql import table_history

        outputs.write(Rows.of_table(f"Commits of {table}", table_history(spark, opened, table)))


metrics = typer.Typer(
    help="Rolling metrics of stored runs.", no_args_is_help=True, rich_markup_mode=None
)


def runs(store: StoreOption = DEFAULT_STORE, formats: FormatsOption = None) -> None:
    """List the runs of the store, newest first."""
    outputs = parse_formats(formats)
    outputs.write(RunList(listed_runs(existing_store(store))))


def show(
    run: RunArgument,
    store: StoreOption = DEFAULT_STORE,
    formats: FormatsOption = None,
    exit_code: Annotated[bool, option("--exit-code", "End with the exit code of the run.")] = False,
) -> None:
    """Print the result of a stored run, or the result so far of one that goes on or was killed."""
    from bench_spark.spark.stored import shown_run

    outputs = parse_formats(formats)
    found = shown_run(existing_store(store), run)
    outputs.write(report_of(found.document, store))
    if exit_code:
        raise typer.Exit(EXIT_DEGRADED if found.exit_code is None else found.exit_code)


@with_options
def sql(
    query: Annotated[str, argument("QUERY", "One SQL statement.")],
    session: SparkOptions,
    formats: FormatsOption = None,
) -> None:
    """Answer a query over the store's tables and views; statements that change them are refused.

    Tables: runs, events, metrics, summary, samples, resources, messages. Views: metrics_latest,
    latency_by_interval, latency_spec, message_times, latency_by_rate, broker_costs, interval_means.
    """
    outputs = parse_formats(formats)
    opened = existing_store(session.store)
    with _reading(opened, session) as spark:
        from bench_spark.spark.sql import run_query

        outputs.write(Rows.of_table("Answer", run_query(spark, opened, query)))


@metrics.command()
@with_options
def rebuild(run: RunArgument, session: SparkOptions) -> None:
    """Compute the rolling metrics of a run anew from its events."""
    opened = existing_store(session.store)
    stored_run(opened, run)
    with _reading(opened, session) as spark:
        from bench_spark.spark.rebuild import rebuild_metrics

        rebuilt = rebuild_metrics(spark, opened, run)
        to_stdout(lambda writer: writer.writelines([f"{run}: {len(rebuilt)} rows of metrics\n"]))


# -- messages -------------------------------------------------------------------------------------


@with_options
def messages(run: RunArgument, session: SparkOptions, formats: FormatsOption = None) -> None:
    """Join the traced messages of a run again, exactly, from the table `messages`."""
    outputs = parse_formats(formats)
    opened = existing_store(session.store)
    document = stored_run(opened, run).document
    if document["scenario"].get("trace") != ALL:
        raise ConfigurationError(
            f"messages: run {run} has no rows of every message; `--set trace={ALL}` makes them"
        )
    with _reading(opened, session) as spark:
        from bench_spark.spark.joins import rebuilt_section

        outputs.write(TraceReport(run, rebuilt_section(spark, opened, run, document["scenario"])))


# -- comparing ------------------------------------------------------------------------------------

FailIfOption = Annotated[
    Texts,
    option(
        "--fail-if CONDITION",
        "End with exit code 1 if it holds: 'p99 > 1.10x', 'receive_rate < 0.95x', "
        "'latency.p99 > 5ms', 'lost > 0'; repeatable.",
    ),
]
StrictOption = Annotated[
    bool,
    option("--strict", "Judge conditions by the numbers themselves, not by their whole intervals."),
]
AcrossOption = Annotated[
    bool,
    option(
        "--across",
        "Compare runs although they differ in what was asked for: in keys of the scenario "
        "that change the load, or in the kind of broker.",
    ),
]
DegradedOption = Annotated[
    bool,
    option("--degraded", "Judge conditions although a run is not valid; unset: it misses them."),
]


def compare(
    runs: Annotated[
        list[str],
        argument(
            "BASELINE CANDIDATE...",
            "Run ids, as `runs` lists them; repetitions as RUN,RUN,RUN.",
            show_default=False,
        ),
    ],
    store: StoreOption = DEFAULT_STORE,
    fail_if: FailIfOption = None,
    strict: StrictOption = False,
    across: AcrossOption = False,
    degraded: DegradedOption = False,
    formats: FormatsOption = None,
) -> None:
    """Compare runs with a baseline: differences with their confidence intervals.

    Exit code 0, or 1 if a condition given by --fail-if holds, or is about runs that are not
    comparable or not valid.
    """
    outputs = parse_formats(formats)
    gates = [parse_gate(text) for text in fail_if or []]
    if len(runs) < 2:
        raise ConfigurationError("compare: give a baseline and at least one run to compare with it")
    opened = existing_store(store)
    groups = [_group(opened, text) for text in runs]
    title = f"{', '.join(group.label for group in groups[1:])} against {groups[0].label}"
    pairs = [(groups[0], candidate) for candidate in groups[1:]]
    document = comparison_document(title, pairs, gates, strict, across, degraded)
    outputs.write(ComparisonReport(document))
    raise typer.Exit(EXIT_VALID if document["passed"] else EXIT_GATE_MISSED)


def _group(store: Store, text: str) -> Group:
    from bench_spark.spark.stored import group_of_runs

    run_ids = [part.strip() for part in text.split(",")]
    if not all(run_ids):
        raise ConfigurationError(f"compare: {shown_value(text)}: a run id between commas is empty")
    if len(set(run_ids)) < len(run_ids):
        raise ConfigurationError(
            f"compare: {shown_value(text)}: a run is named twice, which would make it look surer"
        )
    more = f" and {len(run_ids) - 1} more" if len(run_ids) > 1 else ""
    return group_of_runs(store, run_ids, run_ids[0] + more)
