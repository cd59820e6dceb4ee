"""Messages as they lie in a queue. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bench_spark.core.envelope import (
    ENVELOPE_BYTES,
    Envelopes,
    envelope_bytes,
    leading_envelopes,
)
from bench_spark.transports.base import (
    I64,
    U32,
    Batch,
    Headers,
    Tails,
    common_tail_bytes,
    each_tail,
)


@dataclass
class Chunk:
    """Messages of one batch that went to one queue."""

    head: Envelopes
    size: U32
    tail: Tails
    keys: Sequence[bytes] | None = None
    headers: Sequence[Headers] | None = None

    def __len__(self) -> int:
        return len(self.head)

    def bodies(self) -> list[bytes]:
        # A tail that all share has no end, so the heads decide.
        return [
            row.tobytes()[: size - len(tail)] + tail if size > len(tail) else tail
            for row, size, tail in zip(
                envelope_bytes(self.head), self.size.tolist(), each_tail(self.tail), strict=False
            )
        ]


def chunk_of(batch: Batch, places: slice | I64) -> Chunk:
    """These messages, copied where the sender uses its memory again; heads are cut as they would be
    in a body."""
    head = np.array(batch.head[places])
    if 0 < batch.head_bytes < ENVELOPE_BYTES:
        envelope_bytes(head)[:, batch.head_bytes :] = 0
    tail_bytes = common_tail_bytes(batch.tail)
    has_body_only = batch.keys is None and batch.headers is None
    if tail_bytes is not None and batch.head_bytes and has_body_only:
        size = np.full(len(head), batch.head_bytes + tail_bytes, np.uint32)
        tail = batch.tail
        return Chunk(head, size, np.array(tail[places]) if isinstance(tail, np.ndarray) else tail)
    own = batch.at(np.arange(len(batch))[places])
    tails = [tail for tail, _ in zip(each_tail(own.tail), own.head, strict=False)]
    lengths = np.fromiter(map(len, tails), np.uint32, len(tails))
    size = lengths + np.uint32(batch.head_bytes)
    if not batch.head_bytes:
        head = leading_envelopes(tails)
    return Chunk(head, size, own.tail, own.keys, own.headers)


def joined_columns(columns: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return columns[0] if len(columns) == 1 else np.concatenate(columns)
