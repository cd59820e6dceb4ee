"""What only Kafka does: topics, groups, keys, headers, delivery reports."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType
from contract import (
    CLOCK,
    PATIENCE_SECONDS,
    batch,
    collect,
    consuming,
    declared,
    envelopes,
    eventually,
    exchanging,
    joined,
    left_in,
    numbered,
    open_transport,
    producing,
    receive_into,
    send_all,
    whole,
)

from bench_spark.config.broker import Broker
from bench_spark.core.envelope import Envelopes
from bench_spark.errors import BrokerRefused
from bench_spark.transports.base import Consumers, Destination
from bench_spark.transports.batches import Headers, OutcomeKind, Part, Received
from bench_spark.transports.kafka.consumers import KafkaConsumers
from bench_spark.transports.kafka.producers import MOST_CLIENTS, KafkaProducers

START_SECONDS = 60.0


@pytest.fixture
def admin(kafka_broker: Broker) -> Any:
    return AdminClient({"bootstrap.servers": kafka_broker.bootstrap_servers})


def groups(admin: Any) -> set[str]:
    return {group.group_id for group in admin.list_consumer_groups().result().valid}


# -- topics --------------------------------------------------------------------------------------


def test_a_topic_has_the_partitions_and_properties_asked_for(
    kafka_broker: Broker, admin: Any
) -> None:
    topic = {"partitions": 3, "properties": {"max.message.bytes": 70_000, "preallocate": True}}
    with declared(open_transport(kafka_broker, kafka={"topic": topic})) as (made,):
        assert len(admin.list_topics(made.name).topics[made.name].partitions) == 3
        resource = ConfigResource(ResourceType.TOPIC, made.name)
        found = admin.describe_configs([resource])[resource].result()
        assert found["max.message.bytes"].value == "70000"
        assert found["preallocate"].value == "true"


def test_more_replicas_than_brokers_are_refused_in_the_brokers_words(kafka_broker: Broker) -> None:
    transport = open_transport(kafka_broker, kafka={"topic": {"replication_factor": 3}})
    with pytest.raises(BrokerRefused, match=r"topic bench-.*replication factor"):
        transport.declare([Destination(0)])


def test_a_run_id_in_use_is_refused(kafka_broker: Broker) -> None:
    first = open_transport(kafka_broker, run_id=f"twice-{time.time_ns()}")
    with declared(first) as made:
        assert made[0].name
        again = open_transport(kafka_broker, run_id=made[0].name[len("bench-") : -len("-0")])
        with pytest.raises(BrokerRefused, match="is the run id in use"):
            again.declare([Destination(0)])


def test_a_topic_that_was_there_is_read_from_its_end_and_never_deleted(
    kafka_broker: Broker, admin: Any
) -> None:
    name = f"somebodys-{time.time_ns()}"
    admin.create_topics([NewTopic(name, 2, 1)])[name].result()
    run_id = f"guest-{time.time_ns()}"
    transport = open_transport(kafka_broker, run_id, kafka={"topic": {"name": name}})
    with producing(transport, [Destination(0, name)]) as producers:
        send_all(producers, batch(envelopes(50)))
    try:
        with declared(transport) as made:
            assert made == (Destination(0, name, declared=False),)
            with producing(transport, made) as producers:
                send_all(producers, batch(envelopes(7, first=100)))
            assert left_in(transport, made) == (7,)
            with consuming(transport, made) as consumers:
                parts = collect(consumers, 7)
            assert left_in(transport, made) == (0,)
            assert f"bench-{run_id}" in groups(admin)
        assert sorted(joined(parts, "envelope")["sequence"]) == list(range(100, 107))
        assert name in admin.list_topics().topics
        assert eventually(lambda: f"bench-{run_id}" not in groups(admin))
    finally:
        admin.delete_topics([name])[name].result()


# -- against confluent-kafka's own client ---------------------------------------------------------


def test_the_probe_says_which_library_moves_the_messages(kafka_broker: Broker) -> None:
    library = open_transport(kafka_broker).probe().client_library
    assert library.startswith("confluent-kafka ")
    assert " / librdkafka " in library


def bodies_of(made: Envelopes, payloads: list[bytes]) -> list[bytes]:
    return [envelope.tobytes() + payload for envelope, payload in zip(made, payloads, strict=True)]


TAILS = [bytes([65 + size % 26]) * size for size in range(300)]


def test_what_is_sent_is_what_somebody_else_reads(kafka_broker: Broker) -> None:
    """With keys, over several topic partitions."""
    made = envelopes(300)
    kafka = {"keys": "sequence", "topic": {"partitions": 3}}
    transport = open_transport(kafka_broker, kafka=kafka)
    with declared(transport) as places, producing(transport, places) as producers:
        send_all(producers, batch(made, payloads=TAILS), expected_outcomes=300)
        found = read_by_somebody_else(kafka_broker, str(places[0].name), 300, partitions=3)
    expected = [(b"%d" % at, body) for at, body in enumerate(bodies_of(made, TAILS))]
    assert sorted((one.key(), one.value()) for one in found) == sorted(expected)


def test_what_somebody_else_sends_is_received(kafka_broker: Broker) -> None:
    """With keys and headers, bodies shorter than an envelope, and a tombstone."""
    bodies: list[bytes | None] = [*bodies_of(envelopes(300), TAILS), b"", b"short", None]
    headers: list[Any] = [[], [("a", b"1"), ("b", b"\0"), ("a", b"2")], [("none", None)]]
    transport = open_transport(kafka_broker, kafka={"topic": {"partitions": 3}})
    with (
        declared(transport) as places,
        consuming(transport, places, want=frozenset(Part)) as consumers,
    ):
        sender = Producer({"bootstrap.servers": kafka_broker.bootstrap_servers})
        for at, body in enumerate(bodies):
            key = b"%d" % at if at % 2 else None
            sender.produce(str(places[0].name), body, key, headers=headers[at % 3])
        assert sender.flush(PATIENCE_SECONDS) == 0
        parts = collect(consumers, len(bodies))
    found = [
        (body, int(size), key, own)
        for part in parts
        for body, size, key, own in zip(
            part.bodies or (), part.size, part.keys or (), part.headers or (), strict=True
        )
    ]
    read: list[dict[str, bytes]] = [{}, {"a": b"2", "b": b"\0"}, {"none": b""}]
    expected = [
        (body or b"", len(body or b""), b"%d" % at if at % 2 else None, read[at % 3])
        for at, body in enumerate(bodies)
    ]
    assert sorted(found, key=repr) == sorted(expected, key=repr)
    for part in parts:
        envelopes_found = [envelope.tobytes() for envelope in part.envelope]
        assert envelopes_found == [body[:32].ljust(32, b"\0") for body in part.bodies or ()]


# -- producing -----------------------------------------------------------------------------------


def test_many_producers_share_few_clients(kafka_broker: Broker) -> None:
    transport = open_transport(kafka_broker, producers=50)
    lanes = (np.arange(500) % 50).tolist()
    with (
        declared(transport) as made,
        consuming(transport, made) as consumers,
        producing(transport, *[made] * 50) as producers,
    ):
        assert isinstance(producers, KafkaProducers)
        assert isinstance(consumers, KafkaConsumers)
        assert (producers.connections(99), consumers.connections(99)) == (MOST_CLIENTS, 1)
        settled = send_all(producers, batch(envelopes(500, lanes), lanes), expected_outcomes=500)
        collect(consumers, 500)
    for part in settled.parts:
        assert np.array_equal(part.lane, part.envelope["producer"])


def test_a_full_queue_takes_a_prefix_and_does_not_wait(kafka_broker: Broker) -> None:
    producer = {"queue.buffering.max.messages": 100, "linger.ms": 500}
    transport = open_transport(kafka_broker, kafka={"producer": producer})
    with exchanging(transport) as (producers, consumers):
        whole = batch(envelopes(250))
        accepted = producers.send(whole)
        assert accepted == 100
        assert producers.in_flight() == 100
        send_all(producers, whole.starting_at(accepted), expected_outcomes=250)
        parts = collect(consumers, 250)
    assert joined(parts, "envelope")["sequence"].tolist() == list(range(250))


@pytest.mark.parametrize(
    "kafka",
    [
        {"producer": {"message.max.bytes": 2000}},
        {"producer": {"linger.ms": 0}, "topic": {"properties": {"max.message.bytes": 2000}}},
    ],
    ids=["by the library", "by the broker"],
)
def test_a_message_too_large_is_refused_and_the_others_go_on(
    kafka_broker: Broker, kafka: dict[str, Any]
) -> None:
    transport = open_transport(kafka_broker, kafka=kafka)
    made = envelopes(3)
    with exchanging(transport) as (producers, consumers):
        kinds = []
        for index, size in enumerate((10, 5000, 10)):
            one = batch(made[index : index + 1], payloads=[bytes(size)])
            kinds += send_all(producers, one, expected_outcomes=1).kinds
        assert producers.in_flight() == 0
        parts = collect(consumers, 2)
    assert kinds == [OutcomeKind.CONFIRMED, OutcomeKind.REFUSED, OutcomeKind.CONFIRMED]
    assert joined(parts, "envelope")["sequence"].tolist() == [0, 2]


def test_without_acks_there_are_no_confirmations(kafka_broker: Broker) -> None:
    transport = open_transport(kafka_broker, kafka={"producer": {"acks": 0}})
    assert not transport.capabilities.confirms
    with exchanging(transport) as (producers, consumers):
        send_all(producers, batch(envelopes(100)))
        collect(consumers, 100)
        assert producers.in_flight() == 0
        assert len(producers.outcomes()) == 0


@pytest.mark.parametrize(
    ("keys", "expected"),
    [("none", [None] * 4), ("producer", [b"0", b"1"] * 2), ("sequence", [b"0", b"1", b"2", b"3"])],
)
def test_messages_have_the_keys_the_scenario_asks_for(
    kafka_broker: Broker, keys: str, expected: list[bytes | None]
) -> None:
    transport = open_transport(kafka_broker, producers=2, kafka={"keys": keys})
    lanes = [0, 1, 0, 1]
    with (
        declared(transport) as made,
        consuming(transport, made, want=frozenset({Part.KEY})) as consumers,
        producing(transport, made, made) as producers,
    ):
        send_all(producers, batch(envelopes(4, lanes), lanes))
        parts = collect(consumers, 4)
    found = {
        int(envelope["sequence"]): key
        for part in parts
        for envelope, key in zip(part.envelope, part.keys or (), strict=True)
    }
    assert [found[sequence] for sequence in range(4)] == expected


@pytest.mark.parametrize(
    "kafka",
    [{}, {"transaction_messages": 3}],
    ids=["plain", "transactions"],
)
def test_every_message_has_the_headers_of_the_scenario_and_its_own_win(
    kafka_broker: Broker, kafka: dict[str, Any]
) -> None:
    given = {"kind": "order", "version": 3, "urgent": True, "naïve": "ü"}
    common = {"kind": b"order", "version": b"3", "urgent": b"true", "naïve": "ü".encode()}
    own: list[Headers] = [{"kind": b"offer", "\u20ac": b"\x00\xff"}, {}, {"more": b""}]
    transport = open_transport(kafka_broker, kafka=kafka | {"headers": given})
    with declared(transport) as made, producing(transport, made) as producers:
        settled = [
            *send_all(producers, batch(envelopes(3)), expected_outcomes=3).kinds,
            *send_all(producers, whole([b"a", b"", b"c"], headers=own), expected_outcomes=3).kinds,
        ]
        found = read_by_somebody_else(kafka_broker, str(made[0].name), 6)
    assert settled == [OutcomeKind.CONFIRMED] * 6
    assert [dict(one.headers()) for one in found] == [common] * 3 + [common | one for one in own]
    assert [len(one.headers()) for one in found] == [4, 4, 4, 5, 4, 5]
    assert [len(one.value()) for one in found] == [64, 64, 64, 1, 0, 1]


def read_by_somebody_else(broker: Broker, topic: str, count: int, partitions: int = 1) -> list[Any]:
    """The first messages of a topic; of each of its partitions, in order."""
    consumer: Any = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": f"somebody-{time.time_ns()}",
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        found: list[Any] = []
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(found) < count and time.monotonic() < deadline:
            found += consumer.consume(count - len(found), 0.1)
        return found
    finally:
        consumer.close()


# -- the group -----------------------------------------------------------------------------------


def test_what_was_fetched_but_not_received_is_left_in_the_broker(kafka_broker: Broker) -> None:
    transport = open_transport(kafka_broker)
    with declared(transport) as made:
        with producing(transport, made) as producers:
            send_all(producers, batch(envelopes(5000)))
        assert left_in(transport, made) == (5000,)
        with consuming(transport, made) as consumers:
            parts: list[Received] = []
            assert eventually(lambda: receive_into(parts, consumers, 0.05, acknowledge=True))
        received = len(parts[0])
        assert left_in(transport, made) == (5000 - received,)
        with consuming(transport, made) as consumers:
            rest = collect(consumers, 5000 - received)
        assert left_in(transport, made) == (0,)
    assert np.array_equal(joined([*parts, *rest], "envelope")["sequence"], np.arange(5000))


@pytest.mark.parametrize(
    "consumer",
    [
        {},
        {"partition.assignment.strategy": "cooperative-sticky"},
    ],
    ids=["eager", "cooperative"],
)
def test_members_that_join_and_leave_under_load_lose_and_repeat_nothing(
    kafka_broker: Broker, consumer: dict[str, Any]
) -> None:
    kafka = {"topic": {"partitions": 4}, "consumer": consumer, "keys": "sequence"}
    run_id = f"group-{time.time_ns()}"
    first = open_transport(kafka_broker, run_id, consumers=2, kafka=kafka)
    second = open_transport(kafka_broker, run_id, consumers=2, kafka=kafka)
    parts: list[Received] = []
    by_newcomer: list[Received] = []
    sent = 0
    with (
        declared(first) as made,
        consuming(first, made) as early,
        producing(first, made) as producers,
    ):

        def go_on(*consumers: Consumers) -> None:
            nonlocal sent
            sent += producers.send(batch(envelopes(20, first=sent)))
            receive_into(parts, early, 0.01, acknowledge=True)
            for late in consumers:
                receive_into(by_newcomer, late, 0.0, acknowledge=True)

        newcomer = second.open_consumers(numbered([made]), CLOCK.now_ns)
        joining = threading.Thread(target=newcomer.attach)
        joining.start()
        try:
            assert eventually(lambda: go_on(newcomer) or by_newcomer)
        finally:
            joining.join()
            newcomer.close()
        for _ in range(50):
            go_on()
        send_all(producers, batch(envelopes(1, first=sent)))
        missing = sent + 1 - sum(len(part) for part in [*parts, *by_newcomer])
        if missing > 0:
            parts += collect(early, missing)
    received = joined([*parts, *by_newcomer], "envelope")["sequence"]
    assert np.array_equal(np.sort(received), np.arange(sent + 1))
