"""Messages as they lie in a queue. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench_spark.core.envelope import (
    ENVELOPE_BYTES,
    Envelopes,
    empty_envelopes,
    envelope_bytes,
    leading_envelopes,
)
from bench_spark.core.kernels import kernel, warm_up
from bench_spark.transports.batches import (
    I64,
    RECEIVED_DTYPE,
    U32,
    Batch,
    Headers,
    Rows,
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


def chunk_of(batch: Batch, places: slice | I64, keeps_tails: bool = True) -> Chunk:
    """These messages, copied where the sender uses its memory again; heads are cut as they would be
    in a body. Tails of random bytes are left out where no consumer will look at bodies."""
    head = np.array(batch.head[places])
    if 0 < batch.head_bytes < ENVELOPE_BYTES:
        envelope_bytes(head)[:, batch.head_bytes :] = 0
    tail_bytes = common_tail_bytes(batch.tail)
    has_body_only = batch.keys is None and batch.headers is None
    if tail_bytes is not None and batch.head_bytes and has_body_only:
        size = np.full(len(head), batch.head_bytes + tail_bytes, np.uint32)
        tail = batch.tail
        if isinstance(tail, np.ndarray):
            tail = np.array(tail[places]) if keeps_tails else b""
        return Chunk(head, size, tail)
    own = batch.at(np.arange(len(batch))[places])
    tails = [tail for tail, _ in zip(each_tail(own.tail), own.head, strict=False)]
    lengths = np.fromiter(map(len, tails), np.uint32, len(tails))
    size = lengths + np.uint32(batch.head_bytes)
    if not batch.head_bytes:
        head = leading_envelopes(tails)
    return Chunk(head, size, own.tail, own.keys, own.headers)


@kernel
def deliver(heads: Envelopes, sizes: U32, rows: Rows, turns: I64, first: int, at_ns: int) -> None:
    """Write the messages of a chunk as received ones: the `first` goes to that lane and route of
    `turns`, the others follow in turn."""
    turn = first % len(turns)
    for at in range(len(heads)):
        row, sent = rows[at], heads[at]
        head = row["head"]
        head["sent_ns"] = sent["sent_ns"]
        head["intended_ns"] = sent["intended_ns"]
        head["sequence"] = sent["sequence"]
        head["producer"] = sent["producer"]
        head["run_tag"] = sent["run_tag"]
        row["received_ns"] = at_ns
        row["lane"] = turns[turn, 0]
        row["route"] = turns[turn, 1]
        row["size"] = sizes[at]
        row["subscription"] = 0
        row["redelivered"] = False
        row["corrupted"] = False
        turn += 1
        if turn == len(turns):
            turn = 0


@warm_up
def _compile() -> None:
    rows, turns = np.zeros(1, RECEIVED_DTYPE), np.zeros((1, 2), np.int64)
    deliver(empty_envelopes(1), np.zeros(1, np.uint32), rows, turns, 0, 0)
