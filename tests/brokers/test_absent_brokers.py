"""Brokers that are not there, do not answer, or go away."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from contract import (
    batch,
    collect,
    consuming,
    envelopes,
    eventually,
    open_confirming,
    open_transport,
    producing,
    running,
    send_all,
)
from dialects import AMQP, MOSQUITTO, dialect
from pika import frame, spec

from bench_spark.config.broker import Broker
from bench_spark.errors import BrokerUnreachable, PreflightError
from bench_spark.transports.base import (
    Consumers,
    Destination,
    Producers,
    Signal,
    SignalKind,
)


@pytest.fixture
def silent_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def broker_at(kind: str, port: int) -> Broker:
    address = f"127.0.0.1:{port}"
    if kind == "kafka":
        return Broker(kind="kafka", bootstrap_servers=address, connect_timeout_seconds=1)
    uri = f"{kind}://guest:guest@{address}"
    return Broker(kind=kind, uri=uri, connect_timeout_seconds=1)


@pytest.mark.parametrize("kind", ["amqp", "kafka", "mqtt", "http"])
@pytest.mark.parametrize("peer", ["closed_port", "silent_port"])
def test_a_broker_that_does_not_answer_is_named(
    kind: str, peer: str, request: pytest.FixtureRequest
) -> None:
    port = request.getfixturevalue(peer)
    with pytest.raises(BrokerUnreachable, match=f"127.0.0.1:{port}"):
        # Who has consumers of HTTP listens there, and expects nobody else.
        open_transport(broker_at(kind, port), consumers=0).probe()


@pytest.fixture
def broker_of_tiny_frames() -> Iterator[int]:
    """Opens connections as AMQP says, but for frames of 8 bytes."""
    start = spec.Connection.Start(0, 9, {}, "PLAIN", "en_US")
    tune = spec.Connection.Tune(channel_max=10, frame_max=8, heartbeat=0)

    def answer() -> None:
        peer, _ = listener.accept()
        with peer:
            for said in (start, tune):
                peer.recv(4096)
                peer.sendall(frame.Method(0, said).marshal())
            peer.recv(4096)

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        threading.Thread(target=answer, daemon=True).start()
        yield listener.getsockname()[1]


def test_a_broker_that_tunes_frames_to_nothing_is_refused_with_the_reason(
    broker_of_tiny_frames: int,
) -> None:
    with pytest.raises(PreflightError, match="at most 8 bytes") as caught:
        open_transport(broker_at("amqp", broker_of_tiny_frames)).probe()
    assert caught.value.exit_code == 3
    assert "4096" in str(caught.value)


@pytest.mark.parametrize("name", ["qpid", "mosquitto"])
def test_a_broker_that_goes_away_is_lost_on_both_ends(name: str) -> None:
    """All dialects at once: to start a broker for each takes longer than anything else here. Kafka
    dies in test_kafka_outage.py."""
    cases = [case for case in (*AMQP, *MOSQUITTO) if case.partition(" ")[0] == name]
    with running(name) as status, ExitStack() as stack:
        opened: dict[str, tuple[Producers, Consumers]] = {}
        for case in cases:
            with dialect(case.partition(" ")[2]):
                transport = open_confirming(status.broker)
            stack.callback(transport.close)
            made = transport.declare([Destination(0)])
            consumers = stack.enter_context(consuming(transport, made))
            producers = stack.enter_context(producing(transport, made))
            send_all(producers, batch(envelopes(5)), expected_outcomes=5)
            collect(consumers, 5)
            opened[case] = producers, consumers
        assert status.pid is not None
        os.kill(status.pid, signal.SIGKILL)
        for case, (producers, consumers) in opened.items():
            for signals in lost_signals(producers, consumers):
                assert [one.lane for one in signals] == [0], case
                assert signals[0].reason, case


def lost_signals(producers: Producers, consumers: Consumers) -> list[list[Signal]]:
    """What both ends say of the broker they have lost, once both have noticed."""
    lost: dict[str, list[Signal]] = {"producers": [], "consumers": []}

    def both_lost() -> bool:
        producers.outcomes()
        consumers.receive(0)
        for end, side in (("producers", producers), ("consumers", consumers)):
            lost[end] += [one for one in side.signals() if one.kind is SignalKind.LOST]
        return all(lost.values())

    assert eventually(both_lost)
    return [*lost.values()]
