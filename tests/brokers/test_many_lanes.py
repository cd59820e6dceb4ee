"""Hundreds and thousands of connections from one agent, on one loop."""

from __future__ import annotations

import resource
from typing import Any

import pytest
from agents import Load, run_load

from bench_spark.config.broker import Broker
from bench_spark.config.models import Scenario
from bench_spark.plan import make_plan

CONFIRMED = {"confirms": 10, "ack": "manual", "ack_every": 10}
SPARE_DESCRIPTORS = 500
"""What the test itself, the agent and the broker open besides."""


def run_pairs(broker: Broker, pairs: int, destinations: int, rate_per_second: int) -> Load:
    """So many producers and as many consumers, confirmed and acknowledged in groups of ten."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * pairs + SPARE_DESCRIPTORS
    if 0 <= hard < wanted:  # -1 is unlimited
        pytest.skip(f"{2 * pairs} connections need {wanted} open files, the limit here is {hard}")
    scenario: dict[str, Any] = {
        "name": "many-lanes",
        "producers": pairs,
        "consumers": pairs,
        "destinations": destinations,
        "load": {"rate_per_second": rate_per_second},
        "phases": {"warmup_seconds": 0.5, "measure_seconds": 2, "drain_seconds": 15},
        "amqp": CONFIRMED,
    }
    plan = make_plan(Scenario.model_validate(scenario), f"many-{pairs}-{destinations}")
    return run_load(plan, broker)


def assert_every_lane_worked(load: Load, messages: int) -> None:
    assert not load.control.failures
    accounts = load.accounts()
    assert accounts.closes
    assert (accounts.sent, accounts.received_once, accounts.lost) == (messages, messages, 0)
    assert load.total("producer", "confirmed") == messages
    # Groups that were not full at the end are acknowledged as lanes close, and not counted.
    assert load.total_of_all_phases("consumer", "acked") >= messages // 2
    [agent] = load.control.agents
    assert agent.opened > 0
    producers = load.plan.scenario.producers
    sent = {index: measured for index, _, measured in agent.reports["closed"]["sent_by_producer"]}
    assert sent == dict.fromkeys(range(producers), messages // producers)
    # Nobody else reads a queue of one consumer, so all that arrived came through all lanes.
    assert set(agent.reports["inspected"]["depths"].values()) == {0}


def test_hundreds_of_lanes_share_a_confirmed_load_and_lose_nothing(
    rabbitmq_broker: Broker,
) -> None:
    load = run_pairs(rabbitmq_broker, 150, 5, rate_per_second=1500)
    assert_every_lane_worked(load, messages=3000)


@pytest.mark.slow
def test_two_thousand_connections_of_one_agent_share_a_confirmed_load(
    rabbitmq_broker: Broker,
) -> None:
    load = run_pairs(rabbitmq_broker, 1000, 1000, rate_per_second=4000)
    assert_every_lane_worked(load, messages=8000)
