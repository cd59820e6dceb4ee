"""Runs with one end only on real brokers: publish now, consume later, and leave alone the rest."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pika
import pytest
from agents import Load, run_load
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from contract import CLOCK, PATIENCE_SECONDS, collect, consuming, eventually, joined, open_transport

from bench_spark.config.broker import Broker
from bench_spark.config.models import Scenario
from bench_spark.driver.accounts import accounts_of, measured_span
from bench_spark.plan import Plan, make_plan
from bench_spark.transports.base import Destination

FILLED = 3_000


def plan_of(run_id: str, **keys: Any) -> Plan:
    phases = {"warmup_seconds": 0, "measure_seconds": 1, "drain_seconds": 3}
    return make_plan(Scenario.model_validate({"phases": phases} | keys), run_id)


def named(name: str, **queue: Any) -> dict[str, Any]:
    """The same name in both protocols."""
    return {"amqp": {"queue": {"name": name, **queue}}, "kafka": {"topic": {"name": name}}}


def publish(run_id: str, broker: Broker, name: str, **keys: Any) -> Load:
    load = {"mode": "maximum", "messages": FILLED}
    settings = named(name)
    settings["amqp"]["confirms"] = 100
    return run_load(plan_of(run_id, **({"consumers": 0, "load": load} | settings | keys)), broker)


def consume(run_id: str, broker: Broker, name: str, messages: int | None, **keys: Any) -> Load:
    asked = {"producers": 0, "load": {"messages": messages}} | named(name) | keys
    return run_load(plan_of(run_id, **asked), broker)


class Rabbit:
    """What a user of RabbitMQ sees beside a run."""

    def __init__(self, broker: Broker) -> None:
        self._connection = pika.BlockingConnection(pika.URLParameters(broker.uri))

    def make(self, name: str, **settings: Any) -> None:
        self._connection.channel().queue_declare(name, **settings)

    def fill(self, name: str, *bodies: bytes) -> None:
        for body in bodies:
            self._connection.channel().basic_publish("", name, body)

    def depth(self, name: str) -> int | None:
        """None if there is no such queue."""
        try:
            answer = self._connection.channel().queue_declare(name, passive=True)
        except pika.exceptions.ChannelClosedByBroker:
            return None
        return int(answer.method.message_count)

    def delete(self, name: str) -> None:
        self._connection.channel().queue_delete(name)

    def close(self) -> None:
        self._connection.close()


class Cluster:
    """What a user of Kafka sees beside a run."""

    def __init__(self, broker: Broker) -> None:
        self._servers = {"bootstrap.servers": broker.bootstrap_servers}
        self._admin: Any = AdminClient(self._servers)

    def make(self, name: str) -> None:
        self._admin.create_topics([NewTopic(name, 1, 1)])[name].result()

    def fill(self, name: str, *bodies: bytes) -> None:
        producer = Producer(self._servers)
        for body in bodies:
            producer.produce(name, body)
        producer.flush()

    def depth(self, name: str) -> int | None:
        if name not in self._admin.list_topics().topics:
            return None
        reader = Consumer(self._servers | {"group.id": "nobody"})
        _, end = reader.get_watermark_offsets(TopicPartition(name, 0), timeout=60)
        reader.close()
        return int(end)

    def groups(self) -> set[str]:
        return {group.group_id for group in self._admin.list_consumer_groups().result().valid}

    def delete(self, name: str) -> None:
        self._admin.delete_topics([name])[name].result()

    def close(self) -> None:
        """Nothing is held open."""


@contextmanager
def user_of(broker: Broker) -> Iterator[Any]:
    user = Cluster(broker) if broker.kind == "kafka" else Rabbit(broker)
    try:
        yield user
    finally:
        user.close()


@pytest.fixture(params=["rabbitmq_broker", "kafka_broker"])
def broker(request: pytest.FixtureRequest) -> Broker:
    found: Broker = request.getfixturevalue(request.param)
    return found


def unique(name: str) -> str:
    return f"{name}-{time.time_ns()}"


# -- publish, then consume -----------------------------------------------------------------------


def test_what_one_run_published_and_kept_another_consumes(broker: Broker) -> None:
    name = unique("kept")
    with user_of(broker) as user:
        filled = publish("fill", broker, name, keep_destinations=True)
        assert not filled.control.failures
        assert filled.total("producer", "sent") == FILLED
        assert filled.total("producer", "confirmed") == FILLED
        assert filled.histogram("confirm_latency").count == FILLED
        assert accounts_of(filled.plan, filled.control) is None
        assert filled.control.destinations == {0: (name, True)}
        assert eventually(lambda: user.depth(name) == FILLED)

        emptied = consume("empty", broker, name, FILLED)
        assert not emptied.control.failures
        assert emptied.total("consumer", "received") == FILLED
        assert emptied.total("consumer", "bytes") == FILLED * 1000
        assert emptied.total("consumer", "foreign") == 0
        assert not any(row.histograms for _, row in emptied.rows)
        assert emptied.control.destinations == {0: (name, False)}
        began, ended = measured_span(emptied.plan, emptied.control)
        assert began is not None
        assert ended is not None
        assert 0 < ended - began < PATIENCE_SECONDS
        # A queue is empty now, a topic is not: in both cases it is still there.
        assert eventually(lambda: user.depth(name) == (FILLED if broker.kind == "kafka" else 0))
        user.delete(name)
        if isinstance(user, Cluster):
            assert eventually(lambda: not {"bench-fill", "bench-empty"} & user.groups())


def test_what_a_run_declared_is_deleted_unless_it_is_to_be_kept(broker: Broker) -> None:
    name = unique("passing")
    with user_of(broker) as user:
        load = publish(unique("fill"), broker, name)
        assert load.total("producer", "confirmed") == FILLED
        assert eventually(lambda: user.depth(name) is None)


def test_a_destination_that_was_there_is_filled_and_left(broker: Broker) -> None:
    name = unique("somebodys")
    with user_of(broker) as user:
        user.make(name)
        user.fill(name, b"theirs")
        load = publish(unique("fill"), broker, name)
        assert not load.control.failures
        assert eventually(lambda: user.depth(name) == 1 + FILLED)
        user.delete(name)


def test_publishing_at_a_rate_ends_when_its_messages_are_confirmed(broker: Broker) -> None:
    load = publish(unique("paced"), broker, unique("paced"), load={"rate_per_second": 1000})
    assert not load.control.failures
    assert load.total("producer", "due") == load.total("producer", "confirmed") == 1000
    assert load.control.agents[0].progress["unsettled"] == 0


# -- consuming what others sent ------------------------------------------------------------------


def test_messages_of_any_origin_and_size_are_received(broker: Broker) -> None:
    name = unique("mixed")
    bodies = [b"", b"x", b"y" * 31, b"z" * 5000]
    with user_of(broker) as user:
        user.make(name)
        user.fill(name, *bodies)
        load = consume(unique("take"), broker, name, len(bodies))
        assert not load.control.failures
        assert load.total("consumer", "received") == len(bodies)
        assert load.total("consumer", "bytes") == sum(map(len, bodies))
        user.delete(name)


@pytest.mark.fault(case=5)
def test_a_missing_destination_is_named_and_not_made(broker: Broker) -> None:
    name = unique("missing")
    load = consume(unique("take"), broker, name, 1)
    (failure,) = load.control.failures
    assert failure.kind == "BrokerRefused"
    assert f"{broker.host}:{broker.port}: " in failure.text
    assert name in failure.text
    with user_of(broker) as user:
        assert user.depth(name) is None


def test_a_run_that_waits_for_more_than_there_is_ends_when_nothing_comes(broker: Broker) -> None:
    name = unique("few")
    with user_of(broker) as user:
        user.make(name)
        user.fill(name, *[b"m" * 100] * 7)
        phases = {"warmup_seconds": 0, "measure_seconds": 1, "drain_seconds": 2}
        load = consume(unique("take"), broker, name, 1000, phases=phases)
        assert not load.control.failures
        assert load.total("consumer", "received") == 7
        user.delete(name)


def test_without_a_number_consuming_lasts_as_long_as_the_measured_phase(
    rabbitmq_broker: Broker,
) -> None:
    name = unique("timed")
    with user_of(rabbitmq_broker) as user:
        user.make(name)
        user.fill(name, *[b"m" * 100] * 50)
        phases = {"warmup_seconds": 0, "measure_seconds": 3, "drain_seconds": 3}
        load = consume(unique("take"), rabbitmq_broker, name, None, phases=phases)
        assert not load.control.failures
        assert load.total("consumer", "received") == 50
        began, ended = measured_span(load.plan, load.control)
        assert began is not None
        assert ended is not None
        assert ended - began == pytest.approx(3.0)
        user.delete(name)


def test_two_agents_consume_their_shares_of_two_destinations(broker: Broker) -> None:
    name = unique("two")
    with user_of(broker) as user:
        for number in range(2):
            user.make(f"{name}-{number}")
            user.fill(f"{name}-{number}", *[b"m" * 100] * 500)
        run_id = unique("take")
        members = {"agents": 2, "consumers": 2, "destinations": 2}
        load = consume(run_id, broker, f"{name}-%d", 1000, **members)
        assert not load.control.failures
        assert [load.total("consumer", "received", agent=agent) for agent in (0, 1)] == [500, 500]
        for number in range(2):
            user.delete(f"{name}-{number}")
        if isinstance(user, Cluster):
            assert eventually(lambda: f"bench-{run_id}" not in user.groups())


# -- what only one protocol has ------------------------------------------------------------------


def test_an_existing_queue_is_used_whatever_its_settings_unless_the_scenario_insists(
    rabbitmq_broker: Broker,
) -> None:
    name = unique("durable")
    with user_of(rabbitmq_broker) as user:
        user.make(name, durable=True, arguments={"x-max-length": 10_000})
        load = publish(unique("fill"), rabbitmq_broker, name)
        assert not load.control.failures
        insisting = named(name, durable=False)
        load = publish(unique("fill"), rabbitmq_broker, name, **insisting)
        assert "durable" in load.control.failures[0].text
        assert eventually(lambda: user.depth(name) == FILLED)
        user.delete(name)


def test_a_length_limit_bounds_a_maximum_without_consumers(rabbitmq_broker: Broker) -> None:
    name = unique("limited")
    queue = {"name": name, "arguments": {"x-max-length": 100}}
    amqp = {"queue": queue, "confirms": 100}
    with user_of(rabbitmq_broker) as user:

        def stop_when_full(load: Load) -> None:
            assert eventually(lambda: load.control.agents[0].progress.get("sent", 0) > 200)
            load.stop()

        plan = plan_of(
            unique("fill"),
            consumers=0,
            load={"mode": "maximum"},
            amqp=amqp,
            keep_destinations=True,
            phases={"warmup_seconds": 0, "measure_seconds": 300, "drain_seconds": 20},
        )
        load = run_load(plan, rabbitmq_broker, stop_when_full)
        assert not load.control.failures
        assert load.total("producer", "confirmed") == load.total("producer", "sent") > 100
        assert eventually(lambda: user.depth(name) == 100)
        user.delete(name)


@pytest.mark.parametrize(("reset", "received"), [("earliest", 50), ("latest", 0)])
def test_where_a_topic_is_read_from_can_be_chosen(
    kafka_broker: Broker, reset: str, received: int
) -> None:
    name = unique("read-from")
    with user_of(kafka_broker) as user:
        user.make(name)
        user.fill(name, *[b"m" * 100] * 50)
        kafka = {"topic": {"name": name}, "consumer": {"auto.offset.reset": reset}}
        # What is there is waited for; that nothing comes is seen after a moment.
        phases = {"warmup_seconds": 0, "measure_seconds": 1, "drain_seconds": 60}
        wanted = {"phases": phases} if received else {}
        load = consume(unique("take"), kafka_broker, name, received or None, kafka=kafka, **wanted)
        assert not load.control.failures
        assert load.total("consumer", "received") == received
        user.delete(name)


def test_nothing_is_fetched_from_a_topic_before_the_start(kafka_broker: Broker) -> None:
    """What were in memory when the run starts would come at memory's speed."""
    name = unique("held")
    with user_of(kafka_broker) as user:
        user.make(name)
        user.fill(name, *[b"m" * 100] * 50)
        transport = open_transport(kafka_broker, producers=0, kafka={"topic": {"name": name}})
        with consuming(transport, transport.find([Destination(0)])) as consumers:
            time.sleep(1.0)
            started_ns = CLOCK.now_ns()
            parts = collect(consumers, 50)
            assert joined(parts, "received_ns").min() > started_ns
        user.delete(name)
