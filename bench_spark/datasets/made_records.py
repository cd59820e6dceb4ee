"""Records of one size and no meaning, where IDs are wanted without a data set."""

from __future__ import annotations

from bench_spark.core.random_bytes import RandomBytes
from bench_spark.datasets.source import I64, Records, Sizes
from bench_spark.scenario.load_sections import Message


class MadeRecords:
    """A `RecordSource` of one record, the body without its ID. A random one differs
    from reading to reading."""

    count = 1

    def __init__(self, message: Message, id_bytes: int, seed: int) -> None:
        """`id_bytes`: how much of the body the ID takes."""
        self._length = message.bytes - id_bytes
        self._random = None if message.padding == "zero" else RandomBytes(seed)

    def read(self, numbers: I64) -> Records:
        if self._random is None:
            return Records([bytes(self._length)] * len(numbers))
        return Records([row.tobytes() for row in self._random.rows(len(numbers), self._length)])

    def sizes(self) -> Sizes:
        return Sizes(float(self._length), self._length, 0, self._length)

    def place(self, number: int) -> str:
        return "message.bytes"

    def close(self) -> None:
        """There is nothing to close."""
