"""Which sequence numbers have arrived: one exact set per group, and what came twice or late.

A group is one stream that numbers its messages from 0: a (subscription, producer) pair, or a
producer's lane. Agents `add` what they see and `export` what changed; the driver `absorb`s the
exports of all agents into one union, so a duplicate in one agent cannot hide a loss in another.

All groups share one sparse bitset, whose numbers are `group << 40 | sequence`: their order is the
order of groups, and of sequences within each, so one sort or one running maximum serves them all.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from bench_spark.core.bitset import (
    I64,
    PAGE_BITS,
    PAGE_BYTES,
    PAGE_NUMBERS,
    U8,
    Mask,
    SparseBitset,
    runs_of_equals,
)

_SEQUENCE_BITS = 40
_PAGE_INDEX_BITS = _SEQUENCE_BITS - PAGE_BITS

SEQUENCE_LIMIT = 1 << _SEQUENCE_BITS
"""Sequences stay below this: 127 days of 100 000 messages a second."""
GROUP_LIMIT = 1 << 23
PAGE_LIMIT = 1 << _PAGE_INDEX_BITS
MEMORY_LIMIT_BYTES = 1 << 29


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
        return _HEADER.pack(_MAGIC, _VERSION, len(keys)) + zlib.compress(body)

    @classmethod
    def from_bytes(cls, data: bytes) -> SequencePages:
        """Back from `to_bytes`; ValueError if that is not where it came from."""
        if len(data) < _HEADER.size:
            raise ValueError(f"sequence pages: {len(data)} bytes are too few")
        magic, version, count = _HEADER.unpack_from(data)
        if magic != _MAGIC or version != _VERSION:
            raise ValueError(f"sequence pages: unknown form {magic!r} {version}")
        body = _unpacked(data[_HEADER.size :], count * (8 + PAGE_BYTES))
        keys = np.cumsum(np.frombuffer(body, "<i8", count), dtype=np.int64)
        group, page = keys >> _PAGE_INDEX_BITS, keys & (PAGE_LIMIT - 1)
        _check_range("group", group, GROUP_LIMIT)
        bits = np.frombuffer(body, np.uint8, offset=8 * count).reshape(count, PAGE_BYTES)
        return cls(group, page, bits)


_HEADER = struct.Struct("<4sHI")
_MAGIC = b"SEQP"
_VERSION = 1


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


class SequenceSets:
    """One set of sequences per group. Single-threaded: one owner.

    More groups than announced are taken in as they appear. The sets end at `memory_limit_bytes`
    with a RunError: only numbers scattered at random, or billions of them shared with other
    consumers, ever come near.
    """

    def __init__(self, groups: int, memory_limit_bytes: int = MEMORY_LIMIT_BYTES) -> None:
        self._members = SparseBitset(memory_limit_bytes)
        # The largest sequence of each group, -1 for none.
        self._highest: I64 = np.zeros(0, dtype=np.int64)
        self.ensure_groups(groups)

    @property
    def groups(self) -> int:
        return len(self._highest)

    def ensure_groups(self, groups: int) -> None:
        """Make room for groups 0 .. `groups` - 1; never takes any away."""
        if groups > GROUP_LIMIT:
            raise ValueError(f"{groups} groups are more than {GROUP_LIMIT}")
        if groups > self.groups:
            nothing_yet = np.full(groups - self.groups, -1, dtype=np.int64)
            self._highest = np.concatenate([self._highest, nothing_yet])

    # -- adding ----------------------------------------------------------------------------------

    def add(self, group: I64, sequence: I64) -> Added:
        """Take in one sequence per row, in the order of arrival."""
        group = np.asarray(group, dtype=np.int64)
        sequence = np.asarray(sequence, dtype=np.int64)
        if group.shape != sequence.shape:
            raise ValueError(f"{group.shape} groups for {sequence.shape} sequences")
        count = len(group)
        added = Added(np.zeros(count, np.bool_), np.zeros(count, np.bool_))
        if not count:
            return added
        _check_range("sequence", sequence, SEQUENCE_LIMIT)
        self._admit(group)
        if self._continues_one_group(group, sequence):
            first = int(group[0]) << _SEQUENCE_BITS | int(sequence[0])
            self._members.add_run(first, first + count)
            self._highest[group[0]] = sequence[-1]
        else:
            self._add_any(group, sequence, added)
        return added

    def _admit(self, group: I64) -> None:
        if not _is_within(group, self.groups):
            _check_range("group", group, GROUP_LIMIT)
            self.ensure_groups(int(group.max()) + 1)

    def _continues_one_group(self, group: I64, sequence: I64) -> bool:
        """Whether this is the common case: the next messages of one stream, none missing.

        They lie above everything the group has, so there is nothing to compare.
        """
        return bool(
            sequence[0] == self._highest[group[0]] + 1
            and sequence[-1] - sequence[0] == len(sequence) - 1
            and _is_ascending(sequence)
            and not np.count_nonzero(group != group[0])
        )

    def _add_any(self, group: I64, sequence: I64, added: Added) -> None:
        # Group by group, each in order of arrival: a running maximum over all of it is a running
        # maximum within each group, because a larger group has the larger numbers.
        by_arrival = self._order_by_group(group)
        numbers = (group << _SEQUENCE_BITS | sequence)[by_arrival]
        own_group = numbers >> _SEQUENCE_BITS
        largest_before = (own_group << _SEQUENCE_BITS) + self._highest[own_group]
        running = np.maximum.accumulate(numbers)
        np.maximum(largest_before[1:], running[:-1], out=largest_before[1:])
        added.out_of_order[by_arrival] = numbers < largest_before

        if _is_ascending(numbers):
            added.duplicate[by_arrival] = self._members.add(numbers)
        else:
            # Equal ones stay in order of arrival, so all but the first of them are the repeats.
            ascending = np.argsort(numbers, kind="stable")
            numbers, position = numbers[ascending], by_arrival[ascending]
            firsts, _ = runs_of_equals(numbers)
            added.duplicate[:] = True
            added.duplicate[position[firsts]] = self._members.add(numbers[firsts])
        added.out_of_order[added.duplicate] = False
        self._raise_highest(running)

    def _order_by_group(self, group: I64) -> npt.NDArray[np.intp]:
        # numpy sorts 16-bit numbers by radix, several times as fast as wider ones.
        narrow = group.astype(np.uint16) if self.groups <= 1 << 16 else group
        return np.argsort(narrow, kind="stable")

    def _raise_highest(self, ascending: I64) -> None:
        """Note the largest of each group among ascending numbers."""
        group = ascending >> _SEQUENCE_BITS
        _, ends = runs_of_equals(group)
        group = group[ends - 1]
        largest = ascending[ends - 1] & (SEQUENCE_LIMIT - 1)
        self._highest[group] = np.maximum(self._highest[group], largest)

    # -- asking ----------------------------------------------------------------------------------

    def count(self, group: int, first: int, end: int) -> int:
        """How many sequences of [first, end) the group has."""
        first, end = max(first, 0), min(end, SEQUENCE_LIMIT)
        if first >= end:
            return 0
        base = group << _SEQUENCE_BITS
        return self._members.count(base + first, base + end)

    def members(self, group: int, first: int, end: int) -> Mask:
        """Which sequences of [first, end) the group has: one byte each, so ask in parts."""
        if not 0 <= first <= end <= SEQUENCE_LIMIT:
            raise ValueError(f"[{first}, {end}) is no range of sequences")
        base = group << _SEQUENCE_BITS
        return self._members.mask(base + first, base + end)

    def missing(self, group: int, first: int, end: int, limit: int = 20) -> list[tuple[int, int]]:
        """The first `limit` gaps in [first, end), each as its own [first, end): for people."""
        first, end = max(first, 0), min(end, SEQUENCE_LIMIT)
        if first >= end:
            return []
        base = group << _SEQUENCE_BITS
        gaps = self._members.gaps(base + first, base + end)
        return [(gap_first - base, gap_end - base) for gap_first, gap_end in islice(gaps, limit)]

    # -- exchange --------------------------------------------------------------------------------

    def export(self) -> SequencePages:
        """All pages that changed since the last export, each as it is now."""
        keys, bits = self._members.take_changes()
        return SequencePages(keys >> _PAGE_INDEX_BITS, keys & (PAGE_LIMIT - 1), bits)

    def absorb(self, pages: SequencePages) -> None:
        """Unite with what another one exported. Twice is as good as once, and so is any order."""
        is_used = pages.bits.any(axis=1)
        if not np.count_nonzero(is_used):
            return
        group, page = pages.group[is_used], pages.page[is_used]
        _check_range("page", page, PAGE_LIMIT)
        self._admit(group)
        keys = group << _PAGE_INDEX_BITS | page
        order = np.argsort(keys)
        keys = keys[order]
        starts, _ = runs_of_equals(keys)
        keys = keys[starts]
        bits = np.bitwise_or.reduceat(pages.bits[is_used][order], starts, axis=0)
        self._members.unite(keys, bits)
        self._raise_highest((keys << PAGE_BITS) + _highest_bit(bits))


def _is_ascending(numbers: I64) -> bool:
    """Whether each number is larger than the one before."""
    return not np.count_nonzero(numbers[1:] <= numbers[:-1])


def _highest_bit(bits: U8) -> I64:
    """Per page the number of its highest bit; every page must have one."""
    backwards = np.unpackbits(bits, axis=1, bitorder="little")[:, ::-1]
    highest: I64 = PAGE_NUMBERS - 1 - np.argmax(backwards, axis=1)
    return highest
