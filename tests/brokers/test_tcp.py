"""What is TCP's own: framing by lines, consumers that connect, TLS, lost connections."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from contract import (
    batch,
    collect,
    column,
    consumer_uri,
    consuming,
    declared,
    envelopes,
    eventually,
    free_port,
    joined,
    open_transport,
    producing,
    send_all,
    whole,
)
from proxy import Proxy
from tls_files import self_signed

from bench_spark.config.broker import Broker, Tls
from bench_spark.errors import BrokerRefused, BrokerUnreachable, ConfigurationError
from bench_spark.transports.base import SignalKind
from bench_spark.transports.batches import Part

BODY = frozenset({Part.BODY})


@contextmanager
def serving(*pieces: bytes) -> Iterator[int]:
    """A server that sends these to whoever connects, and goes on listening; its port."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return  # closed
            with contextlib.suppress(OSError):  # who only looks is gone already
                for piece in pieces:
                    client.sendall(piece)
            clients.append(client)

    clients: list[socket.socket] = []
    threading.Thread(target=serve, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for client in clients:
            client.close()


@pytest.mark.parametrize(
    ("tcp", "pieces"),
    [
        ({"framing": "line"}, [b"one\ntw", b"o\n\n", b"x" * 100_000 + b"\n", b"no end"]),
        (
            {"framing": "length", "length_bytes": 2, "byte_order": "little"},
            [b"\x03\0one\x03\0t", b"wo\0", b"\0", b"\xa0\x0f" + b"x" * 4000],
        ),
    ],
)
def test_consumers_that_connect_get_what_a_server_sends(
    tcp: dict[str, Any], pieces: list[bytes]
) -> None:
    with serving(*pieces) as port:
        broker = Broker(kind="tcp", uri=f"tcp://127.0.0.1:{port}")
        transport = open_transport(broker, producers=0, tcp={"consumer": "connect", **tcp})
        transport.probe()
        with declared(transport) as made, consuming(transport, made, want=BODY) as consumers:
            bodies = column(collect(consumers, 4), "bodies")
            assert consumers.signals() == []
    assert bodies[:3] == ([b"one", b"two", b""])
    assert set(bodies[3]) == {ord("x")}


def test_a_consumer_whose_server_hangs_up_is_lost_and_connects_again() -> None:
    with serving(b"first\n") as port:
        proxy = Proxy("127.0.0.1", port)
        broker = Broker(kind="tcp", uri=f"tcp://127.0.0.1:{proxy.port}")
        transport = open_transport(
            broker, producers=0, tcp={"consumer": "connect", "framing": "line"}
        )
        with declared(transport) as made, consuming(transport, made, want=BODY) as consumers:
            collect(consumers, 1)
            proxy.cut()
            signals = []

            def is_back() -> bool:
                signals.extend(consumers.signals())
                return len(signals) == 2

            assert eventually(is_back)
            assert [one.kind for one in signals] == [SignalKind.LOST, SignalKind.REOPENED]
            assert column(collect(consumers, 1), "bodies") == [b"first"]
        proxy.close()


def test_lines_go_through_a_system_and_one_that_holds_a_line_feed_is_refused() -> None:
    port = free_port()
    proxy = Proxy("127.0.0.1", port)
    bodies = [b"%d" % number * (number % 9) for number in range(2000)]
    with consumer_uri(f"tcp://127.0.0.1:{port}"):
        broker = Broker(kind="tcp", uri=f"tcp://127.0.0.1:{proxy.port}")
        transport = open_transport(broker, tcp={"framing": "line"})
        with (
            declared(transport) as made,
            consuming(transport, made, want=BODY) as consumers,
            producing(transport, made) as producers,
        ):
            send_all(producers, whole(bodies))
            assert column(collect(consumers, len(bodies)), "bodies") == bodies
            with pytest.raises(ConfigurationError, match=r"tcp\.framing"):
                producers.send(whole([b"two\nlines"]))
    proxy.close()


def test_a_producer_whose_peer_hangs_up_is_lost_and_connects_again() -> None:
    port = free_port()
    proxy = Proxy("127.0.0.1", port)
    with consumer_uri(f"tcp://127.0.0.1:{port}"):
        transport = open_transport(Broker(kind="tcp", uri=f"tcp://127.0.0.1:{proxy.port}"))
        with (
            declared(transport) as made,
            consuming(transport, made) as consumers,
            producing(transport, made) as producers,
        ):
            send_all(producers, batch(envelopes(10)))
            collect(consumers, 10)
            proxy.cut()
            signals = []

            def is_back() -> bool:
                signals.extend(producers.signals())
                return len(signals) == 2

            assert eventually(is_back)
            assert [one.kind for one in signals] == [SignalKind.LOST, SignalKind.REOPENED]
            send_all(producers, batch(envelopes(10, first=10)))
            collect(consumers, 10)
            # Somebody who connects to consumers and leaves has lost nothing of theirs.
            assert consumers.signals() == []
    proxy.close()


def test_connections_are_shared_out_among_the_consumers_of_an_address() -> None:
    transport = open_transport(
        Broker(kind="tcp", uri="tcp://127.0.0.1:0"), producers=4, consumers=2
    )
    with (
        declared(transport) as made,
        consuming(transport, made, made) as consumers,
        producing(transport, *[made] * 4) as producers,
    ):
        send_all(producers, batch(envelopes(400), [number % 4 for number in range(400)]))
        lanes = joined(collect(consumers, 400), "lane").tolist()
    assert {lane: lanes.count(lane) for lane in (0, 1)} == {0: 200, 1: 200}


def test_messages_travel_over_tls_of_our_own(tmp_path: Path) -> None:
    made_by, key = self_signed(tmp_path)
    files = {"certificate_file": str(made_by), "key_file": str(key)}
    tls = Tls(server_name="localhost", insecure=True, **files)
    transport = open_transport(Broker(kind="tcp", uri="tcps://127.0.0.1:0", tls=tls))
    with declared(transport) as made, consuming(transport, made, want=BODY) as consumers:

        def produce() -> None:
            with producing(transport, made) as producers:
                send_all(producers, batch(envelopes(200), body_bytes=20_000))

        producing_thread = threading.Thread(target=produce)
        producing_thread.start()
        parts = collect(consumers, 200)
        producing_thread.join()
    assert joined(parts, "envelope")["sequence"].tolist() == list(range(200))


def test_an_address_that_is_taken_or_closed_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        transport = open_transport(Broker(kind="tcp", uri=f"tcp://127.0.0.1:{port}"))
        with declared(transport) as made, pytest.raises(BrokerRefused, match=f":{port}: cannot"):
            transport.open_consumers([], lambda: 0)
        assert made[0].name == f"tcp://127.0.0.1:{port}"
    with pytest.raises(BrokerUnreachable, match=f"127.0.0.1:{port}"):
        open_transport(Broker(kind="tcp", uri=f"tcp://127.0.0.1:{port}"), consumers=0).probe()
