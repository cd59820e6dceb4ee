"""Which messages of one connection are unacknowledged, by packet identifier. Pure.

Identifiers run from 1 to the number of messages that may be on their way. One that is free again
goes to the end of the line, and comes up when all others before it have been used.
"""

from __future__ import annotations

import numpy as np

from bench_spark.core.envelope import Envelopes, empty_envelopes
from bench_spark.transports.base import I64, U8, U16

_FREE, _SENT, _RECEIVED = 0, 1, 2


class PacketIdentifiers:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._heads = empty_envelopes(limit + 1)
        self._states: U8 = np.zeros(limit + 1, np.uint8)
        self._line: U16 = np.arange(1, limit + 1, dtype=np.uint16)
        """Free identifiers, in a ring."""
        self._first = 0
        self._places: I64 = np.zeros(limit + 1, np.int64)
        self._is_full = False
        self._enough = max(1, limit // 4)
        self.open_count = 0

    @property
    def room(self) -> int:
        """How many more may be sent now. Once the limit was reached, none until a quarter of it is
        free: a message for every acknowledgement would cost both sides as much as many at a
        time."""
        room = self._limit - self.open_count
        return 0 if self._is_full and room < self._enough else room

    def sent(self, heads: Envelopes) -> U16:
        """The identifiers with which these messages are to be sent, no more than the limit."""
        count = len(heads)
        if count > self._limit - self.open_count:
            raise ValueError(f"{count} messages, and {self._limit - self.open_count} identifiers")
        identifiers: U16 = self._line.take(np.arange(self._first, self._first + count), mode="wrap")
        self._first = (self._first + count) % self._limit
        self._heads[identifiers] = heads
        self._states[identifiers] = _SENT
        self.open_count += count
        self._is_full = self.open_count >= self._limit
        return identifiers

    def received(self, identifiers: U16) -> U16:
        """A PUBREC came for these: those that are ours, to be released (PUBREL)."""
        own = self._open(identifiers)
        self._states[own] = _RECEIVED
        return own

    def settle(self, identifiers: U16) -> Envelopes:
        """These are done with: the heads of those that were open."""
        own = self._open(identifiers)
        heads: Envelopes = self._heads[own]
        self._free(own)
        return heads

    def abandon(self) -> Envelopes:
        """The heads of all that is still open; nothing is open afterwards."""
        return self.settle(np.flatnonzero(self._states).astype(np.uint16))

    def _open(self, identifiers: U16) -> U16:
        """Those of these that are open, each once."""
        known = identifiers[identifiers <= self._limit]
        own: U16 = known[self._states[known] != _FREE]
        places = np.arange(len(own))
        self._places[own] = places
        once: U16 = own[self._places[own] == places]
        return once

    def _free(self, identifiers: U16) -> None:
        end = self._first + self._limit - self.open_count
        self._line.put(np.arange(end, end + len(identifiers)), identifiers, mode="wrap")
        self._states[identifiers] = _FREE
        self.open_count -= len(identifiers)
