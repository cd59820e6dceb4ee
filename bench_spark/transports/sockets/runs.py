"""Runs of frames that are alike: how far they reach, decided for many at once. Pure.

Frames of equal length make rows of a matrix. Every byte that is the same in all of them is compared
with what it should be; the run ends before the first row in which one is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

import numpy as np

from bench_spark.transports.base import U8, Bool

FEW = 8
"""Fewer rows than these are cheaper one by one."""
_FIRST_STRETCH, _GROWTH = 2 * FEW, 8

Constant = tuple[int, bytes]
"""Where in a row, and the bytes that must be there."""


class ReadBuffer:
    """Memory that sockets are read into: as bytes to be searched, and as an array."""

    def __init__(self, capacity_bytes: int) -> None:
        self.raw = bytearray(capacity_bytes)
        self.view = memoryview(self.raw)
        self.array: U8 = np.frombuffer(self.raw, np.uint8)


class RowShape:
    """Rows of one length with the same bytes in the same places."""

    def __init__(self, row_bytes: int, constants: Sequence[Constant]) -> None:
        self.row_bytes = row_bytes
        self._constants = constants
        self._columns = [
            (at, at + len(expected), np.frombuffer(expected, np.uint8))
            for at, expected in constants
        ]

    def rows(self, buffer: ReadBuffer, start: int, count: int) -> U8:
        """That many rows, as far as they are alike."""
        matrix = buffer.array[start : start + count * self.row_bytes]
        matrix = matrix.reshape(count, self.row_bytes)
        for first, end, expected in self._columns:
            is_same = matrix[:, first:end] == expected
            # Counting is the cheapest way to ask whether all are true.
            if np.count_nonzero(is_same) < is_same.size:
                matrix = matrix[: int(is_same.all(axis=1).argmin())]
        return matrix

    def are_alike(self, beginnings: U8) -> Bool:
        """Of each row, cut off behind its last constant or later, whether it is one of these."""
        are_same: Bool = np.ones(len(beginnings), np.bool_)
        for first, end, expected in self._columns:
            are_same &= (beginnings[:, first:end] == expected).all(axis=1)
        return are_same

    def is_at(self, buffer: ReadBuffer, start: int) -> bool:
        """Whether the row that begins here, and is complete, is one of these."""
        starts_with = buffer.raw.startswith
        # `all` of a generator would cost as much again.
        for at, expected in self._constants:  # noqa: SIM110
            if not starts_with(expected, start + at):
                return False
        return True

    def may_begin_at(self, buffer: ReadBuffer, start: int, end: int) -> bool:
        """Whether all bytes from here to `end` are as in a row of these that is incomplete."""
        for at, expected in self._constants:
            have_bytes = end - start - at
            if have_bytes <= 0:
                break
            if not buffer.raw.startswith(expected[:have_bytes], start + at):
                return False
        return end - start < self.row_bytes


class Stretch:
    """How many rows to compare next: more after a success, few after a failure.

    Comparing all that is there each time would cost the square of it where runs are short.
    """

    def __init__(self) -> None:
        self._rows = _FIRST_STRETCH

    def of(self, available: int) -> int:
        return min(available, self._rows)

    def went(self, well: bool) -> None:
        self._rows = min(self._rows * _GROWTH, 1 << 20) if well else _FIRST_STRETCH


class HasShape(Protocol):
    """What messages have in common, as far as a protocol knows it."""

    @property
    def shape(self) -> RowShape: ...


AlikeT = TypeVar("AlikeT", bound=HasShape)


class AlikeMessages(Generic[AlikeT]):
    """Takes the messages of one lane that are like those before: together where they are many, one
    by one where they are few. A protocol's receiver is one of these, and says what is alike."""

    def __init__(self) -> None:
        self._alike: AlikeT | None = None
        self._stretch = Stretch()

    def _add_one(self, alike: AlikeT, buffer: ReadBuffer, start: int, at_ns: int) -> None:
        raise NotImplementedError

    def _add_many(self, alike: AlikeT, rows: U8, at_ns: int) -> None:
        raise NotImplementedError

    def _take_alike(self, buffer: ReadBuffer, start: int, end: int, at_ns: int) -> int:
        """How many bytes that were."""
        alike = self._alike
        if alike is None:
            return 0
        at = start
        row_bytes = alike.shape.row_bytes
        while (available := (end - at) // row_bytes) > 0:
            # Where sizes change all the time this is the usual end, and much cheaper than comparing
            # many rows to find that out.
            if not alike.shape.is_at(buffer, at):
                break
            if available < FEW:
                self._add_one(alike, buffer, at, at_ns)
                at += row_bytes
                continue
            tried = self._stretch.of(available)
            rows = alike.shape.rows(buffer, at, tried)
            if len(rows):
                self._add_many(alike, rows, at_ns)
                at += len(rows) * row_bytes
            self._stretch.went(well=len(rows) == tried)
            if len(rows) < tried:
                break
        return at - start
