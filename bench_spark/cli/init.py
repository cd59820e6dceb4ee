"""`bench-spark init`: a first scenario and broker file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from bench_spark.cli.new_files import ForceOption, refuse_existing, write_new_files
from bench_spark.cli.output import to_stdout
from bench_spark.errors import ConfigurationError
from bench_spark.importers.first_files import ALLOWED, BROKER_FILE, SCENARIO_FILE, begin

_LONGEST_ADDRESS = 4096


def init(
    directory: Annotated[
        Path, typer.Argument(metavar="[DIRECTORY]", help="Where to write the files.")
    ] = Path(),
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
