"""`delivery` on real brokers: who answers, and that nothing is lost or comes twice."""

from __future__ import annotations

import secrets

import pytest
from agents import Load, run_load

from bench_spark.config.broker import Broker
from bench_spark.config.models import Scenario
from bench_spark.driver.accounts import uses_confirms
from bench_spark.plan import make_plan
from bench_spark.transports.registry import fitted


def run(broker: Broker, delivery: str) -> Load:
    asked = {
        "delivery": delivery,
        "load": {"rate_per_second": 500},
        "phases": {"warmup_seconds": 0.2, "measure_seconds": 1, "drain_seconds": 20},
    }
    scenario = fitted(Scenario.model_validate(asked), broker)
    return run_load(make_plan(scenario, f"delivery-{secrets.token_hex(4)}"), broker)


@pytest.mark.parametrize(
    ("kind", "delivery"),
    [
        ("rabbitmq", "at_most_once"),
        ("rabbitmq", "at_least_once"),
        ("kafka", "at_most_once"),
        ("kafka", "at_least_once"),
        ("kafka", "exactly_once"),
        ("mosquitto", "at_most_once"),
        ("mosquitto", "at_least_once"),
        ("mosquitto", "exactly_once"),
    ],
)
def test_a_healthy_broker_keeps_each_word(
    request: pytest.FixtureRequest, kind: str, delivery: str
) -> None:
    load = run(request.getfixturevalue(f"{kind}_broker"), delivery)
    accounts = load.accounts()
    assert load.control.failures == []
    assert accounts.sent == accounts.received_once == load.total("consumer", "received") == 500
    is_answered = delivery != "at_most_once"
    assert uses_confirms(load.control) == is_answered
    assert load.total("producer", "confirmed") == (500 if is_answered else 0)
    if kind == "rabbitmq":
        acked = load.total_of_all_phases("consumer", "acked")
        assert acked == (600 if is_answered else 0)
