"""`bench-spark broker`: real brokers on this machine, for trying things out."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from bench_spark import brokers
from bench_spark.cli.output import to_stdout

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help=", ".join(brokers.NAMES), show_default=False)
]

app = typer.Typer(
    help="Real brokers on this machine, for trying things out.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command()
def start(name: NameArgument) -> None:
    """Start a broker and return when clients can use it."""
    _print_line(brokers.start(name, _say))


@app.command()
def stop(name: NameArgument) -> None:
    """Stop a broker and remove everything it left."""
    _print_line(brokers.stop(name))


@app.command()
def status(name: NameArgument) -> None:
    """Print one line: name, state and address."""
    _print_line(brokers.status(name))


def _print_line(found: brokers.BrokerStatus) -> None:
    to_stdout(lambda writer: writer.writelines([f"{found.line}\n"]))


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
