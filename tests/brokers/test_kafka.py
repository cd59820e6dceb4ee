"""What only Kafka does: topics, groups, keys, delivery reports, login, and a broker that dies."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType
from contract import (
    CLOCK,
    KAFKA_PLANES,
    batch,
    collect,
    consuming,
    declared,
    eventually,
    exchanging,
    heads,
    joined,
    numbered,
    open_transport,
    producing,
    receive_into,
    running,
    send_all,
)

from bench_spark.brokers.kafka import Kafka
from bench_spark.brokers.process import end, last_lines, spawn
from bench_spark.errors import BrokerRefused, BrokerUnreachable, LoginRefused
from bench_spark.scenario.broker import Broker, Tls
from bench_spark.transports.base import (
    Consumers,
    Destination,
    OutcomeKind,
    Part,
    Producers,
    Received,
    Signal,
    Transport,
)
from bench_spark.transports.kafka.consumers import KafkaConsumers
from bench_spark.transports.kafka.fast_producers import FastProducers
from bench_spark.transports.kafka.producers import MOST_CLIENTS, KafkaProducers

START_SECONDS = 60.0

on_both_planes = pytest.mark.usefixtures("kafka_plane")


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


@on_both_planes
def test_a_topic_that_was_there_is_read_from_its_end_and_never_deleted(
    kafka_broker: Broker, admin: Any
) -> None:
    name = f"somebodys-{time.time_ns()}"
    admin.create_topics([NewTopic(name, 2, 1)])[name].result()
    run_id = f"guest-{time.time_ns()}"
    transport = open_transport(kafka_broker, run_id, kafka={"topic": {"name": name}})
    with producing(transport, [Destination(0, name)]) as producers:
        send_all(producers, batch(heads(50)))
    try:
        with declared(transport) as made:
            assert made == (Destination(0, name, declared=False),)
            with producing(transport, made) as producers:
                send_all(producers, batch(heads(7, first=100)))
            assert transport.depths(made) == (7,)
            with consuming(transport, made) as consumers:
                parts = collect(consumers, 7)
            assert transport.depths(made) == (0,)
            assert f"bench-{run_id}" in groups(admin)
        assert sorted(joined(parts, "head")["sequence"]) == list(range(100, 107))
        assert name in admin.list_topics().topics
        assert eventually(lambda: f"bench-{run_id}" not in groups(admin))
    finally:
        admin.delete_topics([name])[name].result()


# -- planes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("plane", KAFKA_PLANES)
def test_the_probe_says_which_plane_moves_the_messages(kafka_broker: Broker, plane: str) -> None:
    facts = open_transport(kafka_broker, kafka={"plane": plane}).probe()
    assert facts.client_library.startswith("confluent-kafka ")
    assert facts.client_library.endswith(f" ({plane} plane)")


def test_both_planes_give_the_same_messages(kafka_broker: Broker) -> None:
    """Sent by one and received by the other, with keys, over several topic partitions."""
    want = frozenset({Part.BODY, Part.KEY})
    made = heads(300)
    found = []
    for sender, receiver in (KAFKA_PLANES, KAFKA_PLANES[::-1]):
        kafka = {"keys": "sequence", "topic": {"partitions": 3}}
        run_id = f"both-{time.time_ns()}"
        sending = open_transport(kafka_broker, run_id, kafka=kafka | {"plane": sender})
        receiving = open_transport(kafka_broker, run_id, kafka=kafka | {"plane": receiver})
        with (
            declared(sending) as places,
            consuming(receiving, places, want=want) as consumers,
            producing(sending, places) as producers,
        ):
            tails = [bytes([65 + size % 26]) * size for size in range(300)]
            send_all(producers, batch(made, tails=tails), expected_outcomes=300)
            parts = collect(consumers, 300)
        bodies = [body for part in parts for body in part.bodies or ()]
        keys = [key for part in parts for key in part.keys or ()]
        assert sorted(map(len, bodies)) == sorted(joined(parts, "size").tolist())
        found.append(sorted(zip(keys, bodies, strict=True)))
    assert found[0] == found[1]
    assert {key for key, _ in found[0]} == {b"%d" % number for number in range(300)}


# -- producing -----------------------------------------------------------------------------------


@on_both_planes
def test_many_producers_share_few_clients(kafka_broker: Broker) -> None:
    transport = open_transport(kafka_broker, producers=50)
    lanes = (np.arange(500) % 50).tolist()
    with (
        declared(transport) as made,
        consuming(transport, made) as consumers,
        producing(transport, *[made] * 50) as producers,
    ):
        assert isinstance(producers, KafkaProducers | FastProducers)
        assert isinstance(consumers, KafkaConsumers)
        assert (producers.clients, consumers.clients) == (MOST_CLIENTS, 1)
        settled = send_all(producers, batch(heads(500, lanes), lanes), expected_outcomes=500)
        collect(consumers, 500)
    for part in settled.parts:
        assert np.array_equal(part.lane, part.head["producer"])


@on_both_planes
def test_a_full_queue_takes_a_prefix_and_does_not_wait(kafka_broker: Broker) -> None:
    producer = {"queue.buffering.max.messages": 100, "linger.ms": 500}
    transport = open_transport(kafka_broker, kafka={"producer": producer})
    with exchanging(transport) as (producers, consumers):
        whole = batch(heads(250))
        accepted = producers.send(whole)
        assert accepted == 100
        assert producers.in_flight() == 100
        send_all(producers, whole.starting_at(accepted), expected_outcomes=250)
        parts = collect(consumers, 250)
    assert joined(parts, "head")["sequence"].tolist() == list(range(250))


@on_both_planes
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
    made = heads(3)
    with exchanging(transport) as (producers, consumers):
        kinds = []
        for index, size in enumerate((10, 5000, 10)):
            one = batch(made[index : index + 1], tails=[bytes(size)])
            kinds += send_all(producers, one, expected_outcomes=1).kinds
        assert producers.in_flight() == 0
        parts = collect(consumers, 2)
    assert kinds == [OutcomeKind.CONFIRMED, OutcomeKind.REFUSED, OutcomeKind.CONFIRMED]
    assert joined(parts, "head")["sequence"].tolist() == [0, 2]


@on_both_planes
def test_without_acks_there_are_no_confirmations(kafka_broker: Broker) -> None:
    transport = open_transport(kafka_broker, kafka={"producer": {"acks": 0}})
    assert not transport.confirms
    with exchanging(transport) as (producers, consumers):
        send_all(producers, batch(heads(100)))
        collect(consumers, 100)
        assert producers.in_flight() == 0
        assert len(producers.outcomes()) == 0


@on_both_planes
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
        send_all(producers, batch(heads(4, lanes), lanes))
        parts = collect(consumers, 4)
    found = {
        int(head["sequence"]): key
        for part in parts
        for head, key in zip(part.head, part.keys or (), strict=True)
    }
    assert [found[sequence] for sequence in range(4)] == expected


# -- the group -----------------------------------------------------------------------------------


@on_both_planes
def test_what_was_fetched_but_not_received_is_left_in_the_broker(kafka_broker: Broker) -> None:
    transport = open_transport(kafka_broker)
    with declared(transport) as made:
        with producing(transport, made) as producers:
            send_all(producers, batch(heads(5000)))
        assert transport.depths(made) == (5000,)
        with consuming(transport, made) as consumers:
            parts: list[Received] = []
            assert eventually(lambda: receive_into(parts, consumers, 0.05, acknowledge=True))
        received = len(parts[0])
        assert transport.depths(made) == (5000 - received,)
        with consuming(transport, made) as consumers:
            rest = collect(consumers, 5000 - received)
        assert transport.depths(made) == (0,)
    assert np.array_equal(joined([*parts, *rest], "head")["sequence"], np.arange(5000))


@on_both_planes
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
            sent += producers.send(batch(heads(20, first=sent)))
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
        send_all(producers, batch(heads(1, first=sent)))
        missing = sent + 1 - sum(len(part) for part in [*parts, *by_newcomer])
        if missing > 0:
            parts += collect(early, missing)
    received = joined([*parts, *by_newcomer], "head")["sequence"]
    assert np.array_equal(np.sort(received), np.arange(sent + 1))


# -- login and TLS -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A Kafka that asks for a login over TLS, with a certificate of its own making."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    directory = tmp_path_factory.mktemp("guarded")
    key, certificate = directory / "key.pem", directory / "certificate.pem"
    subprocess.run(
        [
            *(openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", key, "-out", certificate),
        ],
        check=True,
        capture_output=True,
    )
    (directory / "server.pem").write_text(key.read_text() + certificate.read_text())
    ports = {name: free_port() for name in ("client", "controller", "guarded")}
    (command,) = Kafka().prepare(directory, ports, say=lambda _: None)
    with (directory / "server.properties").open("a") as settings:
        settings.write(guarded_listener(directory, ports))
    process = spawn(command, directory, directory / "log")
    try:
        started = time.monotonic()
        while not Kafka().answers(ports):
            assert time.monotonic() - started < START_SECONDS, last_lines(directory / "log")
            time.sleep(0.1)
        yield Broker(
            name="guarded",
            kind="kafka",
            bootstrap_servers=f"127.0.0.1:{ports['guarded']}",
            username="anna",
            password_env="KAFKA_TEST_PASSWORD",
            tls=Tls(ca_file=str(certificate)),
        )
    finally:
        end(process, patience_seconds=5)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def guarded_listener(directory: Path, ports: dict[str, int]) -> str:
    plain = f"PLAINTEXT://127.0.0.1:{ports['client']}"
    guarded = f"SASL_SSL://127.0.0.1:{ports['guarded']}"
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    return (
        f"listeners={plain},{guarded},CONTROLLER://127.0.0.1:{ports['controller']}\n"
        f"advertised.listeners={plain},{guarded}\n"
        "listener.security.protocol.map="
        "PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT\n"
        "sasl.enabled.mechanisms=PLAIN\n"
        f'listener.name.sasl_ssl.plain.sasl.jaas.config={login} user_anna="opensesame";\n'
        "ssl.keystore.type=PEM\n"
        f"ssl.keystore.location={directory / 'server.pem'}\n"
    )


@on_both_planes
def test_a_login_over_tls_carries_the_load(
    guarded_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_TEST_PASSWORD", "opensesame")
    transport = open_transport(guarded_broker)
    assert transport.probe().version != "unknown"
    with exchanging(transport) as (producers, consumers):
        send_all(producers, batch(heads(100)), expected_outcomes=100)
        collect(consumers, 100)


@pytest.mark.fault(case=5)
def test_a_wrong_password_names_the_user_and_stays_secret(
    guarded_broker: Broker, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KAFKA_TEST_PASSWORD", "swordfish")
    with pytest.raises(LoginRefused, match=f"127.0.0.1:{guarded_broker.port}: user anna") as raised:
        open_transport(guarded_broker).probe()
    captured = capfd.readouterr()
    assert "swordfish" not in f"{raised.value!r}{captured.out}{captured.err}"
    assert captured.err == ""


def test_a_certificate_nobody_vouches_for_is_refused_unless_told_otherwise(
    guarded_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_TEST_PASSWORD", "opensesame")
    with pytest.raises(BrokerUnreachable, match="certificate"):
        open_transport(guarded_broker.model_copy(update={"tls": Tls()})).probe()
    careless = guarded_broker.model_copy(update={"tls": Tls(insecure=True)})
    assert open_transport(careless).probe().product == "Apache Kafka"


# -- a broker that dies --------------------------------------------------------------------------


def test_messages_on_their_way_to_a_dead_broker_end_as_unknown_within_seconds(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with running("kafka") as status, ExitStack() as stack:
        opened: dict[str, tuple[Transport, tuple[Destination, ...], Producers]] = {}
        for plane in KAFKA_PLANES:
            transport = open_transport(
                status.broker, kafka={"plane": plane, "producer": {"linger.ms": 0}}
            )
            made = transport.declare([Destination(0)])
            consumers = stack.enter_context(consuming(transport, made))
            producers = transport.open_producers(numbered([made]), CLOCK.now_ns)
            send_all(producers, batch(heads(10)), expected_outcomes=10)
            collect(consumers, 10)
            opened[plane] = transport, made, producers
        capfd.readouterr()
        assert status.pid is not None
        os.kill(status.pid, signal.SIGKILL)
        for _, _, producers in opened.values():
            assert producers.send(batch(heads(500, first=10))) == 500
        for plane, (transport, made, producers) in opened.items():
            signals: list[Signal] = []
            assert eventually(lambda: signals.extend(producers.signals()) or signals)  # noqa: B023
            assert signals[0].reason.startswith(f"127.0.0.1:{status.broker.port}: "), plane
            assert producers.in_flight() == 500, plane
            started = time.monotonic()
            producers.close()
            assert time.monotonic() - started < 10, plane
            outcomes = producers.outcomes()
            assert set(outcomes.kind.tolist()) == {OutcomeKind.UNKNOWN}, plane
            assert np.array_equal(np.sort(outcomes.head["sequence"]), np.arange(10, 510)), plane
            with pytest.raises(BrokerUnreachable, match=f"127.0.0.1:{status.broker.port}"):
                transport.depths(made)
    assert "rdkafka" not in capfd.readouterr().err
