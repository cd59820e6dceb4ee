"""Commands about what a store holds, and how runs are read back from it."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TextIO

import pyarrow.compute as pc
import typer

from bench_spark.cache import DEFAULT_STORE, default_store
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
from bench_spark.config.models import stored_scenario
from bench_spark.config.problems import did_you_mean, shown_value
from bench_spark.config.sections import ALL
from bench_spark.core.hdr import TOTALS, SparseHistogram
from bench_spark.driver_process import ABANDONED, AS_ABANDONED, RUNNING, has_vanished
from bench_spark.errors import EXIT_DEGRADED, ConfigurationError, StoreNotReady
from bench_spark.plan import make_plan
from bench_spark.report.charts import distribution_rows
from bench_spark.report.formats import RowFormat, Rows, write_rows, write_runs
from bench_spark.report.formatting import Document
from bench_spark.report.run import RunReport
from bench_spark.report.terminal import write_trace
from bench_spark.report.timeline import (
    GENERATOR_COLUMNS,
    RESOURCE_COLUMNS,
    ROLLING,
    WINDOW_COLUMNS,
    RunHistory,
    RunTimes,
    timeline_of,
)
from bench_spark.results.document import Reached, partial_document
from bench_spark.spark.launch import settled_master, spark_session
from bench_spark.store.delta import Store, refuse_file
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
    outputs.write(run_report(found.document, store))
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
        section = joined_section(spark, opened, run, document["scenario"])

    def write(writer: TextIO) -> None:
        if messages_format is MessagesFormat.JSON:
            json.dump({"run_id": run, "trace": section}, writer, indent=2)
            writer.write("\n")
        else:
            write_trace(section, writer)

    to_stdout(write)


def joined_section(
    spark: Any, store: Store, run_id: str, dumped_scenario: dict[str, Any]
) -> dict[str, Any]:
    """The section `trace` of the run's result, made anew."""
    from bench_spark.results.facts import TraceFacts, trace_section
    from bench_spark.spark.joins import join_messages
    from bench_spark.spark.rebuild import windows_of_run
    from bench_spark.trace.joining import JoinRule

    scenario = stored_scenario(run_id, dumped_scenario)
    timeline = windows_of_run(store, run_id).timeline
    rule = JoinRule(timeline, scenario.histogram.highest_us, scenario.load.mode == "rate")
    began = time.monotonic()
    joined = join_messages(spark, store, run_id, rule)
    facts = TraceFacts(joined, timeline, time.monotonic() - began)
    section = trace_section(make_plan(scenario, run_id), facts)
    assert section is not None, "the run is traced"
    return section


_LISTED = (
    "run_id",
    "scenario",
    "broker",
    "status",
    "reasons",
    "exit_code",
    "started_at",
    "ended_at",
    "rates",
    "delivery_rate",
)
_TIMES = ("started_at", "measured_from", "measured_until")
_WHOLE = ("run_id", "status", "exit_code", "reasons", "broker_json", "result_json")


_OF_DRIVER = ("driver_json", "scenario_json", "started_at")
"""What says, beside the status, whether a run's driver has vanished."""


@dataclass(frozen=True)
class StoredRun:
    document: Document
    exit_code: int | None
    """None while the run has not ended."""


def existing_store(uri: str) -> Store:
    """A store to read from: unlike one to write to, it is not made where there is none."""
    store = Store(uri)
    if store.is_local:
        refuse_file(Path(store.uri))
    if store.is_local and not Path(store.table_uri("runs")).is_dir():
        raise StoreNotReady(
            f"there is no store at {store.uri}; run something first, or give --store"
        )
    return store


def listed_runs(store: Store) -> list[dict[str, Any]]:
    """The runs, newest first, each as the columns of a list."""
    found = store.read("runs", columns=[*_LISTED, *_OF_DRIVER[:2]])
    read: list[dict[str, Any]] = found.to_pylist(maps_as_pydicts="strict")
    rows = [{name: row[name] for name in _LISTED} | _as_abandoned(row) for row in read]
    return sorted(rows, key=lambda row: row["started_at"], reverse=True)


