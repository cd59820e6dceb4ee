"""How much is sent in a plan, and when."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planned_scenarios import planned, scenario, scenarios, schedule_rates, topologies

from bench_spark.config.models import Scenario
from bench_spark.core.clock import NANOSECONDS
from bench_spark.plan import (
    UNBOUNDED_PHASE_SECONDS,
    Assignment,
    make_plan,
    mean_rate_per_second,
    measured_seconds,
)


@given(scenarios())
def test_the_rates_of_all_agents_add_up_to_the_rate_asked_for(asked: Scenario) -> None:
    factor = asked.producers if asked.load.scope == "per_producer" else 1
    rates = schedule_rates(planned(asked))
    assert sum(rates) == pytest.approx(asked.load.rate_per_second * factor, rel=1e-9)


@given(scenarios())
def test_shares_of_a_message_count_add_up_exactly(asked: Scenario) -> None:
    plan = planned(asked)
    shares = [a.messages for a in plan.assignments]
    if asked.load.messages is None:
        assert set(shares) == {None}
        return
    assert sum(share or 0 for share in shares) == asked.load.messages == plan.expected_messages
    assert all((share or 0) >= 0 for share in shares)
    assert all(a.producers or a.messages == 0 for a in plan.assignments)


def scheduled_in_measured_phase(assignment: Assignment) -> int:
    """Counted one by one, as the loop will send them."""
    schedule = assignment.schedule
    if schedule is None:
        return 0
    start = round(assignment.scenario.phases.warmup_seconds * NANOSECONDS)
    end = start + round(measured_seconds(assignment.scenario) * NANOSECONDS)
    rough = int(end / NANOSECONDS * schedule.rate_per_second) + 4
    due = schedule.intended_of_ns(np.arange(rough))
    return int(np.count_nonzero((due >= start) & (due < end)))


@given(scenarios(messages=st.none(), fastest=1000))
def test_expected_messages_are_those_the_schedule_has_in_the_measured_phase(
    asked: Scenario,
) -> None:
    factor = asked.producers if asked.load.scope == "per_producer" else 1
    plan = planned(asked)
    for assignment in plan.assignments:
        assert assignment.expected_messages == scheduled_in_measured_phase(assignment)
    wanted = asked.load.rate_per_second * factor * asked.phases.measure_seconds
    producing = len(schedule_rates(plan))
    assert abs((plan.expected_messages or 0) - wanted) <= producing


@pytest.mark.parametrize("agents", [1, 2, 3, 7])
def test_equal_agents_together_send_rate_times_seconds(agents: int) -> None:
    for rate in (1, 3, 7, 29, 58, 77, 83, 1000, 2999, 33_333):
        plan = make_plan(
            scenario(
                agents=agents,
                producers=agents,
                consumers=agents,
                destinations=agents,
                load={"rate_per_second": rate},
                phases={"warmup_seconds": 2, "measure_seconds": 10},
            ),
            "run-1",
        )
        assert plan.expected_messages == rate * 10, rate


def test_agents_are_shifted_against_each_other_into_one_even_stream() -> None:
    plan = make_plan(
        scenario(
            agents=4, producers=4, consumers=4, destinations=4, load={"rate_per_second": 1000}
        ),
        "run-1",
    )
    schedules = [assignment.schedule for assignment in plan.assignments if assignment.schedule]
    due = np.sort(np.concatenate([one.intended_of_ns(np.arange(50)) for one in schedules]))
    gaps = {int(after - before) for before, after in pairwise(due)}
    assert gaps == {NANOSECONDS // 1000}


def test_a_message_count_sets_the_length_of_a_paced_phase() -> None:
    plan = make_plan(scenario(load={"rate_per_second": 500, "messages": 2000}), "run-1")
    assert measured_seconds(plan.assignments[0].scenario) == 4.0
    assert plan.longest_seconds == 14.0


def test_a_message_count_bounds_an_unpaced_phase_whose_length_nobody_knows() -> None:
    plan = make_plan(scenario(load={"mode": "maximum", "messages": 2000}), "run-1")
    assert plan.expected_messages == 2000
    assert measured_seconds(plan.assignments[0].scenario) == UNBOUNDED_PHASE_SECONDS


@pytest.mark.parametrize("mode", ["maximum", "window"])
def test_a_load_that_finds_its_own_speed_expects_no_number(mode: str) -> None:
    plan = make_plan(scenario(load={"mode": mode}), "run-1")
    assert plan.expected_messages is None
    assert plan.assignments[0].schedule is None


def test_agents_that_only_consume_have_no_schedule_and_expect_to_send_nothing() -> None:
    plan = make_plan(scenario(agents=2, placement="split"), "run-1")
    producing, consuming = plan.assignments
    assert (producing.expected_messages, consuming.expected_messages) == (100_000, 0)
    assert consuming.schedule is None
    assert plan.expected_messages == 100_000


@given(scenarios(messages=st.integers(1, 10**12)))
def test_every_message_of_a_counted_load_is_due_within_a_period_of_the_end(
    asked: Scenario,
) -> None:
    for assignment in planned(asked).assignments:
        schedule = assignment.schedule
        if schedule is None or not assignment.messages:
            continue
        start = round(asked.phases.warmup_seconds * NANOSECONDS)
        last = schedule.messages_before(start) + assignment.messages - 1
        end = start + math.ceil(measured_seconds(assignment.scenario) * NANOSECONDS)
        assert schedule.intended_ns(last) < end + 2 * NANOSECONDS / schedule.rate_per_second


def test_how_long_consuming_a_number_of_messages_takes_is_open_whatever_the_mode() -> None:
    plan = make_plan(scenario(producers=0, load={"mode": "rate", "messages": 10}), "run-1")
    assert measured_seconds(plan.assignments[0].scenario) == UNBOUNDED_PHASE_SECONDS
    assert plan.assignments[0].schedule is None
    timed = make_plan(scenario(producers=0), "run-1")
    assert measured_seconds(timed.assignments[0].scenario) == 10
    assert timed.expected_messages is None


@pytest.mark.parametrize("agents", [1, 3])
@pytest.mark.parametrize("scope", ["total", "per_producer", "per_agent"])
def test_steps_of_the_rate_begin_with_the_measured_phase(agents: int, scope: str) -> None:
    members = 1 if scope == "per_agent" else 3
    scenario = Scenario.model_validate(
        {
            "agents": agents,
            **dict.fromkeys(("producers", "consumers", "destinations"), members),
            "load": {
                "rate_per_second": 300,
                "scope": scope,
                "steps": [
                    {"seconds": 2, "rate_per_second": 30},
                    {"seconds": 1, "rate_per_second": 900},
                ],
            },
            "phases": {"warmup_seconds": 1, "measure_seconds": 5},
        }
    )
    made = make_plan(scenario, "run")
    counted = {"total": 1, "per_producer": 3, "per_agent": agents}[scope]
    assert made.expected_messages == counted * (2 * 30 + 1 * 900 + 2 * 900)
    assert mean_rate_per_second(made.scenario) * 5 == pytest.approx(made.expected_messages)
    schedules = [one.schedule for one in made.assignments]
    warmup = sum(one.messages_before(NANOSECONDS) for one in schedules if one is not None)
    assert warmup == counted * 300


@given(asked=topologies())
def test_the_expected_count_is_that_of_the_metrics_specification(asked: Scenario) -> None:
    sent = asked.producers * asked.load.rate_per_second * asked.phases.measure_seconds
    expected = {
        "fan-in": sent,
        "fan-out": sent * asked.consumers,
        "straight-run": sent,
        "round-robin": sent,
    }[asked.topology or ""]
    plan = make_plan(asked, "run")
    assert plan.expected_deliveries == expected
    assert plan.expected_messages == sent


def test_a_load_that_finds_its_own_speed_expects_what_it_will_have_sent() -> None:
    plan = make_plan(scenario(topology="fan-out", consumers=7, load={"mode": "maximum"}), "run")
    assert plan.expected_deliveries is None
    assert plan.copies == 7
