"""Where receiving threads put down what they took, and the agent picks it up."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench_spark.transports.base import I64, Received
from bench_spark.transports.kafka.bell import Bell
from bench_spark.transports.kafka.columns import Columns

_MOST_WAITING_ROWS = 50_000


@dataclass
class Chunk:
    """What one thread took in one go."""

    lane: int
    received_ns: I64
    columns: Columns


class Inbox:
    """Where the threads put chunks down and the agent picks them up."""

    def __init__(self, bell: Bell) -> None:
        self._bell = bell
        self._chunks: deque[Chunk] = deque()
        self._rows_in = 0
        self._rows_out = 0
        self._counting = threading.Lock()

    @property
    def is_full(self) -> bool:
        return self._rows_in - self._rows_out > _MOST_WAITING_ROWS

    def put(self, chunk: Chunk) -> None:
        with self._counting:
            self._rows_in += len(chunk.received_ns)
        self._chunks.append(chunk)
        self._bell.ring()

    def take(self) -> list[Chunk]:
        taken = []
        while self._chunks:
            taken.append(self._chunks.popleft())
        self._rows_out += sum(len(chunk.received_ns) for chunk in taken)
        return taken


def joined_chunks(chunks: Sequence[Chunk]) -> Received:
    columns = [chunk.columns for chunk in chunks]
    counts = [len(chunk.received_ns) for chunk in chunks]
    lanes = np.array([chunk.lane for chunk in chunks], dtype=np.uint32)
    first = columns[0]
    return Received.of_columns(
        received_ns=np.concatenate([chunk.received_ns for chunk in chunks]),
        lane=np.repeat(lanes, counts),
        route=np.concatenate([each.route for each in columns]),
        head=np.concatenate([each.head for each in columns]),
        size=np.concatenate([each.size for each in columns]),
        redelivered=np.concatenate(
            [
                np.zeros(count, dtype=np.bool_) if each.redelivered is None else each.redelivered
                for each, count in zip(columns, counts, strict=True)
            ]
        ),
        bodies=None if first.bodies is None else [b for each in columns for b in each.bodies or ()],
        keys=None if first.keys is None else [k for each in columns for k in each.keys or ()],
        headers=None
        if first.headers is None
        else [h for each in columns for h in each.headers or ()],
    )
