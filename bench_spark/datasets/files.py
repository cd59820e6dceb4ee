"""Which files a data set consists of, and what their records are."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

from bench_spark.datasets.scanning import (
    CsvScanner,
    LengthPrefixScanner,
    LineScanner,
    Scanner,
    WholeScanner,
)
from bench_spark.errors import ConfigurationError
from bench_spark.scenario.dataset_section import Dataset, RecordFormat

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
