"""`bench-spark broker`: real brokers on this machine, for trying things out."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from bench_spark.cli.options import Text, argument, option
from bench_spark.cli.output import to_stdout

if TYPE_CHECKING:
    from bench_spark.brokers import BrokerStatus

# The brokers bring the client libraries along, which no other command should wait for.
NameArgument = Annotated[
    str, argument("NAME", "kafka, qpid, rabbitmq or mosquitto.", show_default=False)
]

app = typer.Typer(
    help="Real brokers on this machine, for trying things out.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


NodesOption = Annotated[
    int | None,
    option(
        "--nodes N",
        "Start so many nodes that form a cluster (kafka, rabbitmq); 1 unless given.",
        min=1,
        show_default=False,
    ),
]


@app.command()
def start(name: NameArgument, nodes: NodesOption = None) -> None:
    """Start a broker and return when clients can use it."""
    from bench_spark import brokers

    started = brokers.start(name, _say, nodes=nodes)
    for command in started.broker.rabbitmqctl:
        _say(f"rabbitmqctl for it: {command}")
    _print_lines([started])


@app.command()
def stop(name: NameArgument) -> None:
    """Stop a broker and remove everything it left."""
    from bench_spark import brokers

    _print_lines([brokers.stop(name)])


@app.command()
def status(name: Annotated[Text, argument("[NAME]", "One of them; unset: all.")] = None) -> None:
    """Print a line per broker: name, state, address and all ports."""
    from bench_spark import brokers

    _print_lines([brokers.status(each) for each in ([name] if name else brokers.NAMES)])


def _print_lines(found: Sequence[BrokerStatus]) -> None:
    lines = [f"{broker.line_with_ports}\n" for broker in found]
    to_stdout(lambda writer: writer.writelines(lines))


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
