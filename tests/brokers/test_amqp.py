"""What AMQP 0-9-1 adds to the contract, on RabbitMQ and on Qpid Broker-J."""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pika
import pytest
from contract import (
    CLOCK,
    PATIENCE_SECONDS,
    PLANES,
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
    send_all,
    whole,
)
from proxy import Proxy
from tls_endpoints import Certificate, tls_endpoint

from bench_spark.brokers import BrokerStatus
from bench_spark.brokers.rabbitmq import installed_programs
from bench_spark.errors import (
    BrokerRefused,
    BrokerUnreachable,
    ConfigurationError,
    LoginRefused,
)
from bench_spark.scenario.broker import Broker, Tls
from bench_spark.transports.amqp.key_choice import KeyChoice
from bench_spark.transports.base import (
    Batch,
    Consumers,
    Destination,
    Holdable,
    OutcomeKind,
    Part,
    Producers,
    Received,
    Signal,
    SignalKind,
    nothing_received,
)

on_both_planes = pytest.mark.usefixtures("plane")
AMQP_ACKS = ("auto", "manual")


@contextmanager
def plain_pika(broker: Broker) -> Iterator[Any]:
    """A channel of pika's own, to look at the broker from outside."""
    connection = pika.BlockingConnection(pika.URLParameters(f"{broker.uri}%2F"))
    try:
        yield connection.channel()
    finally:
        connection.close()


def unique(name: str) -> str:
    return f"{name}-{time.time_ns()}"


def wait_for_signal(side: Producers | Consumers, kind: SignalKind) -> Signal:
    seen: list[Signal] = []

    def arrived() -> bool:
        seen.extend(side.signals())
        return bool(seen)

    assert eventually(arrived)
    assert [one.kind for one in seen] == [kind]
    return seen[0]


# -- names, exchanges, and who deletes what --------------------------------------------------------


def test_the_default_queue_is_named_after_the_run(broker: Broker) -> None:
    run_id = unique("run")
    with declared(open_transport(broker, run_id), 2) as made:
        assert [one.name for one in made] == [f"bench-{run_id}-0", f"bench-{run_id}-1"]


@on_both_planes
def test_a_server_named_queue_carries_messages_and_goes_with_its_consumer(broker: Broker) -> None:
    queue = {"server_named": True, "auto_delete": True}
    transport = open_transport(broker, amqp={"queue": queue})
    made = transport.declare([Destination(0)])
    with consuming(transport, made) as consumers, producing(transport, made) as producers:
        send_all(producers, batch(heads(3)))
        collect(consumers, 3)
    assert made[0].name
    assert eventually(lambda: transport.depths(made) == (None,))


def test_a_queue_that_was_there_before_is_used_and_never_deleted(broker: Broker) -> None:
    name = unique("mine")
    transport = open_transport(broker, amqp={"queue": {"name": name}})
    with plain_pika(broker) as channel:
        channel.queue_declare(name)
        with declared(transport) as made:
            assert made == (Destination(0, name, declared=False),)
            with producing(transport, made) as producers:
                send_all(producers, batch(heads(2)))
        assert eventually(lambda: transport.depths(made) == (2,))
        channel.queue_delete(name)


@pytest.mark.fault(case=7)
def test_a_queue_with_other_arguments_is_refused_and_left_alone(rabbitmq_broker: Broker) -> None:
    name = unique("other")
    queue = {"name": name, "arguments": {"x-max-length": 10}}
    transport = open_transport(rabbitmq_broker, amqp={"queue": queue})
    with plain_pika(rabbitmq_broker) as channel:
        channel.queue_declare(name, arguments={"x-max-length": 20})
        channel.basic_publish("", name, b"precious")
        with pytest.raises(BrokerRefused, match=rf"{name}.*406 PRECONDITION_FAILED.*x-max-length"):
            transport.declare([Destination(0)])
        assert transport.depths([Destination(0, name)]) == (1,)
        channel.queue_delete(name)


