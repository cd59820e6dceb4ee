"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

DEFAULT_STORE = "bench-store"
DEFAULT_BROKER = "kafka"

ScenarioArgument = Annotated[
    str,
    typer.Argument(
        metavar="SCENARIO",
        help="A scenario file, or the name of a shipped one.",
        show_default=False,
    ),
]
BrokerOption = Annotated[
    str,
    typer.Option(
        "--broker",
        metavar="BROKER",
        envvar="BENCH_SPARK_BROKER",
        help="A broker file, or the name of a shipped one.",
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
        envvar="BENCH_SPARK_STORE",
        help="Directory or URI of the Delta tables.",
    ),
]
RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="A run id, as `runs` lists it.", show_default=False)
]
