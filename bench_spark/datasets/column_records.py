"""Rows of a table, put down column by column in a form that is read without any library.

    rows.json           how many, where they are from, what they hold
    NAME.bytes          all values of a column, one behind the other
    NAME.starts         where each begins: 64 bits
    NAME.lengths        how long it is: 32 bits
    due_ns              when each row is due after the first: 64 bits; of recorded traffic

The columns are `body` and, where the table has them, `key` and `headers` (a JSON object whose
values are bytes written as Latin-1). Numbers are little-endian.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from bench_spark.datasets.index import RecordIndex, mapped
from bench_spark.datasets.reading import read_each, read_stretch, stretch_of
from bench_spark.datasets.source import I64, Records, Sizes
from bench_spark.errors import StoreNotReady

BODY, KEY, HEADERS = "body", "key", "headers"
DUE = "due_ns"
_FACTS = "rows.json"


@dataclass(frozen=True)
class RowFacts:
    """What is known of the rows as a whole."""

    table: str
    records: int
    columns: tuple[str, ...]
    lap_ns: int | None = None
    """Of recorded traffic: from one beginning to the next."""

    def write(self, directory: Path) -> None:
        (directory / _FACTS).write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, directory: Path) -> RowFacts:
        """Raises StoreNotReady where the rows are not."""
        try:
            told = json.loads((directory / _FACTS).read_text())
        except OSError as error:
            raise StoreNotReady(
                f"dataset.table: its rows cannot be read from {directory}: {error.strerror}"
            ) from None
        return cls(**told | {"columns": tuple(told["columns"])})


class ColumnWriter:
    """Appends values of one column to its files."""

    def __init__(self, directory: Path, name: str) -> None:
        self._files = [
            (directory / f"{name}.{part}").open("wb") for part in ("bytes", "starts", "lengths")
        ]
        self._at = 0

    def append(self, values: bytes, lengths: I64) -> None:
        """`values`: one behind the other, so long each."""
        starts = self._at + np.cumsum(lengths) - lengths
        columns = (values, starts.astype("<i8").tobytes(), lengths.astype("<u4").tobytes())
        for file, content in zip(self._files, columns, strict=True):
            file.write(content)
        self._at += len(values)

    def close(self) -> None:
        for file in self._files:
            file.close()


class _Column:
    def __init__(self, directory: Path, name: str, records: int) -> None:
        self.index = RecordIndex(
            mapped(directory / f"{name}.starts", "<i8", records),
            mapped(directory / f"{name}.lengths", "<u4", records),
        )
        self._descriptor = os.open(directory / f"{name}.bytes", os.O_RDONLY | os.O_CLOEXEC)

    def read(self, numbers: I64, stretch: slice | None) -> list[bytes]:
        if stretch is not None:
            return read_stretch(self._descriptor, self.index.spans(stretch))
        return read_each(self._descriptor, self.index.spans(numbers))

    def close(self) -> None:
        os.close(self._descriptor)


class ColumnRecords:
    """A `RecordSource` over the rows of a table."""

    def __init__(self, directory: Path) -> None:
        self._facts = RowFacts.read(directory)
        self._columns = {
            name: _Column(directory, name, self._facts.records) for name in self._facts.columns
        }

    @property
    def count(self) -> int:
        return self._facts.records

    def read(self, numbers: I64) -> Records:
        stretch = stretch_of(numbers)
        read = {name: column.read(numbers, stretch) for name, column in self._columns.items()}
        headers = read.get(HEADERS)
        return Records(
            read[BODY],
            read.get(KEY),
            None if headers is None else [decoded_headers(one) for one in headers],
        )

    def sizes(self) -> Sizes:
        return self._columns[BODY].index.sizes()

    def place(self, number: int) -> str:
        return f"dataset.table: {self._facts.table}: row {number + 1}"

    def close(self) -> None:
        for column in self._columns.values():
            column.close()


def encoded_headers(headers: dict[str, bytes]) -> bytes:
    return json.dumps({name: value.decode("latin-1") for name, value in headers.items()}).encode()


def decoded_headers(text: bytes) -> dict[str, bytes]:
    return {name: value.encode("latin-1") for name, value in json.loads(text).items()}
