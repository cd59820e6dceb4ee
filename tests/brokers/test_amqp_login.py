"""What AMQP brokers cannot or will not do: the probe, policies, logins, TLS."""

from __future__ import annotations

import base64
import http.client
import json
import re
import socket
import threading
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pika
import pytest
from amqp_from_outside import unique
from contract import (
    CLOCK,
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
    send_all,
)
from proxy import Proxy
from tls_endpoints import Certificate, tls_endpoint

from bench_spark.config.broker import Broker, Tls
from bench_spark.errors import (
    BrokerRefused,
    BrokerUnreachable,
    ConfigurationError,
    LoginRefused,
)
from bench_spark.transports.base import Consumers, Destination, Producers, SignalKind
from bench_spark.transports.batches import OutcomeKind

# -- what a broker cannot do -----------------------------------------------------------------------


def test_capabilities_are_found_per_broker(rabbitmq_broker: Broker, qpid_broker: Broker) -> None:
    rabbitmq = open_transport(rabbitmq_broker).probe()
    assert rabbitmq.product == "RabbitMQ"
    assert rabbitmq.capabilities == {
        "confirms",
        "transactions",
        "blocked_notification",
        "queue_arguments",
        "policies",
    }
    qpid = open_transport(qpid_broker).probe()
    assert "Qpid" in qpid.product
    assert qpid.capabilities == {"confirms", "transactions"}


def test_the_probe_names_the_client_library(broker: Broker) -> None:
    facts = open_transport(broker).probe()
    assert facts.client_library == f"pika {pika.__version__}"


def test_queue_arguments_are_refused_in_the_probe_where_the_broker_has_none(
    qpid_broker: Broker,
) -> None:
    transport = open_transport(qpid_broker, amqp={"queue": {"arguments": {"x-max-length": 10}}})
    with pytest.raises(BrokerRefused, match=r"Qpid.*x-max-length.*542"):
        transport.probe()


def test_a_policy_is_refused_in_the_probe_where_the_broker_has_none(qpid_broker: Broker) -> None:
    with_api = qpid_broker.model_copy(update={"management_uri": "http://127.0.0.1:9"})
    transport = open_transport(with_api, amqp={"policy": {"definition": {"ha-mode": "all"}}})
    with pytest.raises(BrokerRefused, match=r"amqp.policy: .*Qpid.* has no policies"):
        transport.probe()


# -- policies --------------------------------------------------------------------------------------


def policies_of(broker: Broker) -> list[dict[str, Any]]:
    parts = urllib.parse.urlsplit(broker.management_uri or "")
    login = base64.b64encode(f"{parts.username}:{parts.password}".encode()).decode()
    page = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    page.request("GET", "/api/policies", headers={"Authorization": f"Basic {login}"})
    found: list[dict[str, Any]] = json.loads(page.getresponse().read())
    return found


def test_a_policy_holds_for_the_queues_of_the_run_and_goes_with_them(
    rabbitmq_broker: Broker,
) -> None:
    run_id = unique("run")
    policy = {"definition": {"max-length": 3}, "priority": 2}
    transport = open_transport(rabbitmq_broker, run_id, amqp={"policy": policy, "confirms": 5})
    with declared(transport) as made:
        [found] = policies_of(rabbitmq_broker)
        assert found["name"] == f"bench-{run_id}"
        assert found["definition"] == {"max-length": 3}
        assert re.fullmatch(found["pattern"], made[0].name or "")
        assert not re.fullmatch(found["pattern"], f"{made[0].name}-other")
        with producing(transport, made) as producers:
            send_all(producers, batch(envelopes(10)), expected_outcomes=10)
        assert eventually(lambda: left_in(transport, made) == (3,)), "the policy is in force"
    assert policies_of(rabbitmq_broker) == []


def test_more_copies_than_the_cluster_has_nodes_are_refused(rabbitmq_broker: Broker) -> None:
    mirrors = {"definition": {"ha-mode": "exactly", "ha-params": 2}}
    transport = open_transport(rabbitmq_broker, amqp={"policy": mirrors})
    with pytest.raises(BrokerRefused, match=r"ha-params: 2 copies .*1 of this cluster is running"):
        transport.declare([Destination(0)])


def test_a_policy_that_the_broker_does_not_know_is_refused_in_its_words(
    rabbitmq_broker: Broker,
) -> None:
    policy = {"definition": {"no-such-thing": 3}}
    transport = open_transport(rabbitmq_broker, amqp={"policy": policy})
    with pytest.raises(BrokerRefused, match=r"amqp.policy: 400 .*no-such-thing"):
        transport.declare([Destination(0)])
    transport.delete([])
    assert policies_of(rabbitmq_broker) == []


def test_a_management_api_that_refuses_the_login_is_named_without_the_password(
    rabbitmq_broker: Broker,
) -> None:
    wrong = (rabbitmq_broker.management_uri or "").replace("guest:guest", "guest:s3cret")
    broker = rabbitmq_broker.model_copy(update={"management_uri": wrong})
    transport = open_transport(broker, amqp={"policy": {"definition": {"max-length": 3}}})
    with pytest.raises(LoginRefused, match=r"amqp.policy: 401") as refused:
        transport.declare([Destination(0)])
    assert "s3cret" not in str(refused.value)


# -- logging in ------------------------------------------------------------------------------------


