"""Heads of messages whose bodies do not hold them, until their delivery reports come. Pure.

A report brings back the number that was sent along with its message, and the body. Where the body
begins with the whole head that is enough: nothing needs to be remembered. Where it does not, the
upper half of that number says where the head is kept.
"""

from __future__ import annotations

import numpy as np

from bench_spark.core.envelope import ENVELOPE_BYTES, Envelopes, empty_envelopes
from bench_spark.transports.base import I64, U32, Batch
from bench_spark.transports.kafka.messages import Messages

_SHIFT = 32
_IN_BODY = 0
_NOT_KEPT = 1
_FIRST_PLACE = 2
_FIRST_CAPACITY = 1024


class Unsettled:
    def __init__(self, has_reports: bool = True) -> None:
        """Without reports nothing is ever asked for again, so nothing is kept."""
        self._has_reports = has_reports
        self._heads = empty_envelopes(0)
        self._free: I64 = np.zeros(0, np.int64)
        """Places that are free: the first `_free_count` of these."""
        self._free_count = 0

    def __len__(self) -> int:
        """How many are kept."""
        return len(self._heads) - self._free_count

    def opaques(self, batch: Batch, count: int) -> U32 | I64:
        """The numbers to send along with the first messages of a batch."""
        lanes = batch.lane[:count]
        if batch.head_bytes >= ENVELOPE_BYTES:
            return lanes
        if not self._has_reports:
            return lanes.astype(np.int64) | _NOT_KEPT << _SHIFT
        if self._free_count < count:
            self._grow(count)
        self._free_count -= count
        places = self._free[self._free_count : self._free_count + count]
        self._heads[places] = batch.head[:count]
        return lanes.astype(np.int64) | places + _FIRST_PLACE << _SHIFT

    def forget(self, opaques: I64) -> None:
        """Messages with these numbers were not sent after all."""
        marks = opaques >> _SHIFT
        self._release(marks[marks >= _FIRST_PLACE] - _FIRST_PLACE)

    def heads_of(self, messages: Messages) -> Envelopes:
        """Of messages that were reported; to be asked once for each."""
        marks = messages.opaque >> _SHIFT
        if not marks.any():
            return messages.heads()
        heads = empty_envelopes(len(messages))
        is_in_body, is_kept = marks == _IN_BODY, marks >= _FIRST_PLACE
        if is_in_body.any():
            heads[is_in_body] = messages.rows(is_in_body).heads()
        places = marks[is_kept] - _FIRST_PLACE
        heads[is_kept] = self._heads[places]
        self._release(places)
        return heads

    def _release(self, places: I64) -> None:
        self._free[self._free_count : self._free_count + len(places)] = places
        self._free_count += len(places)

    def _grow(self, count: int) -> None:
        before = len(self._heads)
        capacity = max(_FIRST_CAPACITY, 2 * before, before + count)
        heads = empty_envelopes(capacity)
        heads[:before] = self._heads
        free = np.zeros(capacity, np.int64)
        free[: self._free_count] = self._free[: self._free_count]
        self._heads, self._free = heads, free
        self._release(np.arange(before, capacity))
