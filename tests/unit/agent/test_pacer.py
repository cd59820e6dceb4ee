"""The schedule: every message due once, at the moment its number says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from unit.flows import round_robin

from bench_spark.agent.flow import OWED_WAIT_NS, Paced
from bench_spark.agent.pacing import BATCH_NS, Schedule
from bench_spark.core.clock import NANOSECONDS
from bench_spark.core.envelope import empty_envelopes, word_rows_of

rates = st.floats(0.01, 5_000_000) | st.integers(1, 1_000_000).map(float)
changes = st.lists(
    st.tuples(st.integers(0, 600 * NANOSECONDS), rates), max_size=5, unique_by=lambda one: one[0]
).map(lambda made: tuple(sorted(made)))
schedules = st.builds(
    lambda rate, share, changes: Schedule(rate, share * NANOSECONDS / rate, changes),
    rates,
    st.floats(0, 0.999),
    st.just(()) | changes,
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
    count = schedule.messages_before(elapsed_ns + 1)
    assert count == 0 or schedule.intended_ns(count - 1) <= elapsed_ns
    assert schedule.intended_ns(count) > elapsed_ns


@given(schedules, st.integers(0, 10**9))
def test_a_message_becomes_due_at_its_intended_time_and_not_before(
    schedule: Schedule, message: int
) -> None:
    intended_ns = schedule.intended_ns(message)
    assert schedule.messages_before(intended_ns + 1) >= message + 1
    assert schedule.messages_before(intended_ns) <= message


@given(schedules, st.integers(0, 10**9), st.integers(0, 50))
def test_a_batch_of_intended_times_equals_them_one_by_one(
    schedule: Schedule, first: int, count: int
) -> None:
    # Nanoseconds in 64 bits reach 292 years; a run lasts 30 days at most.
    assume(schedule.intended_ns(first + count) < 2**62)
    many = schedule.intended_of_ns(np.arange(first, first + count))
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


@given(schedules, st.integers(0, 10**9))
def test_a_batch_spans_no_more_than_half_a_millisecond_of_load(
    schedule: Schedule, message: int
) -> None:
    batch = schedule.batch_from(message)
    assert batch >= 1
    spans_ns = schedule.intended_ns(message + batch - 1) - schedule.intended_ns(message)
    assert spans_ns <= min(BATCH_NS, schedule.resolution_ns + 1)


@given(schedules, st.integers(0, 10**9), st.integers(2, 100))
def test_no_message_is_due_before_the_one_before_it(
    schedule: Schedule, first: int, count: int
) -> None:
    assume(schedule.intended_ns(first + count) < 2**62)
    assert (np.diff(schedule.intended_of_ns(np.arange(first, first + count))) >= 0).all()


@given(
    st.lists(st.tuples(st.integers(1, 100), st.integers(1, 100_000)), min_size=1, max_size=6),
    st.integers(1, 12),
)
def test_whole_rates_over_whole_seconds_are_their_sum_whatever_the_steps(
    steps: list[tuple[int, int]], agents: int
) -> None:
    """In every step, and for agents that are shifted against each other together."""
    starts = np.cumsum([0, *(seconds for seconds, _ in steps)]).tolist()
    per_agent = []
    for agent in range(agents):
        first_rate = steps[0][1] / agents
        later = tuple(
            (start * NANOSECONDS, rate / agents)
            for start, (_, rate) in zip(starts[1:-1], steps[1:], strict=True)
        )
        shift_ns = NANOSECONDS / first_rate * agent / agents
        per_agent.append(Schedule(first_rate, shift_ns, later))
    for start, (seconds, rate) in zip(starts, steps, strict=False):
        begin_ns, end_ns = start * NANOSECONDS, (start + seconds) * NANOSECONDS
        sent = sum(one.messages_before(end_ns) - one.messages_before(begin_ns) for one in per_agent)
        assert sent == seconds * rate


def test_a_change_takes_effect_between_two_messages() -> None:
    slow_then_fast = Schedule(2.0, changes=((NANOSECONDS + 250_000_000, 10.0),))
    due_ms = [slow_then_fast.intended_ns(message) / 1e6 for message in range(6)]
    # At 1.25 s half of the way to the message at 1.5 s is done; the rest goes five times as fast.
    assert due_ms == [0, 500, 1000, 1300, 1400, 1500]


def test_a_batch_ends_where_the_rate_changes() -> None:
    fast_then_slow = Schedule(100_000.0, changes=((NANOSECONDS, 1.0),))
    assert fast_then_slow.batch_from(0) == 75
    assert fast_then_slow.batch_from(99_990) == 10
    assert fast_then_slow.batch_from(100_000) == 1


@pytest.mark.parametrize("batch_messages", [1, 7, 101, 102, 103, 1097])
@pytest.mark.parametrize("is_down", [False, True])
def test_messages_are_stamped_with_when_their_numbers_are_due(
    batch_messages: int, is_down: bool
) -> None:
    # Messages 101 and 1096 are the first at another rate: batches end before, at and behind them.
    schedule = Schedule(100.0, changes=((1_005_000_000, 1_000.0), (2_000_000_000, 50.0)))
    lanes, start_ns, sent_ns, count = 3, 5 * NANOSECONDS, 6 * NANOSECONDS, 1200
    flow = round_robin(lanes, owes=True)
    pacer = Paced(schedule, start_ns, count, flow)
    if is_down:
        flow.suspend(1)
    for _ in range(0, count, batch_messages):
        envelopes, lane = empty_envelopes(batch_messages), np.zeros(batch_messages, np.uint32)
        words = word_rows_of(envelopes)
        assert flow.next_batch(words, lane, batch_messages) == batch_messages
        pacer.stamp(words, lane, sent_ns)
        flow.accepted(lane, envelopes)
        numbers = envelopes["sequence"].astype(np.int64) * lanes + lane
        due_ns = [start_ns + schedule.intended_ns(number) for number in numbers.tolist()]
        assert envelopes["intended_ns"].tolist() == due_ns
        assert set(envelopes["sent_ns"].tolist()) == {sent_ns}


@given(schedules, st.lists(st.integers(0, 10**12), min_size=1, max_size=20), st.integers(1, 10**9))
def test_a_pacer_says_what_its_schedule_says(
    schedule: Schedule, moments_ns: list[int], total: int
) -> None:
    """To within a nanosecond, whichever stretch it looks at."""
    start_ns, flow = 1_700_000_000 * NANOSECONDS, round_robin(1)
    pacer = Paced(schedule, start_ns, total, flow)
    for elapsed_ns in sorted(moments_ns):
        now_ns = start_ns + elapsed_ns
        due = pacer.due(now_ns)
        earliest, latest = (schedule.messages_before(elapsed_ns + more) for more in (0, 2))
        assert min(earliest, total) <= due <= min(latest, total)
        if due < total:
            last = min(due + schedule.batch_from(due), total) - 1
            complete_ns = start_ns + schedule.intended_ns(last)
            assert pacer.batch_complete_ns(due, now_ns) == complete_ns
        else:
            assert pacer.batch_complete_ns(due, now_ns) == now_ns + OWED_WAIT_NS
        envelopes, lanes = empty_envelopes(1), np.zeros(1, np.uint32)
        sent = max(0, due - 1 - (flow.next_number or 0))
        flow.accepted(np.broadcast_to(np.uint32(0), sent), envelopes)
        pacer.stamp(word_rows_of(envelopes), lanes, now_ns)


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
    assert schedule.messages_before(elapsed_ns + 1) == due


def test_nothing_is_due_before_the_start() -> None:
    assert Schedule(100_000.0).messages_before(0) == 0
    assert Schedule(100_000.0).messages_before(-NANOSECONDS) == 0


@pytest.mark.parametrize(
    ("rate", "batch", "resolution_us"),
    [(100, 1, 0), (1_000, 1, 0), (2_000, 1, 0), (10_000, 7, 600), (50_000, 37, 720)],
)
def test_the_first_of_a_batch_waits_for_the_last(
    rate: int, batch: int, resolution_us: float
) -> None:
    schedule = Schedule(rate)
    assert schedule.batch_from(0) == batch
    assert schedule.resolution_ns / 1000 == pytest.approx(resolution_us)


@pytest.mark.parametrize("rate", [100, 1_000, 10_000, 50_000, 33_333.3])
def test_the_rate_is_kept_within_a_thousandth_over_ten_seconds(rate: float) -> None:
    sent = Schedule(rate).messages_before(10 * NANOSECONDS)
    assert sent == pytest.approx(10 * rate, rel=0.001)
