"""Records in files: indexed by one pass over them, then read where they are.

What is compressed is decompressed once into a file without a name: a load generator has better
things to do while a load runs, and any record can be read from there.
"""

from __future__ import annotations

import os
import tempfile
from collections import OrderedDict
from pathlib import Path
from typing import IO

import numpy as np

from bench_spark.datasets.files import blocks_of, files_of, format_of, is_compressed, scanner_for
from bench_spark.datasets.index import IndexBuilder
from bench_spark.datasets.reading import read_at, read_each, read_stretch, stretch_of
from bench_spark.datasets.scanning import BrokenRecord, Spans
from bench_spark.datasets.source import I64, Records, Sizes
from bench_spark.errors import ConfigurationError, EnvironmentNotReady, RunError
from bench_spark.scenario.dataset_section import Dataset

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

    def sizes(self) -> Sizes:
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
