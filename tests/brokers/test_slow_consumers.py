"""Consumers that are slow on purpose, against real brokers: what waits, and where."""

from __future__ import annotations

from typing import Any

import pytest
from agents import Load, run_load

from bench_spark.agent.recorder import CONSUMER
from bench_spark.config.broker import Broker
from bench_spark.config.models import Scenario
from bench_spark.plan import make_plan


@pytest.fixture(params=["rabbitmq_broker", "qpid_broker"])
def amqp_broker(request: pytest.FixtureRequest) -> Broker:
    broker: Broker = request.getfixturevalue(request.param)
    return broker


def slow_load(broker: Broker, run_id: str, drain_seconds: float, **keys: Any) -> Load:
    defaults = {
        "load": {"rate_per_second": 400},
        "consumer": {"rate_per_second": 100},
        "phases": {"warmup_seconds": 0, "measure_seconds": 1, "drain_seconds": drain_seconds},
    }
    load = run_load(make_plan(Scenario.model_validate(defaults | keys), run_id), broker)
    assert not load.control.failures
    assert load.accounts().closes
    assert load.accounts().lost == 0
    return load


def received_by_second(load: Load) -> dict[int, int]:
    received: dict[int, int] = {}
    for _, row in load.rows:
        if row.role == CONSUMER:
            received[row.tick] = received.get(row.tick, 0) + row.counters["received"]
    return received


@pytest.mark.parametrize("ack", ["auto", "manual"])
def test_no_consumer_takes_more_than_its_rate_and_all_is_received_in_the_end(
    amqp_broker: Broker, ack: str
) -> None:
    load = slow_load(
        amqp_broker,
        f"slow-{ack}-{amqp_broker.name}",
        drain_seconds=10,
        producers=2,
        consumers=2,
        amqp={"ack": ack, "prefetch": 10},
    )
    assert load.accounts().received_once == 400
    by_second = received_by_second(load)
    assert max(by_second.values()) <= 2 * 101
    assert load.histogram("latency").max_us >= 800_000, "waiting is part of the latency"


@pytest.mark.fault(case=19)
def test_unacknowledged_messages_stay_in_the_broker(amqp_broker: Broker) -> None:
    load = slow_load(
        amqp_broker,
        f"slow-left-{amqp_broker.name}",
        drain_seconds=0.5,
        amqp={"ack": "manual", "prefetch": 10},
    )
    accounts = load.accounts()
    # 100 a second for a second and a half, more where the load itself took longer than it should.
    assert max(received_by_second(load).values()) <= 101
    assert accounts.received_once < 400
    assert accounts.left_in_broker == 400 - accounts.received_once
    assert load.total(CONSUMER, "duplicates") == 0


def test_messages_are_acknowledged_when_they_have_been_processed(amqp_broker: Broker) -> None:
    """With one message at a time, the broker holds the next one back until then."""
    load = slow_load(
        amqp_broker,
        f"slow-processing-{amqp_broker.name}",
        drain_seconds=10,
        load={"rate_per_second": 1000, "messages": 100},
        consumer={"processing_us": 10_000},
        amqp={"ack": "manual", "prefetch": 1},
    )
    assert load.accounts().received_once == 100
    assert load.total(CONSUMER, "acked") == 100
    assert load.histogram("latency").max_us >= 850_000
