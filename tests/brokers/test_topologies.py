"""Topologies on real brokers: every consumer gets what it should, and it is known beforehand."""

from __future__ import annotations

import secrets
from typing import Any

import pytest
from agents import Load, run_load
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench_spark.plan import Plan, make_plan
from bench_spark.scenario.broker import Broker
from bench_spark.scenario.models import Scenario

AT_LEAST_ONCE: dict[str, Any] = {
    "amqp": {"confirms": 100, "ack": "manual"},
    "kafka": {"producer": {"acks": "all"}},
}
QUICK = {"warmup_seconds": 0.2, "measure_seconds": 0.6, "drain_seconds": 20}


@pytest.fixture(params=["rabbitmq", "qpid", "kafka"])
def healthy_broker(request: pytest.FixtureRequest) -> Broker:
    found: Broker = request.getfixturevalue(f"{request.param}_broker")
    return found


@st.composite
def sizes(draw: st.DrawFn) -> dict[str, Any]:
    """A topology with few members, in one agent or two."""
    topology = draw(st.sampled_from(["fan-in", "fan-out", "straight-run", "round-robin"]))
    producers = draw(st.integers(1, 5))
    destinations = draw(st.integers(1, producers))
    consumers = draw(st.integers(1, destinations if topology == "fan-in" else 5))
    keys = {"producers": producers, "consumers": consumers, "destinations": destinations}
    if topology == "straight-run":
        keys = {"producers": producers}
    agents = draw(st.integers(1, 2 if min(keys.values()) > 1 else 1))
    return {"topology": topology, "agents": agents, **keys}


def plan_of(**keys: Any) -> Plan:
    load = {"rate_per_second": 50, "scope": "per_producer"}
    given_keys = AT_LEAST_ONCE | {"load": load, "phases": QUICK} | keys
    scenario = Scenario.model_validate({"name": "topology"} | given_keys)
    return make_plan(scenario, f"topology-{secrets.token_hex(4)}")


def assert_delivered(load: Load, expected: int | None) -> None:
    accounts = load.accounts()
    assert load.control.failures == []
    assert accounts.closes
    assert accounts.lost == accounts.indeterminate == accounts.left_in_broker == 0
    assert accounts.received_once == accounts.sent * load.plan.copies == expected
    assert load.total("consumer", "received") == expected
    assert load.total("consumer", "duplicates") == 0


@given(keys=sizes())
@settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_healthy_broker_delivers_exactly_what_the_plan_expects(
    healthy_broker: Broker, keys: dict[str, Any]
) -> None:
    plan = plan_of(**keys)
    load = run_load(plan, healthy_broker)
    assert_delivered(load, plan.expected_deliveries)
