"""A sparse set of 63-bit numbers, filled and asked thousands of numbers at a time.

Numbers live in pages of 1024 bits. A directory row names the pages of 64 neighbours, and the rows
are found by binary search, so memory follows the numbers that are there and not the largest one: a
lonely 2^39 costs one page and one row. A page that fills up is given back and its directory entry
says FULL: numbers that come in order need one live page and 4 bytes per 1024 of them, however many
they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from bench_spark.errors import RunError

I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]
U8 = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]

PAGE_BITS = 10
PAGE_NUMBERS = 1 << PAGE_BITS
PAGE_BYTES = PAGE_NUMBERS // 8

_ROW_BITS = 6
_ROW_PAGES = 1 << _ROW_BITS
_ROW_BYTES = 4 * _ROW_PAGES
_ROW_NUMBERS = PAGE_NUMBERS * _ROW_PAGES

# Two slots of the arena that are never handed out, so that looking a number up needs no special
# case: the page nobody has written to, and the page that has everything.
_ABSENT = 0
_FULL = 1
_RESERVED_SLOTS = 2

_NO_PAGE = -1
_NO_ROW = np.iinfo(np.int64).max

_BIT_OF = np.array([1 << bit for bit in range(8)], dtype=np.uint8)


class SparseBitset:
    """Single-threaded: one owner.

    Pages and directory end at `memory_limit_bytes` with a RunError, before anything is changed.
    """

    def __init__(self, memory_limit_bytes: int) -> None:
        self._memory_limit_bytes = memory_limit_bytes

        # Directory: the rows by ascending key (with a sentinel at the end, so that every search
        # lands on something), and per row the slots of its pages.
        self._row_keys: I64 = np.array([_NO_ROW], dtype=np.int64)
        self._row_of_key: I32 = np.zeros(1, dtype=np.int32)
        self._rows: I32 = np.zeros((4, _ROW_PAGES), dtype=np.int32)

        # Arena: the live pages by slot, how many numbers each has, and which page it is.
        self._bits: U8 = np.zeros((8, PAGE_BYTES), dtype=np.uint8)
        self._bits[_FULL] = 0xFF
        self._filled: I32 = np.zeros(8, dtype=np.int32)
        self._filled[_FULL] = PAGE_NUMBERS
        self._page_of_slot: I64 = np.full(8, _NO_PAGE, dtype=np.int64)
        self._is_changed: Mask = np.zeros(8, dtype=np.bool_)
        self._slots_used = _RESERVED_SLOTS
        self._free_slots: list[int] = []

        # Pages that filled up, and so left the arena, since the last `take_changes`.
        self._completed: list[I64] = []
        # Where the last run ended: the next one nearly always goes on in the same page. If that is
        # full by now, its slot may serve another page, but then no run begins in it any more.
        self._last_slot = _ABSENT

    # -- adding ----------------------------------------------------------------------------------

    def add_run(self, first: int, end: int) -> None:
        """Add all numbers in [first, end), none of which may be in the set."""
        page = first >> PAGE_BITS
        if end - 1 >> PAGE_BITS == page and self._page_of_slot[self._last_slot] == page:
            slots = np.array([self._last_slot], dtype=np.int32)
        else:
            slots = self._slots_for(np.arange(page, (end - 1 >> PAGE_BITS) + 1))
        for slot in slots.tolist():
            low = first & (PAGE_NUMBERS - 1)
            high = min(low + end - first, PAGE_NUMBERS)
            _set_bit_range(self._bits[slot], low, high)
            self._filled[slot] += high - low
            first += high - low
        self._last_slot = int(slots[-1])
        self._settle(slots)

    def add(self, numbers: I64) -> Mask:
        """Add ascending, distinct numbers; returns which of them were there before."""
        pages = numbers >> PAGE_BITS
        starts, ends = runs_of_equals(pages)
        slots = self._slots_for(pages[starts])
        at = np.repeat(slots * np.int64(PAGE_BYTES), ends - starts)
        at += (numbers >> 3) & (PAGE_BYTES - 1)
        bit = _BIT_OF[numbers & 7]
        bits = self._bits.reshape(-1)
        was_there: Mask = (bits[at] & bit) != 0
        is_new = ~was_there
        # Every bit here is clear and occurs once, so adding sets it; add.at has a fast loop in
        # numpy, bitwise_or.at has not.
        np.add.at(bits, at[is_new], bit[is_new])
        gained = np.add.reduceat(is_new, starts, dtype=np.int32)
        self._filled[slots] += gained
        self._settle(slots[gained > 0])
        return was_there

    def unite(self, pages: I64, bits: U8) -> None:
        """Add whole pages, ascending and distinct; whatever is there already does not matter."""
        slots = self._slots_for(pages)
        is_open = slots != _FULL
        slots = slots[is_open]
        united = self._bits[slots] | bits[is_open]
        filled = np.bitwise_count(united).sum(axis=1, dtype=np.int32)
        has_gained = filled > self._filled[slots]
        self._bits[slots] = united
        self._filled[slots] = filled
        self._settle(slots[has_gained])

    def _settle(self, slots: I32) -> None:
        """Mark pages that gained numbers as changed, and give back those that are full."""
        self._is_changed[slots] = True
        is_full = self._filled[slots] == PAGE_NUMBERS
        if not np.count_nonzero(is_full):
            return
        full = slots[is_full]
        pages = self._page_of_slot[full]
        rows = self._row_of_key[np.searchsorted(self._row_keys, pages >> _ROW_BITS)]
        self._rows[rows, pages & (_ROW_PAGES - 1)] = _FULL
        self._completed.append(pages)
        self._bits[full] = 0
        self._filled[full] = 0
        self._is_changed[full] = False
        self._free_slots.extend(full.tolist())

    # -- pages and directory ---------------------------------------------------------------------

    def _slots_for(self, pages: I64) -> I32:
        """The slots of ascending pages, made where there are none; _FULL for those that are."""
        rows = self._rows_for(pages >> _ROW_BITS)
        column = pages & (_ROW_PAGES - 1)
        slots: I32 = self._rows[rows, column]
        is_absent = slots == _ABSENT
        absent = int(np.count_nonzero(is_absent))
        if absent:
            fresh = self._take_slots(absent)
            self._page_of_slot[fresh] = pages[is_absent]
            self._rows[rows[is_absent], column[is_absent]] = fresh
            slots[is_absent] = fresh
        return slots

    def _rows_for(self, keys: I64) -> I32:
        at = np.searchsorted(self._row_keys, keys)
        is_missing = self._row_keys[at] != keys
        if np.count_nonzero(is_missing):
            self._make_rows(np.unique(keys[is_missing]))
            at = np.searchsorted(self._row_keys, keys)
        rows: I32 = self._row_of_key[at]
        return rows

    def _make_rows(self, keys: I64) -> None:
        first = len(self._row_keys) - 1
        end = first + len(keys)
        self._check_memory(rows=end, slots=self._slots_used)
        self._rows = _grown(self._rows, end)
        at = np.searchsorted(self._row_keys, keys)
        self._row_keys = np.insert(self._row_keys, at, keys)
        self._row_of_key = np.insert(self._row_of_key, at, np.arange(first, end, dtype=np.int32))

    def _take_slots(self, count: int) -> I32:
        reused = min(count, len(self._free_slots))
        end = self._slots_used + count - reused
        self._check_memory(rows=len(self._row_keys) - 1, slots=end)
        if end > len(self._filled):
            self._bits = _grown(self._bits, end)
            self._filled = _grown(self._filled, end)
            self._page_of_slot = _grown(self._page_of_slot, end)
            self._is_changed = _grown(self._is_changed, end)
        taken = [self._free_slots.pop() for _ in range(reused)]
        taken.extend(range(self._slots_used, end))
        self._slots_used = end
        return np.array(taken, dtype=np.int32)

    def _check_memory(self, rows: int, slots: int) -> None:
        if rows * _ROW_BYTES + slots * PAGE_BYTES > self._memory_limit_bytes:
            raise RunError(
                f"the accounts of messages need more than {self._memory_limit_bytes} bytes: "
                "their sequence numbers are scattered too widely"
            )

    # -- asking ----------------------------------------------------------------------------------

    def count(self, first: int, end: int) -> int:
        """How many numbers of [first, end) are in the set."""
        first_key, before_first = divmod(first, _ROW_NUMBERS)
        end_key, before_end = divmod(end, _ROW_NUMBERS)
        _, rows = self._rows_between(first_key, end_key)
        whole_rows = int(self._filled[self._rows[rows]].sum(dtype=np.int64))
        return (
            whole_rows
            - int(np.count_nonzero(self._row_mask(first_key)[:before_first]))
            + int(np.count_nonzero(self._row_mask(end_key)[:before_end]))
        )

    def mask(self, first: int, end: int) -> Mask:
        """Which numbers of [first, end) are in the set."""
        mask = np.zeros(end - first, dtype=np.bool_)
        keys, _ = self._rows_between(first // _ROW_NUMBERS, -(-end // _ROW_NUMBERS))
        for key in keys.tolist():
            start = key * _ROW_NUMBERS
            low, high = max(first, start), min(end, start + _ROW_NUMBERS)
            mask[low - first : high - first] = self._row_mask(key)[low - start : high - start]
        return mask

    def gaps(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """The ranges of [first, end) that are not in the set, as ascending [first, end)."""
        for present_first, present_end in self._runs(first, end):
            if present_first > first:
                yield first, min(present_first, end)
            first = max(first, present_end)
        if first < end:
            yield first, end

    def _runs(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Runs of numbers that are in the set, ascending, at least those in [first, end)."""
        keys, rows = self._rows_between(first // _ROW_NUMBERS, -(-end // _ROW_NUMBERS))
        is_complete = (self._rows[rows] == _FULL).all(axis=1)
        for key, complete in zip(keys.tolist(), is_complete.tolist(), strict=True):
            start = key * _ROW_NUMBERS
            if complete:
                yield start, start + _ROW_NUMBERS
            else:
                yield from _runs_of_true(self._row_mask(key), start)

    def _rows_between(self, first_key: int, end_key: int) -> tuple[I64, I32]:
        """Keys and numbers of the directory rows with keys in [first_key, end_key)."""
        low, high = np.searchsorted(self._row_keys, [first_key, end_key])
        return self._row_keys[low:high], self._row_of_key[low:high]

    def _row_mask(self, key: int) -> Mask:
        """One directory row, number by number; empty if there is no such row."""
        _, rows = self._rows_between(key, key + 1)
        packed = self._bits[self._rows[rows]].reshape(-1)
        return np.unpackbits(packed, bitorder="little").view(np.bool_)

    # -- changes ---------------------------------------------------------------------------------

    def take_changes(self) -> tuple[I64, U8]:
        """The pages that gained numbers since the last call, ascending, with all their bits."""
        slots = np.flatnonzero(self._is_changed[: self._slots_used])
        completed = np.concatenate([np.zeros(0, np.int64), *self._completed])
        pages = np.concatenate([self._page_of_slot[slots], completed])
        full = np.full((len(completed), PAGE_BYTES), 0xFF, dtype=np.uint8)
        bits = np.concatenate([self._bits[slots], full])
        self._is_changed[slots] = False
        self._completed.clear()
        order = np.argsort(pages)
        return pages[order], bits[order]


def runs_of_equals(values: I64) -> tuple[I64, I64]:
    """Where each run of equal neighbours begins and ends; the array must not be empty."""
    is_start = np.empty(len(values), dtype=np.bool_)
    is_start[0] = True
    np.not_equal(values[1:], values[:-1], out=is_start[1:])
    starts = np.flatnonzero(is_start)
    ends = np.empty_like(starts)
    ends[:-1] = starts[1:]
    ends[-1] = len(values)
    return starts, ends


def _runs_of_true(mask: Mask, start: int) -> Iterator[tuple[int, int]]:
    """The runs of set entries as [first, end), counted from `start`."""
    steps = np.diff(mask.view(np.int8), prepend=0, append=0)
    firsts = np.flatnonzero(steps == 1) + start
    ends = np.flatnonzero(steps == -1) + start
    return zip(firsts.tolist(), ends.tolist(), strict=True)


def _set_bit_range(page: U8, low: int, high: int) -> None:
    """Set the bits [low, high) of one page; high > low."""
    first, last = low >> 3, high - 1 >> 3
    first_mask, last_mask = 0xFF << (low & 7) & 0xFF, 0xFF >> (-high & 7)
    if first == last:
        page[first] |= first_mask & last_mask
    else:
        page[first] |= first_mask
        page[first + 1 : last] = 0xFF
        page[last] |= last_mask


def _grown(array: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    """The array with room for `size` entries, new ones zero; doubles, so growing stays cheap."""
    if size <= len(array):
        return array
    larger = np.zeros((max(size, 2 * len(array)), *array.shape[1:]), dtype=array.dtype)
    larger[: len(array)] = array
    return larger
