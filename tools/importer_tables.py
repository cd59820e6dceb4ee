"""The tables of docs/coming-from.md that the importers know, made from what they import by.

python -m tools.importer_tables docs/coming-from.md
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from bench_spark.importers.omb import ANY_DRIVER, KAFKA_DRIVER, RABBITMQ_DRIVER, WORKLOAD, OmbKey
from bench_spark.importers.perftest_flags import FLAGS, Flag


def perftest_table() -> str:
    return _table("PerfTest", ((_flag(flag), flag.keys, flag.text) for flag in FLAGS))


def omb_table(keys: Iterable[OmbKey]) -> str:
    return _table("OMB", ((f"`{key.name}`", key.keys, key.text) for key in keys))


TABLES: dict[str, Callable[[], str]] = {
    "perftest": perftest_table,
    "omb-workload": lambda: omb_table(WORKLOAD),
    "omb-driver": lambda: omb_table(ANY_DRIVER),
    "omb-kafka": lambda: omb_table(KAFKA_DRIVER),
    "omb-rabbitmq": lambda: omb_table(RABBITMQ_DRIVER),
}


def with_tables(document: str) -> str:
    """The document with every table between its marks made anew."""
    for name, table in TABLES.items():
        start, end = f"<!-- table: {name} -->\n", "<!-- end -->"
        before, found, rest = document.partition(start)
        if found:
            document = f"{before}{found}{table()}{end}{rest.partition(end)[2]}"
    return document


def _flag(flag: Flag) -> str:
    return f"`-{flag.short}`, `{flag.shown}`" if flag.short else f"`{flag.shown}`"


def _table(tool: str, rows: Iterable[tuple[str, tuple[str, ...], str]]) -> str:
    return "".join(_lines(tool, rows))


def _lines(tool: str, rows: Iterable[tuple[str, tuple[str, ...], str]]) -> Iterator[str]:
    yield f"| {tool} | bench-spark | |\n|---|---|---|\n"
    for (keys, text), same in groupby(rows, key=itemgetter(1, 2)):
        options = [option for option, _, _ in same]
        if not keys:
            yield f"| {'; '.join(options)} | none | {text} |\n"
            continue
        shown = ", ".join(f"`{key}`" for key in keys)
        yield from (f"| {option} | {shown} | {text} |\n" for option in options)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(with_tables(path.read_text()))
