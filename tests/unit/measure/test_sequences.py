"""Sequence sets against Python's own sets."""

from __future__ import annotations

import random
import struct
import tracemalloc
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench_spark.errors import RunError
from bench_spark.measure.sequences import (
    GROUP_LIMIT,
    PAGE_LIMIT,
    SEQUENCE_LIMIT,
    Added,
    SequencePages,
    SequenceSets,
    plausible,
)

Message = tuple[int, int]
"""Group and sequence."""

GROUPS = 4
EVERYTHING = (0, SEQUENCE_LIMIT)


@st.composite
def streams(draw: st.DrawFn) -> list[Message]:
    """Stretches of sequences as brokers deliver them: in order, with jumps, repeats and returns."""
    messages: list[Message] = []
    for _ in range(draw(st.integers(0, 5))):
        group = draw(st.integers(0, GROUPS - 1))
        near = draw(
            st.sampled_from([0, 5, 1000, 1023, 1024, 2048, 65_500, 65_536, 2**39, SEQUENCE_LIMIT])
        )
        length = draw(st.sampled_from([1, 2, 7, 40, 1024]))
        step = draw(st.sampled_from([1, 1, 1, -1, 2, 3]))
        first = near - length * abs(step) // draw(st.sampled_from([1, 2])) if near else 0
        stretch = [max(0, first) + abs(step) * i for i in range(length)]
        stretch = [sequence for sequence in stretch if sequence < SEQUENCE_LIMIT]
        messages += [(group, sequence) for sequence in stretch[:: 1 if step > 0 else -1]]
    if draw(st.booleans()):
        messages = random.Random(draw(st.integers(0, 99))).sample(messages, len(messages))
    return messages