def stored_run(store: Store, run_id: str) -> StoredRun:
    rows = store.read("runs", columns=[*_WHOLE, *_OF_DRIVER], run_id=run_id).to_pylist()
    if not rows:
        known = store.read("runs", columns=["run_id"])["run_id"].to_pylist()
        raise ConfigurationError(
            f"there is no run {shown_value(run_id)} in {store.uri}; `bench-spark runs` lists them"
            + did_you_mean(run_id, known)
        )
    row = rows[0] | _as_abandoned(rows[0])
    document = json.loads(row["result_json"]) if row["result_json"] else _without_result(row)
    return StoredRun(document, row["exit_code"])


def shown_run(store: Store, run_id: str) -> StoredRun:
    """A run with its result; of one that has none yet what its events say so far."""
    found = stored_run(store, run_id)
    if found.document["status"] not in (RUNNING, ABANDONED) or "counts" in found.document:
        return found
    columns = ["tick", "tick_start", "confirmed"]
    events = store.read("events", columns=columns, run_id=run_id)
    events = events.filter(pc.field("tick") >= 0)
    if not len(events):
        return found
    first = events.sort_by("tick").slice(0, 1)
    measured_from = store.read("runs", columns=["measured_from"], run_id=run_id)["measured_from"][0]
    reached = Reached(
        tick=first["tick"][0].as_py(),
        tick_start_ns=first["tick_start"][0].value * 1000,
        newest_tick=pc.max(events["tick"]).as_py(),
        has_confirms=bool(pc.sum(events["confirmed"]).as_py()),
        measured_from_ns=measured_from.value * 1000 if measured_from.is_valid else None,
    )
    from bench_spark.spark.merge import ticks_here

    document = partial_document(
        run_id,
        stored_scenario(run_id, found.document["scenario"]),
        found.document["broker"],
        reached,
        ticks_here(store, run_id, reached.newest_tick),
    )
    return StoredRun(document | {"status": found.document["status"]}, found.exit_code)


def _as_abandoned(row: dict[str, Any]) -> dict[str, Any]:
    """What differs from the row of a run if its driver has vanished."""
    return AS_ABANDONED if has_vanished(row) else {}


def run_report(document: Document, store: str) -> RunReport:
    """The result of a run, to be written; `store` as given by the user."""
    history = partial(run_history, Store(store), document)
    return RunReport(document, history, store, is_default_store=store == default_store())


def run_history(store: Store, document: Document) -> RunHistory:
    """What the tables know about the run of this document, beside it."""
    run_id = document["run_id"]
    [row] = store.read("runs", columns=list(_TIMES), run_id=run_id).to_pylist() or [{}]
    times = RunTimes(**row)
    events = store.read("events", columns=GENERATOR_COLUMNS, run_id=run_id)
    series = timeline_of(
        store.read("metrics", columns=WINDOW_COLUMNS, run_id=run_id, window=ROLLING),
        store.read("resources", columns=RESOURCE_COLUMNS, run_id=run_id),
        events.filter(pc.is_valid(events["host_busy_share"])),
        times,
    )
    return RunHistory(times, series, distribution_rows(*_histograms(store, document)))


def _histograms(store: Store, document: Document) -> tuple[dict[str, SparseHistogram], int]:
    """Per measure the histogram of the run, and the end of their range."""
    rows = store.read("summary", run_id=document["run_id"], aggregation="run").to_pylist()
    found = {
        row["measure"]: SparseHistogram.decode(
            row["hdr_encoded"], {name: row.get(name) or 0 for name in TOTALS}
        )
        for row in rows
        if row["hdr_encoded"]
    }
    highest_seconds = document["scenario"]["histogram"]["highest_seconds"]
    return found, round(highest_seconds * 1_000_000)


def _without_result(row: dict[str, Any]) -> Document:
    """What there is to show of a run that is running, or that could not start."""
    return {
        **{name: row[name] for name in ("run_id", "status", "exit_code", "reasons")},
        "scenario": json.loads(row["scenario_json"]),
        "broker": json.loads(row["broker_json"]),
    }
