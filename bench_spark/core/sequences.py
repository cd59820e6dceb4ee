"""Which sequence numbers have arrived: one exact set per group, and what came twice or late.

A group is one stream that numbers its messages from 0: a (subscription, producer) pair, or a
producer's lane. Agents `add` what they see and `export` what changed; the driver `absorb`s the
exports of all agents into one union, so a duplicate in one agent cannot hide a loss in another.

The sets of all groups lie in one array of 64-bit words, so that a kernel takes them as a single
argument: a header, the largest sequence of each group, and a hash table of pages with open
addressing. A page has 1024 bits. Memory follows the numbers that are there and not the largest one:
a lonely 2^39 costs one page. A page that fills up leaves the table, and one bit in a page of full
pages stands for it: numbers that come in order need one live page and 152 bytes per million.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from bench_spark.core.kernels import inlined, kernel
from bench_spark.errors import RunError

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]

PAGE_BITS = 10
PAGE_NUMBERS = 1 << PAGE_BITS
PAGE_BYTES = PAGE_NUMBERS // 8

_SEQUENCE_BITS = 40
_PAGE_INDEX_BITS = _SEQUENCE_BITS - PAGE_BITS

SEQUENCE_LIMIT = 1 << _SEQUENCE_BITS
"""Sequences stay below this: 127 days of 100 000 messages a second."""
GROUP_LIMIT = 1 << 23
PAGE_LIMIT = 1 << _PAGE_INDEX_BITS
MEMORY_LIMIT_BYTES = 1 << 29

# -- the words of a set ----------------------------------------------------------------------------

_SLOTS = 0
"""Slots of the hash table: a power of two."""
_USED = 1
_GROUPS = 2
_VERSION = 3
"""Grows with every number that is added."""
_COMPLETED = 4
"""How many pages have filled up since Python fetched their keys, which follow the header."""
_HEADER_WORDS = 5
_COMPLETED_ROOM = 256
_HIGHEST = _HEADER_WORDS + _COMPLETED_ROOM
"""Here begin the largest sequences of the groups, -1 for none. The table follows them."""

# Of each page in the table. Its key is the group and the page's number in it, plus one: 0 marks an
# empty slot.
_KEY = 0
_FILLED = 1
_CHANGED = 2
_BITS = 3
_WORDS = _BITS + PAGE_NUMBERS // 64

_FULL_PAGES = 1 << 60
"""In the key of a page whose bits stand for 1024 pages that are full."""
_FIRST_SLOTS = 16

NEW = 0
DUPLICATE = 1
OUT_OF_ORDER = 2
NO_ROOM = 3
"""Nothing was added: `SequenceSets.make_room`, and try again."""


@inlined
def slot_of(key: int, slots: int) -> int:
    """Where the search for a page begins."""
    mixed = (key & 0x7FFFFFFF) * 0x9E3779B1 ^ (key >> 31) * 0x85EBCA6B
    return (mixed ^ mixed >> 32) & (slots - 1)


@inlined
def find_page(memory: I64, key: int) -> int:
    """The first word of this page, or of the empty slot where it belongs."""
    slots = memory[_SLOTS]
    base = _HIGHEST + memory[_GROUPS]
    slot = slot_of(key, slots)
    while True:
        at = base + slot * _WORDS
        found = memory[at]
        if found == key + 1 or found == 0:
            return int(at)
        slot = (slot + 1) & (slots - 1)


@inlined
def has_room(memory: I64) -> bool:
    """Whether two more pages fit, and the key of one that fills up."""
    is_sparse = 4 * (memory[_USED] + 2) <= 3 * memory[_SLOTS]
    return bool(is_sparse and memory[_COMPLETED] < _COMPLETED_ROOM)


@kernel
def is_full_page(memory: I64, key: int) -> bool:
    """Whether a page that is not in the table has left it because it was full."""
    at = find_page(memory, _FULL_PAGES | key >> PAGE_BITS)
    if memory[at] == 0:
        return False
    bit = key & (PAGE_NUMBERS - 1)
    return bool(memory[at + _BITS + (bit >> 6)] >> (bit & 63) & 1)


@kernel
def remove_page(memory: I64, at: int) -> None:
    """Empty a slot, and move those up that were pushed on by it."""
    slots = memory[_SLOTS]
    base = _HIGHEST + memory[_GROUPS]
    hole = (at - base) // _WORDS
    slot = hole
    while True:
        slot = (slot + 1) & (slots - 1)
        here = base + slot * _WORDS
        if memory[here] == 0:
            break
        home = slot_of(memory[here] - 1, slots)
        if (slot - home) & (slots - 1) >= (slot - hole) & (slots - 1):
            there = base + hole * _WORDS
            for word in range(_WORDS):
                memory[there + word] = memory[here + word]
            hole = slot
    there = base + hole * _WORDS
    for word in range(_WORDS):
        memory[there + word] = 0
    memory[_USED] -= 1


@kernel
def complete_page(memory: I64, at: int) -> None:
    """Replace a page that is full by one bit; there must be room."""
    key = memory[at] - 1
    memory[_HEADER_WORDS + memory[_COMPLETED]] = key
    memory[_COMPLETED] += 1
    remove_page(memory, at)
    upper = _FULL_PAGES | key >> PAGE_BITS
    at = find_page(memory, upper)
    if memory[at] == 0:
        memory[at] = upper + 1
        memory[_USED] += 1
    bit = key & (PAGE_NUMBERS - 1)
    memory[at + _BITS + (bit >> 6)] |= np.int64(1) << (bit & 63)
    memory[at + _FILLED] += 1


@inlined
def add_sequence(memory: I64, group: int, sequence: int) -> int:
    """Add one number; returns NEW, DUPLICATE, OUT_OF_ORDER or NO_ROOM."""
    key = group << _PAGE_INDEX_BITS | sequence >> PAGE_BITS
    at = find_page(memory, key)
    if memory[at] == 0:
        if is_full_page(memory, key):
            return DUPLICATE
        if not has_room(memory):
            return NO_ROOM
        memory[at] = key + 1
        memory[_USED] += 1
    page = memory[at : at + _WORDS]
    word = _BITS + ((sequence & (PAGE_NUMBERS - 1)) >> 6)
    bits, bit = page[word], np.int64(1) << (sequence & 63)
    if bits & bit:
        return DUPLICATE
    filled = page[_FILLED] + 1
    if filled == PAGE_NUMBERS and not has_room(memory):
        return NO_ROOM
    page[word] = bits | bit
    page[_FILLED] = filled
    page[_CHANGED] = 1
    memory[_VERSION] += 1
    if filled == PAGE_NUMBERS:
        complete_page(memory, at)
    if sequence < memory[_HIGHEST + group]:
        return OUT_OF_ORDER
    memory[_HIGHEST + group] = sequence
    return NEW


@kernel
def add_sequences(memory: I64, group: I64, sequence: I64, found: U8, first: int) -> int:
    """Add numbers from the `first` on, up to one for which there is no room; returns how far."""
    for place in range(first, len(group)):
        what = add_sequence(memory, group[place], sequence[place])
        if what == NO_ROOM:
            return place
        found[place] = what
    return len(group)


@kernel
def unite_page(memory: I64, key: int, bits: I64, place: int) -> bool:
    """Add all numbers of one page; False without room for it."""
    at = find_page(memory, key)
    if memory[at] == 0:
        if is_full_page(memory, key):
            return True
        if not has_room(memory):
            return False
        memory[at] = key + 1
        memory[_USED] += 1
    elif not has_room(memory):
        return False
    last = -1
    for word in range(PAGE_NUMBERS // 64):
        gained = bits[place, word] & ~memory[at + _BITS + word]
        if gained != 0:
            memory[at + _BITS + word] |= gained
            for bit in range(64):
                if gained >> bit & 1:
                    memory[at + _FILLED] += 1
                    last = word * 64 + bit
    if last < 0:
        return True
    memory[at + _CHANGED] = 1
    memory[_VERSION] += 1
    if memory[at + _FILLED] == PAGE_NUMBERS:
        complete_page(memory, at)
    group = key >> _PAGE_INDEX_BITS
    sequence = (key & (PAGE_LIMIT - 1)) << PAGE_BITS | last
    memory[_HIGHEST + group] = max(memory[_HIGHEST + group], sequence)
    return True


@kernel
def unite_pages(memory: I64, keys: I64, bits: I64, first: int) -> int:
    """Add pages, none of them blank, from the `first` on, up to one for which there is no room."""
    for place in range(first, len(keys)):
        if not unite_page(memory, keys[place], bits, place):
            return place
    return len(keys)


@kernel
def move_pages(source: I64, target: I64) -> None:
    """Copy all pages of one table into another, which is empty and larger."""
    base = _HIGHEST + source[_GROUPS]
    for slot in range(source[_SLOTS]):
        here = base + slot * _WORDS
        if source[here] != 0:
            there = find_page(target, source[here] - 1)
            for word in range(_WORDS):
                target[there + word] = source[here + word]
    target[_USED] = source[_USED]


# -- pages on their way elsewhere ------------------------------------------------------------------


def plausible(sequence: npt.NDArray[Any]) -> Mask:
    """Which of these 64-bit numbers, signed or not, can be sequences: only those may be added."""
    return sequence.view(np.uint64) < SEQUENCE_LIMIT


@dataclass(frozen=True, eq=False)
class Added:
    """What was found about each sequence of one `add`, in the order given.

    A duplicate is a sequence the group had already, be it from earlier in the same call. Out of
    order is one that is smaller than the group's largest before it and not a duplicate: a
    redelivery counts once, as a duplicate.
    """

    duplicate: Mask
    out_of_order: Mask


@dataclass(frozen=True, eq=False)
class SequencePages:
    """Parts of sequence sets on their way elsewhere.

    Bit i of row k (of its byte i // 8, lowest bit first) stands for sequence `page[k] * 1024 + i`
    of `group[k]`.
    """

    group: I64
    page: I64
    bits: U8

    def __len__(self) -> int:
        return len(self.group)

    def to_bytes(self) -> bytes:
        """A compact form that says what it is: 100 000 sequences in a row take some 150 bytes."""
        keys = self.group << _PAGE_INDEX_BITS | self.page
        # Neighbouring pages follow each other, so the steps compress far better than the keys.
        body = np.diff(keys, prepend=0).astype("<i8").tobytes() + self.bits.tobytes()
        return _FORM.pack(_FORM_MAGIC, _FORM_VERSION, len(keys)) + zlib.compress(body)

    @classmethod
    def from_bytes(cls, data: bytes) -> SequencePages:
        """Back from `to_bytes`; ValueError if that is not where it came from."""
        if len(data) < _FORM.size:
            raise ValueError(f"sequence pages: {len(data)} bytes are too few")
        magic, version, count = _FORM.unpack_from(data)
        if magic != _FORM_MAGIC or version != _FORM_VERSION:
            raise ValueError(f"sequence pages: unknown form {magic!r} {version}")
        body = _unpacked(data[_FORM.size :], count * (8 + PAGE_BYTES))
        keys = np.cumsum(np.frombuffer(body, "<i8", count), dtype=np.int64)
        group, page = keys >> _PAGE_INDEX_BITS, keys & (PAGE_LIMIT - 1)
        _check_range("group", group, GROUP_LIMIT)
        bits = np.frombuffer(body, np.uint8, offset=8 * count).reshape(count, PAGE_BYTES)
        return cls(group, page, bits)


_FORM = struct.Struct("<4sHI")
_FORM_MAGIC = b"SEQP"
_FORM_VERSION = 1


def _unpacked(data: bytes, size: int) -> bytes:
    """Exactly `size` bytes, without ever unpacking more than that from a hostile stream."""
    unpacker = zlib.decompressobj()
    try:
        body = unpacker.decompress(data, size + 1)
    except zlib.error as error:
        raise ValueError(f"sequence pages: {error}") from error
    if len(body) != size or not unpacker.eof or unpacker.unused_data:
        raise ValueError(f"sequence pages: the content is not {size} bytes long")
    return body


def _is_within(numbers: I64, limit: int) -> bool:
    """Whether all lie in [0, limit): read as unsigned, a negative number is a huge one."""
    return not np.count_nonzero(numbers.view(np.uint64) >= limit)


def _check_range(name: str, numbers: I64, limit: int) -> None:
    """Refuse numbers that would end up in another group's range."""
    if not _is_within(numbers, limit):
        raise ValueError(f"a {name} lies in 0 .. {limit - 1}")


# -- the sets --------------------------------------------------------------------------------------


class SequenceSets:
    """One set of sequences per group. Single-threaded: one owner.

    More groups than announced are taken in as they appear. The table ends at `memory_limit_bytes`
    with a RunError: only numbers scattered at random, or billions of them shared with other
    consumers, ever come near.
    """

    def __init__(self, groups: int, memory_limit_bytes: int = MEMORY_LIMIT_BYTES) -> None:
        self._memory_limit_bytes = memory_limit_bytes
        self._completed: list[I64] = []
        """Keys of pages that filled up since the last export, as far as they were fetched."""
        self._index: tuple[int, I64, I64] = (-1, np.zeros(0, np.int64), np.zeros(0, np.int64))
        """Of which version, the keys of the pages in ascending order, and their slots."""
        self.memory: I64 = self._blank(0, _FIRST_SLOTS)
        """What kernels take; another array after `make_room` and `ensure_groups`."""
        self.ensure_groups(groups)

    @staticmethod
    def _blank(groups: int, slots: int) -> I64:
        memory = np.zeros(_HIGHEST + groups + slots * _WORDS, np.int64)
        memory[_SLOTS], memory[_GROUPS] = slots, groups
        memory[_HIGHEST : _HIGHEST + groups] = -1
        return memory

    @property
    def groups(self) -> int:
        return int(self.memory[_GROUPS])

    def ensure_groups(self, groups: int) -> None:
        """Make room for groups 0 .. `groups` - 1; never takes any away."""
        if groups > GROUP_LIMIT:
            raise ValueError(f"{groups} groups are more than {GROUP_LIMIT}")
        if groups > self.groups:
            self._rebuild(groups, int(self.memory[_SLOTS]))

    def _rebuild(self, groups: int, slots: int) -> None:
        self._fetch_completed()
        old, new = self.memory, self._blank(groups, slots)
        new[_VERSION] = old[_VERSION]
        known = int(old[_GROUPS])
        new[_HIGHEST : _HIGHEST + known] = old[_HIGHEST : _HIGHEST + known]
        move_pages(old, new)
        self.memory = new
        self._index = (-1, self._index[1], self._index[2])

    def make_room(self) -> None:
        """After a kernel found NO_ROOM."""
        self._fetch_completed()
        slots = int(self.memory[_SLOTS])
        if 4 * (int(self.memory[_USED]) + 2) <= 3 * slots:
            return
        if 2 * slots * _WORDS * 8 > self._memory_limit_bytes:
            raise RunError(
                f"the accounts of messages need more than {self._memory_limit_bytes} bytes: "
                "their sequence numbers are scattered too widely"
            )
        self._rebuild(self.groups, 2 * slots)

    def _fetch_completed(self) -> None:
        count = int(self.memory[_COMPLETED])
        if count:
            self._completed.append(self.memory[_HEADER_WORDS : _HEADER_WORDS + count].copy())
            self.memory[_COMPLETED] = 0

    # -- adding ----------------------------------------------------------------------------------

    def add(self, group: I64, sequence: I64) -> Added:
        """Take in one sequence per row, in the order of arrival."""
        group = np.ascontiguousarray(group, dtype=np.int64)
        sequence = np.ascontiguousarray(sequence, dtype=np.int64)
        if group.shape != sequence.shape:
            raise ValueError(f"{group.shape} groups for {sequence.shape} sequences")
        _check_range("sequence", sequence, SEQUENCE_LIMIT)
        self._admit(group)
        found = np.zeros(len(group), np.uint8)
        done = add_sequences(self.memory, group, sequence, found, 0)
        while done < len(group):
            self.make_room()
            done = add_sequences(self.memory, group, sequence, found, done)
        return Added(found == DUPLICATE, found == OUT_OF_ORDER)

    def _admit(self, group: I64) -> None:
        if not _is_within(group, self.groups):
            _check_range("group", group, GROUP_LIMIT)
            self.ensure_groups(int(group.max()) + 1)

    # -- asking ----------------------------------------------------------------------------------

    def count(self, group: int, first: int, end: int) -> int:
        """How many sequences of [first, end) the group has."""
        first, end = max(first, 0), min(end, SEQUENCE_LIMIT)
        if first >= end:
            return 0
        return self._count_before(group, end) - self._count_before(group, first)

    def members(self, group: int, first: int, end: int) -> Mask:
        """Which sequences of [first, end) the group has: one byte each, so ask in parts."""
        if not 0 <= first <= end <= SEQUENCE_LIMIT:
            raise ValueError(f"[{first}, {end}) is no range of sequences")
        if first == end:
            return np.zeros(0, np.bool_)
        first_page = first >> PAGE_BITS
        mask = self._mask(group, first_page, (end - 1 >> PAGE_BITS) + 1)
        return mask[first - (first_page << PAGE_BITS) :][: end - first]

    def missing(self, group: int, first: int, end: int, limit: int = 20) -> list[tuple[int, int]]:
        """The first `limit` gaps in [first, end), each as its own [first, end): for people."""
        first, end = max(first, 0), min(end, SEQUENCE_LIMIT)
        if first >= end:
            return []
        return list(islice(self._gaps(group, first, end), limit))

    def _table(self) -> I64:
        """The pages by slot."""
        return self.memory[_HIGHEST + self.groups :].reshape(-1, _WORDS)

    def _between(self, first_key: int, end_key: int) -> tuple[I64, I64]:
        """Keys of the pages in [first_key, end_key), ascending, and their slots."""
        version = int(self.memory[_VERSION])
        if self._index[0] != version:
            keys = self._table()[:, _KEY] - 1
            slots = np.flatnonzero(keys >= 0)
            slots = slots[np.argsort(keys[slots])]
            self._index = (version, keys[slots], slots)
        _, keys, slots = self._index
        low, high = np.searchsorted(keys, [first_key, end_key])
        return keys[low:high], slots[low:high]

    def _count_before(self, group: int, sequence: int) -> int:
        table, key = self._table(), group << _PAGE_INDEX_BITS
        page, bit = divmod(sequence, PAGE_NUMBERS)
        _, live = self._between(key, key + page)
        upper_key = _FULL_PAGES | key >> PAGE_BITS
        upper_page, upper_bit = divmod(page, PAGE_NUMBERS)
        _, upper = self._between(upper_key, upper_key + upper_page)
        full = int(table[upper, _FILLED].sum())
        if upper_bit:
            full += int(np.count_nonzero(self._full_mask(upper_key + upper_page)[:upper_bit]))
        partial = int(np.count_nonzero(self._mask(group, page, page + 1)[:bit])) if bit else 0
        return int(table[live, _FILLED].sum()) + full * PAGE_NUMBERS + partial

    def _full_mask(self, upper_key: int) -> Mask:
        """Of the 1024 pages that a page of full pages stands for: which of them are full."""
        _, slots = self._between(upper_key, upper_key + 1)
        if not len(slots):
            return np.zeros(PAGE_NUMBERS, np.bool_)
        return _unpacked_bits(self._bits(slots))

    def _bits(self, slots: I64) -> U8:
        words = self._table()[slots, _BITS:]
        return np.ascontiguousarray(words, "<i8").view(np.uint8).reshape(-1, PAGE_BYTES)

    def _mask(self, group: int, first_page: int, end_page: int) -> Mask:
        """Whole pages, number by number."""
        key = group << _PAGE_INDEX_BITS
        packed = np.zeros((end_page - first_page, PAGE_BYTES), np.uint8)
        keys, slots = self._between(key + first_page, key + end_page)
        packed[keys - (key + first_page)] = self._bits(slots)
        upper_key = _FULL_PAGES | key >> PAGE_BITS
        for upper_page in range(first_page >> PAGE_BITS, (end_page - 1 >> PAGE_BITS) + 1):
            start = upper_page << PAGE_BITS
            full = np.flatnonzero(self._full_mask(upper_key + upper_page)) + start
            packed[full[(full >= first_page) & (full < end_page)] - first_page] = 0xFF
        return _unpacked_bits(packed)

    def _gaps(self, group: int, first: int, end: int) -> Iterator[tuple[int, int]]:
        """The ranges of [first, end) that are not in the set, ascending."""
        for present_first, present_end in self._runs(group, first, end):
            if present_first > first:
                yield first, min(present_first, end)
            first = max(first, present_end)
            if first >= end:
                return
        if first < end:
            yield first, end

    def _runs(self, group: int, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Runs of numbers that are in the set, ascending, at least those in [first, end)."""
        key = group << _PAGE_INDEX_BITS
        upper_key = _FULL_PAGES | key >> PAGE_BITS
        first_upper, end_upper = first >> 2 * PAGE_BITS, (end - 1 >> 2 * PAGE_BITS) + 1
        live, _ = self._between(key + (first_upper << PAGE_BITS), key + (end_upper << PAGE_BITS))
        upper, slots = self._between(upper_key + first_upper, upper_key + end_upper)
        complete = self._table()[slots, _FILLED] == PAGE_NUMBERS
        is_complete = dict(zip((upper - upper_key).tolist(), complete.tolist(), strict=True))
        for place in np.union1d((live - key) >> PAGE_BITS, upper - upper_key).tolist():
            start = place << 2 * PAGE_BITS
            if is_complete.get(place, False):
                yield start, start + (1 << 2 * PAGE_BITS)
            else:
                first_page = place << PAGE_BITS
                mask = self._mask(group, first_page, first_page + PAGE_NUMBERS)
                yield from _runs_of_true(mask, start)

    # -- exchange --------------------------------------------------------------------------------

    def export(self) -> SequencePages:
        """All pages that changed since the last export, each as it is now."""
        self._fetch_completed()
        table = self._table()
        changed = np.flatnonzero(table[:, _CHANGED])
        completed = np.concatenate([np.zeros(0, np.int64), *self._completed])
        keys = np.concatenate([table[changed, _KEY] - 1, completed])
        full = np.full((len(completed), PAGE_BYTES), 0xFF, dtype=np.uint8)
        bits = np.concatenate([self._bits(changed), full])
        table[changed, _CHANGED] = 0
        self._completed.clear()
        order = np.argsort(keys)
        keys = keys[order]
        return SequencePages(keys >> _PAGE_INDEX_BITS, keys & (PAGE_LIMIT - 1), bits[order])

    def absorb(self, pages: SequencePages) -> None:
        """Unite with what another one exported. Twice is as good as once, and so is any order."""
        is_used = pages.bits.any(axis=1)
        if not np.count_nonzero(is_used):
            return
        group, page = pages.group[is_used], pages.page[is_used]
        _check_range("page", page, PAGE_LIMIT)
        self._admit(group)
        keys = group << _PAGE_INDEX_BITS | page
        bits = np.ascontiguousarray(pages.bits[is_used]).view("<i8")
        done = unite_pages(self.memory, keys, bits, 0)
        while done < len(keys):
            self.make_room()
            done = unite_pages(self.memory, keys, bits, done)


def _unpacked_bits(packed: U8) -> Mask:
    return np.unpackbits(packed.reshape(-1), bitorder="little").view(np.bool_)


def _runs_of_true(mask: Mask, start: int) -> Iterator[tuple[int, int]]:
    """The runs of set entries as [first, end), counted from `start`."""
    steps = np.diff(mask.view(np.int8), prepend=0, append=0)
    firsts = np.flatnonzero(steps == 1) + start
    ends = np.flatnonzero(steps == -1) + start
    return zip(firsts.tolist(), ends.tolist(), strict=True)
