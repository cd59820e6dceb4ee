"""rd_kafka_message_t: librdkafka's messages, as arrays on the way in and as columns on the way out.

The layout is that of `rdkafka.h`, unchanged since librdkafka 0.9; `obstacles.py` checks it before
it is relied on.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from bench_spark.measure.envelope import ENVELOPE_BYTES, Envelopes, empty_envelopes
from bench_spark.transports.base import I64
from bench_spark.transports.kafka.addresses import WORD_BYTES, envelopes_at, words_at

I32 = npt.NDArray[np.int32]

MESSAGE_DTYPE = np.dtype(
    [
        ("error", np.int32),
        ("topic", np.int64),
        ("partition", np.int32),
        ("payload", np.int64),
        ("payload_bytes", np.int64),
        ("key", np.int64),
        ("key_bytes", np.int64),
        ("offset", np.int64),
        ("opaque", np.int64),
    ],
    align=True,
)
"""Pointers are kept as numbers. `opaque` is ours on the way in, and again in a delivery report."""


@dataclass(frozen=True)
class Messages:
    """Messages at these addresses; a column is read when it is asked for."""

    addresses: I64

    def __len__(self) -> int:
        return len(self.addresses)

    def _column(self, name: str) -> I64:
        offset_bytes = MESSAGE_DTYPE.fields[name][1]  # type: ignore[index]
        return words_at(self.addresses + offset_bytes)

    @cached_property
    def error(self) -> I32:
        return self._column("error").astype(np.int32)  # the upper half is padding

    @cached_property
    def topic(self) -> I64:
        return self._column("topic")

    @cached_property
    def partition(self) -> I32:
        return self._column("partition").astype(np.int32)

    @cached_property
    def payload(self) -> I64:
        return self._column("payload")

    @cached_property
    def payload_bytes(self) -> I64:
        return self._column("payload_bytes")

    @cached_property
    def offset(self) -> I64:
        return self._column("offset")

    @cached_property
    def opaque(self) -> I64:
        return self._column("opaque")

    def rows(self, places: I64 | npt.NDArray[np.bool_]) -> Messages:
        return Messages(self.addresses[places])

    def heads(self) -> Envelopes:
        """The first 32 bytes of each body, zeros where it ends before."""
        is_short = self.payload_bytes < ENVELOPE_BYTES
        if not is_short.any():
            return envelopes_at(self.payload)
        heads = empty_envelopes(len(self))
        heads[~is_short] = envelopes_at(self.payload[~is_short])
        # Not by the same view: behind a short body there need not be any memory.
        short = [body.ljust(ENVELOPE_BYTES, b"\0") for body in self.rows(is_short).bodies()]
        heads[is_short] = np.frombuffer(b"".join(short), dtype=heads.dtype)
        return heads

    def bodies(self) -> list[bytes]:
        """A message without a body counts as one with an empty body."""
        return [
            ctypes.string_at(payload, size) if payload else b""
            for payload, size in zip(
                self.payload.tolist(), self.payload_bytes.tolist(), strict=True
            )
        ]

    def keys(self) -> list[bytes | None]:
        return [
            ctypes.string_at(key, size) if key else None
            for key, size in zip(
                self._column("key").tolist(), self._column("key_bytes").tolist(), strict=True
            )
        ]


class Pointers:
    """Room for so many addresses, to be filled in by librdkafka."""

    def __init__(self, capacity: int) -> None:
        self._array = np.zeros(capacity, dtype=np.int64)
        self.capacity = capacity
        self.address = self._array.ctypes.data

    def make_room(self, capacity: int) -> None:
        """For at least so many; those that are there stay."""
        if capacity > self.capacity:
            grown = np.zeros(2 * capacity, dtype=np.int64)
            grown[: self.capacity] = self._array
            self._array, self.capacity, self.address = grown, len(grown), grown.ctypes.data

    def address_of(self, place: int) -> int:
        return self.address + place * WORD_BYTES

    def messages(self, count: int) -> Messages:
        """A copy: the room may be filled again."""
        return Messages(self._array[:count].copy())
