"""`bench-spark doctor`: whether everything is ready, and how to mend what is not."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Annotated

import typer

from bench_spark.cache import DEFAULT_STORE
from bench_spark.cli.options import BROKER_VARIABLE, StoreOption
from bench_spark.cli.output import to_stdout
from bench_spark.doctor.finding import Level, examine
from bench_spark.errors import EXIT_PREFLIGHT
from bench_spark.report.findings import write_findings, write_findings_json


class FindingsFormat(StrEnum):
    TERMINAL = "terminal"
    JSON = "json"


def doctor(
    brokers: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[BROKER]...",
            help="Broker files, or names of shipped ones, to reach and log in to; unset: "
            f"${BROKER_VARIABLE}.",
            show_default=False,
        ),
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    timeout_seconds: Annotated[
        float,
        typer.Option(
            "--timeout", metavar="SECONDS", min=1, max=600, help="Longest wait for any check."
        ),
    ] = 15.0,
    findings_format: Annotated[
        FindingsFormat, typer.Option("--format", help="How to print what was found.")
    ] = FindingsFormat.TERMINAL,
) -> None:
    """Check this machine, what is installed, the store, and brokers.

    Each line is ok, warning or failing, with what to do about it. Nothing is fetched, started or
    changed. Ends with 3 if something is failing, else with 0.
    """
    # The client libraries of all brokers come along, which no other command should wait for.
    from bench_spark.doctor.checks import machine_checks, place_checks, program_checks

    named = list(brokers or [])
    if not named and os.environ.get(BROKER_VARIABLE):
        named = [os.environ[BROKER_VARIABLE]]
    checks = [*program_checks(), *machine_checks(), *place_checks(store, named)]
    found = examine(checks, timeout_seconds)
    write = write_findings_json if findings_format is FindingsFormat.JSON else write_findings
    to_stdout(lambda writer: write(found, writer))
    if any(finding.level is Level.FAILING for finding in found):
        raise typer.Exit(EXIT_PREFLIGHT)
