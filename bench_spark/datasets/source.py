"""What a data set is to those who send it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]


class Records(NamedTuple):
    """Some records, in the order that was asked for."""

    bodies: Sequence[bytes]
    keys: Sequence[bytes] | None = None
    headers: Sequence[Mapping[str, bytes]] | None = None


class Sizes(NamedTuple):
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

    def sizes(self) -> Sizes: ...

    def place(self, number: int) -> str:
        """Where that record is, for people: file and line, or row."""

    def close(self) -> None: ...