@pytest.mark.fault(case=7)
def test_a_queue_with_other_properties_is_refused_and_left_alone(rabbitmq_broker: Broker) -> None:
    name = unique("other")
    pattern = f"{name}-%d"
    transport = open_transport(
        rabbitmq_broker,
        destinations=2,
        producers=2,
        consumers=2,
        amqp={"queue": {"name": pattern, "durable": True}},
    )
    with plain_pika(rabbitmq_broker) as channel:
        channel.queue_declare(f"{name}-1")
        channel.basic_publish("", f"{name}-1", b"precious")
        with pytest.raises(BrokerRefused, match=r"406 PRECONDITION_FAILED.*durable"):
            transport.declare([Destination(0), Destination(1)])
        left = transport.depths([Destination(0, f"{name}-0"), Destination(1, f"{name}-1")])
        assert left == (None, 1), "what was made before the refusal is deleted, nothing else"
        channel.queue_delete(f"{name}-1")


@on_both_planes
@pytest.mark.parametrize("kind", ["direct", "topic", "fanout", "headers"])
def test_an_exchange_is_declared_bound_and_deleted_again(broker: Broker, kind: str) -> None:
    name = unique("exchange")
    amqp = {"exchange": {"name": name, "type": kind}, "routing_key": "some.key"}
    transport = open_transport(broker, amqp=amqp)
    with exchanging(transport) as (producers, consumers):
        send_all(producers, batch(heads(10)))
        collect(consumers, 10)
    assert not exchange_exists(broker, name, kind)


def test_an_exchange_that_was_there_before_stays(broker: Broker) -> None:
    name = unique("theirs")
    with plain_pika(broker) as channel:
        channel.exchange_declare(name, "direct")
        transport = open_transport(broker, amqp={"exchange": {"name": name}})
        with exchanging(transport) as (producers, consumers):
            send_all(producers, batch(heads(4)))
            collect(consumers, 4)
        assert exchange_exists(broker, name, "direct")
        channel.exchange_delete(name)


def test_an_exchange_of_another_type_is_refused(broker: Broker) -> None:
    name = unique("theirs")
    with plain_pika(broker) as channel:
        channel.exchange_declare(name, "topic")
        transport = open_transport(broker, amqp={"exchange": {"name": name, "type": "direct"}})
        with pytest.raises(BrokerRefused, match=name):
            transport.declare([Destination(0)])
        channel.exchange_delete(name)


def test_an_exchange_shared_by_two_agents_goes_with_the_last_queue(broker: Broker) -> None:
    name = unique("shared")
    first = open_transport(broker, amqp={"exchange": {"name": name}})
    second = open_transport(broker, amqp={"exchange": {"name": name}})
    made_first, made_second = first.declare([Destination(0)]), second.declare([Destination(1)])
    first.delete(made_first)
    with consuming(second, made_second) as consumers, producing(second, made_second) as producers:
        send_all(producers, batch(heads(2)))
        collect(consumers, 2)
    second.delete(made_second)
    assert not exchange_exists(broker, name, "direct")


@on_both_planes
def test_what_is_returned_is_known_again_though_its_body_has_no_head(broker: Broker) -> None:
    bodies = [b"same"] * 6 + [b"", b"other", bytes(300_000)]
    for confirms in (100, 0):
        transport = open_transport(broker, amqp={"mandatory": True, "confirms": confirms})
        with producing(transport, [Destination(0, unique("nowhere"))]) as producers:
            sent = whole(bodies, headers=[{"id": b"%d" % place} for place in range(len(bodies))])
            settled = send_all(producers, sent, expected_outcomes=len(bodies))
            assert settled.kinds == [OutcomeKind.RETURNED] * len(bodies)
            assert np.array_equal(np.sort(settled.heads, order="sequence"), sent.head)


