"""What AMQP 0-9-1 adds to the contract: queues, exchanges, slow consumers; on RabbitMQ and on Qpid
Broker-J."""

from __future__ import annotations

import time
from contextlib import ExitStack
from itertools import product
from typing import Any

import numpy as np
import pika
import pytest
from amqp_from_outside import plain_pika, unique
from contract import (
    batch,
    collect,
    consuming,
    declared,
    envelopes,
    eventually,
    exchanging,
    joined,
    left_in,
    open_transport,
    producing,
    send_all,
    whole,
)
from fault_records import Seen

from bench_spark.config.broker import Broker
from bench_spark.errors import (
    BrokerRefused,
)
from bench_spark.transports.amqp.producers import KeyChoice
from bench_spark.transports.base import Consumers, Destination
from bench_spark.transports.batches import OutcomeKind, Part

AMQP_ACKS = ("auto", "manual")


# -- names, exchanges, and who deletes what --------------------------------------------------------


def test_the_default_queue_is_named_after_the_run(broker: Broker) -> None:
    run_id = unique("run")
    with declared(open_transport(broker, run_id), 2) as made:
        assert [one.name for one in made] == [f"bench-{run_id}-0", f"bench-{run_id}-1"]


def test_a_server_named_queue_carries_messages_and_goes_with_its_consumer(broker: Broker) -> None:
    queue = {"server_named": True, "auto_delete": True}
    transport = open_transport(broker, amqp={"queue": queue})
    made = transport.declare([Destination(0)])
    with consuming(transport, made) as consumers, producing(transport, made) as producers:
        send_all(producers, batch(envelopes(3)))
        collect(consumers, 3)
    assert made[0].name
    assert eventually(lambda: left_in(transport, made) == (None,))


def test_a_queue_that_was_there_before_is_used_and_never_deleted(broker: Broker) -> None:
    name = unique("mine")
    transport = open_transport(broker, amqp={"queue": {"name": name}})
    with plain_pika(broker) as channel:
        channel.queue_declare(name)
        with declared(transport) as made:
            assert made == (Destination(0, name, declared=False),)
            with producing(transport, made) as producers:
                send_all(producers, batch(envelopes(2)))
        assert eventually(lambda: left_in(transport, made) == (2,))
        channel.queue_delete(name)


@pytest.mark.fault(case=7)
def test_a_queue_with_other_arguments_is_refused_and_left_alone(
    rabbitmq_broker: Broker, seen: Seen
) -> None:
    name = unique("other")
    queue = {"name": name, "arguments": {"x-max-length": 10}}
    transport = open_transport(rabbitmq_broker, amqp={"queue": queue})
    with plain_pika(rabbitmq_broker) as channel:
        channel.queue_declare(name, arguments={"x-max-length": 20})
        channel.basic_publish("", name, b"precious")
        with pytest.raises(BrokerRefused, match=rf"{name}.*406 PRECONDITION_FAILED.*x-max-length"):
            transport.declare([Destination(0)])
        assert left_in(transport, [Destination(0, name)]) == (1,)
        channel.queue_delete(name)
    seen("406 PRECONDITION_FAILED, with the argument by name; its message still in the queue")


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
        left = left_in(transport, [Destination(0, f"{name}-0"), Destination(1, f"{name}-1")])
        assert left == (None, 1), "what was made before the refusal is deleted, nothing else"
        channel.queue_delete(f"{name}-1")


@pytest.mark.parametrize("kind", ["direct", "topic", "fanout", "headers"])
def test_an_exchange_is_declared_bound_and_deleted_again(broker: Broker, kind: str) -> None:
    name = unique("exchange")
    amqp = {"exchange": {"name": name, "type": kind}, "routing_key": "some.key"}
    transport = open_transport(broker, amqp=amqp)
    with exchanging(transport) as (producers, consumers):
        send_all(producers, batch(envelopes(10)))
        collect(consumers, 10)
    assert not exchange_exists(broker, name, kind)


def test_an_exchange_that_was_there_before_stays(broker: Broker) -> None:
    name = unique("theirs")
    with plain_pika(broker) as channel:
        channel.exchange_declare(name, "direct")
        transport = open_transport(broker, amqp={"exchange": {"name": name}})
        with exchanging(transport) as (producers, consumers):
            send_all(producers, batch(envelopes(4)))
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
        send_all(producers, batch(envelopes(2)))
        collect(consumers, 2)
    second.delete(made_second)
    assert not exchange_exists(broker, name, "direct")


