"""Which messages of one channel the broker has settled. Pure.

Tags count from 1 in the order of publishing. A broker may settle them one by one, many at once
(`multiple`: everything still open up to this tag) and in any order, so what is open is a set with
gaps, kept as a ring over the tags between the oldest open one and the next to be sent. RabbitMQ
restarts tags at 1 on every channel: a ledger belongs to one channel and dies with it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bench_spark.core.envelope import Envelopes, empty_envelopes
from bench_spark.transports.base import I64, Bool

_MOST_AT_FIRST = 1024


class ConfirmLedger:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        # A thousand lanes have a ledger each: no larger than a small limit needs.
        capacity = min(_MOST_AT_FIRST, 1 << limit.bit_length())
        self._heads = empty_envelopes(capacity)
        self._is_open: npt.NDArray[np.bool_] = np.zeros(capacity, np.bool_)
        self._oldest = 1
        """No tag below this one is open."""
        self._next = 1
        self._is_full = False
        self._enough = max(1, limit // 4)
        self.open_count = 0

    @property
    def room(self) -> int:
        """How many more may be sent now. Once the limit was reached, none until a quarter of it is
        free: a message for every confirm would cost both sides as much as many at a time."""
        room = self._limit - self.open_count
        return 0 if self._is_full and room < self._enough else room

    def sent(self, heads: Envelopes) -> None:
        """These were published, in this order, on this channel."""
        first, self._next = self._next, self._next + len(heads)
        self._make_space(self._next - self._oldest, first)
        slots = self._slots(first, self._next)
        self._heads[slots] = heads
        self._is_open[slots] = True
        self.open_count += len(heads)
        self._is_full = self.open_count >= self._limit

    def settle(self, tag: int, multiple: bool) -> Envelopes:
        """The heads newly settled, oldest first. A tag that is not open settles nothing; with
        `multiple`, tag 0 means all."""
        if multiple:
            end = self._next if tag == 0 else min(tag + 1, self._next)
            first = self._oldest
        else:
            first, end = max(tag, self._oldest), min(tag + 1, self._next)
        if first >= end:
            return empty_envelopes(0)
        slots = self._slots(first, end)
        heads: Envelopes = self._heads[slots][self._is_open[slots]]
        self._is_open[slots] = False
        self.open_count -= len(heads)
        if first == self._oldest:
            self._advance(end)
        return heads

    def settle_many(self, tags: I64, are_multiple: Bool) -> Envelopes:
        """As if settled one after the other, in any order: the heads of all, oldest first."""
        if not are_multiple.any():
            return self._settle_singles(tags)
        up_to = tags[are_multiple]
        heads = self.settle(0 if up_to.min() == 0 else int(up_to.max()), multiple=True)
        singles = self._settle_singles(tags[~are_multiple])
        return np.concatenate((heads, singles)) if len(singles) else heads

    def abandon(self) -> Envelopes:
        """The heads of all that is still open; nothing is open afterwards."""
        return self.settle(0, multiple=True)

    def _settle_singles(self, tags: I64) -> Envelopes:
        # Sorted and without repetition: a tag counts once, and heads come oldest first.
        tags = np.unique(tags[(tags >= self._oldest) & (tags < self._next)])
        slots = tags % len(self._heads)
        settled = slots[self._is_open[slots]]
        heads: Envelopes = self._heads[settled]
        self._is_open[settled] = False
        self.open_count -= len(settled)
        if len(tags) and tags[0] == self._oldest:
            self._advance(self._oldest + 1)
        return heads

    def _advance(self, settled_up_to: int) -> None:
        """Move the oldest tag past everything settled, also past gaps filled earlier."""
        self._oldest = settled_up_to
        if self.open_count == 0:
            self._oldest = self._next
            return
        step = 64
        while True:
            end = min(self._oldest + step, self._next)
            still_open = self._is_open[self._slots(self._oldest, end)]
            ahead = int(still_open.argmax())
            if still_open[ahead]:
                self._oldest += ahead
                return
            self._oldest = end
            step *= 2

    def _slots(self, first: int, end: int) -> slice | I64:
        """Where in the ring these tags are: in one piece, or around its end."""
        slot, count = first % len(self._heads), end - first
        if slot + count <= len(self._heads):
            return slice(slot, slot + count)
        return np.arange(first, end, dtype=np.int64) % len(self._heads)

    def _make_space(self, needed: int, next_tag: int) -> None:
        """Grow by doubling: the limit may be millions, and is rarely reached."""
        capacity = len(self._heads)
        if needed <= capacity:
            return
        old_heads, old_open = self._heads, self._is_open
        old_slots = self._slots(self._oldest, next_tag)
        while capacity < needed:
            capacity *= 2
        self._heads = empty_envelopes(capacity)
        self._is_open = np.zeros(capacity, np.bool_)
        new_slots = self._slots(self._oldest, next_tag)
        self._heads[new_slots] = old_heads[old_slots]
        self._is_open[new_slots] = old_open[old_slots]