@on_both_planes
def test_a_headers_exchange_passes_only_messages_whose_headers_fit(broker: Broker) -> None:
    def amqp(sent: dict[str, Any]) -> dict[str, Any]:
        wanted = {"x-match": "all", "kind": "order", "pages": 3}
        exchange = {"name": name, "type": "headers", "binding_arguments": wanted}
        return {"exchange": exchange, "headers": sent, "mandatory": True}

    name = unique("headers")
    fitting = open_transport(broker, amqp=amqp({"kind": "order", "pages": 3, "more": True}))
    other = open_transport(broker, amqp=amqp({"kind": "order", "pages": 4}))
    with exchanging(fitting, want=frozenset({Part.HEADERS})) as (producers, consumers):
        send_all(producers, batch(heads(20)))
        parts = collect(consumers, 20)
        headers = [one for part in parts for one in part.headers or ()]
        assert headers == [{"kind": b"order", "pages": b"3", "more": b"true"}] * 20
        with producing(other, [Destination(0, "unused")]) as misfits:
            settled = send_all(misfits, batch(heads(5)), expected_outcomes=5)
            assert settled.kinds == [OutcomeKind.RETURNED] * 5
        collect(consumers, 0)


@on_both_planes
def test_a_headers_exchange_tells_destinations_apart(broker: Broker) -> None:
    exchange = {
        "name": unique("headers"),
        "type": "headers",
        "binding_arguments": {"x-match": "all", "to": "q-%d"},
    }
    amqp = {"exchange": exchange, "headers": {"to": "q-%d"}, "queue": {"first_number": 1}}
    transport = open_transport(broker, destinations=2, producers=2, consumers=2, amqp=amqp)
    with (
        declared(transport, 2) as made,
        consuming(transport, made) as consumers,
        producing(transport, made) as producers,
    ):
        routes = [0, 1, 1, 0, 1] * 4
        send_all(producers, batch(heads(20), route=routes))
        parts = collect(consumers, 20)
        by_sequence = dict(
            zip(joined(parts, "head")["sequence"], joined(parts, "route"), strict=True)
        )
        assert [by_sequence[number] for number in range(20)] == routes


@on_both_planes
def test_a_topic_exchange_is_bound_by_a_pattern(broker: Broker) -> None:
    def amqp(key: str) -> dict[str, Any]:
        exchange = {"name": name, "type": "topic"}
        return {
            "exchange": exchange,
            "routing_key": key,
            "binding_key": "orders.*.eu.#",
            "mandatory": True,
        }

    name = unique("topic")
    with exchanging(open_transport(broker, amqp=amqp("orders.paper.eu.de"))) as both:
        producers, consumers = both
        send_all(producers, batch(heads(10)))
        collect(consumers, 10)
        other = open_transport(broker, amqp=amqp("orders.paper.us"))
        with producing(other, [Destination(0, "unused")]) as misfits:
            settled = send_all(misfits, batch(heads(3)), expected_outcomes=3)
            assert settled.kinds == [OutcomeKind.RETURNED] * 3


@on_both_planes
@pytest.mark.parametrize("kind", ["direct", "topic"])
@pytest.mark.parametrize("has_own_tails", [False, True])
def test_each_message_takes_one_of_many_routing_keys(
    broker: Broker, kind: str, has_own_tails: bool
) -> None:
    exchange = {"name": unique("keys"), "type": kind}
    amqp = {"exchange": exchange, "routing_key": "k", "routing_keys": 12, "mandatory": True}
    transport = open_transport(broker, amqp=amqp)
    tails = [bytes(number % 5) for number in range(200)] if has_own_tails else None
    with declared(transport) as made:
        with producing(transport, made) as producers:
            send_all(producers, batch(heads(200), tails=tails))
        assert eventually(lambda: transport.depths(made) == (200,))
        with plain_pika(broker) as channel:
            got = [channel.basic_get(made[0].name, auto_ack=True)[0] for _ in range(200)]
    expected = KeyChoice(12, 2).numbers(heads(200)).tolist()
    assert [one.routing_key for one in got] == [f"k.{number:02d}" for number in expected]
    assert len(set(expected)) == 12


