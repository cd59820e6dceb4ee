"""Who goes to which agent: nobody lost, nobody twice, nobody idle."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from planned_scenarios import planned, scenario, scenarios, topologies

from bench_spark.config.models import Scenario
from bench_spark.core.envelope import run_tag
from bench_spark.plan import make_plan


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
    assert not plan.scenario.has_accounts
    assert plan.expected_messages == 100


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