@st.composite
def batches(draw: st.DrawFn) -> list[list[Message]]:
    """A stream cut into calls."""
    messages = draw(streams())
    size = draw(st.sampled_from([1, 3, 100, 1024, 5000]))
    size = max(size, len(messages) // 30)
    return [messages[at : at + size] for at in range(0, len(messages), size)]


class Model:
    """The same judgements, one message at a time."""

    def __init__(self) -> None:
        self.members: dict[int, set[int]] = defaultdict(set)
        self.largest: dict[int, int] = defaultdict(lambda: -1)

    def add(self, messages: Iterable[Message]) -> tuple[list[bool], list[bool]]:
        duplicate, out_of_order = [], []
        for group, sequence in messages:
            duplicate.append(sequence in self.members[group])
            out_of_order.append(not duplicate[-1] and sequence < self.largest[group])
            self.members[group].add(sequence)
            self.largest[group] = max(self.largest[group], sequence)
        return duplicate, out_of_order


def add(sets: SequenceSets, messages: list[Message]) -> Added:
    columns = np.array(messages, dtype=np.int64).reshape(-1, 2)
    return sets.add(columns[:, 0], columns[:, 1])


def sets_of(messages: list[Message]) -> SequenceSets:
    sets = SequenceSets(GROUPS)
    add(sets, messages)
    return sets


def members_of(pages: SequencePages) -> dict[int, set[int]]:
    members: dict[int, set[int]] = defaultdict(set)
    for group, page, bits in zip(pages.group, pages.page, pages.bits, strict=True):
        set_bits = np.flatnonzero(np.unpackbits(bits, bitorder="little"))
        members[int(group)] |= set((int(page) * 1024 + set_bits).tolist())
    return members


def contents(sets: SequenceSets) -> dict[int, set[int]]:
    """Everything in the sets, read through a copy's first export."""
    copy = SequenceSets(GROUPS)
    for group in range(sets.groups):
        gaps = sets.missing(group, 0, SEQUENCE_LIMIT, limit=10**6)
        edges = [0, *(edge for gap in gaps for edge in gap), SEQUENCE_LIMIT]
        for first, end in zip(edges[::2], edges[1::2], strict=True):
            copy.add(np.full(end - first, group), np.arange(first, end))
    return members_of(copy.export())


class TestAdd:
    @settings(deadline=None, max_examples=60)
    @given(batches())
    def test_tells_duplicates_and_late_ones_like_a_model_that_sees_one_at_a_time(
        self, calls: list[list[Message]]
    ) -> None:
        sets, model = SequenceSets(GROUPS), Model()
        for messages in calls:
            added = add(sets, messages)
            duplicate, out_of_order = model.add(messages)
            assert added.duplicate.tolist() == duplicate
            assert added.out_of_order.tolist() == out_of_order
        for group in range(GROUPS):
            assert sets.count(group, *EVERYTHING) == len(model.members[group])

    @pytest.mark.parametrize(
        ("sequences", "duplicate", "out_of_order"),
        [
            ([0, 1, 2], [], []),
            ([5, 6, 9], [], []),
            ([2, 1, 0], [], [1, 2]),
            ([0, 2, 1, 3], [], [2]),
            ([0, 0, 0], [1, 2], []),
            ([3, 1, 1, 3, 4], [2, 3], [1]),
        ],
        ids=["in order", "with gaps", "backwards", "one late", "repeats", "late and repeated"],
    )
    def test_judges_within_one_call(
        self, sequences: list[int], duplicate: list[int], out_of_order: list[int]
    ) -> None:
        added = sets_of([]).add(np.zeros(len(sequences), np.int64), np.array(sequences))
        assert np.flatnonzero(added.duplicate).tolist() == duplicate
        assert np.flatnonzero(added.out_of_order).tolist() == out_of_order

    def test_a_redelivery_is_a_duplicate_and_not_also_out_of_order(self) -> None:
        sets = sets_of([(0, sequence) for sequence in range(5000)])
        added = add(sets, [(0, 10), (0, 4999), (0, 5000)])
        assert added.duplicate.tolist() == [True, True, False]
        assert not added.out_of_order.any()

    def test_groups_do_not_mix(self) -> None:
        sets = sets_of([(0, SEQUENCE_LIMIT - 1), (1, 0), (0, 0), (1, 1)])
        assert [sets.count(group, *EVERYTHING) for group in range(3)] == [2, 2, 0]

    def test_nothing_is_added_by_an_empty_call(self) -> None:
        sets = SequenceSets(1)
        added = add(sets, [])
        assert len(added.duplicate) == len(added.out_of_order) == 0
        assert len(sets.export()) == 0

    def test_a_page_that_was_full_and_given_back_still_knows_its_members(self) -> None:
        sets = sets_of([(0, sequence) for sequence in range(4096)])
        assert add(sets, [(0, 0), (0, 1023), (0, 2048), (0, 4095)]).duplicate.all()
        # The slots of full pages serve other groups now.
        add(sets, [(1, sequence) for sequence in range(0, 4096, 2)])
        assert add(sets, [(0, 1), (0, 3000)]).duplicate.all()
        assert not add(sets, [(1, 1), (1, 3001)]).duplicate.any()

    @pytest.mark.parametrize("groups", [1, 70_000], ids=["narrow", "beyond 16 bits"])
    def test_any_number_of_groups_is_sorted_rightly(self, groups: int) -> None:
        sets = SequenceSets(groups)
        group = np.tile(np.array([groups - 1, 0, groups // 2]), 2)
        added = sets.add(group, np.array([1, 1, 1, 0, 1, 2]))
        model = Model()
        expected = model.add(zip(group.tolist(), [1, 1, 1, 0, 1, 2], strict=True))
        assert (added.duplicate.tolist(), added.out_of_order.tolist()) == expected

    def test_unannounced_groups_are_taken_in(self) -> None:
        sets = SequenceSets(0)
        add(sets, [(7, 3)])
        assert sets.groups == 8
        assert sets.count(7, *EVERYTHING) == 1

    def test_groups_are_never_taken_away(self) -> None:
        sets = SequenceSets(5)
        sets.ensure_groups(2)
        assert sets.groups == 5

    @pytest.mark.parametrize("sequence", [-1, -(2**63), SEQUENCE_LIMIT, 2**63 - 1])
    def test_an_impossible_sequence_is_refused_and_changes_nothing(self, sequence: int) -> None:
        sets = SequenceSets(2)
        with pytest.raises(ValueError, match="a sequence lies in"):
            add(sets, [(0, 1), (0, sequence)])
        assert len(sets.export()) == 0

    @pytest.mark.parametrize("group", [-1, GROUP_LIMIT])
    def test_an_impossible_group_is_refused(self, group: int) -> None:
        with pytest.raises(ValueError, match="a group lies in"):
            add(SequenceSets(2), [(group, 1)])

    def test_columns_of_different_length_are_refused(self) -> None:
        with pytest.raises(ValueError, match="groups for"):
            SequenceSets(1).add(np.zeros(2, np.int64), np.zeros(3, np.int64))


def test_plausible_sequences_are_those_a_producer_can_reach() -> None:
    signed = np.array([0, 1, SEQUENCE_LIMIT - 1, SEQUENCE_LIMIT, -1, -(2**63)])
    unsigned = np.array([0, SEQUENCE_LIMIT - 1, SEQUENCE_LIMIT, 2**64 - 1], dtype=np.uint64)
    assert plausible(signed).tolist() == [True, True, True, False, False, False]
    assert plausible(unsigned).tolist() == [True, True, False, False]


class TestAsking:
    @settings(deadline=None, max_examples=60)
    @given(streams(), st.data())
    def test_counts_and_gaps_of_any_range_agree_with_a_set(
        self, messages: list[Message], data: st.DataObject
    ) -> None:
        sets, model = sets_of(messages), Model()
        model.add(messages)
        group = data.draw(st.integers(0, GROUPS - 1))
        members = model.members[group]
        around = st.sampled_from([0, 1, 1023, 1024, 65_535, 65_536, *sorted(members)[:50]])
        first = data.draw(around)
        end = first + data.draw(st.integers(0, 5000))
        assert sets.count(group, first, end) == len([s for s in members if first <= s < end])

        end = min(end, SEQUENCE_LIMIT)
        mask = sets.members(group, first, end)
        assert mask.tolist() == [sequence in members for sequence in range(first, end)]

        gaps = sets.missing(group, first, end, limit=10**6)
        absent = [sequence for gap in gaps for sequence in range(*gap)]
        assert absent == [s for s in range(first, end) if s not in members]
        assert all(before[1] < after[0] for before, after in pairwise(gaps))
        assert sets.missing(group, first, end, limit=2) == gaps[:2]

    def test_a_gap_over_pages_and_directory_rows_is_one_range(self) -> None:
        sets = sets_of([(0, 3), (0, 2**39)])
        assert sets.missing(0, 0, 2**39 + 10) == [(0, 3), (4, 2**39), (2**39 + 1, 2**39 + 10)]

    def test_long_complete_stretches_have_no_gaps(self) -> None:
        sets = SequenceSets(1)
        sets.add(np.zeros(200_000, np.int64), np.arange(200_000))
        assert sets.missing(0, 0, 200_000) == []
        assert sets.missing(0, 70_000, 200_002) == [(200_000, 200_002)]

    @pytest.mark.parametrize(("first", "end"), [(5, 5), (9, 2), (-10, 0)])
    def test_an_empty_range_has_nothing(self, first: int, end: int) -> None:
        sets = sets_of([(0, 5)])
        assert sets.count(0, first, end) == 0
        assert sets.missing(0, first, end) == []

    def test_ranges_are_cut_to_what_a_sequence_can_be(self) -> None:
        sets = sets_of([(0, 0), (1, 0), (1, SEQUENCE_LIMIT - 1), (2, 0)])
        assert sets.count(1, -5, 2 * SEQUENCE_LIMIT) == 2
        assert sets.missing(1, -5, 2 * SEQUENCE_LIMIT) == [(1, SEQUENCE_LIMIT - 1)]

    @pytest.mark.parametrize(("first", "end"), [(-1, 5), (6, 5), (0, SEQUENCE_LIMIT + 1)])
    def test_members_are_only_told_of_a_range_of_sequences(self, first: int, end: int) -> None:
        with pytest.raises(ValueError, match="no range"):
            sets_of([(0, 5)]).members(0, first, end)

    def test_an_unknown_group_has_nothing(self) -> None:
        assert SequenceSets(1).count(9, 0, 10) == 0
        assert not SequenceSets(1).members(9, 0, 10).any()
        assert SequenceSets(1).missing(9, 0, 10) == [(0, 10)]


class TestExchange:
    @settings(deadline=None, max_examples=60)
    @given(st.lists(batches(), min_size=1, max_size=3), st.integers(0, 99))
    def test_the_union_of_all_exports_is_the_union_of_all_sets(
        self, agents: list[list[list[Message]]], order: int
    ) -> None:
        model = Model()
        exports: list[bytes] = []
        for calls in agents:
            sets = SequenceSets(GROUPS)
            for messages in calls:
                add(sets, messages)
                model.add(messages)
                exports.append(sets.export().to_bytes())
        random.Random(order).shuffle(exports)

        union = SequenceSets(GROUPS)
        for data in [*exports, *exports[:2]]:
            union.absorb(SequencePages.from_bytes(data))
        for group in range(GROUPS):
            assert union.count(group, *EVERYTHING) == len(model.members[group])
        assert members_of(union.export()) == {g: m for g, m in model.members.items() if m}

    @settings(deadline=None, max_examples=60)
    @given(streams(), streams())
    def test_what_was_absorbed_counts_as_seen(
        self, elsewhere: list[Message], here: list[Message]
    ) -> None:
        sets, model = SequenceSets(GROUPS), Model()
        sets.absorb(sets_of(elsewhere).export())
        model.add(elsewhere)
        added = add(sets, here)
        assert (added.duplicate.tolist(), added.out_of_order.tolist()) == model.add(here)
        assert contents(sets) == {g: m for g, m in model.members.items() if m}

    def test_an_export_has_only_the_pages_that_changed(self) -> None:
        sets = sets_of([(0, 5), (0, 3000), (1, 7)])
        assert sets.export().page.tolist() == [0, 2, 0]
        assert len(sets.export()) == 0
        add(sets, [(0, 3000), (0, 3001)])
        second = sets.export()
        assert (second.group.tolist(), second.page.tolist()) == ([0], [2])
        assert members_of(second) == {0: {3000, 3001}}

    def test_a_duplicate_changes_no_page(self) -> None:
        sets = sets_of([(0, 5)])
        sets.export()
        add(sets, [(0, 5), (0, 5)])
        assert len(sets.export()) == 0

    def test_a_page_that_filled_up_since_the_last_export_is_exported_once(self) -> None:
        sets = sets_of([(0, sequence) for sequence in range(1000)])
        assert members_of(sets.export()) == {0: set(range(1000))}
        add(sets, [(0, sequence) for sequence in range(1000, 1024)])
        assert members_of(sets.export()) == {0: set(range(1024))}
        assert len(sets.export()) == 0

    def test_absorbing_twice_changes_nothing_more(self) -> None:
        pages = sets_of([(0, 5), (1, 1024), *((2, s) for s in range(1024))]).export()
        union = SequenceSets(GROUPS)
        union.absorb(pages)
        assert len(union.export()) == 3
        union.absorb(pages)
        assert len(union.export()) == 0

    def test_halves_of_a_page_complete_each_other(self) -> None:
        union = SequenceSets(1)
        for first in (0, 1):
            union.absorb(sets_of([(0, s) for s in range(first, 2048, 2)]).export())
        assert union.missing(0, 0, 2048) == []

    def test_the_same_page_may_occur_several_times(self) -> None:
        one, other = (sets_of([(0, sequence)]).export() for sequence in (1, 2))
        both = SequencePages(
            np.concatenate([one.group, other.group]),
            np.concatenate([one.page, other.page]),
            np.concatenate([one.bits, other.bits]),
        )
        union = SequenceSets(1)
        union.absorb(both)
        assert union.count(0, 0, 10) == 2

    def test_blank_pages_cost_nothing(self) -> None:
        union = SequenceSets(1)
        union.absorb(
            SequencePages(np.array([0]), np.array([9]), np.zeros((1, 128), dtype=np.uint8))
        )
        assert len(union.export()) == 0

    @pytest.mark.parametrize(
        ("group", "page"), [(-1, 0), (GROUP_LIMIT, 0), (0, -1), (0, PAGE_LIMIT)]
    )
    def test_pages_outside_of_any_group_are_refused(self, group: int, page: int) -> None:
        pages = SequencePages(np.array([group]), np.array([page]), np.ones((1, 128), np.uint8))
        with pytest.raises(ValueError, match="lies in"):
            SequenceSets(1).absorb(pages)


class TestBytes:
    @settings(deadline=None, max_examples=60)
    @given(streams())
    def test_pages_survive_the_way_through_bytes(self, messages: list[Message]) -> None:
        pages = sets_of(messages).export()
        read = SequencePages.from_bytes(pages.to_bytes())
        assert np.array_equal(read.group, pages.group)
        assert np.array_equal(read.page, pages.page)
        assert np.array_equal(read.bits, pages.bits)

    def test_sequences_in_a_row_take_next_to_nothing(self) -> None:
        sets = SequenceSets(1)
        sets.add(np.zeros(100_000, np.int64), np.arange(100_000))
        assert len(sets.export().to_bytes()) < 200

    @given(st.binary(max_size=200))
    def test_garbage_is_refused(self, data: bytes) -> None:
        with pytest.raises(ValueError, match="sequence pages"):
            SequencePages.from_bytes(data)

    @pytest.mark.parametrize(
        "spoil",
        [
            lambda data: data[:-1],
            lambda data: data + b"x",
            lambda data: b"QQQQ" + data[4:],
            lambda data: data[:4] + struct.pack("<H", 99) + data[6:],
            lambda data: data[:6] + struct.pack("<I", 2) + data[10:],
            lambda data: data[:6] + struct.pack("<I", 2**32 - 1) + data[10:],
            lambda data: data[:10] + b"not zlib",
            lambda data: data[:10] + zlib.compress(bytes(10**7)),
        ],
        ids=["cut", "longer", "magic", "version", "count", "huge count", "content", "bomb"],
    )
    def test_a_spoiled_form_is_refused(self, spoil: Callable[[bytes], bytes]) -> None:
        data = sets_of([(0, 5)]).export().to_bytes()
        assert len(SequencePages.from_bytes(data)) == 1
        with pytest.raises(ValueError, match="sequence pages"):
            SequencePages.from_bytes(spoil(data))

    @pytest.mark.parametrize("key", [-1, 1 << 62])
    def test_pages_of_an_impossible_group_are_refused(self, key: int) -> None:
        body = struct.pack("<q", key) + bytes(128)
        with pytest.raises(ValueError, match="a group lies in"):
            SequencePages.from_bytes(struct.pack("<4sHI", b"SEQP", 1, 1) + zlib.compress(body))


class TestMemory:
    def test_a_stream_in_order_stays_small_however_long(self) -> None:
        sets = SequenceSets(1, memory_limit_bytes=40_000)
        batch = 10_000
        for first in range(0, 5_000_000, batch):
            sets.add(np.zeros(batch, np.int64), np.arange(first, first + batch))
        assert sets.count(0, *EVERYTHING) == 5_000_000

    def test_a_jump_to_a_huge_sequence_costs_one_page(self) -> None:
        sets = SequenceSets(1)
        tracemalloc.start()
        try:
            add(sets, [(0, 0), (0, 2**39), (0, SEQUENCE_LIMIT - 1)])
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak_bytes < 100_000

    def test_scattered_sequences_end_in_an_error_before_they_fill_the_memory(self) -> None:
        sets = SequenceSets(1, memory_limit_bytes=1_000_000)
        scattered = np.random.default_rng(3).permutation(100_000) * 10_000_019
        kept = 0

        def add_them_all() -> None:
            nonlocal kept
            for first in range(0, len(scattered), 100):
                sets.add(np.zeros(100, np.int64), scattered[first : first + 100])
                kept += 100

        with pytest.raises(RunError, match="scattered too widely"):
            add_them_all()
        assert 1_000 < kept < 4_000
        assert sets.count(0, *EVERYTHING) == kept
