"""`bench-spark tables`: the tables of a store for a catalog, so that others read them by name."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from bench_spark.cli.options import DEFAULT_STORE, StoreOption
from bench_spark.cli.output import to_stdout
from bench_spark.cli.stored import existing_store
from bench_spark.errors import ConfigurationError

app = typer.Typer(
    help="The store's tables by name, in a catalog.", no_args_is_help=True, rich_markup_mode=None
)

_SCHEMA = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)?")


@app.callback()
def _tables() -> None:
    """Keeps `register` a command of its own: Typer takes a single one for the whole group."""


@app.command()
def register(
    schema: Annotated[
        str,
        typer.Option(
            "--schema", metavar="NAME", help="Schema for them, with its catalog or without."
        ),
    ] = "bench_spark",
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Print the SQL that makes tables and views of the store known to a catalog."""
    if not _SCHEMA.fullmatch(schema):
        raise ConfigurationError(
            f"--schema: {schema!r} is no name such as bench_spark or main.bench_spark"
        )
    from bench_spark.spark.sql import registration

    statements = registration(existing_store(store), schema)
    to_stdout(lambda writer: writer.writelines(f"{statement};\n" for statement in statements))