def test_what_is_returned_is_known_again_though_its_body_has_no_envelope(broker: Broker) -> None:
    bodies = [b"same"] * 6 + [b"", b"other", bytes(300_000)]
    for confirms in (100, 0):
        transport = open_transport(broker, amqp={"mandatory": True, "confirms": confirms})
        with producing(transport, [Destination(0, unique("nowhere"))]) as producers:
            sent = whole(bodies, headers=[{"id": b"%d" % place} for place in range(len(bodies))])
            settled = send_all(producers, sent, expected_outcomes=len(bodies))
            assert settled.kinds == [OutcomeKind.RETURNED] * len(bodies)
            assert np.array_equal(np.sort(settled.envelopes, order="sequence"), sent.envelope)


def test_a_headers_exchange_passes_only_messages_whose_headers_fit(broker: Broker) -> None:
    def amqp(sent: dict[str, Any]) -> dict[str, Any]:
        wanted = {"x-match": "all", "kind": "order", "pages": 3}
        exchange = {"name": name, "type": "headers", "binding_arguments": wanted}
        return {"exchange": exchange, "headers": sent, "mandatory": True}

    name = unique("headers")
    fitting = open_transport(broker, amqp=amqp({"kind": "order", "pages": 3, "more": True}))
    other = open_transport(broker, amqp=amqp({"kind": "order", "pages": 4}))
    with exchanging(fitting, want=frozenset({Part.HEADERS})) as (producers, consumers):
        send_all(producers, batch(envelopes(20)))
        parts = collect(consumers, 20)
        headers = [one for part in parts for one in part.headers or ()]
        assert headers == [{"kind": b"order", "pages": b"3", "more": b"true"}] * 20
        with producing(other, [Destination(0, "unused")]) as misfits:
            settled = send_all(misfits, batch(envelopes(5)), expected_outcomes=5)
            assert settled.kinds == [OutcomeKind.RETURNED] * 5
        collect(consumers, 0)


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
        send_all(producers, batch(envelopes(20), route=routes))
        parts = collect(consumers, 20)
        by_sequence = dict(
            zip(joined(parts, "envelope")["sequence"], joined(parts, "route"), strict=True)
        )
        assert [by_sequence[number] for number in range(20)] == routes


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
        send_all(producers, batch(envelopes(10)))
        collect(consumers, 10)
        other = open_transport(broker, amqp=amqp("orders.paper.us"))
        with producing(other, [Destination(0, "unused")]) as misfits:
            settled = send_all(misfits, batch(envelopes(3)), expected_outcomes=3)
            assert settled.kinds == [OutcomeKind.RETURNED] * 3


@pytest.mark.parametrize("kind", ["direct", "topic"])
@pytest.mark.parametrize("has_own_payloads", [False, True])
def test_each_message_takes_one_of_many_routing_keys(
    broker: Broker, kind: str, has_own_payloads: bool
) -> None:
    exchange = {"name": unique("keys"), "type": kind}
    amqp = {"exchange": exchange, "routing_key": "k", "routing_keys": 12, "mandatory": True}
    transport = open_transport(broker, amqp=amqp)
    payloads = [bytes(number % 5) for number in range(200)] if has_own_payloads else None
    with declared(transport) as made:
        with producing(transport, made) as producers:
            send_all(producers, batch(envelopes(200), payloads=payloads))
        assert eventually(lambda: left_in(transport, made) == (200,))
        with plain_pika(broker) as channel:
            got = [channel.basic_get(made[0].name, auto_ack=True)[0] for _ in range(200)]
    expected = KeyChoice(12, 2).numbers(envelopes(200)).tolist()
    assert [one.routing_key for one in got] == [f"k.{number:02d}" for number in expected]
    assert len(set(expected)) == 12


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
                send_all(producers, batch(envelopes(6), route=[0, 1, 2, 0, 1, 2]))
            assert eventually(lambda: left_in(transport, made) == (2, 2, 2))
        assert left_in(transport, made) == (None, 2, None)
        channel.queue_delete(f"{name}-2")


def exchange_exists(broker: Broker, name: str, kind: str) -> bool:
    with plain_pika(broker) as channel:
        try:
            channel.exchange_declare(name, kind, passive=True)
        except pika.exceptions.ChannelClosedByBroker:
            return False
        return True


