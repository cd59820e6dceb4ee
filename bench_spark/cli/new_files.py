"""`bench-spark init` and `import`: write the first files, and scenarios of other tools.

An existing file is replaced only where that was asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from bench_spark.cli.options import Text, argument, option
from bench_spark.cli.output import to_stdout
from bench_spark.config.fields import PLAIN_NAME, PLAIN_NAME_RULE
from bench_spark.config.loader import File, read_mapping, read_text
from bench_spark.config.problems import shown_path, shown_value
from bench_spark.config.yaml_text import MAX_BYTES
from bench_spark.errors import ConfigurationError, StoreError
from bench_spark.importers.draft import Draft, NewFile, files_of
from bench_spark.importers.first_files import ALLOWED, BROKER_FILE, SCENARIO_FILE, begin
from bench_spark.importers.omb import import_omb
from bench_spark.importers.perftest import import_perftest

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
    made = begin(_address())
    if made.assumed:
        sys.stderr.write(f"{made.assumed}\n")
    paths = write_new_files(directory, made.files, force)
    if made.password_variable is not None:
        sys.stderr.write(
            f"the password is not kept; before a run: export {made.password_variable}=...\n"
        )
    to_stdout(lambda writer: writer.writelines(f"{path}\n" for path in paths))
    sys.stderr.write(f"next: bench-spark run {paths[0]} --broker {paths[1]}\n")


def _address() -> str:
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
    text = _standard_input() if file == STANDARD_INPUT else read_text(_file(file))
    draft = import_perftest(text, _checked(name))
    _write(draft, "perftest", directory, force)


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
    from bench_spark.transports.kafka.settings import PROPERTY_NAMES

    draft = import_omb(
        read_mapping(_file(workload)), read_mapping(_file(driver)), PROPERTY_NAMES, _checked(name)
    )
    _write(draft, "omb", directory, force)


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


def _write(draft: Draft, tool: str, directory: Path, force: bool) -> None:
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
