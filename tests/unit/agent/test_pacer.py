"""The schedule: every message due once, at the moment its number says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bench_spark.agent.pacer import BATCH_NS, Schedule
from bench_spark.measure.clock import NANOSECONDS

rates = st.floats(0.01, 5_000_000) | st.integers(1, 1_000_000).map(float)
schedules = st.builds(
    lambda rate, share: Schedule(rate, share * NANOSECONDS / rate),
    rates,
    st.floats(0, 0.999),
)


@given(schedules, st.integers(0, 10**12))
def test_messages_before_a_moment_are_exactly_those_intended_before_it(
    schedule: Schedule, elapsed_ns: int
) -> None:
    count = schedule.messages_before(elapsed_ns)
    assert count == 0 or schedule.intended_ns(count - 1) < elapsed_ns
    assert schedule.intended_ns(count) >= elapsed_ns


@given(schedules, st.integers(0, 10**12))
def test_messages_due_include_the_one_intended_at_that_very_moment(
    schedule: Schedule, elapsed_ns: int
) -> None:
    count = schedule.messages_due(elapsed_ns)
    assert count == 0 or schedule.intended_ns(count - 1) <= elapsed_ns
    assert schedule.intended_ns(count) > elapsed_ns


@given(schedules, st.integers(0, 10**9))
def test_a_message_becomes_due_at_its_intended_time_and_not_before(
    schedule: Schedule, message: int
) -> None:
    intended_ns = schedule.intended_ns(message)
    assert schedule.messages_due(intended_ns) >= message + 1
    assert schedule.messages_before(intended_ns) <= message


@given(schedules, st.integers(0, 10**9), st.integers(0, 50))
def test_a_batch_of_intended_times_equals_them_one_by_one(
    schedule: Schedule, first: int, count: int
) -> None:
    # Nanoseconds in 64 bits reach 292 years; a run lasts 30 days at most.
    assume(schedule.intended_ns(first + count) < 2**62)
    many = schedule.intended_many_ns(first, count)
    assert many.dtype == np.int64
    assert many.tolist() == [schedule.intended_ns(first + i) for i in range(count)]


@given(st.integers(1, 1_000_000), st.integers(1, 10_000))
def test_a_whole_rate_over_whole_seconds_is_rate_times_seconds(rate: int, seconds: int) -> None:
    assert Schedule(float(rate)).messages_before(seconds * NANOSECONDS) == rate * seconds


@given(st.integers(1, 100_000), st.integers(1, 600), st.integers(0, 600), st.integers(1, 40))
def test_shifted_agents_together_have_rate_times_seconds_in_any_whole_window(
    rate: int, seconds: int, start: int, agents: int
) -> None:
    period_ns = NANOSECONDS / (rate / agents)
    total = 0
    for agent in range(agents):
        schedule = Schedule(rate / agents, period_ns * agent / agents)
        before = schedule.messages_before(start * NANOSECONDS)
        total += schedule.messages_before((start + seconds) * NANOSECONDS) - before
    assert total == rate * seconds


@given(schedules)
def test_a_batch_spans_no_more_than_half_a_millisecond_of_load(schedule: Schedule) -> None:
    assert schedule.batch_messages >= 1
    if schedule.batch_messages > 1:
        assert schedule.batch_messages * schedule.period_ns <= BATCH_NS


@pytest.mark.parametrize(
    ("rate", "shift_ns", "elapsed_ns", "before", "due"),
    [
        (1000, 0, 0, 0, 1),
        (1000, 0, 1, 1, 1),
        (1000, 0, 1_000_000, 1, 2),
        (1000, 500_000, 0, 0, 0),
        (1000, 500_000, 500_000, 0, 1),
        (0.5, 0, 2 * NANOSECONDS, 1, 2),
        (2.5, 0, 2 * NANOSECONDS, 5, 6),
        (29, 0, NANOSECONDS, 29, 30),
    ],
)
def test_messages_before_and_due_by_hand(
    rate: float, shift_ns: float, elapsed_ns: int, before: int, due: int
) -> None:
    schedule = Schedule(rate, shift_ns)
    assert schedule.messages_before(elapsed_ns) == before
    assert schedule.messages_due(elapsed_ns) == due


def test_nothing_is_due_before_the_start() -> None:
    assert Schedule(100_000.0).messages_due(-1) == 0
    assert Schedule(100_000.0).messages_before(-NANOSECONDS) == 0


@pytest.mark.parametrize(
    ("rate", "batch", "resolution_us"),
    [(100, 1, 0), (1_000, 1, 0), (2_000, 1, 0), (10_000, 5, 400), (50_000, 25, 480)],
)
def test_the_first_of_a_batch_waits_for_the_last(
    rate: int, batch: int, resolution_us: float
) -> None:
    schedule = Schedule(rate)
    assert schedule.batch_messages == batch
    assert schedule.resolution_ns / 1000 == pytest.approx(resolution_us)


@pytest.mark.parametrize("rate", [100, 1_000, 10_000, 50_000, 33_333.3])
def test_the_rate_is_kept_within_a_thousandth_over_ten_seconds(rate: float) -> None:
    sent = Schedule(rate).messages_before(10 * NANOSECONDS)
    assert sent == pytest.approx(10 * rate, rel=0.001)
