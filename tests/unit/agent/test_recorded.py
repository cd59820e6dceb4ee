"""Messages that are due as they were recorded."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_spark.agent.pacing import BATCH_NS, RecordedSchedule, Recording


@st.composite
def recordings(draw: st.DrawFn) -> Recording:
    intervals = draw(st.lists(st.integers(0, 3_000_000), min_size=1, max_size=12))
    gap = draw(st.integers(0, 3_000_000))
    due_ns = np.cumsum([0, *intervals])
    return Recording(due_ns, max(1, int(due_ns[-1]) + gap), draw(st.booleans()))


@st.composite
def schedules(draw: st.DrawFn) -> list[RecordedSchedule]:
    """Of all agents of a run."""
    recording, producers = draw(recordings()), draw(st.integers(1, 5))
    agents = draw(st.integers(1, producers))
    return [
        RecordedSchedule(recording, tuple(range(agent, producers, agents)), producers)
        for agent in range(agents)
    ]


def test_rows_are_due_as_recorded_and_again_a_lap_later() -> None:
    schedule = RecordedSchedule(Recording(np.array([0, 10, 15]), 20), (0,), 1)
    assert [schedule.intended_ns(message) for message in range(7)] == [0, 10, 15, 20, 30, 35, 40]
    assert [schedule.messages_before(at) for at in (0, 1, 10, 11, 16, 20, 21)] == [
        *(0, 1, 1, 2, 3, 3, 4)
    ]


def test_a_recording_that_is_not_repeated_ends() -> None:
    schedule = RecordedSchedule(Recording(np.array([0, 10]), 20, repeats=False), (0,), 1)
    assert [schedule.messages_before(at) for at in (11, 20, 21, 1000)] == [2, 2, 2, 2]


@given(schedules(), st.integers(0, 30_000_000))
def test_agents_send_together_what_the_recording_has_due(
    agents: list[RecordedSchedule], elapsed_ns: int
) -> None:
    together = sum(agent.messages_before(elapsed_ns) for agent in agents)
    assert together == agents[0].recording.rows_before(elapsed_ns)


@given(schedules(), st.integers(0, 30_000_000))
def test_exactly_the_messages_before_a_moment_are_due_before_it(
    agents: list[RecordedSchedule], elapsed_ns: int
) -> None:
    for agent in agents:
        before = agent.messages_before(elapsed_ns)
        if before:
            assert agent.intended_ns(before - 1) < elapsed_ns
        if agent.recording.repeats:
            assert agent.intended_ns(before) >= elapsed_ns


@given(schedules(), st.integers(0, 60))
def test_a_batch_is_what_is_due_within_its_time(agents: list[RecordedSchedule], first: int) -> None:
    for agent in agents:
        last = first + agent.batch_from(first) - 1
        assert agent.intended_ns(first) <= agent.intended_ns(last)
        assert agent.intended_ns(last) - agent.intended_ns(first) < max(1, BATCH_NS)


def test_many_due_times_are_those_of_each() -> None:
    schedule = RecordedSchedule(Recording(np.array([0, 7, 7, 9]), 12), (1, 3), 4)
    messages = np.arange(20)
    assert schedule.intended_of_ns(messages).tolist() == [
        schedule.intended_ns(int(message)) for message in messages
    ]
    assert schedule.resolution_ns == pytest.approx(BATCH_NS)
