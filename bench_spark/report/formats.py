"""The formats of every result, one table for all commands; and rows of any kind as a table.

A result has four forms: a document (`json`), a sheet of rows (`csv`, `parquet`), a page (`html`,
`markdown`) and text for a terminal. `Rows` are the answer to a query, or a list.
"""

from __future__ import annotations

import csv
import io
import json
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, BinaryIO, TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from bench_spark.errors import ConfigurationError
from bench_spark.report import blocks
from bench_spark.report.formatting import UNKNOWN, Document, duration, one_line, rate, share
from bench_spark.report.page import Charts, Page

WIDEST_CELL = 60


@dataclass(frozen=True)
class Sheet:
    """Rows for spreadsheets and programs. Units end the names of columns; an empty cell is an
    unknown value."""

    columns: Sequence[str]
    rows: Sequence[Mapping[str, Any]]
    types: Mapping[str, pa.DataType]
    """Of columns that have a type whatever their values are."""

    def type_of(self, column: str) -> pa.DataType:
        """A column of integers and other numbers has doubles, one of numbers and words has text."""
        if column in self.types:
            return self.types[column]
        kinds = {type(row[column]) for row in self.rows if row.get(column) is not None}
        if kinds == {bool}:
            return pa.bool_()
        if kinds == {int}:
            return pa.int64()
        return pa.float64() if kinds and kinds <= {int, float} else pa.string()


class Report(ABC):
    """A result that is ready to be written."""

    def __init__(self, document: Document) -> None:
        self.document = document
        """All of it, for programs."""

    @property
    @abstractmethod
    def sheet(self) -> Sheet: ...

    @abstractmethod
    def page(self) -> Page: ...

    @abstractmethod
    def write_terminal(self, writer: TextIO) -> None: ...

    def write_markdown(self, writer: TextIO) -> None:
        writer.write(self.page().markdown)

    def write_json(self, writer: TextIO) -> None:
        # NaN is no JSON: a document that holds one is our bug, and better found here than later.
        writer.write(json.dumps(self.document, indent=2, allow_nan=False) + "\n")

    def write_csv(self, writer: TextIO) -> None:
        sheet = self.sheet
        rows = ([_printed(row.get(column)) for column in sheet.columns] for row in sheet.rows)
        csv.writer(writer, lineterminator="\n").writerows([sheet.columns, *rows])

    def write_parquet(self, writer: BinaryIO) -> None:
        sheet = self.sheet
        schema = pa.schema([(column, sheet.type_of(column)) for column in sheet.columns])
        arrays = [
            pa.array([_typed(row.get(field.name), field.type) for row in sheet.rows], field.type)
            for field in schema
        ]
        pq.write_table(pa.Table.from_arrays(arrays, schema=schema), writer)


