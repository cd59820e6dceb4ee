"""Quorum queues and streams of RabbitMQ, end to end."""

from __future__ import annotations

from typing import Any

import pika
import pytest
from agents import Load, run_load

from bench_spark.config.broker import Broker
from bench_spark.config.models import Scenario
from bench_spark.plan import make_plan
from bench_spark.transports.registry import fitted

PHASES = {"warmup_seconds": 0.3, "measure_seconds": 1, "drain_seconds": 5}
RATE = 500


def load_on(kind: str, run_id: str, broker: Broker, **keys: Any) -> Load:
    amqp = {
        "queue": {"durable": True, "arguments": {"x-queue-type": kind}},
        "ack": "manual",
        "ack_every": 10,
        "confirms": 1000,
        **keys.pop("amqp", {}),
    }
    keys = {"load": {"rate_per_second": RATE}, "phases": PHASES, "amqp": amqp, **keys}
    scenario = fitted(Scenario.model_validate(keys), broker)
    load = run_load(make_plan(scenario, run_id), broker)
    assert not load.control.failures
    return load


@pytest.mark.parametrize("kind", ["quorum", "stream"])
def test_every_message_is_confirmed_and_received_once(rabbitmq_broker: Broker, kind: str) -> None:
    load = load_on(kind, kind, rabbitmq_broker)
    assert load.total("producer", "sent") == RATE
    accounts = load.accounts()
    assert accounts.received_once == accounts.sent
    assert load.total("producer", "confirmed") == accounts.sent
    assert load.total_of_all_phases("consumer", "duplicates") == 0
    # A stream keeps what was received: that is not left over.
    assert accounts.left_in_broker == 0


def test_a_stream_is_read_again_from_the_offset_that_is_asked_for(rabbitmq_broker: Broker) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(rabbitmq_broker.uri))
    channel = connection.channel()
    name = "stream-from-the-first"
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": "stream"})
    channel.confirm_delivery()
    for _ in range(30):
        channel.basic_publish("", name, bytes(100))
    try:
        for offset, expected in (("first", 30), (10, 20)):
            amqp = {
                "queue": {"name": name, "durable": True, "arguments": {"x-queue-type": "stream"}},
                "consumer_arguments": {"x-stream-offset": offset},
            }
            load = load_on(
                "stream",
                f"from-{offset}",
                rabbitmq_broker,
                producers=0,
                load={"messages": expected},
                phases={"warmup_seconds": 0, "measure_seconds": 5, "drain_seconds": 2},
                amqp=amqp,
            )
            assert load.total_of_all_phases("consumer", "received") == expected
    finally:
        channel.queue_delete(name)
        connection.close()
