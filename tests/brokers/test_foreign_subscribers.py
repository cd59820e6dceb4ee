"""The time in a body is there for anybody: bytes 0 to 7, nanoseconds since the epoch."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

import pika
import pytest
from agents import run_load
from confluent_kafka import Consumer

from bench_spark.plan import make_plan
from bench_spark.scenario.broker import Broker
from bench_spark.scenario.models import Scenario

MESSAGES = 50
BODY_BYTES = 100


def read_by_pika(broker: Broker, name: str) -> list[bytes]:
    connection = pika.BlockingConnection(pika.URLParameters(broker.uri))
    channel = connection.channel()
    bodies = [channel.basic_get(name, auto_ack=True)[2] for _ in range(MESSAGES)]
    channel.queue_delete(name)
    connection.close()
    return bodies


def read_by_a_plain_consumer(broker: Broker, name: str) -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": f"foreign-{name}",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([name])
    messages = consumer.consume(MESSAGES, timeout=20)
    consumer.close()
    return [message.value() for message in messages]


@pytest.mark.parametrize(
    ("kind", "read"),
    [
        ("rabbitmq", read_by_pika),
        ("qpid", read_by_pika),
        ("kafka", read_by_a_plain_consumer),
    ],
)
def test_a_foreign_subscriber_reads_when_each_message_was_sent(
    request: pytest.FixtureRequest, kind: str, read: Callable[[Broker, str], list[bytes]]
) -> None:
    broker: Broker = request.getfixturevalue(f"{kind}_broker")
    name = f"foreign-{secrets.token_hex(4)}"
    scenario = Scenario.model_validate(
        {
            "consumers": 0,
            "keep_destinations": True,
            "message": {"bytes": BODY_BYTES},
            "load": {"rate_per_second": 100, "messages": MESSAGES},
            "phases": {"warmup_seconds": 0},
            "amqp": {"queue": {"name": name}, "confirms": 100},
            "kafka": {"topic": {"name": name}},
        }
    )
    before_ns = time.time_ns()
    load = run_load(make_plan(scenario, name), broker)
    after_ns = time.time_ns()
    assert load.control.failures == []
    bodies = read(broker, name)
    assert [len(body) for body in bodies] == [BODY_BYTES] * MESSAGES
    sent_ns = [int.from_bytes(body[:8], "little") for body in bodies]
    assert sent_ns == sorted(sent_ns)
    assert before_ns <= sent_ns[0] < sent_ns[-1] <= after_ns
