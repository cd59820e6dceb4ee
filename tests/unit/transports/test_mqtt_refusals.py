"""A broker whose every answer is written in the test: what it refuses is named, nothing hangs."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from bench_spark.config.broker import Broker, resolve_credentials
from bench_spark.config.models import Scenario
from bench_spark.core.clock import Clock
from bench_spark.core.envelope import empty_envelopes
from bench_spark.errors import (
    BenchError,
    BrokerRefused,
    BrokerUnreachable,
    ConfigurationError,
    LoginRefused,
)
from bench_spark.transports.base import Destination, Lane, SignalKind, TransportContext
from bench_spark.transports.batches import Batch
from bench_spark.transports.mqtt.transport import MqttTransport

WELCOME = {"3.1.1": b"\x20\x02\x00\x00", "5": b"\x20\x03\x00\x00\x00"}
CONNECT, PUBLISH, SUBSCRIBE = 0x10, 0x30, 0x82
LANES = [Lane(0, (Destination(0, "t"),))]

Answer = Callable[[int, bytes], bytes | None]
"""From a packet's first byte and content to what the broker says; None: it hangs up."""


@contextmanager
def broker_that(answers: Answer) -> Iterator[Broker]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def serve() -> None:
            while True:
                try:
                    accepted, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=converse, args=(accepted, answers), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        port = listener.getsockname()[1]
        yield Broker(
            kind="mqtt", uri=f"mqtt://anna:opensesame@127.0.0.1:{port}", connect_timeout_seconds=2
        )
        listener.shutdown(socket.SHUT_RDWR)


def converse(accepted: socket.socket, answers: Answer) -> None:
    with accepted, accepted.makefile("rb") as incoming:
        while first := incoming.read(1):
            length, shift = 0, 0
            while (digit := incoming.read(1)[0]) & 128:
                length, shift = length | (digit & 127) << shift, shift + 7
            content = incoming.read(length | digit << shift)
            said = answers(first[0], content)
            if said is None:
                return
            accepted.sendall(said)


def transport(broker: Broker, reconnect_seconds: float = 0, **mqtt: Any) -> MqttTransport:
    scenario = Scenario.model_validate({"mqtt": mqtt, "reconnect_seconds": reconnect_seconds})
    return MqttTransport(TransportContext("run", scenario, broker, resolve_credentials(broker)))


@pytest.mark.parametrize(
    ("version", "answer", "error", "words"),
    [
        ("3.1.1", b"\x20\x02\x00\x01", BrokerRefused, "0x84 unsupported protocol version"),
        ("3.1.1", b"\x20\x02\x00\x02", LoginRefused, "0x85 client identifier not valid"),
        ("3.1.1", b"\x20\x02\x00\x03", BrokerRefused, "0x88 server unavailable"),
        ("3.1.1", b"\x20\x02\x00\x04", LoginRefused, "0x86 bad user name or password"),
        ("3.1.1", b"\x20\x02\x00\x05", LoginRefused, "0x87 not authorized"),
        ("5", b"\x20\x02\x00\x01", BrokerRefused, "0x84 unsupported protocol version"),
        ("5", b"\x20\x08\x00\x87\x05\x1f\x00\x02no", LoginRefused, "0x87 not authorized: no"),
        ("5", b"\x20\x03\x00\x9f\x00", BrokerRefused, "0x9f connection rate exceeded"),
        ("3.1.1", b"HTTP/1.1 400\r\n\r\n", BrokerUnreachable, "not in MQTT"),
        ("3.1.1", b"\x20\x00", BrokerUnreachable, "fewer than two bytes"),
        ("3.1.1", None, BrokerUnreachable, "closed by the peer"),
        ("3.1.1", b"", BrokerUnreachable, "no answer in MQTT within 2 s"),
    ],
)
def test_a_login_that_fails_is_named_with_host_and_port(
    version: str, answer: bytes | None, error: type[BenchError], words: str
) -> None:
    with broker_that(lambda first, content: answer) as broker, pytest.raises(error) as caught:
        transport(broker, version=version).probe()
    assert f"127.0.0.1:{broker.port}" in str(caught.value)
    assert words in str(caught.value)
    assert "opensesame" not in str(caught.value)


@pytest.mark.parametrize(
    ("version", "suback", "error", "words"),
    [
        ("3.1.1", b"\x90\x03\x00\x01\x80", BrokerRefused, "0x80 unspecified error"),
        ("5", b"\x90\x04\x00\x01\x00\x9e", BrokerRefused, "shared subscriptions not supported"),
        ("5", b"\x90\x04\x00\x01\x00\x87", LoginRefused, "not authorized"),
        ("3.1.1", b"\x90\x03\x00\x01\x00", BrokerRefused, "grants QoS 0, and mqtt.qos is 1"),
        ("3.1.1", b"\x90\x03\x00\x01\x03", BrokerRefused, "answers with code 3, which is neither"),
        (
            "5",
            b"\x90\x04\x00\x01\x00\x7f",
            BrokerRefused,
            "answers with code 127, which is neither",
        ),
        ("3.1.1", b"", BrokerUnreachable, "SUBSCRIBE: no answer within 2 s"),
        ("3.1.1", b"\x90\x03\x00\x07\x00", BrokerUnreachable, "not asked"),
        ("3.1.1", None, BrokerUnreachable, "SUBSCRIBE: connection lost"),
    ],
)
def test_a_subscription_that_is_refused_is_named(
    version: str, suback: bytes | None, error: type[BenchError], words: str
) -> None:
    def answers(first: int, content: bytes) -> bytes | None:
        return WELCOME[version] if first == CONNECT else suback if first == SUBSCRIBE else None

    with broker_that(answers) as broker:
        made = transport(broker, version=version, qos=1, shared_group="team")
        consumers = made.open_consumers(LANES, Clock.local().now_ns)
        try:
            with pytest.raises(error, match=f"127.0.0.1:{broker.port}.*") as caught:
                consumers.attach()
        finally:
            consumers.close()
    assert words in str(caught.value)