@pytest.mark.fault(case=5)
def test_a_wrong_password_is_refused_without_being_shown(broker: Broker) -> None:
    wrong = Broker(kind="amqp", uri=f"amqp://guest:opensesame@{broker.host}:{broker.port}")
    with pytest.raises(LoginRefused, match="user 'guest', vhost '/'") as refused:
        open_transport(wrong).probe()
    assert f"{broker.host}:{broker.port}" in str(refused.value)
    assert "opensesame" not in str(refused.value)


@pytest.mark.fault(case=5)
def test_a_missing_vhost_is_a_refused_login_that_names_it(broker: Broker) -> None:
    wrong = Broker(kind="amqp", uri=f"amqp://guest:guest@{broker.host}:{broker.port}/nowhere")
    with pytest.raises(LoginRefused, match="vhost 'nowhere'"):
        open_transport(wrong).probe()


def test_an_unknown_host_is_unreachable() -> None:
    broker = Broker(kind="amqp", uri="amqp://no-such-host.invalid:5672")
    with pytest.raises(BrokerUnreachable, match=r"no-such-host\.invalid:5672"):
        open_transport(broker).probe()


@pytest.mark.parametrize(
    ("greeting", "said"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "not in AMQP"),
        (b"AMQP\x00\x01\x00\x00", "speaks AMQP 1-0-0, not 0-9-1"),
        (b"", "does not speak AMQP 0-9-1"),
    ],
)
def test_a_peer_that_speaks_something_else_is_unreachable(greeting: bytes, said: str) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def greet() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(8)
                peer.sendall(greeting)

        thread = threading.Thread(target=greet)
        thread.start()
        port = listener.getsockname()[1]
        with pytest.raises(BrokerUnreachable, match=f"127.0.0.1:{port}: .*{said}"):
            open_transport(Broker(kind="amqp", uri=f"amqp://127.0.0.1:{port}")).probe()
        thread.join()


# -- TLS -------------------------------------------------------------------------------------------


@pytest.fixture
def tls_port(broker: Broker, certificate: tuple[Path, Path]) -> Iterator[int]:
    """The broker behind an endpoint that does nothing but TLS."""
    with tls_endpoint(Certificate(*certificate), broker.address()) as endpoint:
        yield endpoint.port


def test_messages_travel_over_tls(tls_port: int, certificate: tuple[Path, Path]) -> None:
    broker = Broker(
        kind="amqp",
        uri=f"amqps://guest:guest@127.0.0.1:{tls_port}",
        tls=Tls(ca_file=str(certificate[0]), server_name="localhost"),
    )
    transport = open_transport(broker, amqp={"confirms": 100})
    made = envelopes(300)
    with exchanging(transport) as (producers, consumers):
        settled = send_all(producers, batch(made, body_bytes=5000), expected_outcomes=300)
        parts = collect(consumers, 300)
    assert settled.kinds == [OutcomeKind.CONFIRMED] * 300
    assert np.array_equal(joined(parts, "envelope"), made)


def test_a_lane_over_tls_comes_back(tls_port: int, certificate: tuple[Path, Path]) -> None:
    proxy = Proxy("127.0.0.1", tls_port)
    broker = Broker(
        kind="amqp",
        uri=f"amqps://guest:guest@127.0.0.1:{proxy.port}",
        tls=Tls(ca_file=str(certificate[0]), server_name="localhost"),
    )
    transport = open_transport(broker, amqp={"confirms": 100})
    with exchanging(transport) as (producers, consumers):
        proxy.cut()
        for side in (producers, consumers):
            kinds: list[SignalKind] = []

            def is_back(
                side: Producers | Consumers = side, kinds: list[SignalKind] = kinds
            ) -> bool:
                kinds.extend(one.kind for one in side.signals())
                return SignalKind.REOPENED in kinds

            assert eventually(is_back)
        send_all(producers, batch(envelopes(50)), expected_outcomes=50)
        collect(consumers, 50)
    proxy.close()


def test_an_untrusted_certificate_is_refused_unless_told_otherwise(tls_port: int) -> None:
    uri = f"amqps://guest:guest@127.0.0.1:{tls_port}"
    with pytest.raises(BrokerUnreachable, match=f"127.0.0.1:{tls_port}: TLS: certificate"):
        open_transport(Broker(kind="amqp", uri=uri)).probe()
    open_transport(Broker(kind="amqp", uri=uri, tls=Tls(insecure=True))).probe()


def test_a_missing_certificate_file_is_a_configuration_error() -> None:
    tls = Tls(ca_file="/no/such/file.pem")
    with pytest.raises(ConfigurationError, match=r"/no/such/file\.pem"):
        open_transport(Broker(kind="amqp", uri="amqps://127.0.0.1", tls=tls))


def test_lanes_that_cannot_be_opened_leave_no_connection_behind(broker: Broker) -> None:
    transport = open_transport(broker, amqp={"confirms": 10})

    def fail_to_open() -> None:
        with pytest.raises(BrokerRefused), consuming(transport, [Destination(0, "missing")]):
            pass
        transport.open_producers(numbered([[Destination(0, "missing")]]), CLOCK.now_ns).close()
        transport.probe()

    fail_to_open()  # what is opened once and kept is open now
    before = open_descriptors()
    for _ in range(3):
        fail_to_open()
    assert eventually(lambda: open_descriptors() <= before)


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