@on_both_planes
def test_queues_are_numbered_from_the_first_number_and_existing_ones_stay(broker: Broker) -> None:
    name = unique("perf-test")
    transport = open_transport(
        broker,
        destinations=3,
        producers=3,
        consumers=3,
        amqp={"queue": {"name": f"{name}-%d", "first_number": 1}},
    )
    with plain_pika(broker) as channel:
        channel.queue_declare(f"{name}-2")
        with declared(transport, 3) as made:
            assert [one.name for one in made] == [f"{name}-1", f"{name}-2", f"{name}-3"]
            assert [one.declared for one in made] == [True, False, True]
            with producing(transport, made) as producers:
                send_all(producers, batch(heads(6), route=[0, 1, 2, 0, 1, 2]))
            assert eventually(lambda: transport.depths(made) == (2, 2, 2))
        assert transport.depths(made) == (None, 2, None)
        channel.queue_delete(f"{name}-2")


def exchange_exists(broker: Broker, name: str, kind: str) -> bool:
    with plain_pika(broker) as channel:
        try:
            channel.exchange_declare(name, kind, passive=True)
        except pika.exceptions.ChannelClosedByBroker:
            return False
        return True


@on_both_planes
def test_delivery_mode_and_body_are_as_asked_and_no_other_property_is_set(broker: Broker) -> None:
    for persistent, mode in ((False, 1), (True, 2)):
        transport = open_transport(broker, amqp={"persistent": persistent})
        with declared(transport) as made:
            with producing(transport, made) as producers:
                send_all(producers, batch(heads(1), body_bytes=100))
            with plain_pika(broker) as channel:
                _, properties, body = channel.basic_get(made[0].name, auto_ack=True)
        assert len(body) == 100
        assert properties.delivery_mode == mode
        assert {name for name, value in vars(properties).items() if value} <= {"delivery_mode"}


# -- slow consumers --------------------------------------------------------------------------------


def test_a_lane_that_is_held_receives_nothing_until_it_is_released(
    rabbitmq_broker: Broker, qpid_broker: Broker
) -> None:
    """On both brokers, by both planes and with either way of acknowledging, in one silence."""
    with ExitStack() as stack:
        held: dict[tuple[str, str, str], Consumers] = {}

        def hear_nothing() -> None:
            heard = {way: len(consumers.receive(0.01)) for way, consumers in held.items()}
            assert heard == dict.fromkeys(held, 0)

        for broker, plane, ack in product((rabbitmq_broker, qpid_broker), PLANES, AMQP_ACKS):
            amqp = {"ack": ack, "plane": plane, "heartbeat_seconds": 1}
            transport = open_transport(broker, destinations=2, producers=2, consumers=2, amqp=amqp)
            made = stack.enter_context(declared(transport, 2))
            consumers = stack.enter_context(consuming(transport, made[:1], made[1:]))
            assert isinstance(consumers, Holdable)
            consumers.hold({0})
            with producing(transport, made) as producers:
                send_all(producers, batch(heads(40), route=[0, 1] * 20))
            parts = collect(consumers, 20, extra_seconds=0)
            assert set(joined(parts, "lane").tolist()) == {1}
            held[broker.name, plane, ack] = consumers
            hear_nothing()
        silent_until = time.monotonic() + 3
        while time.monotonic() < silent_until:
            hear_nothing()
        for way, consumers in held.items():
            assert (way, consumers.signals()) == (way, []), "not listened to is not silent"
            assert isinstance(consumers, Holdable)
            consumers.hold(())
            parts = collect(consumers, 20)
            assert set(joined(parts, "lane").tolist()) == {0}


@on_both_planes
def test_what_was_sent_to_a_lane_that_is_held_is_received_after_detaching(broker: Broker) -> None:
    with exchanging(open_transport(broker)) as (producers, consumers):
        assert isinstance(consumers, Holdable)
        consumers.hold({0})
        send_all(producers, batch(heads(30)))
        collect(consumers, 0, extra_seconds=0.5)
        consumers.detach()
        collect(consumers, 30)


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