def test_delivery_mode_and_body_are_as_asked_and_no_other_property_is_set(broker: Broker) -> None:
    for persistent, mode in ((False, 1), (True, 2)):
        transport = open_transport(broker, amqp={"persistent": persistent})
        with declared(transport) as made:
            with producing(transport, made) as producers:
                send_all(producers, batch(envelopes(1), body_bytes=100))
            with plain_pika(broker) as channel:
                _, properties, body = channel.basic_get(made[0].name, auto_ack=True)
        assert len(body) == 100
        assert properties.delivery_mode == mode
        assert {name for name, value in vars(properties).items() if value} <= {"delivery_mode"}


# -- pika on the other side ------------------------------------------------------------------------

SIZES = (32, 33, 1000, 131_064, 131_065, 300_000)
"""Of bodies: around what fits into a frame of the usual size, too."""


def test_pika_receives_what_producers_send(broker: Broker) -> None:
    name = unique("for-pika")
    transport = open_transport(broker, amqp={"queue": {"name": name}, "persistent": True})
    with declared(transport) as made, producing(transport, made) as producers:
        sent: list[bytes] = []
        for size in SIZES:
            some = envelopes(5, first=len(sent))
            send_all(producers, batch(some, body_bytes=size))
            sent += [
                envelope.tobytes() + bytes(size - len(envelope.tobytes())) for envelope in some
            ]
        with plain_pika(broker) as channel:
            taken: list[tuple[bytes, int]] = []
            for _, properties, body in channel.consume(name, auto_ack=True, inactivity_timeout=60):
                assert body is not None, f"{len(taken)} of {len(sent)} came"
                taken.append((body, properties.delivery_mode))
                if len(taken) == len(sent):
                    break
    assert taken == [(body, 2) for body in sent]


def test_consumers_receive_what_pika_sends(broker: Broker) -> None:
    name = unique("from-pika")
    transport = open_transport(broker, amqp={"queue": {"name": name}})
    want = frozenset({Part.BODY, Part.HEADERS})
    with declared(transport) as made, consuming(transport, made, want=want) as consumers:
        sent = [bytes([size % 251]) * size for size in (0, 1, 31, *SIZES)]
        with plain_pika(broker) as channel:
            for body in sent:
                headers = {"size": str(len(body))}
                properties = pika.BasicProperties(headers=headers, message_id="an-id", priority=3)
                channel.basic_publish("", name, body, properties)
        parts = collect(consumers, len(sent))
    assert [body for part in parts for body in part.bodies or ()] == sent
    assert [one["size"] for part in parts for one in part.headers or ()] == [
        str(len(body)).encode() for body in sent
    ]
    assert joined(parts, "size").tolist() == [len(body) for body in sent]


# -- slow consumers --------------------------------------------------------------------------------


def test_a_lane_that_is_held_receives_nothing_until_it_is_released(
    rabbitmq_broker: Broker, qpid_broker: Broker
) -> None:
    """On both brokers and with either way of acknowledging, in one silence."""
    with ExitStack() as stack:
        held: dict[tuple[str, str], Consumers] = {}

        def hear_nothing() -> None:
            heard = {way: len(consumers.receive(0.01)) for way, consumers in held.items()}
            assert heard == dict.fromkeys(held, 0)

        for broker, ack in product((rabbitmq_broker, qpid_broker), AMQP_ACKS):
            amqp = {"ack": ack, "heartbeat_seconds": 1}
            transport = open_transport(broker, destinations=2, producers=2, consumers=2, amqp=amqp)
            made = stack.enter_context(declared(transport, 2))
            consumers = stack.enter_context(consuming(transport, made[:1], made[1:]))
            consumers.hold({0})
            with producing(transport, made) as producers:
                send_all(producers, batch(envelopes(40), route=[0, 1] * 20))
            parts = collect(consumers, 20, extra_seconds=0)
            assert set(joined(parts, "lane").tolist()) == {1}
            held[broker.name, ack] = consumers
            hear_nothing()
        silent_until = time.monotonic() + 3
        while time.monotonic() < silent_until:
            hear_nothing()
        for way, consumers in held.items():
            assert (way, consumers.signals()) == (way, []), "not listened to is not silent"
            consumers.hold(())
            parts = collect(consumers, 20)
            assert set(joined(parts, "lane").tolist()) == {0}


def test_what_was_sent_to_a_lane_that_is_held_is_received_after_detaching(broker: Broker) -> None:
    with exchanging(open_transport(broker)) as (producers, consumers):
        consumers.hold({0})
        send_all(producers, batch(envelopes(30)))
        collect(consumers, 0, extra_seconds=0.5)
        consumers.detach()
        collect(consumers, 30)
