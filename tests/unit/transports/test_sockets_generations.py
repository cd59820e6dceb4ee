"""Tags of one generation of a lane are never taken for those of another."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bench_spark.transports.sockets.buffers import generation_mark, own_tags

tags = st.integers(1, 2**48 - 1)
few = st.integers(0, 2**15)


@given(tags, few, few)
def test_a_tag_is_known_by_its_own_generation_only(tag: int, own: int, other: int) -> None:
    marked = np.array([tag + generation_mark(own)], np.uint64)
    assert own_tags(marked, own).tolist() == [tag]
    if other > own:  # no lane goes back to an earlier one
        assert own_tags(marked, other).tolist() == []


@given(st.lists(st.tuples(tags, few), max_size=20), st.integers(1, 2**15))
def test_many_tags_are_sifted_as_single_ones_are(found: list[tuple[int, int]], own: int) -> None:
    marked = [tag + generation_mark(generation) for tag, generation in found]
    sifted = own_tags(np.array(marked, np.uint64), own).tolist()
    assert sifted == [tag for tag, generation in found if generation == own]


def test_tags_of_the_first_generation_are_as_the_broker_gave_them() -> None:
    given_tags = np.array([1, 2, 77], np.uint64)
    assert own_tags(given_tags, 0) is given_tags