@pytest.mark.parametrize("plane", PLANES)
def test_the_probe_says_which_plane_moves_the_messages(broker: Broker, plane: str) -> None:
    facts = open_transport(broker, amqp={"plane": plane}).probe()
    assert facts.client_library == f"pika {pika.__version__} ({plane} plane)"


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
    page = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=5)
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
            send_all(producers, batch(heads(10)), expected_outcomes=10)
        assert eventually(lambda: transport.depths(made) == (3,)), "the policy is in force"
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


# -- acknowledging ---------------------------------------------------------------------------------


@on_both_planes
def test_acknowledged_messages_are_gone_and_others_come_back_redelivered(broker: Broker) -> None:
    transport = open_transport(broker, amqp={"ack": "manual"})
    with declared(transport) as made:
        with producing(transport, made) as producers:
            send_all(producers, batch(heads(10)))
        with consuming(transport, made) as consumers:
            parts = collect(consumers, 10, acknowledge=False)
            assert sum(consumers.acknowledge(part) for part in parts) == 10
        assert eventually(lambda: transport.depths(made) == (0,))
        with producing(transport, made) as producers:
            send_all(producers, batch(heads(6)))
        with consuming(transport, made) as consumers:
            collect(consumers, 6, acknowledge=False)
        assert eventually(lambda: transport.depths(made) == (6,))
        with consuming(transport, made) as consumers:
            again = collect(consumers, 6)
        assert joined(again, "redelivered").all()
        assert joined(again, "head")["sequence"].tolist() == list(range(6))


@on_both_planes
def test_acknowledgements_in_groups_leave_nothing_behind(broker: Broker) -> None:
    transport = open_transport(broker, amqp={"ack": "manual", "ack_every": 10})
    with exchanging(transport) as (producers, consumers):
        send_all(producers, batch(heads(25)))
        received = 0
        acknowledged = 0
        while received < 25:
            part = consumers.receive(1.0)
            received += len(part)
            acknowledged += consumers.acknowledge(part)
        assert acknowledged == 20

        # The last five are no full group; they are acknowledged once the lane has been idle.
        def all_acknowledged() -> bool:
            nonlocal acknowledged
            consumers.receive(0)
            acknowledged += consumers.acknowledge(nothing_received())
            return acknowledged == 25

        assert eventually(all_acknowledged)


@on_both_planes
def test_closing_acknowledges_the_group_that_was_not_full(broker: Broker) -> None:
    transport = open_transport(broker, amqp={"ack": "manual", "ack_every": 100})
    with declared(transport) as made:
        with producing(transport, made) as producers:
            send_all(producers, batch(heads(7)))
        with consuming(transport, made) as consumers:
            collect(consumers, 7, extra_seconds=0)
        assert eventually(lambda: transport.depths(made) == (0,))


@on_both_planes
def test_no_more_than_the_prefetch_is_delivered_unacknowledged(broker: Broker) -> None:
    transport = open_transport(broker, amqp={"ack": "manual", "prefetch": 5})
    with exchanging(transport) as (producers, consumers):
        send_all(producers, batch(heads(12)))
        first = collect(consumers, 5, acknowledge=False)
        for part in first:
            consumers.acknowledge(part)
        collect(consumers, 7)


# -- outcomes --------------------------------------------------------------------------------------


@on_both_planes
def test_no_more_than_the_limit_is_ever_unconfirmed(broker: Broker) -> None:
    transport = open_transport(broker, amqp={"confirms": 10})
    with declared(transport) as made, producing(transport, made) as producers:
        assert producers.send(batch(heads(100))) == 10
        assert producers.in_flight() == 10
        assert producers.send(batch(heads(1))) == 0


