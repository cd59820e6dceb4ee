"""The formats of every result, one table for all commands; and rows of any kind as a table.

A result has four forms: a document (`json`), a sheet of rows (`csv`, `parquet`), a page (`html`,
`markdown`) and text for a terminal. `Rows` are the answer to a query or a list of runs.
"""

from __future__ import annotations

import csv
import io
import json
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any, BinaryIO, TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from bench_spark.errors import ConfigurationError
from bench_spark.report.formatting import UNKNOWN, Document, duration, one_line, rate, share
from bench_spark.report.page import Page

WIDEST_CELL = 60


class RowFormat(StrEnum):
    TABLE = "table"
    CSV = "csv"
    JSON = "json"


@dataclass(frozen=True)
class Rows:
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]

    @classmethod
    def of_table(cls, table: pa.Table) -> Rows:
        """By columns and not by row: two columns may have the same name."""
        columns = [column.to_pylist(maps_as_pydicts="strict") for column in table.columns]
        return cls(table.column_names, list(zip(*columns, strict=True)))


def write_rows(answer: Rows, row_format: RowFormat, writer: TextIO) -> None:
    match row_format:
        case RowFormat.TABLE:
            _write_table(answer, writer)
        case RowFormat.CSV:
            _write_csv(answer, writer)
        case RowFormat.JSON:
            _write_json(answer, writer)


def _write_table(answer: Rows, writer: TextIO) -> None:
    """As wide as it needs to be: half a number would be worse than a wrapped line."""
    cells = [[_shown(value) for value in row] for row in answer.rows]
    widths = [
        max(len(text) for text in column) for column in zip(answer.columns, *cells, strict=True)
    ]
    are_numbers = [
        all(isinstance(value, int | float | Decimal | None) for value in column)
        for column in zip(*answer.rows, strict=True)
    ] or [False] * len(widths)
    for line in (answer.columns, ["-" * width for width in widths], *cells):
        placed = (
            text.rjust(width) if is_number else text.ljust(width)
            for text, width, is_number in zip(line, widths, are_numbers, strict=True)
        )
        writer.write("  ".join(placed).rstrip() + "\n")


def _write_csv(answer: Rows, writer: TextIO) -> None:
    table = csv.writer(writer, lineterminator="\n")
    table.writerow(answer.columns)
    for row in answer.rows:
        table.writerow(
            [
                json.dumps(_plain(value)) if isinstance(value, dict | list) else _plain(value)
                for value in row
            ]
        )


def _write_json(answer: Rows, writer: TextIO) -> None:
    """One list of objects, a row to a line."""
    twice = [name for name, times in Counter(answer.columns).items() if times > 1]
    if twice:
        raise ConfigurationError(
            f"SQL: two columns are called {twice[0]}, which JSON cannot hold; name them with AS"
        )
    lines = (
        json.dumps(dict(zip(answer.columns, map(_plain, row), strict=True)), allow_nan=False)
        for row in answer.rows
    )
    writer.write("[" + ",\n ".join(lines) + "]\n")


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


def write_runs(runs: Sequence[Mapping[str, Any]], writer: TextIO) -> None:
    columns = (
        *("run", "status", "started (UTC)", "received msg/s", "delivered"),
        *("p99", "of", "why"),
    )
    write_rows(Rows(columns, [_row(run) for run in runs]), RowFormat.TABLE, writer)


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


def write_json(report: Report, writer: TextIO) -> None:
    # NaN is no JSON: a document that holds one is our bug, and better found here than by a reader.
    writer.write(json.dumps(report.document, indent=2, allow_nan=False) + "\n")


def write_csv(report: Report, writer: TextIO) -> None:
    sheet = report.sheet
    table = csv.DictWriter(writer, sheet.columns, lineterminator="\n")
    table.writeheader()
    for row in sheet.rows:
        table.writerow({column: _printed(row.get(column)) for column in sheet.columns})


def write_parquet(report: Report, writer: BinaryIO) -> None:
    sheet = report.sheet
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
    "json": Format(write_json, 1),
    "csv": Format(write_csv, 2),
    "parquet": Format(write_parquet, is_binary=True),
    "html": Format(lambda report, writer: writer.write(report.page().html), 3),
}
