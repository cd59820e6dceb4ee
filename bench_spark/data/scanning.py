"""Where each record of a data set is: files are found, scanned and indexed once.

Each scanner takes blocks in order and gives, per block, the records that ended in it: their starts
and lengths in bytes. `finish` gives what the end of the stream completes. Pure.
"""

from __future__ import annotations

import gzip
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from bench_spark.config.sections import Dataset, RecordFormat
from bench_spark.errors import ConfigurationError

I64 = npt.NDArray[np.int64]


class Records(NamedTuple):
    """Some records, in the order that was asked for."""

    bodies: Sequence[bytes]
    keys: Sequence[bytes] | None = None
    headers: Sequence[Mapping[str, bytes]] | None = None


class RecordSizes(NamedTuple):
    """Of all records."""

    mean_bytes: float
    largest_bytes: int
    largest: int
    """Its number."""
    smallest_bytes: int


class RecordSource(Protocol):
    @property
    def count(self) -> int: ...

    def read(self, numbers: I64) -> Records:
        """These records; numbers are from 0 on."""

    def sizes(self) -> RecordSizes: ...

    def place(self, number: int) -> str:
        """Where that record is, for people: file and line, or row."""

    def close(self) -> None: ...


_NEWLINE, _RETURN, _QUOTE = 10, 13, 34
LENGTH_BYTES = 4


class Spans(NamedTuple):
    starts: I64
    lengths: I64


class BrokenRecord(Exception):
    """The stream ends inside a record; the text says which."""


def _no_spans() -> Spans:
    return Spans(np.zeros(0, np.int64), np.zeros(0, np.int64))


class Scanner(Protocol):
    def scan(self, block: bytes) -> Spans: ...

    def finish(self) -> Spans: ...


class LineScanner:
    """Lines without their ends, LF or CR LF; blank ones are no records."""

    def __init__(self) -> None:
        self._scanned = 0
        self._line_start = 0
        self._last_byte = 0

    def scan(self, block: bytes) -> Spans:
        octets = np.frombuffer(block, np.uint8)
        ends = self._ends(octets)
        if len(ends):
            before = np.where(ends > 0, octets[ends - 1], self._last_byte)
            spans = self._spans(ends + self._scanned, before == _RETURN)
        else:
            spans = _no_spans()
        self._scanned += len(block)
        self._last_byte = block[-1]
        return spans

    def _ends(self, octets: npt.NDArray[np.uint8]) -> I64:
        return np.flatnonzero(octets == _NEWLINE).astype(np.int64)

    def _spans(self, ends: I64, has_return: npt.NDArray[np.bool_]) -> Spans:
        starts = np.concatenate(([self._line_start], ends[:-1] + 1)).astype(np.int64)
        self._line_start = int(ends[-1]) + 1
        lengths = np.maximum(0, ends - starts - has_return)
        kept = self._is_record(lengths)
        return Spans(starts[kept], lengths[kept])

    def _is_record(self, lengths: I64) -> npt.NDArray[np.bool_]:
        return lengths > 0

    def finish(self) -> Spans:
        """A last line need not have an end."""
        if self._line_start == self._scanned:
            return _no_spans()
        end = np.array([self._scanned], np.int64)
        return self._spans(end, np.array([self._last_byte == _RETURN]))


class CsvScanner(LineScanner):
    """Rows: lines whose ends are not inside quotes. The first may name the columns."""

    def __init__(self, has_header_row: bool) -> None:
        super().__init__()
        self._is_header_due = has_header_row
        self._is_quoted = False

    def _ends(self, octets: npt.NDArray[np.uint8]) -> I64:
        # A quote inside a quoted field is doubled, so that it leaves the parity as it is.
        quotes = np.cumsum(octets == _QUOTE, dtype=np.int64) + self._is_quoted
        self._is_quoted = bool(quotes[-1] & 1)
        return np.flatnonzero((octets == _NEWLINE) & (quotes & 1 == 0)).astype(np.int64)

    def _is_record(self, lengths: I64) -> npt.NDArray[np.bool_]:
        kept = super()._is_record(lengths)
        if self._is_header_due and kept.any():
            self._is_header_due = False
            kept[int(np.argmax(kept))] = False
        return kept

    def finish(self) -> Spans:
        if self._is_quoted:
            raise BrokenRecord("a quoted field is never closed")
        return super().finish()


class LengthPrefixScanner:
    """Each record is preceded by its length: 4 bytes, big-endian."""

    def __init__(self) -> None:
        self._scanned = 0
        self._rest = b""
        """Of the last block: a length that was cut."""
        self._next_length_at = 0

    def scan(self, block: bytes) -> Spans:
        starts, lengths = [], []
        base = self._scanned - len(self._rest)
        block = self._rest + block
        at, end = self._next_length_at - base, len(block) - LENGTH_BYTES
        while at <= end:
            length = int.from_bytes(block[at : at + LENGTH_BYTES], "big")
            starts.append(base + at + LENGTH_BYTES)
            lengths.append(length)
            at += LENGTH_BYTES + length
        self._next_length_at = base + at
        self._scanned = base + len(block)
        self._rest = block[at:] if at < len(block) else b""
        return Spans(np.array(starts, np.int64), np.array(lengths, np.int64))

    def finish(self) -> Spans:
        if self._next_length_at != self._scanned:
            raise BrokenRecord(f"it ends at byte {self._scanned}, inside a record or its length")
        return _no_spans()


