"""How a scenario becomes assignments: as many as there is room for, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from planned_scenarios import scenario, schedule_rates

from bench_spark.config.models import Scenario
from bench_spark.errors import ConfigurationError
from bench_spark.plan import SLOTS_FOR_STREAMING, make_plan, resolve_agents

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
    assert (
        make_plan(scenario(message={"bytes": size}), "run-1").scenario.has_accounts is has_accounts
    )


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
            metrics_by="destination",
        )

    with pytest.raises(ConfigurationError, match=r"metrics_by: destination: .* 101 destinations"):
        make_plan(asked(destinations), "run-1")
    assert make_plan(asked(destinations - 1), "run-1")


@pytest.mark.parametrize("role", ["producers", "consumers"])
def test_auto_gives_every_member_of_one_end_an_agent_where_there_is_room(role: str) -> None:
    other = {"producers": "consumers", "consumers": "producers"}[role]
    asked = scenario(**{role: 3, other: 0, "agents": "auto"})
    assert [resolve_agents(asked, slots) for slots in (2, 3, 10)] == [1, 2, 3]


@pytest.mark.parametrize("topology", ["round-robin", "fan-in"])
def test_a_closed_loop_is_not_divided(topology: str) -> None:
    asked = scenario(topology=topology, agents=20, producers=20, load={"mode": "window"})
    with pytest.raises(ConfigurationError, match=r"load\.mode: window needs both ends"):
        make_plan(asked, "run")
