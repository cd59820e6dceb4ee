"""Accounts against real brokers: planted losses and duplicates, and the broker's own counters."""

from __future__ import annotations

import time
import urllib.request
from typing import Any

import pika
from agents import Load, run_load
from confluent_kafka import Consumer, TopicPartition

from bench_spark.brokers import BrokerStatus
from bench_spark.config.broker import Broker
from bench_spark.config.models import Scenario
from bench_spark.config.protocols import Amqp, AmqpQueue
from bench_spark.config.sections import Load as LoadModel
from bench_spark.config.sections import Phases
from bench_spark.plan import Plan, make_plan


def plan_of(run_id: str, **keys: Any) -> Plan:
    phases = Phases(warmup_seconds=0.5, measure_seconds=1, drain_seconds=30)
    keys = {"phases": phases, "load": LoadModel(rate_per_second=500)} | keys
    return make_plan(Scenario(name="accounting", **keys), run_id)


def open_channel(broker: Broker) -> tuple[pika.BlockingConnection, Any]:
    connection = pika.BlockingConnection(pika.URLParameters(broker.uri))
    return connection, connection.channel()


def test_planted_losses_and_duplicates_are_counted_exactly_over_two_agents(
    rabbitmq_broker: Broker,
) -> None:
    """Two agents compete on one queue while a thief takes messages and a copier repeats them."""
    plan = plan_of(
        "planted",
        agents=2,
        producers=2,
        consumers=2,
        destinations=1,
        # Long enough for the thief to find it going on, however busy the machine is.
        load=LoadModel(rate_per_second=200),
        # What is lost is waited for until the drain is over.
        phases=Phases(warmup_seconds=0.5, measure_seconds=6, drain_seconds=4),
    )
    stolen: list[bytes] = []

    def steal_and_copy(load: Load) -> None:
        connection, channel = open_channel(rabbitmq_broker)
        queue = load.control.destinations[0][0]
        time.sleep(1.0)
        # A thief competes with the run's own consumers and keeps exactly twenty of their messages.
        channel.basic_qos(prefetch_count=20)
        for method, _, body in channel.consume(queue, inactivity_timeout=5.0):
            assert method is not None, "the load ended before the thief had enough"
            stolen.append(body)
            if len(stolen) == 20:
                channel.basic_ack(method.delivery_tag, multiple=True)
                break
        channel.cancel()
        for body in stolen[:7]:
            channel.basic_publish("", queue, body)
            channel.basic_publish("", queue, body)
        connection.close()

    load = run_load(plan, rabbitmq_broker, steal_and_copy)

    accounts = load.accounts()
    assert not load.control.failures
    assert accounts.closes
    # Seven of the stolen came back twice: each of them is received once and duplicated once.
    assert accounts.sent == 1200
    assert accounts.lost == 13
    assert accounts.received_once == 1187
    assert load.total("consumer", "received") == 1187 + 7


def test_a_queue_that_drops_messages_on_purpose_is_reported_as_loss(
    rabbitmq_broker: Broker,
) -> None:
    """x-max-length and a slow consumer: the broker drops the oldest messages."""
    queue = AmqpQueue(name="dropping-%d", arguments={"x-max-length": 50})
    plan = plan_of(
        "dropping",
        amqp=Amqp(queue=queue, ack="manual", ack_every=1, prefetch=1),
        load=LoadModel(mode="maximum", messages=5_000),
        phases=Phases(warmup_seconds=0, drain_seconds=2),
    )
    load = run_load(plan, rabbitmq_broker)
    accounts = load.accounts()
    assert not load.control.failures
    assert accounts.closes
    assert accounts.lost > 0
    assert accounts.sent == accounts.received_once + accounts.lost + accounts.left_in_broker


def test_what_was_in_a_queue_before_excuses_no_loss(rabbitmq_broker: Broker) -> None:
    """Two hundred messages of somebody else, of which a slow consumer takes a few: nobody knows
    which ones are still there."""
    connection, channel = open_channel(rabbitmq_broker)
    channel.queue_declare("filled-by-others")
    channel.confirm_delivery()
    for _ in range(200):
        channel.basic_publish("", "filled-by-others", b"of somebody else")
    plan = plan_of(
        "filled-by-others",
        amqp=Amqp(
            queue=AmqpQueue(name="filled-by-others"),
            confirms=100,
            ack="manual",
            ack_every=1,
            prefetch=1,
        ),
        consumer={"rate_per_second": 2},
        load=LoadModel(rate_per_second=100),
        phases=Phases(warmup_seconds=0, measure_seconds=1, drain_seconds=1),
    )
    load = run_load(plan, rabbitmq_broker)
    channel.queue_delete("filled-by-others")
    connection.close()
    accounts = load.accounts()
    assert accounts.closes
    assert load.control.agents[0].reports["declared"]["depths"] == {"0": 200}
    assert (accounts.sent, accounts.received_once, accounts.lost) == (100, 0, 0)
    assert accounts.left_in_broker + accounts.indeterminate == 100
    assert accounts.left_in_broker > 50


def counted_by(rabbitmq: BrokerStatus) -> tuple[int, int]:
    """Messages that this node has taken and delivered since it started."""
    url = f"http://127.0.0.1:{rabbitmq.ports['prometheus']}/metrics"
    with urllib.request.urlopen(url, timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    received, delivered = (
        sum(
            int(line.rpartition(" ")[2])
            for line in lines
            if line.startswith(f'rabbitmq_global_messages_{name}_total{{protocol="amqp091"')
        )
        for name in ("received", "delivered")
    )
    return received, delivered


def test_events_sum_to_rabbitmqs_own_counters(
    rabbitmq: BrokerStatus, rabbitmq_broker: Broker
) -> None:
    before = counted_by(rabbitmq)
    load = run_load(plan_of("rabbitmq-counters"), rabbitmq_broker)
    after = counted_by(rabbitmq)
    sent = load.total_of_all_phases("producer", "sent")
    received = load.total_of_all_phases("consumer", "received")
    assert sent == received == 750
    assert (after[0] - before[0], after[1] - before[1]) == (sent, received)


def test_events_sum_to_kafkas_end_offsets(kafka_broker: Broker) -> None:
    ends: list[int] = []

    def watch(load: Load) -> None:
        topic = load.control.destinations[0][0]
        assert load.control.produced.wait(20)
        consumer = Consumer(
            {"bootstrap.servers": kafka_broker.bootstrap_servers, "group.id": "watcher"}
        )
        # What was sent last is still on its way to the broker.
        deadline = time.monotonic() + 20
        offset = 0
        while offset < 750 and time.monotonic() < deadline:
            offset = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=60)[1]
        ends.append(offset)
        consumer.close()

    load = run_load(plan_of("kafka-offsets"), kafka_broker, watch)
    assert not load.control.failures
    assert ends == [load.total_of_all_phases("producer", "sent")] == [750]
    assert load.accounts().received_once == 500
