"""Messages to send, laid out in memory the way librdkafka takes them. Pure.

Bodies of one batch are mostly of one size: then a block has a row for each, and every batch writes
its heads into it, and its tails where they differ. librdkafka copies a body as it takes it, so the
block serves again at once; it is kept small enough to stay in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from bench_spark.core.envelope import ENVELOPE_BYTES, envelope_bytes
from bench_spark.transports.base import I64, U8, Batch, Lane, common_tail_bytes
from bench_spark.transports.kafka.key_choice import KeyRule
from bench_spark.transports.kafka.messages import MESSAGE_DTYPE
from bench_spark.transports.kafka.unsettled import Unsettled

BLOCK_BYTES = 256 << 10
MOST_ROWS = 1024

Laid = npt.NDArray[np.void]
"""An array of MESSAGE_DTYPE."""


class Outbox:
    """Room for as many messages as are handed over by one call."""

    def __init__(self, keys: Keyring, unsettled: Unsettled) -> None:
        self._keys = keys
        self._unsettled = unsettled
        self._tail: bytes | None = None
        """What the rows of the block end with, where that is the same for all."""
        self._head_bytes = 0
        self._make_block(0)

    def lay_out(self, batch: Batch) -> Laid:
        """The first messages of the batch, at least one. Valid until the next call."""
        if isinstance(batch.tail, bytes | np.ndarray):
            rows = self._lay_out_rows(batch, batch.tail)
        else:
            rows = self._lay_out_each(batch, batch.tail[:MOST_ROWS])
        rows["opaque"] = self._unsettled.opaques(batch, len(rows))
        self._keys.put_into(rows, batch)
        return rows

    def _lay_out_rows(self, batch: Batch, tails: bytes | U8) -> Laid:
        """Bodies of one size."""
        width = batch.head_bytes
        body_bytes = width + (common_tail_bytes(tails) or 0)
        if self._block.ndim != 2 or self._block.shape[1] != body_bytes:
            self._make_block(body_bytes)
        rows = self._rows[: len(batch)]
        heads = envelope_bytes(np.ascontiguousarray(batch.head[: len(rows)]))
        self._block[: len(rows), :width] = heads[:, :width]
        if isinstance(tails, np.ndarray):
            self._tail = None
            self._block[: len(rows), width:] = tails[: len(rows)]
        elif tails is not self._tail or width != self._head_bytes:
            self._tail, self._head_bytes = tails, width
            self._block[:, width:] = np.frombuffer(tails, dtype=np.uint8)
        return rows

    def _make_block(self, body_bytes: int) -> None:
        count = min(max(1, BLOCK_BYTES // max(1, body_bytes)), MOST_ROWS)
        self._tail = None
        self._block = np.zeros((count, body_bytes), dtype=np.uint8)
        self._rows = np.zeros(count, dtype=MESSAGE_DTYPE)
        self._rows["payload"] = self._block.ctypes.data + np.arange(count) * body_bytes
        self._rows["payload_bytes"] = body_bytes

    def _lay_out_each(self, batch: Batch, tails: Sequence[bytes]) -> Laid:
        """Bodies that end differently, one behind the other."""
        self._tail = None
        width = batch.head_bytes
        sizes = np.fromiter(map(len, tails), dtype=np.int64, count=len(tails)) + width
        fitting = int(np.searchsorted(np.cumsum(sizes), BLOCK_BYTES, side="right"))
        count = max(1, fitting)
        # One byte more, so that even an empty body has an address: without one it is a tombstone.
        self._block = np.frombuffer(_joined_bodies(batch, tails[:count]) + b"\0", dtype=np.uint8)
        rows = np.zeros(count, dtype=MESSAGE_DTYPE)
        rows["payload"] = self._block.ctypes.data + _starts(sizes[:count])
        rows["payload_bytes"] = sizes[:count]
        return rows


def _joined_bodies(batch: Batch, tails: Sequence[bytes]) -> bytes:
    if not batch.head_bytes:
        return b"".join(tails)
    heads = np.ascontiguousarray(batch.head[: len(tails)]).tobytes()
    starts = range(0, len(heads), ENVELOPE_BYTES)
    return b"".join(
        part
        for start, tail in zip(starts, tails, strict=True)
        for part in (heads[start : start + batch.head_bytes], tail)
    )


class Keyring:
    """The keys of messages, by the rule of `kafka.keys`."""

    def __init__(self, rule: KeyRule, lanes: Sequence[Lane]) -> None:
        self._rule = rule
        members = [str(lane.member).encode() for lane in lanes]
        self._members, starts, self._member_bytes = one_behind_the_other(members)
        self._member_addresses = self._members.ctypes.data + starts
        self._kept: npt.NDArray[np.uint8] = self._members
        """The memory that rows point to."""

    def put_into(self, rows: Laid, batch: Batch) -> None:
        count = len(rows)
        addresses: I64 | int
        sizes: I64 | int
        if batch.keys is not None:
            self._kept, starts, sizes = one_behind_the_other(batch.keys[:count])
            addresses = self._kept.ctypes.data + starts
        elif self._rule.kind == "producer":
            lanes = batch.lane[:count]
            addresses, sizes = self._member_addresses[lanes], self._member_bytes[lanes]
        elif self._rule.is_numbered:
            self._kept, starts, sizes = _decimals(self._rule.numbers(batch.head[:count]))
            addresses = self._kept.ctypes.data + starts
        else:
            addresses, sizes = 0, 0
        rows["key"], rows["key_bytes"] = addresses, sizes


def one_behind_the_other(
    texts: Sequence[bytes],
) -> tuple[npt.NDArray[np.uint8], I64, I64]:
    """All in one piece of memory, where in it each starts, and its size."""
    sizes = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
    # One byte more, so that even an empty text has an address: a key of nothing is a key.
    memory = np.frombuffer(b"".join(texts) + b"\0", dtype=np.uint8)
    return memory, _starts(sizes), sizes


def _starts(sizes: I64) -> I64:
    starts: I64 = np.cumsum(sizes) - sizes
    return starts


def _decimals(numbers: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[np.uint8], I64, I64]:
    """Numbers as people write them, each at the right end of a row of equal width."""
    width = len(str(int(numbers.max())))
    powers = np.array([10**place for place in reversed(range(width))], dtype=np.uint64)
    digits = (numbers[:, np.newaxis] // powers % np.uint64(10) + np.uint64(ord("0"))).astype(
        np.uint8
    )
    sizes = np.maximum((numbers[:, np.newaxis] >= powers).sum(axis=1), 1).astype(np.int64)
    starts = np.arange(1, len(numbers) + 1, dtype=np.int64) * width - sizes
    return digits, starts, sizes
