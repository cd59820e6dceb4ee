"""What anybody else reads in our bodies: when each was sent, in bytes 0 to 7, and padding."""

from __future__ import annotations

import lzma
import secrets
import time
from collections.abc import Callable
from typing import Any

import pika
import pytest
from agents import run_load
from confluent_kafka import Consumer

from bench_spark.config.broker import Broker
from bench_spark.config.models import Scenario
from bench_spark.plan import make_plan

MESSAGES = 50
BODY_BYTES = 100


def read_by_pika(broker: Broker, name: str) -> list[bytes]:
    connection = pika.BlockingConnection(pika.URLParameters(broker.uri))
    channel = connection.channel()
    bodies = []
    while (got := channel.basic_get(name, auto_ack=True))[0] is not None:
        bodies.append(got[2])
    channel.queue_delete(name)
    connection.close()
    return bodies


def read_by_a_plain_consumer(broker: Broker, name: str, count: int = MESSAGES) -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": f"foreign-{name}",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([name])
    messages: list[Any] = []
    deadline = time.monotonic() + 60
    while len(messages) < count and time.monotonic() < deadline:
        messages += consumer.consume(count - len(messages), timeout=1)
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
    assert before_ns <= sent_ns[0] <= sent_ns[-1] <= after_ns


MANY, PADDED_BYTES = 500, 1000


def test_random_padding_differs_from_message_to_message(rabbitmq_broker: Broker) -> None:
    """That any protocol carries such bodies is in the contract of transports."""
    name = f"padded-{secrets.token_hex(4)}"
    scenario = Scenario.model_validate(
        {
            "consumers": 0,
            "producers": 2,
            "destinations": 1,
            "keep_destinations": True,
            "message": {"bytes": PADDED_BYTES},
            "load": {"mode": "maximum", "messages": MANY},
            "phases": {"warmup_seconds": 0},
            "amqp": {"queue": {"name": name}, "confirms": 100},
        }
    )
    load = run_load(make_plan(scenario, name), rabbitmq_broker)
    assert load.control.failures == []
    bodies = read_by_pika(rabbitmq_broker, name)
    assert [len(body) for body in bodies] == [PADDED_BYTES] * MANY
    padding = b"".join(body[32:] for body in bodies)
    assert len(lzma.compress(padding)) > 0.97 * len(padding)
    # Envelopes are numbers that do compress: with them a body still shrinks by no more than they
    # do.
    whole = b"".join(bodies)
    assert len(lzma.compress(whole)) > 0.97 * len(whole)
