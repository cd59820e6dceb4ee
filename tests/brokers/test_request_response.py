"""Senders that wait for their own messages, on a real broker."""

from __future__ import annotations

import pytest
from agents import run_load

from bench_spark.config.broker import Broker
from bench_spark.config.models import Scenario
from bench_spark.plan import make_plan


@pytest.mark.parametrize("agents", [1, 2])
def test_senders_of_one_agent_or_two_keep_the_rate_together(
    rabbitmq_broker: Broker, agents: int
) -> None:
    scenario = Scenario.model_validate(
        {
            "agents": agents,
            "placement": "paired" if agents == 1 else "split",
            "producers": 10,
            "load": {"mode": "request", "rate_per_second": 200},
            "phases": {"warmup_seconds": 0, "measure_seconds": 1, "drain_seconds": 30},
        }
    )
    load = run_load(make_plan(scenario, f"answers-{agents}"), rabbitmq_broker)
    accounts = load.accounts()
    assert not load.control.failures
    assert accounts.sent == accounts.received_once
    assert load.total("producer", "due") == 200
    assert load.histogram("round_trip").count == accounts.sent
    assert load.histogram("latency").count == accounts.sent