@on_both_planes
@pytest.mark.parametrize("body_bytes", [8, 200])
def test_unroutable_messages_are_returned_not_confirmed(broker: Broker, body_bytes: int) -> None:
    transport = open_transport(
        broker, amqp={"confirms": 100, "mandatory": True, "routing_key": "no-such-queue"}
    )
    made = heads(20)
    with declared(transport) as destinations, producing(transport, destinations) as producers:
        settled = send_all(producers, batch(made, body_bytes=body_bytes), expected_outcomes=20)
        assert producers.in_flight() == 0
    assert settled.kinds == [OutcomeKind.RETURNED] * 20
    assert np.array_equal(np.sort(settled.heads, order="sequence"), made)


@on_both_planes
def test_returned_and_confirmed_messages_are_told_apart(broker: Broker) -> None:
    transport = open_transport(broker, amqp={"confirms": 100, "mandatory": True})
    with declared(transport) as made:
        lanes = [made[0], Destination(1, "no-such-queue")]
        routes = (np.arange(40) % 2).tolist()
        with producing(transport, lanes) as producers:
            sent = batch(heads(40, producer=routes), route=routes)
            settled = send_all(producers, sent, expected_outcomes=40)
    expected = [OutcomeKind.CONFIRMED, OutcomeKind.RETURNED]
    for kind, head in zip(settled.kinds, settled.heads, strict=True):
        assert kind == expected[head["producer"]]


@on_both_planes
def test_returns_are_reported_without_confirms_too(broker: Broker) -> None:
    transport = open_transport(broker, amqp={"mandatory": True, "routing_key": "no-such-queue"})
    made = heads(5)
    with declared(transport) as destinations, producing(transport, destinations) as producers:
        settled = send_all(producers, batch(made), expected_outcomes=5)
    assert settled.kinds == [OutcomeKind.RETURNED] * 5
    assert np.array_equal(settled.heads, made)


@on_both_planes
def test_messages_that_a_full_queue_rejects_are_refused(rabbitmq_broker: Broker) -> None:
    arguments = {"x-max-length": 5, "x-overflow": "reject-publish"}
    transport = open_transport(
        rabbitmq_broker, amqp={"confirms": 1, "queue": {"arguments": arguments}}
    )
    with declared(transport) as made:
        with producing(transport, made) as producers:
            settled = send_all(producers, batch(heads(12)), expected_outcomes=12)
        assert eventually(lambda: transport.depths(made) == (5,))
    assert settled.kinds.count(OutcomeKind.CONFIRMED) == 5
    assert settled.kinds.count(OutcomeKind.REFUSED) == 7


# -- lanes that end, block or fill up --------------------------------------------------------------


@on_both_planes
def test_a_channel_closed_by_the_broker_is_lost_with_its_code_and_its_messages_unknown(
    broker: Broker,
) -> None:
    name = unique("vanishing")
    transport = open_transport(broker, amqp={"confirms": 50, "exchange": {"name": name}})
    made = transport.declare([Destination(0)])
    with producing(transport, made) as producers:
        transport.delete(made)
        sent = heads(10)
        assert producers.send(batch(sent)) == 10
        signalled = wait_for_signal(producers, SignalKind.LOST)
        assert "404" in signalled.reason
        outcomes = producers.outcomes()
        assert set(outcomes.kind.tolist()) == {OutcomeKind.UNKNOWN}
        assert np.array_equal(outcomes.head, sent)
        assert producers.send(batch(heads(1))) == 0
        assert producers.in_flight() == 0


@on_both_planes
def test_a_consumer_whose_queue_is_deleted_is_lost(rabbitmq_broker: Broker) -> None:
    transport = open_transport(rabbitmq_broker)
    made = transport.declare([Destination(0)])
    with consuming(transport, made) as consumers:
        transport.delete(made)
        signalled = wait_for_signal(consumers, SignalKind.LOST)
    assert made[0].name is not None
    assert made[0].name in signalled.reason
    assert "cancelled" in signalled.reason


@on_both_planes
def test_consuming_from_a_queue_that_does_not_exist_is_refused(broker: Broker) -> None:
    transport = open_transport(broker)
    missing = [Destination(0, "no-such-queue")]
    with pytest.raises(BrokerRefused, match="404"), consuming(transport, missing):
        pass


