"""rd_kafka_message_t: librdkafka's messages, as arrays on the way in and as columns on the way out.

The layout is that of `rdkafka.h`, unchanged since librdkafka 0.9; `obstacles.py` checks it before
it is relied on.
"""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt

from bench_spark.core.envelope import ENVELOPE_BYTES, Envelopes, empty_envelopes
from bench_spark.transports.base import I64
from bench_spark.transports.kafka.addresses import WORD_BYTES, envelopes_at, records_at

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


class Messages:
    """Messages at these addresses, copied together; bodies and keys stay where they are."""

    def __init__(self, addresses: I64) -> None:
        self.addresses = addresses
        self._records = records_at(addresses, MESSAGE_DTYPE)

    def __len__(self) -> int:
        return len(self.addresses)

    @property
    def error(self) -> I32:
        return self._records["error"]

    @property
    def topic(self) -> I64:
        return self._records["topic"]

    @property
    def partition(self) -> I32:
        return self._records["partition"]

    @property
    def payload(self) -> I64:
        return self._records["payload"]

    @property
    def payload_bytes(self) -> I64:
        return self._records["payload_bytes"]

    @property
    def offset(self) -> I64:
        return self._records["offset"]

    @property
    def opaque(self) -> I64:
        return self._records["opaque"]

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
                self._records["key"].tolist(), self._records["key_bytes"].tolist(), strict=True
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
