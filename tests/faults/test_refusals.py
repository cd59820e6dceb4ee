"""Brokers that are not there, not what they seem, or not to be trusted: named before a load."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from contract import open_transport
from fault_records import Seen
from tls_endpoints import Authority, Certificate, tls_endpoint
from whole_runs import CarryOut

from bench_spark.config.broker import Broker, Tls
from bench_spark.errors import EXIT_PREFLIGHT, PreflightError

REFUSED_WITHIN_SECONDS = 60.0
"""For a busy machine. On an idle one it is some 2 s, and the fault table has what was seen."""
MOST_ATTEMPTS = 3
CANARY = "canary-5e7"
KINDS = ("amqp", "kafka", "mqtt")


def broker_at(kind: str, port: int, tls: Tls | None = None, password: str = CANARY) -> Broker:
    if kind == "kafka":
        return Broker(name="there", kind="kafka", bootstrap_servers=f"127.0.0.1:{port}", tls=tls)
    uri = f"{kind}://guest:{password}@127.0.0.1:{port}"
    return Broker.model_validate({"name": "there", "kind": kind, "uri": uri, "tls": tls})


def check_refused(broker: Broker, address: str | None = None) -> tuple[str, float]:
    """What is said, and how long it took."""
    started = time.monotonic()
    with pytest.raises(PreflightError) as refused:
        open_transport(broker).probe()
    seconds = time.monotonic() - started
    assert refused.value.exit_code == EXIT_PREFLIGHT
    assert seconds < REFUSED_WITHIN_SECONDS
    assert (address or f"127.0.0.1:{broker.port}") in str(refused.value)
    assert CANARY not in str(refused.value)
    return str(refused.value), seconds


@dataclass
class Peer:
    port: int
    connections: int = 0


@contextmanager
def peer(talk: Callable[[socket.socket], None]) -> Iterator[Peer]:
    """A server that is no broker."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        made = Peer(listener.getsockname()[1])
        held: list[socket.socket] = []

        def serve() -> None:
            while True:
                try:
                    accepted, _ = listener.accept()
                except OSError:
                    return
                made.connections += 1
                held.append(accepted)
                talk(accepted)

        threading.Thread(target=serve, daemon=True).start()
        yield made
        listener.shutdown(socket.SHUT_RDWR)
        for one in held:
            one.close()


def be_silent(_: socket.socket) -> None:
    """Takes the connection and never says a word."""


def speak_http(accepted: socket.socket) -> None:
    accepted.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")


def babble(accepted: socket.socket) -> None:
    accepted.sendall(bytes(range(256)) * 64)


@pytest.mark.fault(case=5)
@pytest.mark.parametrize("talk", [be_silent, speak_http, babble])
@pytest.mark.parametrize("kind", KINDS)
def test_a_peer_that_is_no_broker_is_given_up_on(
    kind: str, talk: Callable[[socket.socket], None], seen: Seen
) -> None:
    with peer(talk) as other:
        broker = broker_at(kind, other.port).model_copy(update={"connect_timeout_seconds": 2.0})
        _, seconds = check_refused(broker)
        assert 1 <= other.connections <= MOST_ATTEMPTS
    if talk is be_silent:
        seen(f"{kind}, a silent peer: {seconds:.1f} s, attempts {other.connections}")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def certificates(authority: Authority) -> dict[str, Certificate]:
    return {
        "good": authority.issue("localhost"),
        "expired": authority.issue("localhost", is_expired=True),
        "wrong host": authority.issue("elsewhere.example.org"),
    }


def trusting(authority: Authority, **more: Any) -> Tls:
    return Tls(ca_file=str(authority.certificate.file), server_name="localhost", **more)


@pytest.mark.fault(case=5)
@pytest.mark.parametrize("flaw", ["unknown authority", "expired", "wrong host"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_certificate_that_proves_nothing_is_refused(
    kind: str,
    flaw: str,
    authority: Authority,
    certificates: dict[str, Certificate],
    request: pytest.FixtureRequest,
    seen: Seen,
) -> None:
    name = {"amqp": "rabbitmq_broker", "kafka": "kafka_broker", "mqtt": "mosquitto_broker"}[kind]
    target = request.getfixturevalue(name).address()
    certificate = certificates["good" if flaw == "unknown authority" else flaw]
    tls = Tls() if flaw == "unknown authority" else trusting(authority)
    if kind == "kafka":
        # librdkafka asks for the name that it connects to.
        tls = tls.model_copy(update={"server_name": None})
    with tls_endpoint(certificate, target) as endpoint:
        broker = broker_at(kind, endpoint.port, tls, "guest")
        told, seconds = check_refused(broker)
        attempts = endpoint.connections
        assert 1 <= attempts <= MOST_ATTEMPTS
        insecure = broker.model_copy(update={"tls": Tls(insecure=True)})
        if kind != "kafka":  # whose own address, without TLS, is told to the client
            open_transport(insecure).probe()
        assert insecure.masked()["tls"]["insecure"] is True
    if flaw == "expired":
        seen(f"{kind}, an expired certificate: {seconds:.1f} s, attempts {attempts}")
    assert "certificate" in told.lower() or "ssl" in told.lower(), told


@pytest.mark.fault(case=5)
@pytest.mark.faults_slow
def test_a_result_tells_that_no_certificate_was_looked_at(
    rabbitmq_broker: Broker, certificates: dict[str, Certificate], carry_out: CarryOut
) -> None:
    with tls_endpoint(certificates["expired"], rabbitmq_broker.address()) as endpoint:
        broker = broker_at("amqp", endpoint.port, Tls(insecure=True), "guest")
        outcome = carry_out(
            broker,
            phases={"warmup_seconds": 0, "measure_seconds": 1, "drain_seconds": 2},
            load={"rate_per_second": 200},
        )
    assert outcome.document["broker"]["tls"]["insecure"] is True
    assert outcome.counts["received_once"] == 200
