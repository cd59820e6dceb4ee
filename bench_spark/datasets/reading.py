"""Bytes of many records from an open file."""

from __future__ import annotations

import os

from bench_spark.datasets.scanning import Spans
from bench_spark.datasets.source import I64
from bench_spark.errors import RunError


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
