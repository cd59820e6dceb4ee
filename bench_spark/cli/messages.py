"""`bench-spark messages`: every message of a stored run, joined by its ID again."""

from __future__ import annotations

import json
import time
from enum import StrEnum
from typing import Annotated, Any, TextIO

import typer

from bench_spark.cli.options import (
    DEFAULT_STORE,
    JarsOption,
    PackagesOption,
    RunArgument,
    StoreOption,
)
from bench_spark.cli.output import to_stdout
from bench_spark.cli.progress import QuietOption, VerboseOption, display_of
from bench_spark.cli.spark_session import spark_session
from bench_spark.cli.stored import existing_store, stored_run
from bench_spark.config.models import stored_scenario
from bench_spark.config.sections import ALL
from bench_spark.errors import ConfigurationError
from bench_spark.plan import make_plan
from bench_spark.report.terminal import write_trace
from bench_spark.store.delta import Store

LOCAL_MASTER = "local[*]"


class MessagesFormat(StrEnum):
    TERMINAL = "terminal"
    JSON = "json"


def messages(
    run: RunArgument,
    store: StoreOption = DEFAULT_STORE,
    packages: PackagesOption = None,
    jars: JarsOption = None,
    messages_format: Annotated[
        MessagesFormat, typer.Option("--format", help="How to print what was found.")
    ] = MessagesFormat.TERMINAL,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Join the traced messages of a run again, exactly, from the table `messages`."""
    opened = existing_store(store)
    document = stored_run(opened, run).document
    if document["scenario"].get("trace") != ALL:
        raise ConfigurationError(
            f"messages: run {run} has no rows of every message; `--set trace={ALL}` makes them"
        )
    with spark_session(LOCAL_MASTER, display_of(quiet, verbose, live=False)) as spark:
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
    from bench_spark.spark.rebuild import windows_of_run
    from bench_spark.spark.run_messages import join_messages
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
