"""Records of one size and no meaning, where IDs are wanted without a data set."""

from __future__ import annotations

import random

from bench_spark.datasets.source import I64, Records, Sizes
from bench_spark.scenario.load_sections import Message


class MadeRecords:
    """A `RecordSource` of one record: the body without its ID."""

    count = 1

    def __init__(self, message: Message, id_bytes: int, seed: int) -> None:
        """`id_bytes`: how much of the body the ID takes."""
        length = message.bytes - id_bytes
        is_zero = message.padding == "zero"
        self._record = bytes(length) if is_zero else random.Random(seed).randbytes(length)

    def read(self, numbers: I64) -> Records:
        return Records([self._record] * len(numbers))

    def sizes(self) -> Sizes:
        return Sizes(float(len(self._record)), len(self._record), 0)

    def place(self, number: int) -> str:
        return "message.bytes"

    def close(self) -> None:
        """There is nothing to close."""