@on_both_planes
def test_messages_in_flight_when_the_lane_closes_have_an_unknown_outcome(
    rabbitmq: BrokerStatus,
) -> None:
    transport = open_transport(rabbitmq.broker, amqp={"confirms": 50})
    with declared(transport) as made, producing(transport, made) as producers:
        with frozen(rabbitmq):
            assert producers.send(batch(heads(3))) == 3
            producers.close()
        outcomes = producers.outcomes()
    assert outcomes.kind.tolist() == [OutcomeKind.UNKNOWN] * 3


@on_both_planes
def test_a_full_socket_refuses_and_loses_nothing(rabbitmq: BrokerStatus) -> None:
    transport = open_transport(rabbitmq.broker)
    total = 2000
    whole = batch(heads(total), body_bytes=20_000)
    with exchanging(transport) as (producers, consumers):
        with frozen(rabbitmq):
            accepted = producers.send(whole)
            assert 0 < accepted < total
            assert producers.send(whole.starting_at(accepted)) == 0
            assert not select.select([producers.descriptor], [], [], 0)[0]
        # A refused send that may succeed again makes the descriptor readable.
        assert select.select([producers.descriptor], [], [], PATIENCE_SECONDS)[0]
        parts = collect_while_sending(producers, consumers, whole.starting_at(accepted), total)
    assert np.array_equal(joined(parts, "head")["sequence"], np.arange(total))


def collect_while_sending(
    producers: Producers, consumers: Consumers, rest: Batch, total: int
) -> list[Received]:
    parts: list[Received] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while sum(len(part) for part in parts) < total:
        assert time.monotonic() < deadline
        rest = rest.starting_at(producers.send(rest)) if len(rest) else rest
        producers.signals()
        parts.append(consumers.receive(0))
    return parts


@contextmanager
def frozen(status: BrokerStatus) -> Iterator[None]:
    assert status.pid is not None
    os.kill(status.pid, signal.SIGSTOP)
    try:
        assert eventually(lambda: is_stopped(status.pid))
        yield
    finally:
        os.kill(status.pid, signal.SIGCONT)


def is_stopped(pid: int) -> bool:
    """Whether every thread has stopped: the signal reaches them one after the other."""
    states = [
        task.joinpath("stat").read_text().rpartition(")")[2].split()[0]
        for task in Path(f"/proc/{pid}/task").iterdir()
    ]
    return set(states) == {"T"}


@on_both_planes
@pytest.mark.fault(case=8)
def test_a_blocked_connection_is_signalled_and_refuses_until_unblocked(
    rabbitmq: BrokerStatus,
) -> None:
    transport = open_transport(rabbitmq.broker)
    with exchanging(transport) as (producers, consumers):
        try:
            limit_memory(rabbitmq, "1")
            # RabbitMQ tells a connection that it is blocked when it next publishes.
            assert producers.send(batch(heads(1))) == 1
            blocked = wait_for_signal(producers, SignalKind.BLOCKED)
            assert "memory" in blocked.reason
            assert producers.send(batch(heads(1))) == 0
        finally:
            limit_memory(rabbitmq, "2GB")
        unblocked = wait_for_signal(producers, SignalKind.UNBLOCKED)
        assert unblocked.at_ns > blocked.at_ns
        send_all(producers, batch(heads(4, first=1)))
        collect(consumers, 5)


def limit_memory(status: BrokerStatus, limit: str) -> None:
    control = installed_programs()[0].with_name("rabbitmqctl")
    node = f"bench-spark-{status.ports['amqp']}@localhost"
    subprocess.run(
        [control, "-q", "-n", node, "set_vm_memory_high_watermark", "absolute", limit],
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(status.directory),
            "ERL_EPMD_PORT": str(status.ports["epmd"]),
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
        },
        check=True,
        capture_output=True,
    )


