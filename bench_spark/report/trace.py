"""Messages joined one by one, for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TextIO

from rich.console import ConsoleRenderable
from rich.text import Text

from bench_spark.report.descriptions import TROUBLES
from bench_spark.report.formatting import count, words
from bench_spark.report.measures import PERCENTILE_COLUMNS, Document, in_order, shown_statistic
from bench_spark.report.terminal import console_for, labelled, plain_table, print_block

_COUNTED = ("sent", "confirmed", "received", "received_once")


def write_trace(trace: Document, writer: TextIO) -> None:
    console = console_for(writer)
    for block in _blocks(trace):
        print_block(console, block)


def _blocks(trace: Document) -> Iterator[ConsoleRenderable]:
    names = (*_COUNTED, *TROUBLES)
    yield labelled(
        [(Text(words(name), "dim"), count(trace[name])) for name in names if name in trace]
    )
    measures = trace["measures"]
    if measures:
        yield plain_table(
            ["measure".ljust(16), *(column for _, column in PERCENTILE_COLUMNS)],
            [
                [name, *(shown_statistic(measures[name], field) for field, _ in PERCENTILE_COLUMNS)]
                for name in in_order(measures)
            ],
        )
    if trace["producers"]:
        yield plain_table(
            ["producer", *map(words, TROUBLES)],
            [
                [_named(entry["producer"]), *(count(entry[name]) for name in TROUBLES)]
                for entry in trace["producers"]
            ],
        )


def _named(producer: int | None) -> str:
    return "without ID" if producer is None else str(producer)
