"""What anybody else reads in our bodies: when each was sent, in bytes 0 to 7, and padding."""

from __future__ import annotations

import http.server
import lzma
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import paho.mqtt.client as paho
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


MANY, PADDED_BYTES = 2000, 1000


def publish_many(broker: Broker, name: str, **keys: Any) -> None:
    scenario = Scenario.model_validate(
        {
            "consumers": 0,
            "producers": 2,
            "keep_destinations": True,
            "message": {"bytes": PADDED_BYTES},
            "load": {"mode": "maximum", "messages": MANY},
            "phases": {"warmup_seconds": 0},
            **keys,
        }
    )
    load = run_load(make_plan(scenario, name), broker)
    assert load.control.failures == []


def assert_nothing_to_compress(bodies: list[bytes]) -> None:
    assert [len(body) for body in bodies] == [PADDED_BYTES] * MANY
    padding = b"".join(body[32:] for body in bodies)
    assert len(lzma.compress(padding)) > 0.97 * len(padding)
    # Heads are numbers that do compress: with them a body still shrinks by no more than they do.
    whole = b"".join(bodies)
    assert len(lzma.compress(whole)) > 0.97 * len(whole)


def test_random_padding_in_amqp_differs_from_message_to_message(rabbitmq_broker: Broker) -> None:
    name = f"padded-{secrets.token_hex(4)}"
    amqp = {"queue": {"name": name}, "confirms": 100}
    publish_many(rabbitmq_broker, name, destinations=1, amqp=amqp)
    assert_nothing_to_compress(read_by_pika(rabbitmq_broker, name))


def test_random_padding_in_kafka_differs_from_message_to_message(kafka_broker: Broker) -> None:
    name = f"padded-{secrets.token_hex(4)}"
    kafka = {"topic": {"name": name}}
    publish_many(kafka_broker, name, destinations=1, kafka=kafka)
    assert_nothing_to_compress(read_by_a_plain_consumer(kafka_broker, name, MANY))


def test_random_padding_in_mqtt_differs_from_message_to_message(mosquitto_broker: Broker) -> None:
    name, bodies = f"padded-{secrets.token_hex(4)}", list[bytes]()
    is_subscribed, is_complete = threading.Event(), threading.Event()
    reader = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=name)

    def take(_client: Any, _data: Any, message: Any) -> None:
        bodies.append(message.payload)
        if len(bodies) == MANY:
            is_complete.set()

    reader.on_message = take
    reader.on_subscribe = lambda *_: is_subscribed.set()
    address = urlsplit(str(mosquitto_broker.uri))
    reader.connect(str(address.hostname), int(address.port or 0))
    reader.subscribe(name, qos=1)
    reader.loop_start()
    assert is_subscribed.wait(60)
    publish_many(mosquitto_broker, name, destinations=1, mqtt={"topic": name, "qos": 1})
    assert is_complete.wait(60)
    reader.loop_stop()
    assert_nothing_to_compress(bodies)


@contextmanager
def plain_server() -> Iterator[tuple[Broker, list[bytes]]]:
    """A system that takes messages over HTTP and remembers their bodies."""
    bodies: list[bytes] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Keeps the test's output short."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield Broker(kind="http", uri=f"http://127.0.0.1:{server.server_port}/"), bodies
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_random_padding_in_http_differs_from_message_to_message() -> None:
    with plain_server() as (broker, bodies):
        publish_many(broker, "padded-http")
    assert_nothing_to_compress(bodies)


def test_random_padding_in_tcp_differs_from_message_to_message() -> None:
    streams: list[bytearray] = []

    def read(connection: socket.socket, stream: bytearray) -> None:
        with connection:
            while portion := connection.recv(1 << 16):
                stream += portion

    with socket.create_server(("127.0.0.1", 0)) as listener:
        broker = Broker(kind="tcp", uri=f"tcp://127.0.0.1:{listener.getsockname()[1]}")
        readers: list[threading.Thread] = []

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                streams.append(bytearray())
                readers.append(threading.Thread(target=read, args=(connection, streams[-1])))
                readers[-1].start()

        threading.Thread(target=accept, daemon=True).start()
        publish_many(broker, "padded-tcp")
        for reader in readers:
            reader.join()
        listener.shutdown(socket.SHUT_RDWR)
    assert_nothing_to_compress(
        [
            bytes(stream[at + 4 : at + 4 + PADDED_BYTES])
            for stream in streams
            for at in range(0, len(stream), 4 + PADDED_BYTES)
        ]
    )
