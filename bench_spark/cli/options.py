"""Arguments and options that several commands share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from bench_spark.cli.spark_session import given_to_spark
from bench_spark.conf_files import shipped

DEFAULT_STORE = "bench-store"
DEFAULT_BROKER = "kafka"

_STORE_VARIABLE = "BENCH_SPARK_STORE"
BROKER_VARIABLE = "BENCH_SPARK_BROKER"


def complete(kind: str, incomplete: str) -> list[str]:
    """Shipped names and files here that begin like this, for the shell's completion."""
    named = [name for name in shipped(kind) if name.startswith(incomplete)]
    here = (str(path) for path in Path().glob("*.y*ml") if path.name.startswith(incomplete))
    return [*named, *sorted(here)]


ScenarioArgument = Annotated[
    str,
    typer.Argument(
        metavar="SCENARIO",
        help="A scenario file, or the name of a shipped one.",
        show_default=False,
        autocompletion=lambda incomplete: complete("scenarios", incomplete),
    ),
]
BrokerOption = Annotated[
    str,
    typer.Option(
        "--broker",
        metavar="BROKER",
        envvar=BROKER_VARIABLE,
        help="A broker file, or the name of a shipped one.",
        autocompletion=lambda incomplete: complete("brokers", incomplete),
    ),
]
IngressOption = Annotated[
    list[str] | None,
    typer.Option(
        "--ingress",
        metavar="BROKER",
        help="Where messages go in, if they come out elsewhere: a broker as for --broker, for each "
        "entry of the scenario's ingress; repeatable.",
        autocompletion=lambda incomplete: complete("brokers", incomplete),
    ),
]
EgressOption = Annotated[
    list[str] | None,
    typer.Option(
        "--egress",
        metavar="BROKER",
        help="Where messages come out again, if they go in elsewhere; repeatable.",
        autocompletion=lambda incomplete: complete("brokers", incomplete),
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a key of the scenario, as in load.rate_per_second=5000; repeatable.",
    ),
]
StoreOption = Annotated[
    str,
    typer.Option(
        "--store",
        metavar="PATH",
        envvar=_STORE_VARIABLE,
        help="Directory or URI of the Delta tables.",
    ),
]
MasterOption = Annotated[
    str | None,
    typer.Option(
        "--master",
        metavar="URL",
        envvar="BENCH_SPARK_MASTER",
        help="Spark master; unset: this machine, with as many slots as the agents need.",
    ),
]
PackagesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--packages",
        metavar="GROUP:ARTIFACT:VERSION",
        help="A Maven package for Spark's class path, as hadoop-aws for a store on S3; repeatable.",
        callback=given_to_spark("spark.jars.packages"),
    ),
]
JarsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--jars",
        metavar="FILE",
        help="A jar for Spark's class path; repeatable.",
        callback=given_to_spark("spark.jars"),
    ),
]
FormatsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--format",
        metavar="FORMAT[=FILE]",
        help="terminal (the default; of a suite, markdown is), markdown, json, csv, parquet or "
        "html; repeatable. One of them gets standard output, programs before people; parquet needs "
        "a file.",
    ),
]
RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="A run id, as `runs` lists it.", show_default=False)
]


def is_typed(context: typer.Context, parameter: str) -> bool:
    """Whether an option was given on the command line, and not by its variable or its default."""
    source = context.get_parameter_source(parameter)
    return source is not None and source.name == "COMMANDLINE"


def is_defaulted(context: typer.Context, parameter: str) -> bool:
    """Whether an option was given neither on the command line nor by its variable."""
    source = context.get_parameter_source(parameter)
    return source is not None and source.name == "DEFAULT"


def default_store() -> str:
    """The store of a command that names none."""
    return os.environ.get(_STORE_VARIABLE) or DEFAULT_STORE
