"""Whole agents in mode `maximum`: the measured phase begins when the driver says so, and rows,
ticks, samples, sizes and accounts follow."""

from __future__ import annotations

from typing import Any

import pytest
from agents import Load, run_load
from unit.loopbacks import LOOPBACK, assert_all_arrived, pairs, plan, sent

from bench_spark.agent.timeline import Timeline
from bench_spark.core.clock import NANOSECONDS
from bench_spark.driver.accounts import measured_span, samples_of
from bench_spark.driver.control import Settled, Settling

NEVER_SECONDS = 600
"""A warm-up that would not end while a test lasts, unless the driver ended it."""
AHEAD_NS = 1_300_000_000
"""So that agents learn of it in time on any machine."""


@pytest.fixture
def settled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that takes the load for settled as soon as every agent has received something."""

    def look(self: Settling, now: int, sent: int, received: int) -> int | None:
        if self.outcome is not None or received < 100:
            return None
        self.outcome = Settled(True, 1.0, 1.0, 1.0)
        return now + AHEAD_NS

    monkeypatch.setattr(Settling, "look", look)


def load_of(**keys: Any) -> Load:
    phases = {"warmup_seconds": NEVER_SECONDS, "measure_seconds": 1.5, "drain_seconds": 30}
    load = {"mode": "maximum", "backlog_limit_bytes": 50_000}
    return run_load(plan(**({"phases": phases, "load": load} | keys)), LOOPBACK)


def timeline_of(load: Load) -> Timeline:
    assert load.control.timeline is not None
    return load.control.timeline


def assert_rows_lie_where_the_driver_said(load: Load) -> None:
    """Every row's tick begins where the driver's timeline has it, and none of a tick before the
    measured phase is of that phase."""
    timeline = timeline_of(load)
    assert 0 < timeline.warmup_ns < 60 * NANOSECONDS
    assert {row.phase for _, row in load.rows} == {"warmup", "measure"}
    seen = set()
    for agent, row in load.rows:
        assert row.tick_start_ns == timeline.tick_start_ns(row.tick)
        assert row.tick_seconds == timeline.tick_seconds(row.tick)
        if row.phase == "measure":
            assert row.tick_start_ns >= timeline.measure_start_ns
        elif row.counters.get("sent"):
            assert row.tick_start_ns < timeline.measure_start_ns
        key = (agent, row.row_number)
        assert key not in seen
        seen.add(key)


@pytest.mark.usefixtures("settled_at_once")
def test_all_agents_begin_to_measure_at_the_moment_the_driver_names() -> None:
    load = load_of(agents=2, **pairs(4))
    assert_all_arrived(load)
    assert_rows_lie_where_the_driver_said(load)
    assert {agent for agent, row in load.rows if row.phase == "measure"} == {0, 1}
    reports = [state.reports["produced"] for state in load.control.agents]
    assert [report["measured_late_ns"] for report in reports] == [0, 0]
    began, ended = measured_span(load.plan, load.control)
    assert began == timeline_of(load).measure_start_ns / NANOSECONDS
    assert ended is not None
    assert ended - began == pytest.approx(1.5)


@pytest.mark.usefixtures("settled_at_once", "watch")
def test_agents_with_one_end_each_learn_of_it_alike() -> None:
    bounded = {"mode": "maximum", "messages": 500, "backlog_limit_bytes": 50_000}
    load = load_of(agents=2, placement="split", load=bounded, **pairs(2))
    assert_all_arrived(load)
    assert_rows_lie_where_the_driver_said(load)


@pytest.mark.usefixtures("settled_at_once")
def test_a_number_of_messages_is_counted_from_there_on() -> None:
    load = load_of(load={"mode": "maximum", "messages": 700, "backlog_limit_bytes": 50_000})
    assert_all_arrived(load)
    assert sent(load) == 700
    assert sent(load, "warmup") >= 100


@pytest.mark.usefixtures("settled_at_once")
def test_samples_are_taken_from_there_on() -> None:
    phases = {"warmup_seconds": NEVER_SECONDS, "measure_seconds": 120, "drain_seconds": 30}
    load = load_of(phases=phases, sampling={"samples": 5, "threshold_seconds": 0.001})
    samples = samples_of(load.plan, load.control)
    assert samples is not None
    [taken] = [one.samples for one in samples]
    assert len(taken) == 5
    assert int(taken["started_ns"].min()) >= timeline_of(load).measure_start_ns


@pytest.mark.usefixtures("settled_at_once")
def test_sizes_change_from_there_on() -> None:
    load = load_of(message={"bytes": 100, "steps": [{"seconds": 0.5, "bytes": 1000}]})
    assert_all_arrived(load)
    for role in ("producer", "consumer"):
        count = "sent" if role == "producer" else "received"
        for phase, size in (("warmup", 100), ("measure", 1000)):
            assert load.total(role, "bytes", phase) == size * load.total(role, count, phase) > 0


def test_an_agent_that_learns_of_it_too_late_begins_then_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late_ns = 400_000_000

    def look(self: Settling, now: int, sent: int, received: int) -> int | None:
        if self.outcome is not None or received < 100:
            return None
        self.outcome = Settled(True, 1.0, 1.0, 1.0)
        return now - late_ns

    monkeypatch.setattr(Settling, "look", look)
    load = load_of()
    assert load.control.agents[0].reports["produced"]["measured_late_ns"] >= late_ns
    assert_all_arrived(load)
