"""Commands about scenario and broker files. None of them starts anything."""

from __future__ import annotations

import json
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated

import typer

from bench_spark import runs
from bench_spark.cli.options import (
    LoadOptions,
    ScenarioArgument,
    SetOption,
    Text,
    option,
    with_options,
)
from bench_spark.cli.output import to_stdout
from bench_spark.conf_files import shipped
from bench_spark.config.loader import described, load_broker, load_scenario
from bench_spark.config.models import Scenario
from bench_spark.config.problems import shown_path
from bench_spark.config.reference import json_schema
from bench_spark.data.checking import find_doubt, with_checked_files
from bench_spark.report.descriptions import address_of, scenario_of
from bench_spark.report.formatting import count
from bench_spark.report.plan_text import write_plan


def validate(
    scenario: ScenarioArgument,
    broker: Annotated[
        Text, option("--broker BROKER", "Also check that this broker suits it.")
    ] = None,
    overrides: SetOption = None,
) -> None:
    """Check SCENARIO with its data set, and whether a broker suits it.

    Only files are read; nothing is connected to.
    """
    loaded = load_scenario(scenario, overrides or [])
    if broker is not None:
        runs.refuse_idle_broker(loaded, None, None)
    ends = []
    if broker is not None or (loaded.ingress and loaded.egress):
        checked, fitted = runs.fit(loaded, broker)
        ends = fitted.all_shown
    else:
        checked = with_checked_files(loaded)
    lines = [
        f"valid: {scenario_of(checked.dump())}",
        *(f"valid: {shown['name']}: {shown['kind']}, {address_of(shown)}" for shown in ends),
        *_about_dataset(checked),
    ]
    to_stdout(lambda writer: writer.writelines(f"{line}\n" for line in lines))


def _about_dataset(scenario: Scenario) -> Iterator[str]:
    dataset = scenario.dataset
    if dataset.table is not None:
        yield f"not looked at: table {dataset.table}, which Spark reads when a run starts"
    if dataset.path is None:
        return
    found = dataset.found
    yield (
        f"valid: {shown_path(dataset.path)}: {count(found.records)} records of "
        f"{count(found.smallest_bytes)} to {count(found.largest_bytes)} bytes, "
        f"{count(round(found.mean_bytes))} on average"
    )
    if doubt := find_doubt(scenario):
        yield f"warning: {doubt}"


@with_options
def plan(load: LoadOptions) -> None:
    """Show who would do what, and for how long.

    The plan is for this machine. Nothing is started.
    """
    scenario, ends = load.load()
    config = runs.prepare(scenario, ends)
    is_default = load.given_by.get("broker") == "DEFAULT" and not scenario.has_ends_apart
    note = " (the default; name another by --broker)" if is_default else ""
    to_stdout(lambda writer: write_plan(config.plan, ends.shown, writer, ends.all_shown, note))


class FileKind(StrEnum):
    SCENARIO = "scenario"
    BROKER = "broker"
    SUITE = "suite"


def schema(
    kind: Annotated[FileKind, typer.Argument(help="Whose schema.", show_default=False)],
) -> None:
    """Print the JSON Schema of scenario, broker or suite files, for editors.

    Save it, and begin files with `# yaml-language-server: $schema=FILE`.
    """
    text = json.dumps(json_schema(kind), indent=2)
    to_stdout(lambda writer: writer.writelines([f"{text}\n"]))


def scenarios() -> None:
    """List the shipped scenarios."""
    write_list(described("scenarios"))


def brokers() -> None:
    """List the shipped broker files."""
    rows = []
    for name in shipped("brokers"):
        broker = load_broker(name).masked()
        rows.append([name, broker["kind"], address_of(broker)])
    write_list(rows)


def write_list(rows: list[list[str]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    to_stdout(lambda writer: writer.writelines(f"{line}\n" for line in lines))
