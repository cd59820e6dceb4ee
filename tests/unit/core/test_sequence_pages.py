"""Sequence sets told to others page by page, as bytes, and what they take of the memory."""

from __future__ import annotations

import random
import struct
import tracemalloc
import zlib
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sequence_model import (
    EVERYTHING,
    GROUPS,
    Message,
    Model,
    add,
    batches,
    contents,
    members_of,
    sets_of,
    streams,
)

from bench_spark.core.sequences import (
    GROUP_LIMIT,
    PAGE_LIMIT,
    SEQUENCE_LIMIT,
    SequencePages,
    SequenceSets,
)
from bench_spark.errors import RunError


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
        # As pages that stay they would take 75 kB.
        batch, sequences = 10_000, 600_000
        for first in range(0, sequences, batch):
            sets.add(np.zeros(batch, np.int64), np.arange(first, first + batch))
        assert sets.count(0, *EVERYTHING) == sequences

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
        # Each number is in or not: those before the one without room have stayed.
        assert kept <= sets.count(0, *EVERYTHING) < kept + 100
