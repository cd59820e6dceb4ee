"""Sizes over time: what a message's send time says about its body."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_spark.agent.records import NEVER_NS, BodySizes, body_sizes
from bench_spark.agent.timeline import Timeline
from bench_spark.config.sections import Message
from bench_spark.core.clock import NANOSECONDS

TIMELINE = Timeline(1000 * NANOSECONDS, 5 * NANOSECONDS, 10 * NANOSECONDS, NANOSECONDS)
CHANGING = Message.model_validate(
    {"bytes": 100, "steps": [{"seconds": 2, "bytes": 50}, {"seconds": 0.5, "bytes": 900}]}
)


@pytest.mark.parametrize(
    ("at_seconds", "size", "until_seconds"),
    [
        (0, 100, 1005),
        (1004.999, 100, 1005),
        (1005, 50, 1007),
        (1006.999, 50, 1007),
        (1007, 900, None),
        (1e6, 900, None),
    ],
)
def test_steps_begin_with_the_measured_phase_and_the_last_one_stays(
    at_seconds: float, size: int, until_seconds: int | None
) -> None:
    until_ns = NEVER_NS if until_seconds is None else until_seconds * NANOSECONDS
    found = body_sizes(CHANGING, TIMELINE).at(round(at_seconds * NANOSECONDS))
    assert found == (size, until_ns)


@given(
    st.dictionaries(st.integers(0, 100), st.integers(1, 1000), max_size=5),
    st.lists(st.integers(-10, 110)),
)
def test_many_bodies_are_as_large_as_each_of_them(
    changes: dict[int, int], sent_ns: list[int]
) -> None:
    sizes = BodySizes(7, tuple(sorted(changes.items())))
    expected = sum(sizes.at(at_ns)[0] for at_ns in sent_ns)
    assert sizes.of(np.array(sent_ns, np.int64)).sum() == expected
    assert sizes.smallest_bytes == min([7, *changes.values()])
