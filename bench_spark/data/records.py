"""Records read in any order with flat memory: of files, of a table's column, or made up.

What is compressed is decompressed once into a file without a name: a load generator has better
things to do while a load runs, and any record can be read from there.

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
import tempfile
from collections import OrderedDict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

import numpy as np

from bench_spark.config.sections import Dataset, Message
from bench_spark.data.scanning import (
    I64,
    BrokenRecord,
    IndexBuilder,
    RecordIndex,
    Records,
    RecordSizes,
    Spans,
    blocks_of,
    files_of,
    format_of,
    is_compressed,
    mapped,
    scanner_for,
)
from bench_spark.errors import ConfigurationError, EnvironmentNotReady, RunError, StoreNotReady


def stretch_of(numbers: I64) -> slice | None:
    """The same numbers as a slice, if each is one more than the one before."""
    first, last = int(numbers[0]), int(numbers[-1])
    is_stretch = last - first == len(numbers) - 1 and bool((numbers[1:] > numbers[:-1]).all())
    return slice(first, last + 1) if is_stretch else None


def read_stretch(descriptor: int, spans: Spans, base: int = 0) -> list[bytes]:
    """Records that follow each other in the file, by one read; offsets count from `base`."""
    first = int(spans.starts[0])
    begins = spans.starts - first
    ends = begins + spans.lengths
    content = read_at(descriptor, int(ends[-1]), first + base)
    return [content[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]


def read_each(descriptor: int, spans: Spans, base: int = 0) -> list[bytes]:
    places = zip(spans.lengths.tolist(), (spans.starts + base).tolist(), strict=True)
    return [read_at(descriptor, length, offset) for length, offset in places]


def read_at(descriptor: int, length: int, offset: int) -> bytes:
    """All of it: one call gives at most 2 GiB, and on some file systems less."""
    content = os.pread(descriptor, length, offset)
    while len(content) < length:
        more = os.pread(descriptor, length - len(content), offset + len(content))
        if not more:
            raise RunError("the data set has become shorter while it was read")
        content += more
    return content


_MOST_OPEN_FILES = 64


class RecordFiles:
    """A `RecordSource` over `dataset.path`."""

    def __init__(self, dataset: Dataset) -> None:
        assert dataset.path is not None
        self._paths = files_of(dataset.path)
        self.format = format_of(dataset, self._paths[0])
        self._has_header_row = dataset.header_row
        self._open: OrderedDict[int, int] = OrderedDict()
        """Descriptors by number of file, the one used last at the end."""
        self._spill: IO[bytes] | None = None
        self._spilled_at = [-1] * len(self._paths)
        """Where in the spill file the content of a compressed one begins; -1 for others."""
        firsts = []
        builder = IndexBuilder()
        for number, path in enumerate(self._paths):
            firsts.append(builder.count)
            self._scan(number, path, builder)
        self._firsts = np.array(firsts, np.int64)
        """Number of the first record of each file."""
        self._index = builder.finish()
        if not len(self._index):
            raise ConfigurationError(f"dataset.path: {dataset.path}: holds no record")

    def _scan(self, number: int, path: Path, builder: IndexBuilder) -> None:
        scanner = scanner_for(self.format, self._has_header_row)
        spill = self._spill_for(number) if is_compressed(path) else None
        try:
            for block in blocks_of(path):
                if spill is not None:
                    self._spill_block(spill, block, path)
                builder.add(scanner.scan(block))
            builder.add(scanner.finish())
        except BrokenRecord as broken:
            raise ConfigurationError(f"dataset.path: {path}: {broken}") from None

    def _spill_for(self, number: int) -> IO[bytes]:
        if self._spill is None:
            self._spill = tempfile.TemporaryFile(prefix="bench-spark-")  # noqa: SIM115
        self._spilled_at[number] = self._spill.tell()
        return self._spill

    @staticmethod
    def _spill_block(spill: IO[bytes], block: bytes, path: Path) -> None:
        try:
            spill.write(block)
            spill.flush()
        except OSError as error:
            raise EnvironmentNotReady(
                f"dataset.path: {path}: cannot be decompressed into {tempfile.gettempdir()}: "
                f"{error.strerror}; TMPDIR names another directory"
            ) from None

    @property
    def count(self) -> int:
        return len(self._index)

    def sizes(self) -> RecordSizes:
        return self._index.sizes()

    def read(self, numbers: I64) -> Records:
        file = 0
        if len(self._paths) > 1:
            files = np.searchsorted(self._firsts, numbers, side="right") - 1
            file = int(files[0])
            if not (files == file).all():
                return Records(self._read_from_several(files, self._index.spans(numbers)))
        descriptor, base = self._descriptor(file), self._base(file)
        stretch = stretch_of(numbers)
        if stretch is not None:
            return Records(read_stretch(descriptor, self._index.spans(stretch), base))
        return Records(read_each(descriptor, self._index.spans(numbers), base))

    def _read_from_several(self, files: I64, spans: Spans) -> list[bytes]:
        places = zip(files.tolist(), spans.lengths.tolist(), spans.starts.tolist(), strict=True)
        return [
            read_at(self._descriptor(file), length, start + self._base(file))
            for file, length, start in places
        ]

    def _base(self, file: int) -> int:
        """Where its content begins in what its descriptor leads to."""
        return max(0, self._spilled_at[file])

    def _descriptor(self, file: int) -> int:
        if self._spilled_at[file] >= 0:
            assert self._spill is not None
            return self._spill.fileno()
        descriptor = self._open.pop(file, None)
        if descriptor is None:
            descriptor = self._opened(self._paths[file])
        self._open[file] = descriptor
        if len(self._open) > _MOST_OPEN_FILES:
            os.close(self._open.popitem(last=False)[1])
        return descriptor

    @staticmethod
    def _opened(path: Path) -> int:
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise RunError(f"{path}: cannot be read any more: {error.strerror}") from None

    def place(self, number: int) -> str:
        file = int(np.searchsorted(self._firsts, number, side="right") - 1)
        path = self._paths[file]
        if self.format == "files":
            return str(path)
        if self.format == "length_prefixed":
            return f"{path}: record {number - int(self._firsts[file]) + 1}"
        start = int(self._index.spans(np.array([number])).starts[0])
        return f"{path}:{1 + self._lines_before(file, start)}"

    def _lines_before(self, file: int, end: int) -> int:
        lines = passed = 0
        for block in blocks_of(self._paths[file]):
            lines += block[: end - passed].count(b"\n")
            passed += len(block)
            if passed >= end:
                break
        return lines

    def close(self) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()
        if self._spill is not None:
            self._spill.close()


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
            facts = json.loads((directory / _FACTS).read_text())
        except OSError as error:
            raise StoreNotReady(
                f"dataset.table: its rows cannot be read from {directory}: {error.strerror}"
            ) from None
        return cls(**facts | {"columns": tuple(facts["columns"])})


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

    def sizes(self) -> RecordSizes:
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


class MadeRecords:
    """A `RecordSource` of one record, the body without its ID. A random one differs
    from reading to reading."""

    count = 1

    def __init__(self, message: Message, id_bytes: int, seed: int) -> None:
        """`id_bytes`: how much of the body the ID takes."""
        self._length = message.bytes - id_bytes
        # Here, so that a command that only looks at records does not wait for numba.
        from bench_spark.core.randomness import RandomBytes

        self._random = None if message.padding == "zero" else RandomBytes(seed)

    def read(self, numbers: I64) -> Records:
        if self._random is None:
            return Records([bytes(self._length)] * len(numbers))
        return Records([row.tobytes() for row in self._random.rows(len(numbers), self._length)])

    def sizes(self) -> RecordSizes:
        return RecordSizes(float(self._length), self._length, 0, self._length)

    def place(self, number: int) -> str:
        return "message.bytes"

    def close(self) -> None:
        """There is nothing to close."""
