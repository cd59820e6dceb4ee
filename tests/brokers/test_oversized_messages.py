"""Messages larger than any that a run can have: the connection ends by name, and none is kept."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest
from contract import (
    consumer_uri,
    consuming,
    declared,
    eventually,
    free_port,
    open_transport,
    producing,
    send_all,
    whole,
)

from bench_spark.config.broker import Broker
from bench_spark.transports.base import Consumers, SignalKind

LIMIT = 2 * 100 + 64 * 1024
GIB = 1 << 30


def reasons_of_loss(consumers: Consumers) -> Callable[[], list[str]]:
    found: list[str] = []

    def look() -> list[str]:
        consumers.receive(0.05)
        found.extend(one.reason for one in consumers.signals() if one.kind is SignalKind.LOST)
        return found

    return look


@pytest.mark.parametrize("kind", ["rabbitmq", "qpid", "mosquitto"])
def test_a_broker_that_announces_more_than_can_be_loses_its_connection(
    request: pytest.FixtureRequest, kind: str
) -> None:
    """Beside one that is just as large as may be."""
    broker: Broker = request.getfixturevalue(f"{kind}_broker")
    run_id = f"oversized-{kind}"
    sending = open_transport(broker, run_id, message={"bytes": 400_000})
    receiving = open_transport(broker, run_id, message={"bytes": 100})
    with (
        declared(sending) as made,
        consuming(receiving, made) as consumers,
        producing(sending, made) as producers,
    ):
        send_all(producers, whole([bytes(LIMIT)]))
        eventually(lambda: len(consumers.receive(0.05)) == 1)
        send_all(producers, whole([bytes(LIMIT + 1)]))
        look = reasons_of_loss(consumers)
        eventually(look)
        [reason] = look()[:1]
    receiving.close()
    assert f"a message announced with {LIMIT + 1} bytes" in reason
    assert f"has {LIMIT} " in reason


def test_a_server_that_announces_a_gibibyte_over_tcp_is_left() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):  # the listener is closed, or the reader gone
                while True:
                    connection, _ = listener.accept()
                    connections.append(connection)
                    connection.sendall(GIB.to_bytes(4) + bytes(1000))

        connections: list[socket.socket] = []
        threading.Thread(target=serve, daemon=True).start()
        broker = Broker(kind="tcp", uri=f"tcp://127.0.0.1:{listener.getsockname()[1]}")
        # A run that only consumes takes larger ones than others, but not of any size.
        scenario: dict[str, Any] = {
            "message": {"bytes": 100},
            "tcp": {"consumer": "connect"},
            "producers": 1,
        }
        transport = open_transport(broker, **scenario)
        with declared(transport) as made, consuming(transport, made) as consumers:
            look = reasons_of_loss(consumers)
            eventually(look)
            [reason] = look()[:1]
    assert f"a message announced with {GIB} bytes" in reason


def test_a_client_that_announces_a_gibibyte_over_http_is_answered_and_left() -> None:
    port = free_port()
    with consumer_uri(f"http://127.0.0.1:{port}/in"):
        broker = Broker(kind="http", uri=f"http://127.0.0.1:{port}/in")
        transport = open_transport(broker, message={"bytes": 100})
        with declared(transport) as made, consuming(transport, made) as consumers:
            client = socket.create_connection(("127.0.0.1", port))
            envelope = f"POST /in HTTP/1.1\r\nHost: here\r\nContent-Length: {GIB}\r\n\r\n"
            client.sendall(envelope.encode() + bytes(1000))
            client.setblocking(False)
            answer = bytearray()

            def is_left() -> bool:
                consumers.receive(0.05)
                try:
                    portion = client.recv(10_000)
                except BlockingIOError:
                    return False
                except ConnectionError:
                    return True
                answer.extend(portion)
                return not portion

            eventually(is_left)
            client.close()
    assert not answer.startswith(b"HTTP/1.1 2")
