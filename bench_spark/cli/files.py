"""Commands about scenario and broker files: check, list, write them. None starts anything.

`init` and `import` replace an existing file only where that was asked for.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from bench_spark import runs
from bench_spark.cli.options import (
    LoadOptions,
    ScenarioArgument,
    SetOption,
    Text,
    argument,
    option,
    with_options,
)
from bench_spark.cli.output import to_stdout
from bench_spark.conf_files import shipped
from bench_spark.config.fields import PLAIN_NAME, PLAIN_NAME_RULE
from bench_spark.config.loader import (
    File,
    described,
    load_broker,
    load_scenario,
    read_mapping,
    read_text,
)
from bench_spark.config.models import Scenario
from bench_spark.config.problems import shown_path, shown_value
from bench_spark.config.reference import json_schema
from bench_spark.config.yaml_text import MAX_BYTES
from bench_spark.data.checking import find_doubt, with_checked_files
from bench_spark.errors import ConfigurationError, StoreError
from bench_spark.importers.draft import Draft, NewFile, files_of
from bench_spark.importers.first_files import ALLOWED, BROKER_FILE, SCENARIO_FILE, begin
from bench_spark.report.descriptions import address_of, scenario_of
from bench_spark.report.formats import aligned
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
    to_stdout(lambda writer: writer.writelines(aligned(rows)))


ForceOption = Annotated[
    bool, option("--force", "Write over files of the same names that are there.")
]


def refuse_existing(directory: Path, names: Sequence[str]) -> None:
    there = [shown_path(str(path)) for name in names if (path := directory / name).exists()]
    if there:
        raise ConfigurationError(f"{', '.join(there)}: there already; --force writes over it")


def write_new_files(directory: Path, files: Sequence[NewFile], force: bool) -> list[Path]:
    """All of them or none: what is there already is found before anything is written."""
    if not force:
        refuse_existing(directory, [file.name for file in files])
    paths = [directory / file.name for file in files]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for path, file in zip(paths, files, strict=True):
            path.write_text(file.text)
    except OSError as error:
        raise StoreError(
            f"{shown_path(str(directory))}: cannot be written: {error.strerror}"
        ) from error
    return paths


_LONGEST_ADDRESS = 4096


def init(
    directory: Annotated[Path, argument("[DIRECTORY]", "Where to write the files.")] = Path(),
    force: ForceOption = False,
) -> None:
    """Write a scenario and a broker file to start from.

    Asks for the broker's address, or reads it from standard input. Of an address without a protocol
    it assumes the port's usual one, and says so. A password is not kept: the broker file names the
    environment variable that is to hold it.
    """
    if not force:
        refuse_existing(directory, (SCENARIO_FILE, BROKER_FILE))
    made = begin(_asked_address())
    if made.assumed:
        sys.stderr.write(f"{made.assumed}\n")
    paths = write_new_files(directory, made.files, force)
    if made.password_variable is not None:
        sys.stderr.write(
            f"the password is not kept; before a run: export {made.password_variable}=...\n"
        )
    to_stdout(lambda writer: writer.writelines(f"{path}\n" for path in paths))
    sys.stderr.write(f"next: bench-spark run {paths[0]} --broker {paths[1]}\n")


def _asked_address() -> str:
    if sys.stdin.isatty():
        sys.stderr.write(f"The broker's address: {ALLOWED}\n")
        return str(typer.prompt("Address", err=True))
    text = sys.stdin.readline(_LONGEST_ADDRESS)
    if not text.strip():
        raise ConfigurationError(f"standard input: no address; allowed: {ALLOWED}")
    return text


imports = typer.Typer(
    help="Scenarios from the command lines and files of other tools.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

STANDARD_INPUT = "-"

DirectoryOption = Annotated[Path, option("--directory DIRECTORY", "Where to write the files.")]
NameOption = Annotated[
    Text, option("--name NAME", "What to call the scenario; unset: as its source.")
]


@imports.command()
def perftest(
    file: Annotated[
        str, argument("[FILE]", "A file with the flags; unset: standard input.")
    ] = STANDARD_INPUT,
    directory: DirectoryOption = Path(),
    name: NameOption = None,
    force: ForceOption = False,
) -> None:
    """Write the scenario of a RabbitMQ PerfTest command line.

    The flags are given as PerfTest is given them, with or without what starts it, or as the
    environment variables that it reads. Those without a counterpart are listed on standard error.
    """
    # The tables of options take a moment, which `validate` should not wait for.
    from bench_spark.importers.perftest import import_perftest

    text = _standard_input() if file == STANDARD_INPUT else read_text(_file(file))
    draft = import_perftest(text, _checked(name))
    _write_draft(draft, "perftest", directory, force)


@imports.command()
def omb(
    workload: Annotated[str, typer.Argument(metavar="WORKLOAD.yaml", show_default=False)],
    driver: Annotated[str, typer.Argument(metavar="DRIVER.yaml", show_default=False)],
    directory: DirectoryOption = Path(),
    name: NameOption = None,
    force: ForceOption = False,
) -> None:
    """Write scenario and broker file of an OpenMessaging Benchmark workload and driver.

    Drivers of Kafka and RabbitMQ. Keys without a counterpart are listed on standard error.
    """
    from bench_spark.importers.omb import import_omb
    from bench_spark.transports.kafka.settings import PROPERTY_NAMES

    draft = import_omb(
        read_mapping(_file(workload)), read_mapping(_file(driver)), PROPERTY_NAMES, _checked(name)
    )
    _write_draft(draft, "omb", directory, force)


def _standard_input() -> str:
    if sys.stdin.isatty():
        sys.stderr.write("PerfTest's flags, then Ctrl-D:\n")
    try:
        text = sys.stdin.read(MAX_BYTES + 1)
    except UnicodeDecodeError:
        raise ConfigurationError("standard input: is not UTF-8 text") from None
    if len(text) > MAX_BYTES:
        raise ConfigurationError(f"standard input: is larger than the limit of {MAX_BYTES} bytes")
    return text


def _file(path: str) -> File:
    return File(Path(path), shown_path(path))


def _checked(name: str | None) -> str | None:
    if name is not None and not PLAIN_NAME.fullmatch(name):
        raise ConfigurationError(
            f"--name: {shown_value(name)} is not a plain name; allowed: {PLAIN_NAME_RULE}"
        )
    return name


def _write_draft(draft: Draft, tool: str, directory: Path, force: bool) -> None:
    made_by = f"Made by `bench-spark import {tool}`."
    paths = write_new_files(directory, files_of(draft, made_by), force)
    for remark in draft.left_out:
        sys.stderr.write(f"no counterpart: {remark}\n")
    for remark in draft.remarks:
        sys.stderr.write(f"note: {remark}\n")
    if draft.has_password:
        sys.stderr.write(
            f"the password was not kept; before a run: export {draft.password_variable}=...\n"
        )
    to_stdout(lambda writer: writer.writelines(f"{path}\n" for path in paths))