def test_the_brokers_own_words_at_the_end_are_told_and_the_lane_stays_lost() -> None:
    def answers(first: int, content: bytes) -> bytes | None:
        return WELCOME["5"] if first == CONNECT else b"\xe0\x01\x95" if first == PUBLISH else None

    with broker_that(answers) as broker:
        made = transport(broker, reconnect_seconds=30, version="5")
        producers = made.open_producers(LANES, Clock.local().now_ns)
        try:
            one = Batch(np.zeros(1, np.uint32), empty_envelopes(1), b"", np.zeros(1, np.uint16))
            assert producers.send(one) == 1
            deadline = time.monotonic() + 10
            while not (told := producers.signals()) and time.monotonic() < deadline:
                time.sleep(0.01)
        finally:
            producers.close()
    assert [(one.kind, one.is_reopening) for one in told] == [(SignalKind.LOST, False)]
    assert "closed by the broker: 0x95 packet too large" in told[0].reason


@pytest.mark.parametrize(
    ("properties", "keys", "words"),
    [
        (b"\x24\x01", {"qos": 2}, "mqtt.qos: 2 is more than the broker has: 1"),
        (b"\x25\x00", {"retain": True}, "mqtt.retain"),
        (b"\x2a\x00", {"shared_group": "team"}, "mqtt.shared_group"),
        (b"\x28\x00", {"topic_filter": "#"}, "mqtt.topic_filter"),
    ],
)
def test_what_a_broker_of_version_5_does_not_have_is_named_before_the_load(
    properties: bytes, keys: dict[str, Any], words: str
) -> None:
    welcome = b"\0\0" + bytes([len(properties)]) + properties
    answer = b"\x20" + bytes([len(welcome)]) + welcome

    def answers(first: int, content: bytes) -> bytes | None:
        return answer if first == CONNECT else None

    with broker_that(answers) as broker, pytest.raises(BrokerRefused, match=words):
        transport(broker, version="5", **keys).probe()


def test_a_password_without_a_user_is_a_configuration_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BENCH_TEST_PASSWORD", "opensesame")
    broker = Broker(kind="mqtt", uri="mqtt://127.0.0.1", password_env="BENCH_TEST_PASSWORD")
    with pytest.raises(ConfigurationError, match="username: missing"):
        transport(broker)


def deliver(topic: bytes, identifier: int, size: int = 40) -> bytes:
    """A message of QoS 2."""
    content = len(topic).to_bytes(2) + topic + identifier.to_bytes(2) + bytes(size)
    return bytes([0x34, len(content)]) + content


@contextmanager
def consumers_of(broker: Broker) -> Iterator[Any]:
    consumers = transport(broker, qos=2).open_consumers(LANES, Clock.local().now_ns)
    try:
        consumers.attach()
        yield consumers
    finally:
        consumers.close()


@pytest.mark.parametrize("portion", [10**6, 45, 7], ids=["one read", "one by one", "in pieces"])
def test_an_identifier_that_comes_twice_is_a_repeat_however_it_is_read(portion: int) -> None:
    identifiers = [*range(1, 21), *[5] * 3, *range(21, 31), 30, *range(10, 20), 31]

    def serve(accepted: socket.socket) -> None:
        with accepted, accepted.makefile("rb") as incoming:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            incoming.read(incoming.read(2)[1])
            accepted.sendall(WELCOME["3.1.1"])
            topic = incoming.read(incoming.read(2)[1])[4:-1]
            accepted.sendall(b"\x90\x03\x00\x01\x02")
            messages = b"".join(deliver(topic, identifier) for identifier in identifiers)
            for at in range(0, len(messages), portion):
                accepted.sendall(messages[at : at + portion])
                if portion < 100:
                    time.sleep(0.001)
            incoming.read()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=lambda: serve(listener.accept()[0]), daemon=True)
        server.start()
        uri = f"mqtt://127.0.0.1:{listener.getsockname()[1]}"
        with consumers_of(Broker(kind="mqtt", uri=uri)) as consumers:
            received, dropped = 0, 0
            deadline = time.monotonic() + 60
            while received + dropped < len(identifiers) and time.monotonic() < deadline:
                received += len(consumers.receive(0.1))
                dropped += sum(
                    signal.count
                    for signal in consumers.signals()
                    if signal.kind is SignalKind.REPEATS_DROPPED
                )
    assert (received, dropped) == (31, len(identifiers) - 31)


def test_a_packet_announced_as_huge_ends_the_connection_before_it_comes() -> None:
    # The largest that the protocol can announce: 256 MiB.
    huge = bytes([0x34]) + b"\xff\xff\xff\x7f" + b"\x00\x01t\x00\x01" + bytes(1000)

    def answers(first: int, content: bytes) -> bytes | None:
        return WELCOME["3.1.1"] if first == CONNECT else b"\x90\x03\x00\x01\x02" + huge

    words = "announced with 268435455 bytes, .* in this run has 67536"
    with (
        broker_that(answers) as broker,
        pytest.raises(BrokerUnreachable, match=words),
        consumers_of(broker),
    ):
        pass  # it came with the answer to the subscription