def _typed(value: Any, type_: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_string(type_):
        return str(_printed(value))
    if pa.types.is_floating(type_):
        return None if isinstance(value, str) else float(value)  # a word: the number is unknown
    return value


def _printed(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


# -- rows ------------------------------------------------------------------------------------------


class Rows(Report):
    """The answer to a query, or a list: any columns, two of which may have the same name."""

    def __init__(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        self._title = title
        self._columns = columns
        self._rows = rows

    @classmethod
    def of_table(cls, title: str, table: pa.Table) -> Rows:
        columns = [column.to_pylist(maps_as_pydicts="strict") for column in table.columns]
        return cls(title, table.column_names, list(zip(*columns, strict=True)))

    @property
    def sheet(self) -> Sheet:
        twice = [name for name, times in Counter(self._columns).items() if times > 1]
        if twice:
            raise ConfigurationError(
                f"SQL: two columns are called {twice[0]}, of which one would be lost; name them "
                "with AS"
            )
        rows = [
            {name: _cell(value) for name, value in zip(self._columns, row, strict=True)}
            for row in self._rows
        ]
        return Sheet(self._columns, rows, {})

    def page(self) -> Page:
        cells = [[_shown(value) for value in row] for row in self._rows]
        words = next((i for i, is_number in enumerate(self._are_numbers) if is_number), None)
        count = len(self._columns) if words is None else words
        shown = blocks.Table(self._title, self._columns, cells, words=count)
        section = blocks.PageSection("rows", "Rows", [shown])
        return Page(blocks.Heading(self._title), [section], Charts())

    @property
    def _are_numbers(self) -> list[bool]:
        return [
            all(isinstance(value, int | float | Decimal | None) for value in column)
            for column in zip(*self._rows, strict=True)
        ] or [False] * len(self._columns)

    def write_terminal(self, writer: TextIO) -> None:
        """As wide as it needs to be: half a number would be worse than a wrapped line."""
        cells = [[_shown(value) for value in row] for row in self._rows]
        lengths = [max(map(len, column)) for column in zip(self._columns, *cells, strict=True)]
        dashes = ["-" * length for length in lengths]
        writer.writelines(aligned([self._columns, dashes, *cells], self._are_numbers))

    def write_json(self, writer: TextIO) -> None:
        """One list of objects, a row to a line."""
        names = self.sheet.columns
        lines = (
            json.dumps(dict(zip(names, map(_plain, row), strict=True)), allow_nan=False)
            for row in self._rows
        )
        writer.write("[" + ",\n ".join(lines) + "]\n")

    def write_csv(self, writer: TextIO) -> None:
        rows = ([_cell(value) for value in row] for row in self._rows)
        csv.writer(writer, lineterminator="\n").writerows([self._columns, *rows])

    def write_parquet(self, writer: BinaryIO) -> None:
        """With the types of the values, unlike sheets of text."""
        columns = zip(*self._rows, strict=True) if self._rows else [()] * len(self._columns)
        arrays = [pa.array(list(column)) for column in columns]
        pq.write_table(pa.Table.from_arrays(arrays, names=list(self.sheet.columns)), writer)


def aligned(rows: Sequence[Sequence[str]], are_numbers: Sequence[bool] = ()) -> Iterable[str]:
    """Lines with the cells of each column below each other, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    to_right = are_numbers or [False] * len(widths)
    for row in rows:
        placed = (
            text.rjust(width) if is_number else text.ljust(width)
            for text, width, is_number in zip(row, widths, to_right, strict=True)
        )
        yield "  ".join(placed).rstrip() + "\n"


class RunList(Rows):
    """Runs as `listed_runs` has them; people get fewer columns than programs."""

    def __init__(self, runs: Sequence[Mapping[str, Any]]) -> None:
        columns = list(runs[0]) if runs else []
        super().__init__("Runs", columns, [list(run.values()) for run in runs])
        names = ("run", "status", "started (UTC)", "received msg/s", "delivered")
        self._for_people = Rows("Runs", (*names, "p99", "of", "why"), [_row(run) for run in runs])

    def page(self) -> Page:
        return self._for_people.page()

    def write_terminal(self, writer: TextIO) -> None:
        self._for_people.write_terminal(writer)


def _cell(value: Any) -> Any:
    """A value of a sheet: text in place of what has parts."""
    plain = _plain(value)
    return json.dumps(plain) if isinstance(plain, dict | list) else plain


def _plain(value: Any) -> Any:
    """A value that JSON knows; numbers that it does not know become text."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, str | int | float):
        return value
    return value.hex() if isinstance(value, bytes) else str(value)


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and math.isfinite(value) and abs(value) >= 0.001:
        return f"{value:.3f}".rstrip("0").rstrip(".")
    text = (
        str(value) if isinstance(value, int | float | str | datetime) else json.dumps(_plain(value))
    )
    line = " ".join(text.split())
    return line if len(line) <= WIDEST_CELL else line[: WIDEST_CELL - 3] + "..."


def _row(run: Mapping[str, Any]) -> list[str]:
    started = run["started_at"]
    return [
        run["run_id"],
        run["status"],
        started.strftime("%Y-%m-%d %H:%M:%S") if started else "",
        rate(dict(run["rates"] or ()).get("receive_rate")),
        share(run["delivery_rate"]),
        duration(run["p99_us"], bool(run["p99_is_lower_bound"])),
        run["p99_measure"] or UNKNOWN,
        one_line(next(iter(run["reasons"] or ()), "")),
    ]


# -- formats ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Format:
    write: Callable[[Report, Any], None]
    """To a stream of text, or of bytes."""
    precedence: int = 0
    """Of several formats the lowest gets standard output, the others standard error: programs read
    the one, people read both."""
    is_binary: bool = False
    """It only goes into files."""

    def encode(self, report: Report) -> bytes:
        """The content of a file."""
        if self.is_binary:
            content = io.BytesIO()
            self.write(report, content)
            return content.getvalue()
        text = io.StringIO()
        self.write(report, text)
        return text.getvalue().encode()


FORMATS: Mapping[str, Format] = {
    "terminal": Format(lambda report, writer: report.write_terminal(writer), 5),
    "markdown": Format(lambda report, writer: report.write_markdown(writer), 4),
    "json": Format(lambda report, writer: report.write_json(writer), 1),
    "csv": Format(lambda report, writer: report.write_csv(writer), 2),
    "parquet": Format(lambda report, writer: report.write_parquet(writer), is_binary=True),
    "html": Format(lambda report, writer: writer.write(report.page().html), 3),
}
