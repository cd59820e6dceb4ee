"""The formats in which every result is written: one table for all commands.

A result has four forms: a document (`json`), a sheet of rows (`csv`, `parquet`), a page (`html`,
`markdown`) and text for a terminal.
"""

from __future__ import annotations

import csv
import io
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from bench_spark.report.measures import Document
from bench_spark.report.page import Page


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
    "terminal": Format(lambda report, writer: report.write_terminal(writer)),
    "markdown": Format(lambda report, writer: report.write_markdown(writer)),
    "json": Format(write_json),
    "csv": Format(write_csv),
    "parquet": Format(write_parquet, is_binary=True),
    "html": Format(lambda report, writer: writer.write(report.page().html)),
}
