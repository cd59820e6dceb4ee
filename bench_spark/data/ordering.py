"""Which record a message is. Pure: a function of producer and sequence, with nothing to remember.

Message `sequence` of producer p is number `sequence * producers + p` of one stream that all
producers of the run share. In random order that number is sent through a permutation which is
computed, not stored: a Feistel network over the next power of four, walked until it falls inside.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from bench_spark.config.sections import Dataset, RecordOrder

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]

_ROUNDS = 4
_BLOCK = 4096
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MASK = 2**64 - 1


@dataclass(frozen=True)
class RecordOrdering:
    records: int
    producers: int
    order: RecordOrder = "sequential"
    seed: int = 0
    _latest: list[Any] = field(default_factory=lambda: [-1, None], repr=False, compare=False)
    """Number and content of the block that was drawn last."""

    def numbers(self, producer: npt.NDArray[np.uint32], sequence: U64) -> I64:
        """Of the records that these messages are."""
        stream = sequence * np.uint64(self.producers) + producer
        if self.order == "sequential":
            return (stream % np.uint64(self.records)).astype(np.int64)
        # Small batches follow each other closely: their numbers are drawn many at a time.
        block = int(stream[0]) // _BLOCK
        within = stream - np.uint64(block * _BLOCK)
        if within.max() < _BLOCK:
            drawn: I64 = self._block(block)[within]
            return drawn
        return self._drawn(stream)

    def _block(self, block: int) -> I64:
        if self._latest[0] != block:
            first = block * _BLOCK
            drawn = self._drawn(np.arange(first, first + _BLOCK, dtype=np.uint64))
            self._latest[:] = block, drawn
        return cast(I64, self._latest[1])

    def _drawn(self, stream: U64) -> I64:
        if self.order == "sampled":
            drawn = _mixed(stream + np.uint64(_seed_word(self.seed)))
            return (drawn % np.uint64(self.records)).astype(np.int64)
        lap, within = np.divmod(stream, np.uint64(self.records))
        return self._permuted(lap, within).astype(np.int64)

    def _permuted(self, lap: U64, within: U64) -> U64:
        """Another permutation for each lap."""
        half_bits = max(1, ((self.records - 1).bit_length() + 1) // 2)
        key = _mixed(lap + np.uint64(_seed_word(self.seed)))
        walked = _feistel(within, key, half_bits)
        while (outside := walked >= self.records).any():
            walked[outside] = _feistel(walked[outside], key[outside], half_bits)
        return walked


def ordering_of(dataset: Dataset, records: int, producers: int) -> RecordOrdering:
    return RecordOrdering(records, producers, dataset.order, dataset.seed)


def _feistel(values: U64, key: U64, half_bits: int) -> U64:
    """A bijection of the numbers of twice so many bits."""
    bits, mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = values >> bits, values & mask
    for number in range(_ROUNDS):
        salt = key + np.uint64((number + 1) * int(_GOLDEN) & _MASK)
        left, right = right, left ^ (_mixed(right + salt) & mask)
    return left << bits | right


def _mixed(values: U64) -> U64:
    """Every bit depends on all others (the finaliser of splitmix64)."""
    values = (values ^ values >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ values >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return values ^ values >> np.uint64(31)


def _seed_word(seed: int) -> int:
    """Seeds that are near each other must not give orders that are."""
    return int(_mixed(np.array([seed], np.uint64) * _GOLDEN + _GOLDEN)[0])