def test_idle_lanes_are_kept_alive_by_heartbeats(
    rabbitmq_broker: Broker, qpid_broker: Broker
) -> None:
    """On both brokers and by both planes, which are idle together."""
    with ExitStack() as stack:
        idle: dict[tuple[str, str], tuple[Producers, Consumers]] = {}

        def stay_idle() -> None:
            for way, (producers, consumers) in idle.items():
                consumers.receive(0.02)
                assert (way, producers.signals(), consumers.signals()) == (way, [], [])

        for broker, plane in product((rabbitmq_broker, qpid_broker), PLANES):
            transport = open_transport(broker, amqp={"heartbeat_seconds": 1, "plane": plane})
            idle[broker.name, plane] = stack.enter_context(exchanging(transport))
            stay_idle()
        idle_until = time.monotonic() + 4
        while time.monotonic() < idle_until:
            stay_idle()
        for producers, consumers in idle.values():
            send_all(producers, batch(heads(3)))
            collect(consumers, 3)


@on_both_planes
def test_many_lanes_open_and_carry_messages(broker: Broker) -> None:
    transport = open_transport(broker, producers=100, consumers=100)
    lanes = (np.arange(1000) % 100).tolist()
    with exchanging(transport, producer_lanes=100, consumer_lanes=100) as (producers, consumers):
        send_all(producers, batch(heads(1000, producer=lanes), lanes))
        parts = collect(consumers, 1000)
    assert np.array_equal(np.sort(joined(parts, "head")["sequence"]), np.arange(1000))


def test_under_full_load_the_last_messages_do_not_wait_for_more(broker: Broker) -> None:
    transport = open_transport(broker, load={"mode": "maximum"})
    whole = batch(heads(5000), body_bytes=1000)
    with exchanging(transport) as (producers, consumers):
        parts = collect_while_sending(producers, consumers, whole, 5000)
        for number in range(3):
            send_all(producers, batch(heads(1, first=5000 + number), body_bytes=1000))
            assert select.select([consumers.descriptor], [], [], PATIENCE_SECONDS)[0]
            parts += collect(consumers, 1, extra_seconds=0)
    assert np.array_equal(joined(parts, "head")["sequence"], np.arange(5003))


# -- TLS -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate for localhost and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    directory = tmp_path_factory.mktemp("tls")
    made, key = directory / "cert.pem", directory / "key.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    request = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    subprocess.run(
        [*request, *subject, "-keyout", key, "-out", made], check=True, capture_output=True
    )
    return made, key


@pytest.fixture
def tls_port(broker: Broker, certificate: tuple[Path, Path]) -> Iterator[int]:
    """The broker behind an endpoint that does nothing but TLS."""
    with tls_endpoint(Certificate(*certificate), broker.address()) as endpoint:
        yield endpoint.port


@on_both_planes
def test_messages_travel_over_tls(tls_port: int, certificate: tuple[Path, Path]) -> None:
    broker = Broker(
        kind="amqp",
        uri=f"amqps://guest:guest@127.0.0.1:{tls_port}",
        tls=Tls(ca_file=str(certificate[0]), server_name="localhost"),
    )
    transport = open_transport(broker, amqp={"confirms": 100})
    made = heads(300)
    with exchanging(transport) as (producers, consumers):
        settled = send_all(producers, batch(made, body_bytes=5000), expected_outcomes=300)
        parts = collect(consumers, 300)
    assert settled.kinds == [OutcomeKind.CONFIRMED] * 300
    assert np.array_equal(joined(parts, "head"), made)


@on_both_planes
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
        send_all(producers, batch(heads(50)), expected_outcomes=50)
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


@on_both_planes
def test_lanes_that_cannot_be_opened_leave_no_connection_behind(broker: Broker) -> None:
    transport = open_transport(broker, amqp={"confirms": 10})
    before = open_descriptors()
    for _ in range(3):
        with pytest.raises(BrokerRefused), consuming(transport, [Destination(0, "missing")]):
            pass
        transport.open_producers(numbered([[Destination(0, "missing")]]), CLOCK.now_ns).close()
        transport.probe()
    assert open_descriptors() <= before


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
