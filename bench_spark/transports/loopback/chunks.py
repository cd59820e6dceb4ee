"""Messages as they lie in a queue. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bench_spark.measure.envelope import (
    ENVELOPE_BYTES,
    Envelopes,
    envelope_bytes,
    leading_envelopes,
)
from bench_spark.transports.base import I64, U32, Batch, Headers


@dataclass
class Chunk:
    """Messages of one batch that went to one queue; all but heads are shared with the sender."""

    head: Envelopes
    size: U32
    tail: bytes | Sequence[bytes]
    keys: Sequence[bytes] | None = None
    headers: Sequence[Headers] | None = None

    def __len__(self) -> int:
        return len(self.head)

    def bodies(self) -> list[bytes]:
        tails = [self.tail] * len(self) if isinstance(self.tail, bytes) else self.tail
        return [
            row.tobytes()[: size - len(tail)] + tail if size > len(tail) else tail
            for row, size, tail in zip(
                envelope_bytes(self.head), self.size.tolist(), tails, strict=True
            )
        ]


def chunk_of(batch: Batch, places: slice | I64) -> Chunk:
    """A copy of these messages' heads, cut as they would be in a body; tails are not copied."""
    head = np.array(batch.head[places])
    if 0 < batch.head_bytes < ENVELOPE_BYTES:
        envelope_bytes(head)[:, batch.head_bytes :] = 0
    is_plain = isinstance(batch.tail, bytes) and batch.head_bytes > 0
    if is_plain and batch.keys is None and batch.headers is None:
        size = np.full(len(head), batch.head_bytes + len(batch.tail), np.uint32)
        return Chunk(head, size, batch.tail)
    own = batch.rows(np.arange(len(batch))[places])
    tails = [own.tail] * len(own) if isinstance(own.tail, bytes) else own.tail
    lengths = np.fromiter(map(len, tails), np.uint32, len(tails))
    size = lengths + np.uint32(batch.head_bytes)
    if not batch.head_bytes:
        head = leading_envelopes(tails)
    return Chunk(head, size, own.tail, own.keys, own.headers)


def joined_columns(columns: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return columns[0] if len(columns) == 1 else np.concatenate(columns)
