"""Sequence sets against Python's own sets."""

from __future__ import annotations

from itertools import pairwise

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
    sets_of,
    streams,
)

from bench_spark.core.sequences import (
    GROUP_LIMIT,
    SEQUENCE_LIMIT,
    SequenceSets,
    plausible,
)


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