class WholeScanner:
    """The whole stream is one record."""

    def __init__(self) -> None:
        self._scanned = 0

    def scan(self, block: bytes) -> Spans:
        self._scanned += len(block)
        return _no_spans()

    def finish(self) -> Spans:
        return Spans(np.zeros(1, np.int64), np.array([self._scanned], np.int64))


_BLOCK_BYTES = 4 * 1024 * 1024
_COMPRESSED = ".gz"
_FORMAT_OF_SUFFIX: dict[str, RecordFormat] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv"}


def files_of(path: str) -> list[Path]:
    """The file, or the directory's files in order; raises if there is nothing to read."""
    root = Path(path)
    try:
        if root.is_file():
            return [root]
        if not root.is_dir():
            raise ConfigurationError(f"dataset.path: {path}: there is no such file or directory")
        files = sorted(_below(root))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"dataset.path: {path}: cannot be read: {error}") from None
    if not files:
        raise ConfigurationError(f"dataset.path: {path}: the directory has no files to read")
    return files


def _below(root: Path) -> Iterator[Path]:
    for path in root.iterdir():
        if path.name.startswith((".", "_")):
            continue
        if path.is_dir():
            yield from _below(path)
        elif path.is_file():
            yield path


def is_compressed(path: Path) -> bool:
    return path.suffix == _COMPRESSED


def format_of(dataset: Dataset, first: Path) -> RecordFormat:
    if dataset.format is not None:
        return dataset.format
    plain = first.with_suffix("") if is_compressed(first) else first
    return _FORMAT_OF_SUFFIX.get(plain.suffix, "lines")


def scanner_for(record_format: RecordFormat, has_header_row: bool) -> Scanner:
    if record_format == "csv":
        return CsvScanner(has_header_row)
    if record_format == "length_prefixed":
        return LengthPrefixScanner()
    if record_format == "files":
        return WholeScanner()
    return LineScanner()


def blocks_of(path: Path) -> Iterator[bytes]:
    """The content, decompressed where it is compressed; raises ConfigurationError."""
    try:
        with gzip.open(path) if is_compressed(path) else path.open("rb") as stream:
            while block := stream.read(_BLOCK_BYTES):
                yield block
    except (OSError, EOFError, zlib.error) as error:  # OSError: also what is no gzip at all
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ConfigurationError(f"dataset.path: {path}: cannot be read: {reason}") from None


_CHUNK_RECORDS = 1 << 20
_LONGEST_BYTES = 2**32 - 1


class IndexBuilder:
    def __init__(self) -> None:
        self._starts: IO[bytes] = tempfile.TemporaryFile(prefix="bench-spark-")  # noqa: SIM115
        self._lengths: IO[bytes] = tempfile.TemporaryFile(prefix="bench-spark-")  # noqa: SIM115
        self.count = 0

    def add(self, spans: Spans) -> None:
        if not len(spans.starts):
            return
        if int(spans.lengths.max()) > _LONGEST_BYTES:
            raise ConfigurationError("a record is larger than 4 GiB")
        self._starts.write(spans.starts.astype("<i8").tobytes())
        self._lengths.write(spans.lengths.astype("<u4").tobytes())
        self.count += len(spans.starts)

    def finish(self) -> RecordIndex:
        return RecordIndex(
            _mapped(self._starts, "<i8", self.count), _mapped(self._lengths, "<u4", self.count)
        )


def _mapped(file: IO[bytes], dtype: str, count: int) -> npt.NDArray[Any]:
    file.flush()
    with file:  # the mapping keeps its content alive
        return mapped(file, dtype, count)


def mapped(file: IO[bytes] | Path, dtype: str, count: int) -> npt.NDArray[Any]:
    """Numbers in a file, as a plain array: indexing a memmap costs microseconds more. Nothing has
    no mapping."""
    if not count:
        return np.zeros(0, dtype)
    return np.asarray(np.memmap(file, dtype, "r", shape=(count,)))


class RecordIndex:
    """Starts and lengths by number of record."""

    def __init__(self, starts: npt.NDArray[Any], lengths: npt.NDArray[Any]) -> None:
        self._starts = starts
        self._lengths = lengths

    def __len__(self) -> int:
        return len(self._starts)

    def spans(self, numbers: I64 | slice) -> Spans:
        return Spans(
            self._starts[numbers].astype(np.int64), self._lengths[numbers].astype(np.int64)
        )

    def sizes(self) -> RecordSizes:
        total = largest_bytes = largest = smallest_bytes = 0
        for first, lengths in self._chunks():
            total += int(lengths.sum(dtype=np.int64))
            place = int(np.argmax(lengths))
            if first == 0 or int(lengths[place]) > largest_bytes:
                largest_bytes, largest = int(lengths[place]), first + place
            smallest_bytes = min(int(lengths.min()), smallest_bytes if first else int(lengths[0]))
        return RecordSizes(total / max(1, len(self)), largest_bytes, largest, smallest_bytes)

    def _chunks(self) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        for first in range(0, len(self), _CHUNK_RECORDS):
            yield first, np.array(self._lengths[first : first + _CHUNK_RECORDS])
