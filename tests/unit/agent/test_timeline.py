"""Phases and ticks: scalar and vector forms agree, and no tick belongs to two phases."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_spark.agent.timeline import Timeline
from bench_spark.core.clock import NANOSECONDS

START_NS = 1_700_000_000_123_456_789

lengths = st.sampled_from([0, 1, 10**6, 25 * 10**7, NANOSECONDS, 3 * NANOSECONDS]) | st.integers(
    0, 5 * NANOSECONDS
)
timelines = st.builds(
    Timeline, st.just(START_NS), lengths, lengths.filter(lambda ns: ns > 0), lengths
)
moments = st.integers(START_NS - 2 * NANOSECONDS, START_NS + 20 * NANOSECONDS)


def seconds(timeline: Timeline, ticks: int) -> list[float]:
    return [timeline.tick_seconds(tick) for tick in range(ticks)]


@given(timelines, moments)
def test_a_moment_lies_in_its_tick(timeline: Timeline, at_ns: int) -> None:
    tick = timeline.tick_at(at_ns)
    assert timeline.tick_start_ns(tick) <= max(at_ns, START_NS) < timeline.tick_end_ns(tick)


@given(timelines, st.lists(moments, max_size=20))
def test_the_tick_of_a_column_is_that_of_each_moment(timeline: Timeline, at: list[int]) -> None:
    ticks = timeline.tick_of(np.array(at, dtype=np.int64))
    assert ticks.tolist() == [timeline.tick_at(at_ns) for at_ns in at]


@given(timelines, st.integers(0, 30))
def test_ticks_follow_each_other_and_last_a_second_at_most(timeline: Timeline, tick: int) -> None:
    start_ns, end_ns = timeline.tick_start_ns(tick), timeline.tick_end_ns(tick)
    assert end_ns == timeline.tick_start_ns(tick + 1)
    assert 0 < end_ns - start_ns <= NANOSECONDS
    assert timeline.tick_seconds(tick) == (end_ns - start_ns) / NANOSECONDS
    assert timeline.tick_at(start_ns) == tick
    assert timeline.tick_at(end_ns - 1) == tick


@given(timelines, st.integers(0, 30))
def test_no_tick_belongs_to_two_phases(timeline: Timeline, tick: int) -> None:
    for edge_ns in (timeline.measure_start_ns, timeline.measure_end_ns):
        assert not timeline.tick_start_ns(tick) < edge_ns < timeline.tick_end_ns(tick)


def is_measured(timeline: Timeline, tick: int) -> bool:
    return timeline.measure_start_ns <= timeline.tick_start_ns(tick) < timeline.measure_end_ns


@given(timelines)
def test_the_measured_ticks_cover_the_measured_phase_exactly(timeline: Timeline) -> None:
    ticks = [tick for tick in range(40) if is_measured(timeline, tick)]
    assert timeline.tick_start_ns(ticks[0]) == timeline.measure_start_ns
    assert timeline.tick_end_ns(ticks[-1]) == timeline.measure_end_ns
    assert ticks == list(range(ticks[0], ticks[-1] + 1))


@pytest.mark.parametrize(
    ("warmup_seconds", "measure_seconds", "expected"),
    [
        (2, 2, [1, 1, 1, 1, 1]),
        (1.5, 1.25, [1, 0.5, 1, 0.25, 1]),
        (0, 2, [1, 1, 1]),
        (0, 0.5, [0.5, 1]),
        (0.25, 1, [0.25, 1, 1]),
    ],
)
def test_a_fraction_of_a_second_cuts_the_last_tick_of_its_phase(
    warmup_seconds: float, measure_seconds: float, expected: list[float]
) -> None:
    timeline = Timeline(
        START_NS, round(warmup_seconds * NANOSECONDS), round(measure_seconds * NANOSECONDS), 0
    )
    assert seconds(timeline, len(expected)) == expected


def test_without_warm_up_the_first_tick_is_measured() -> None:
    timeline = Timeline(START_NS, 0, 2 * NANOSECONDS, NANOSECONDS)
    assert [is_measured(timeline, tick) for tick in range(3)] == [True, True, False]


def test_the_phase_is_that_of_the_intended_time() -> None:
    timeline = Timeline(START_NS, NANOSECONDS, NANOSECONDS, 0)
    edge = timeline.measure_start_ns
    intended = np.array([START_NS, edge - 1, edge, edge + 5 * NANOSECONDS])
    assert timeline.phase_of(intended).tolist() == [False, False, True, True]


def test_ticks_go_on_through_the_drain_and_beyond() -> None:
    timeline = Timeline(START_NS, 0, NANOSECONDS // 2, NANOSECONDS)
    assert timeline.tick_at(timeline.measure_end_ns) == 1
    assert timeline.tick_at(timeline.measure_end_ns + 7 * NANOSECONDS) == 8
