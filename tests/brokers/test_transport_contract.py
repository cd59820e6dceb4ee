"""One suite over every transport and every broker: what an agent may rely on."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator

import numpy as np
import pytest
from contract import (
    CLOCK,
    PATIENCE_SECONDS,
    batch,
    collect,
    column,
    consumer_uri,
    consuming,
    declared,
    envelopes,
    eventually,
    exchanging,
    free_port,
    joined,
    left_in,
    numbered,
    open_confirming,
    open_transport,
    producing,
    send_all,
    transport_scenario,
    whole,
)
from dialects import AMQP, KAFKA, MOSQUITTO, dialect
from proxy import Proxy
from relay import Relay, relaying

from bench_spark.config.broker import Broker
from bench_spark.errors import RunError
from bench_spark.transports.batches import Headers, OutcomeKind, Part
from bench_spark.transports.registry import kind_of

QUEUES = ("loopback", *AMQP)
KEEPING = (*QUEUES, *KAFKA)
"""Brokers that keep what nobody has fetched yet; a topic of MQTT keeps nothing."""
MQTT = (*MOSQUITTO, "rabbitmq_mqtt")
ANSWERING = (*KEEPING, *MQTT, "http")
"""Where every message has an outcome if that is asked for."""
EVERYWHERE = (*ANSWERING, "tcp")
SHARING = (*KEEPING, *MOSQUITTO)
"""RabbitMQ 3.10 has no shared subscriptions in MQTT."""
ALWAYS_THERE = ("mqtt", "http", "tcp")
"""Kinds whose destinations are neither made nor deleted."""
LISTENING = ("http", "tcp")
on_many_destinations = pytest.mark.parametrize("broker", ANSWERING, indirect=True)
"""A TCP address is one destination."""
on_whoever_answers = pytest.mark.parametrize("broker", ANSWERING, indirect=True)


@pytest.fixture(params=EVERYWHERE)
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    name, _, spoken = request.param.partition(" ")
    with dialect(spoken):
        yield request.getfixturevalue(f"{name}_broker")


@pytest.fixture
def http_broker() -> Iterator[Broker]:
    """A system that sends each request on to our consumers."""
    port = free_port()
    with relaying(Relay(port)) as relay, consumer_uri(f"http://127.0.0.1:{port}/q/%d"):
        yield Broker(kind="http", uri=f"http://127.0.0.1:{relay.port}/q/%d")


@pytest.fixture
def tcp_broker() -> Iterator[Broker]:
    """The same with connections."""
    port = free_port()
    proxy = Proxy("127.0.0.1", port)
    with consumer_uri(f"tcp://127.0.0.1:{port}"):
        yield Broker(kind="tcp", uri=f"tcp://127.0.0.1:{proxy.port}")
    proxy.close()


def test_a_probe_says_what_the_broker_is(broker: Broker) -> None:
    facts = open_transport(broker).probe()
    assert facts.product
    assert facts.version


@on_many_destinations
def test_declared_destinations_have_names_and_deleted_ones_are_gone(broker: Broker) -> None:
    transport = open_transport(broker, destinations=2, producers=2, consumers=2)
    with declared(transport, 2) as made:
        assert len({one.name for one in made}) == 2
        assert all(one.name and one.declared for one in made)
        assert left_in(transport, made) == (0, 0)
    if broker.kind not in ALWAYS_THERE:
        assert eventually(lambda: left_in(transport, made) == (None, None))


def test_deleting_twice_is_no_error(broker: Broker) -> None:
    transport = open_transport(broker)
    with declared(transport) as made:
        transport.delete(made)


@on_many_destinations
def test_every_message_arrives_once_with_its_envelope_size_lane_and_route(broker: Broker) -> None:
    transport = open_transport(broker, destinations=2, producers=3, consumers=2)
    count = 3000
    with declared(transport, 2) as (one, two):
        # Producer lanes 0 and 1 have a destination each, lane 2 has both; on the other side lane 0
        # consumes the first destination and lane 1 the second.
        lanes = np.arange(count) % 3
        routes = np.where(lanes == 2, np.arange(count) // 3 % 2, 0)
        target = np.where(lanes == 2, routes, lanes)
        made = envelopes(count, producer=target.tolist())
        with (
            consuming(transport, [one], [two]) as consumers,
            producing(transport, [one], [two], [one, two]) as producers,
        ):
            send_all(producers, batch(made, lanes.tolist(), routes.tolist(), body_bytes=200))
            parts = collect(consumers, count)
            assert producers.signals() == []
            assert consumers.signals() == []
    received = joined(parts, "envelope")
    assert np.array_equal(np.sort(received, order="sequence"), made)
    assert set(joined(parts, "size").tolist()) == {200}
    assert np.array_equal(joined(parts, "lane"), received["producer"])
    assert set(joined(parts, "route").tolist()) == {0}


@on_many_destinations
def test_one_consumer_lane_tells_its_destinations_apart_by_route(broker: Broker) -> None:
    transport = open_transport(broker, destinations=2, producers=2, consumers=2)
    with declared(transport, 2) as made:
        routes = [0, 1, 1, 0, 1]
        with consuming(transport, made) as consumers, producing(transport, made) as producers:
            send_all(producers, batch(envelopes(5, producer=routes), route=routes))
            parts = collect(consumers, 5)
    assert np.array_equal(joined(parts, "route"), joined(parts, "envelope")["producer"])
    assert set(joined(parts, "lane").tolist()) == {0}


def test_each_producer_lane_keeps_its_order(broker: Broker) -> None:
    transport = open_transport(broker, producers=2)
    with exchanging(transport, producer_lanes=2) as (producers, consumers):
        for first in range(0, 2000, 100):
            lanes = np.arange(100) % 2
            send_all(producers, batch(envelopes(100, lanes.tolist(), first), lanes.tolist()))
        parts = collect(consumers, 2000)
    received = joined(parts, "envelope")
    for producer in (0, 1):
        own = received["sequence"][received["producer"] == producer].astype(np.int64)
        assert np.all(np.diff(own) > 0)


@pytest.mark.parametrize("broker", SHARING, indirect=True)
def test_consumers_of_one_destination_share_its_messages(broker: Broker) -> None:
    # Without a limit a broker may give all that comes at once to one of them.
    transport = open_transport(broker, consumers=2, amqp={"ack": "manual", "prefetch": 100})
    with exchanging(transport, consumer_lanes=2) as (producers, consumers):
        send_all(producers, batch(envelopes(150)))
        parts = collect(consumers, 150, acknowledge=False)
    assert np.array_equal(np.sort(joined(parts, "envelope")["sequence"]), np.arange(150))
    if broker.kind != "kafka":  # one topic partition has one consumer
        assert set(joined(parts, "lane").tolist()) == {0, 1}


def test_bodies_of_every_size_arrive_whole(broker: Broker) -> None:
    transport = open_transport(broker)
    with exchanging(transport, want=frozenset({Part.BODY})) as (producers, consumers):
        for body_bytes in (8, 31, 32, 1000, 200_000):
            made = envelopes(20)
            sent = batch(made, body_bytes=body_bytes)
            sent.payload = os.urandom(len(sent.payload))
            send_all(producers, sent)
            parts = collect(consumers, 20)
            assert joined(parts, "size").tolist() == [body_bytes] * 20
            bodies = [body for part in parts for body in part.bodies or ()]
            rows = made.view(np.uint8).reshape(20, 32)
            assert bodies == [row.tobytes()[: sent.envelope_bytes] + sent.payload for row in rows]
            received = joined(parts, "envelope")
            assert np.array_equal(received["sent_ns"], made["sent_ns"])
            if body_bytes >= 32:
                assert np.array_equal(received, made)
            else:
                assert not received.view(np.uint8).reshape(20, 32)[:, body_bytes:].any()


def test_each_message_may_have_its_own_tail(broker: Broker) -> None:
    transport = open_transport(broker)
    payloads = [os.urandom(size) for size in (0, 1, 500, 70_000, 3)]
    with exchanging(transport, want=frozenset({Part.BODY})) as (producers, consumers):
        send_all(producers, batch(envelopes(5), payloads=payloads))
        parts = collect(consumers, 5)
    assert [body[32:] for part in parts for body in part.bodies or ()] == payloads
    assert joined(parts, "size").tolist() == [32 + len(payload) for payload in payloads]


def test_messages_of_one_size_may_each_have_a_row_of_their_own_as_tail(broker: Broker) -> None:
    # Two portions, so that what is built once serves again; then a payload that all share, after
    # them.
    transport = open_transport(broker)
    with exchanging(transport, want=frozenset({Part.BODY})) as (producers, consumers):
        for body_bytes in (8, 32, 1000, 200_000):
            made = envelopes(30)
            envelope_bytes = batch(made, body_bytes=body_bytes).envelope_bytes
            width = body_bytes - envelope_bytes
            payloads = np.frombuffer(os.urandom(20 * width), np.uint8).reshape(20, width)
            for first in (0, 10):
                part = batch(made[first : first + 10], body_bytes=body_bytes)
                part.payload = payloads[first : first + 10]
                send_all(producers, part)
            send_all(producers, batch(made[20:], body_bytes=body_bytes))
            parts = collect(consumers, 30)
            bodies = [body for part in parts for body in part.bodies or ()]
            rows = [row.tobytes()[:envelope_bytes] for row in made.view(np.uint8).reshape(30, 32)]
            expected = [row.tobytes() for row in payloads] + [bytes(width)] * 10
            assert bodies == [
                envelope + payload for envelope, payload in zip(rows, expected, strict=True)
            ]


SIZES = [0, 1, 31, 32, 33, 5_000, 70_000, 300_000, 0, 131_072, 7, 262_144, 65_536, 100]
"""On both sides of an envelope, of a frame, and of what is read at once."""


def test_whole_bodies_of_any_size_arrive_in_order_and_outcomes_have_their_envelopes(
    broker: Broker,
) -> None:
    transport = open_confirming(broker, producers=2)
    bodies = [os.urandom(size) for size in [*SIZES, *[size % 997 for size in range(0, 20_000, 70)]]]
    lanes = [0 if size < 14 else size % 2 for size in range(len(bodies))]
    sent = whole(bodies, lane=lanes)
    want = frozenset({Part.BODY})
    with exchanging(transport, producer_lanes=2, want=want) as (producers, consumers):
        expected = len(bodies) if transport.capabilities.confirms else 0
        settled = send_all(producers, sent, expected_outcomes=expected)
        parts = collect(consumers, len(bodies))
    if transport.capabilities.confirms:
        assert np.array_equal(np.sort(settled.envelopes, order="sequence"), sent.envelope)
    arrived = column(parts, "bodies")
    assert joined(parts, "size").tolist() == [len(body) for body in arrived]
    for lane in (0, 1):
        own = [body for body, of in zip(bodies, lanes, strict=True) if of == lane]
        # Empty ones and those of a byte look alike, so they are not looked for.
        told = {body for body in own if len(body) > 6}
        assert [body for body in arrived if body in told] == [body for body in own if len(body) > 6]
    assert sorted(arrived) == sorted(bodies)


def test_keys_and_headers_arrive_where_the_protocol_has_them(broker: Broker) -> None:
    transport = open_transport(broker)
    parts_had = kind_of(broker).capabilities(transport_scenario(broker)).parts
    count = 300
    bodies = [b"%d" % number * (number % 5) for number in range(count)]
    keys = [b"key-%d" % (number % 7) for number in range(count)]
    # Names in HTTP have letters of English only.
    more = {"X-Other": b"plain"} if broker.kind == "http" else {"gr\u00fc\u00dfe": b"\xc3\xa4"}
    # Some without any, some alike, some with a value that nobody else has.
    headers: list[Headers] = [
        {} if number % 3 == 0 else {"id": b"%032x" % (number // 50), **more}
        for number in range(count)
    ]
    sent = whole(
        bodies,
        keys if Part.KEY in parts_had else None,
        headers if Part.HEADERS in parts_had else None,
    )
    with exchanging(transport, want=parts_had) as (producers, consumers):
        send_all(producers, sent)
        parts = collect(consumers, count)
    assert column(parts, "bodies") == bodies
    if Part.KEY in parts_had:
        assert column(parts, "keys") == keys
    if Part.HEADERS in parts_had:
        arrived = column(parts, "headers")
        if broker.kind == "http":  # a request has others too
            arrived = [
                {name: each[name] for name in ("id", *more) if name in each} for each in arrived
            ]
        assert arrived == headers


@on_whoever_answers
def test_with_confirms_every_message_has_one_outcome_with_its_envelope(broker: Broker) -> None:
    transport = open_confirming(broker, producers=2)
    assert transport.capabilities.confirms
    with declared(transport) as destinations:
        lanes = (np.arange(500) % 2).tolist()
        made = envelopes(500, producer=lanes)
        with producing(transport, destinations, destinations) as producers:
            before_ns = CLOCK.now_ns()
            settled = send_all(producers, batch(made, lanes), expected_outcomes=500)
            assert producers.in_flight() == 0
            assert len(producers.outcomes()) == 0
    assert set(settled.kinds) == {OutcomeKind.CONFIRMED}
    assert np.array_equal(np.sort(settled.envelopes, order="sequence"), made)
    for part in settled.parts:
        assert np.array_equal(part.lane, part.envelope["producer"])
        assert np.all((part.at_ns >= before_ns) & (part.at_ns <= CLOCK.now_ns()))


def test_receive_times_lie_between_sending_and_the_return_of_receive(broker: Broker) -> None:
    transport = open_transport(broker)
    with exchanging(transport) as (producers, consumers):
        send_all(producers, batch(envelopes(100)))
        parts = collect(consumers, 100)
        after_ns = CLOCK.now_ns()
    received_ns = joined(parts, "received_ns")
    assert np.all(received_ns >= joined(parts, "envelope")["sent_ns"].astype(np.int64))
    assert np.all(received_ns <= after_ns)


def test_the_descriptor_becomes_readable_when_there_is_something_to_receive(
    broker: Broker,
) -> None:
    transport = open_transport(broker)
    with exchanging(transport) as (producers, consumers):
        while select.select([consumers.descriptor], [], [], 0.2)[0]:
            assert len(consumers.receive(0)) == 0
        send_all(producers, batch(envelopes(3)))
        seen = 0
        while seen < 3:
            ready, _, _ = select.select([consumers.descriptor], [], [], PATIENCE_SECONDS)
            assert ready
            seen += len(consumers.receive(0))
    assert seen == 3


def test_what_arrives_while_signals_are_asked_for_keeps_the_descriptor_readable(
    broker: Broker,
) -> None:
    transport = open_transport(broker)
    with exchanging(transport) as (producers, consumers):
        send_all(producers, batch(envelopes(3)))
        seen = 0
        while seen < 3:
            assert select.select([consumers.descriptor], [], [], PATIENCE_SECONDS)[0]
            assert consumers.signals() == []
            is_readable = select.select([consumers.descriptor], [], [], 0)[0]
            received = len(consumers.receive(0))
            # To who listens it may be that somebody has connected, and that was all.
            assert is_readable or (broker.kind in LISTENING and not received)
            seen += received


def test_nothing_is_delivered_before_attach(broker: Broker) -> None:
    transport = open_transport(broker)
    with declared(transport) as made:
        consumers = transport.open_consumers(numbered([made]), CLOCK.now_ns)
        try:
            with producing(transport, made) as producers:
                send_all(producers, batch(envelopes(3)))
            assert len(consumers.receive(0.2)) == 0
            consumers.attach()
            # A new consumer group starts at the end of its topic; a topic of MQTT keeps nothing.
            if broker.kind not in ("kafka", "mqtt"):
                collect(consumers, 3)
        finally:
            consumers.close()


def test_receive_waits_no_longer_than_asked(broker: Broker) -> None:
    transport = open_transport(broker)
    with declared(transport) as made, consuming(transport, made) as consumers:
        started = time.monotonic()
        assert len(consumers.receive(0.2)) == 0
        assert 0.15 <= time.monotonic() - started < PATIENCE_SECONDS


@pytest.mark.parametrize("broker", KEEPING, indirect=True)
def test_after_detaching_each_message_was_received_or_is_still_in_the_broker(
    broker: Broker,
) -> None:
    """Without acknowledgements the broker has forgotten what it has pushed: no one may drop it."""
    transport = open_transport(broker, producers=1, consumers=2)
    with declared(transport) as made:
        with consuming(transport, made, made) as consumers, producing(transport, made) as producers:
            send_all(producers, batch(envelopes(20_000), body_bytes=500))
            first = consumers.receive(PATIENCE_SECONDS)
            consumers.detach()
            rest = [consumers.receive(0.0) for _ in range(2)]
            send_all(producers, batch(envelopes(100, first=20_000), body_bytes=500))
            producers.flush(PATIENCE_SECONDS)
        received = sum(len(part) for part in (first, *rest))
        [left] = left_in(transport, made)
    assert received > 0
    assert left is not None
    assert left >= 100
    assert received + left == 20_100


def test_consumers_can_be_held_where_the_capabilities_say_so(broker: Broker) -> None:
    transport = open_transport(broker)
    assert transport.capabilities == kind_of(broker).capabilities(transport_scenario(broker))
    with exchanging(transport) as (producers, consumers):
        if not transport.capabilities.pausable:
            with pytest.raises(RunError, match="cannot be slowed down"):
                consumers.hold({0})
            return
        consumers.hold({0})
        consumers.hold(())
        send_all(producers, batch(envelopes(10)))
        assert sorted(joined(collect(consumers, 10), "envelope")["sequence"].tolist()) == [
            *range(10)
        ]


def test_closing_twice_is_harmless(broker: Broker) -> None:
    transport = open_transport(broker)
    with exchanging(transport) as (producers, consumers):
        producers.close()
        consumers.close()


@pytest.mark.parametrize("broker", QUEUES, indirect=True)
def test_the_depth_counts_what_was_left(broker: Broker) -> None:
    transport = open_transport(broker)
    with declared(transport) as made:
        with producing(transport, made) as producers:
            send_all(producers, batch(envelopes(7)))
        assert eventually(lambda: left_in(transport, made) == (7,))
        with consuming(transport, made) as consumers:
            collect(consumers, 7)
        assert eventually(lambda: left_in(transport, made) == (0,))
