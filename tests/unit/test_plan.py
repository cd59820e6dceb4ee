"""How a scenario is split into assignments: nothing lost, nothing twice, nobody idle."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bench_spark.errors import ConfigurationError
from bench_spark.measure.clock import NANOSECONDS
from bench_spark.measure.envelope import run_tag
from bench_spark.plan import (
    SLOTS_FOR_STREAMING,
    UNBOUNDED_PHASE_SECONDS,
    Assignment,
    Plan,
    make_plan,
    mean_rate_per_second,
    resolve_agents,
)
from bench_spark.scenario.models import Scenario


def scenario(**keys: Any) -> Scenario:
    return Scenario.model_validate(keys)


@st.composite
def scenarios(
    draw: st.DrawFn,
    placement: str | None = None,
    messages: st.SearchStrategy[int | None] = st.none() | st.integers(1, 10**12),  # noqa: B008
    fastest: float = 200_000,
) -> Scenario:
    """Scenarios of any size; few of them leave an agent idle."""
    producers, consumers = draw(st.integers(1, 12)), draw(st.integers(1, 12))
    destinations = draw(st.integers(1, min(producers, consumers)))
    placement = placement or draw(st.sampled_from(["paired", "split"]))
    if placement == "split":
        agents = draw(st.integers(2, producers + consumers))
    else:
        agents = draw(st.integers(1, max(destinations, min(producers, consumers))))
    return scenario(
        agents=agents,
        producers=producers,
        consumers=consumers,
        destinations=destinations,
        placement=placement,
        load={
            "rate_per_second": draw(st.floats(0.5, fastest)),
            "scope": draw(st.sampled_from(["total", "per_producer"])),
            "messages": draw(messages),
        },
        phases={
            "warmup_seconds": draw(st.sampled_from([0, 0.25, 1, 5])),
            "measure_seconds": draw(st.sampled_from([0.5, 1, 10])),
        },
    )


def planned(asked: Scenario) -> Plan:
    """The plan; sizes that would leave an agent without work are not of interest."""
    try:
        return make_plan(asked, "run-1")
    except ConfigurationError as refusal:
        assume("without work" not in str(refusal))
        raise


# -- who does what -------------------------------------------------------------------------------


@given(scenarios())
def test_every_producer_and_consumer_is_placed_exactly_once(asked: Scenario) -> None:
    plan = planned(asked)
    producers = [m.index for a in plan.assignments for m in a.producers]
    consumers = [m.index for a in plan.assignments for m in a.consumers]
    assert sorted(producers) == list(range(asked.producers))
    assert sorted(consumers) == list(range(asked.consumers))


@given(scenarios())
def test_member_i_uses_destination_i_modulo_their_number(asked: Scenario) -> None:
    for assignment in planned(asked).assignments:
        for member in assignment.producers + assignment.consumers:
            assert member.destinations == (member.index % asked.destinations,)


@given(scenarios())
def test_every_destination_is_declared_by_exactly_one_agent_that_uses_it(asked: Scenario) -> None:
    plan = planned(asked)
    declared = [index for a in plan.assignments for index in a.declares]
    assert sorted(declared) == list(range(asked.destinations))
    for assignment in plan.assignments:
        assert set(assignment.declares) <= set(assignment.destinations)


@given(scenarios())
def test_agents_are_numbered_in_order_and_none_is_idle(asked: Scenario) -> None:
    plan = planned(asked)
    assert [a.agent for a in plan.assignments] == list(range(int(plan.scenario.agents)))
    assert all(a.agents == len(plan.assignments) for a in plan.assignments)
    assert all(a.producers or a.consumers for a in plan.assignments)
    assert {a.run_tag for a in plan.assignments} == {run_tag("run-1")}


@given(scenarios(placement="paired"))
def test_paired_keeps_a_destination_in_one_agent_while_there_are_enough(asked: Scenario) -> None:
    assume(asked.destinations >= int(asked.agents))
    plan = planned(asked)
    used = [index for a in plan.assignments for index in a.destinations]
    assert len(used) == len(set(used))
    assert not any(a.shares_destinations for a in plan.assignments)
    assert all(a.producers and a.consumers for a in plan.assignments)


@given(scenarios(placement="split"))
def test_split_keeps_producers_and_consumers_in_different_agents(asked: Scenario) -> None:
    plan = planned(asked)
    assert not any(a.producers and a.consumers for a in plan.assignments)
    assert all(a.shares_destinations for a in plan.assignments)


@given(scenarios())
def test_an_agent_shares_destinations_when_another_one_uses_one_of_them(asked: Scenario) -> None:
    plan = planned(asked)
    for one in plan.assignments:
        others = {i for a in plan.assignments if a is not one for i in a.destinations}
        assert one.shares_destinations == bool(others & set(one.destinations))


@given(st.integers(1, 20), st.integers(1, 20))
def test_pairs_are_spread_evenly_over_agents(pairs: int, agents: int) -> None:
    assume(agents <= pairs)
    asked = scenario(agents=agents, producers=pairs, consumers=pairs, destinations=pairs)
    sizes = [len(a.producers) for a in make_plan(asked, "run-1").assignments]
    assert max(sizes) - min(sizes) <= 1


# -- how much, and when --------------------------------------------------------------------------


def schedule_rates(plan: Plan) -> list[float]:
    return [a.schedule.rate_per_second for a in plan.assignments if a.schedule is not None]


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
    end = start + round(assignment.measure_seconds * NANOSECONDS)
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


@pytest.mark.parametrize("rate", [1, 3, 7, 29, 58, 77, 83, 1000, 2999, 33_333])
@pytest.mark.parametrize("agents", [1, 2, 3, 7])
def test_equal_agents_together_send_rate_times_seconds(rate: int, agents: int) -> None:
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
    assert plan.expected_messages == rate * 10


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
    assert plan.assignments[0].measure_seconds == 4.0
    assert plan.load_seconds == 9.0
    assert plan.longest_seconds == 14.0


def test_a_message_count_bounds_an_unpaced_phase_whose_length_nobody_knows() -> None:
    plan = make_plan(scenario(load={"mode": "maximum", "messages": 2000}), "run-1")
    assert plan.expected_messages == 2000
    assert plan.assignments[0].measure_seconds == UNBOUNDED_PHASE_SECONDS


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


# -- per agent, and as many as there is room for -------------------------------------------------


def test_per_agent_multiplies_members_destinations_rate_and_messages() -> None:
    asked = scenario(
        agents=3,
        producers=2,
        consumers=4,
        destinations=2,
        load={"rate_per_second": 100, "scope": "per_agent", "messages": 50},
    )
    plan = make_plan(asked, "run-1")
    effective = plan.scenario
    assert (effective.producers, effective.consumers, effective.destinations) == (6, 12, 6)
    assert (effective.load.rate_per_second, effective.load.messages) == (300, 150)
    assert effective.load.scope == "total"
    assert [(len(a.producers), len(a.consumers)) for a in plan.assignments] == [(2, 4)] * 3
    assert [a.messages for a in plan.assignments] == [50] * 3
    assert schedule_rates(plan) == pytest.approx([100.0] * 3)


@pytest.mark.parametrize(
    ("keys", "free_slots", "agents"),
    [
        ({"agents": 3}, 1, 3),
        ({"agents": "auto"}, 4, 1),
        ({"agents": "auto", "producers": 8, "consumers": 8}, 4, 3),
        ({"agents": "auto", "producers": 2, "consumers": 8}, 100, 2),
        ({"agents": "auto", "producers": 8, "consumers": 8}, 0, 1),
        ({"agents": "auto", "load": {"scope": "per_agent"}}, 9, 8),
        ({"agents": "auto", "placement": "split", "producers": 2, "consumers": 3}, 100, 5),
        ({"agents": "auto", "placement": "split", "producers": 2, "consumers": 3}, 1, 2),
    ],
)
def test_auto_takes_what_slots_and_members_allow(
    keys: dict[str, Any], free_slots: int, agents: int
) -> None:
    assert resolve_agents(scenario(**keys), free_slots) == agents


@pytest.mark.parametrize(
    ("free_slots", "executors", "agents"),
    [(2, 1, 1), (4, 2, 2), (8, 4, 4), (12, 4, 8), (5, 4, 4), (4, 4, 3), (1, 1, 1)],
)
def test_auto_leaves_a_slot_of_every_executor_that_has_several_to_the_rolling_metrics(
    free_slots: int, executors: int, agents: int
) -> None:
    asked = scenario(agents="auto", load={"scope": "per_agent", "rate_per_second": 100})
    plan = make_plan(asked, "run-1", free_slots, executors)
    assert len(plan.assignments) == agents
    assert plan.scenario.load.rate_per_second == 100 * agents


def test_auto_and_split_never_leave_the_producers_out() -> None:
    plan = make_plan(scenario(agents="auto", placement="split"), "run-1", free_slots=2)
    assert [(len(a.producers), len(a.consumers)) for a in plan.assignments] == [(1, 0), (0, 1)]


def test_a_plan_needs_a_slot_per_agent_and_one_for_the_rolling_metrics() -> None:
    plan = make_plan(scenario(agents=3, producers=3, consumers=3), "run-1")
    assert plan.slots_needed == 3 + SLOTS_FOR_STREAMING


@pytest.mark.parametrize(("size", "has_accounts"), [(8, False), (31, False), (32, True)])
def test_bodies_without_room_for_a_sequence_have_no_accounts(size: int, has_accounts: bool) -> None:
    assert make_plan(scenario(message={"bytes": size}), "run-1").has_accounts is has_accounts


# -- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "idle"),
    [
        ({"agents": 2}, 1),
        ({"agents": 5, "producers": 2, "consumers": 3}, 2),
        ({"agents": 5, "producers": 2, "consumers": 2, "placement": "split"}, 1),
    ],
)
def test_agents_without_work_are_refused(keys: dict[str, Any], idle: int) -> None:
    with pytest.raises(ConfigurationError, match=f"leave {idle} of them without work"):
        make_plan(scenario(**keys), "run-1")


@pytest.mark.parametrize("destinations", [1, 2])
def test_a_window_over_destinations_that_agents_share_is_refused(destinations: int) -> None:
    asked = scenario(
        agents=3, producers=3, consumers=3, destinations=destinations, load={"mode": "window"}
    )
    with pytest.raises(ConfigurationError, match="window needs both ends"):
        make_plan(asked, "run-1")


def test_a_window_whose_destinations_stay_inside_agents_is_planned() -> None:
    asked = scenario(agents=2, producers=4, consumers=2, destinations=2, load={"mode": "window"})
    assert len(make_plan(asked, "run-1").assignments) == 2


def test_a_window_needs_bodies_that_say_which_producer_they_are_from() -> None:
    asked = scenario(
        producers=2, consumers=2, load={"mode": "window"}, message={"bytes": 31}, agents=1
    )
    with pytest.raises(ConfigurationError, match=r"message\.bytes"):
        make_plan(asked, "run-1")


@pytest.mark.parametrize(("destinations", "agents"), [(101, 1), (201, 2)])
def test_a_breakdown_over_too_many_destinations_is_refused(destinations: int, agents: int) -> None:
    def asked(count: int) -> Scenario:
        return scenario(
            agents=agents,
            producers=count,
            consumers=count,
            destinations=count,
            breakdown="destination",
        )

    with pytest.raises(ConfigurationError, match=r"breakdown: destination: .* 101 destinations"):
        make_plan(asked(destinations), "run-1")
    assert make_plan(asked(destinations - 1), "run-1")


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
        end = start + math.ceil(assignment.measure_seconds * NANOSECONDS)
        assert schedule.intended_ns(last) < end + 2 * NANOSECONDS / schedule.rate_per_second


# -- one end only --------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["producers", "consumers"])
def test_members_of_one_end_are_dealt_over_destinations_and_agents(role: str) -> None:
    other = {"producers": "consumers", "consumers": "producers"}[role]
    asked = {role: 5, other: 0, "destinations": 3, "agents": 2, "load": {"messages": 100}}
    plan = make_plan(scenario(**asked), "run-1")
    placed = [[member.index for member in getattr(a, role)] for a in plan.assignments]
    assert placed == [[0, 3, 2], [1, 4]]
    assert [a.declares for a in plan.assignments] == [(0, 2), (1,)]
    assert [a.messages for a in plan.assignments] == [60, 40]
    assert not any(getattr(a, other) for a in plan.assignments)
    assert not plan.has_accounts
    assert plan.expected_messages == 100


@pytest.mark.parametrize("role", ["producers", "consumers"])
def test_auto_gives_every_member_of_one_end_an_agent_where_there_is_room(role: str) -> None:
    other = {"producers": "consumers", "consumers": "producers"}[role]
    asked = scenario(**{role: 3, other: 0, "agents": "auto"})
    assert [resolve_agents(asked, slots) for slots in (2, 3, 10)] == [1, 2, 3]


def test_how_long_consuming_a_number_of_messages_takes_is_open_whatever_the_mode() -> None:
    plan = make_plan(scenario(producers=0, load={"mode": "rate", "messages": 10}), "run-1")
    assert plan.assignments[0].measure_seconds == UNBOUNDED_PHASE_SECONDS
    assert plan.assignments[0].schedule is None
    timed = make_plan(scenario(producers=0), "run-1")
    assert timed.assignments[0].measure_seconds == 10
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


@st.composite
def topologies(draw: st.DrawFn) -> Scenario:
    topology = draw(st.sampled_from(["fan-in", "fan-out", "straight-run", "round-robin"]))
    producers = draw(st.integers(1, 12))
    destinations = draw(st.integers(1, producers))
    consumers = draw(st.integers(1, destinations if topology == "fan-in" else 12))
    if topology == "straight-run":
        consumers = destinations = producers
    placement = draw(st.sampled_from(["paired", "split"]))
    fewest = 2 if placement == "split" else 1
    agents = draw(st.integers(fewest, max(fewest, min(producers, consumers))))
    return scenario(
        topology=topology,
        agents=agents,
        producers=producers,
        consumers=consumers,
        destinations=destinations,
        placement=placement,
        load={"rate_per_second": draw(st.integers(1, 5000)), "scope": "per_producer"},
        phases={"warmup_seconds": 0, "measure_seconds": draw(st.integers(1, 60))},
    )


@given(asked=topologies())
def test_a_topology_is_divided_without_loss_and_each_part_has_one_owner(asked: Scenario) -> None:
    plan = make_plan(asked, "run")
    wiring = asked.wiring
    for role, count in (("producers", asked.producers), ("consumers", asked.consumers)):
        members = [m for one in plan.assignments for m in getattr(one, role)]
        assert sorted(member.index for member in members) == list(range(count))
    declared = [index for one in plan.assignments for index in one.declares]
    assert sorted(declared) == list(range(asked.destinations))
    inspected = [index for one in plan.assignments for index in one.inspects]
    assert sorted(inspected) == list(range(wiring.subscriptions))
    for one in plan.assignments:
        groups = {wiring.group_of_destination(index) for index in one.declares}
        whole = {index for group in groups for index in wiring.destinations_of_group(group)}
        assert whole == set(one.declares), "whoever counts and deletes a group owns all of it"


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


@pytest.mark.parametrize("topology", ["round-robin", "fan-in"])
def test_a_closed_loop_is_not_divided(topology: str) -> None:
    asked = scenario(topology=topology, agents=20, producers=20, load={"mode": "window"})
    with pytest.raises(ConfigurationError, match=r"load\.mode: window needs both ends"):
        make_plan(asked, "run")
