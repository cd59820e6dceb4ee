"""What pages are made of: tables, figures, tiles and other blocks, as plain data."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from bench_spark.report.formatting import dotted
from bench_spark.report.queries import Query


@dataclass(frozen=True)
class Mark:
    """Text in a style of the page: `pass`, `fail`, `warn`, `status valid` ..."""

    text: str
    style: str

    def __str__(self) -> str:
        return self.text


Cell = str | Mark


@dataclass(frozen=True)
class Table:
    """A table for people and screen readers; the first `words` columns are text, not numbers.

    The first cell of a row is its heading.
    """

    kind: ClassVar = "table"
    caption: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    words: int = 1


@dataclass(frozen=True)
class Paragraph:
    kind: ClassVar = "paragraph"
    text: str
    style: str | None = None
    label: Mark | None = None
    """In front of the text."""
    code: str | None = None
    """Behind the text: a command."""


@dataclass(frozen=True)
class Bullets:
    kind: ClassVar = "bullets"
    items: Sequence[str]


@dataclass(frozen=True)
class Tiles:
    """Headline numbers, each under its name."""

    kind: ClassVar = "tiles"
    numbers: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Figure:
    """A chart, and its numbers as a table for those who cannot or do not want to see it."""

    kind: ClassVar = "figure"
    identifier: str
    caption: str
    label: str
    numbers: Table


@dataclass(frozen=True)
class Grid:
    """Figures beside each other where there is room."""

    kind: ClassVar = "grid"
    figures: Sequence[Figure]


@dataclass(frozen=True)
class Details:
    """Blocks that are folded away under a title."""

    kind: ClassVar = "details"
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Queries:
    """Queries to be copied, each with the numbers that it answers."""

    kind: ClassVar = "queries"
    command: str
    queries: Sequence[Query]


@dataclass(frozen=True)
class Heading:
    """What a page or a run is called, its status, and lines about it."""

    kind: ClassVar = "heading"
    title: str
    status: Mark | None = None
    facts: Sequence[str] = ()
    text: str = ""
    level: int = 1


@dataclass(frozen=True)
class ProgressBar:
    kind: ClassVar = "progress"
    text: str
    share: float | None
    """From 0 to 1; None where the end is not known."""


Block = (
    Table | Paragraph | Bullets | Tiles | Figure | Grid | Details | Queries | Heading | ProgressBar
)


@dataclass(frozen=True)
class PageSection:
    identifier: str
    title: str
    blocks: Sequence[Block]


def queries_block(queries: Iterable[Query], store: str) -> Queries:
    command = f'bench-spark sql "$(cat query.sql)" --store {shlex.quote(store)}'
    return Queries(command, list(queries))


def keys_block(title: str, part: Mapping[str, Any]) -> Details:
    """Nested keys, dotted, and their values."""
    rows = [
        (key, value if isinstance(value, str) else json.dumps(value)) for key, value in dotted(part)
    ]
    table = Table(f"{title}, defaults filled in", ["key", "value"], rows, words=2)
    return Details(f"{title}, all keys", [table])


def status_mark(status: str) -> Mark:
    return Mark(status, f"status {status}")
