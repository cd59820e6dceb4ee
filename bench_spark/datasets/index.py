"""Where each record is: 12 bytes a record, in a file without a name, so that memory stays flat."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from bench_spark.datasets.scanning import Spans
from bench_spark.datasets.source import I64, Sizes
from bench_spark.errors import ConfigurationError

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

    def sizes(self) -> Sizes:
        total = largest_bytes = largest = smallest_bytes = 0
        for first, lengths in self._chunks():
            total += int(lengths.sum(dtype=np.int64))
            place = int(np.argmax(lengths))
            if first == 0 or int(lengths[place]) > largest_bytes:
                largest_bytes, largest = int(lengths[place]), first + place
            smallest_bytes = min(int(lengths.min()), smallest_bytes if first else int(lengths[0]))
        return Sizes(total / max(1, len(self)), largest_bytes, largest, smallest_bytes)

    def _chunks(self) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        for first in range(0, len(self), _CHUNK_RECORDS):
            yield first, np.array(self._lengths[first : first + _CHUNK_RECORDS])
