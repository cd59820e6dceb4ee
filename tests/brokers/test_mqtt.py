"""What is particular to MQTT, on real brokers, and together with clients that are not ours."""

from __future__ import annotations

import itertools
import shutil
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import paho.mqtt.client as paho
import pytest
from agents import run_load
from contract import (
    CLOCK,
    PATIENCE_SECONDS,
    batch,
    collect,
    column,
    consuming,
    declared,
    envelopes,
    eventually,
    exchanging,
    joined,
    open_transport,
    producing,
    send_all,
    signals_until,
    whole,
)
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from proxy import proxied

from bench_spark.agent.recorder import CONSUMER, PRODUCER
from bench_spark.config.broker import Broker
from bench_spark.config.models import Scenario
from bench_spark.plan import make_plan
from bench_spark.transports.base import Destination, SignalKind
from bench_spark.transports.batches import Headers, OutcomeKind, Part

VERSIONS = ("3.1.1", "5")
_topics = itertools.count()


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def topic() -> str:
    return f"test/{time.time_ns()}/{next(_topics)}"


# -- quality of service ----------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_every_message_arrives_once_and_is_confirmed_from_qos_1_on(
    mosquitto_broker: Broker, version: str, qos: int
) -> None:
    transport = open_transport(mosquitto_broker, mqtt={"version": version, "qos": qos})
    assert transport.capabilities.confirms is (qos > 0)
    made = envelopes(3000)
    with exchanging(transport) as (producers, consumers):
        outcomes = 3000 if qos else 0
        settled = send_all(producers, batch(made, body_bytes=200), expected_outcomes=outcomes)
        parts = collect(consumers, 3000)
        assert producers.in_flight() == 0
        assert producers.signals() == consumers.signals() == []
    assert settled.kinds == [OutcomeKind.CONFIRMED] * outcomes
    assert np.array_equal(joined(parts, "envelope"), made)
    assert not joined(parts, "redelivered").any()


@pytest.mark.parametrize("qos", [1, 2])
def test_identifiers_are_used_again_and_again(mosquitto_broker: Broker, qos: int) -> None:
    transport = open_transport(mosquitto_broker, mqtt={"qos": qos, "in_flight": 3})
    with exchanging(transport) as (producers, consumers):
        settled = send_all(producers, batch(envelopes(500)), expected_outcomes=500)
        collect(consumers, 500)
    assert settled.kinds == [OutcomeKind.CONFIRMED] * 500


@pytest.mark.parametrize(("spoken", "qos"), [("3.1.1", 2), ("5", 1)])
def test_more_messages_than_there_are_identifiers_arrive_once(
    mosquitto_broker: Broker, spoken: str, qos: int
) -> None:
    mqtt = {"version": spoken, "qos": qos, "in_flight": 1000}
    load = {"mode": "maximum", "messages": 70_000}
    scenario = Scenario.model_validate(
        {
            "mqtt": mqtt,
            "load": load,
            "message": {"bytes": 32},
            "phases": {"warmup_seconds": 0, "measure_seconds": 60},
        }
    )
    done = run_load(make_plan(scenario, f"many-{spoken}-{qos}"), mosquitto_broker)
    accounts = done.accounts()
    assert (accounts.sent, accounts.received_once, accounts.lost) == (70_000, 70_000, 0)
    assert done.total(PRODUCER, "confirmed") == 70_000
    assert done.total(CONSUMER, "acked") == 70_000
    assert done.total(CONSUMER, "duplicates") == 0


def test_what_a_consumer_has_not_acknowledged_comes_again_and_is_marked(
    mosquitto_broker: Broker, topic: str
) -> None:
    with proxied(mosquitto_broker) as (proxy, broker):
        mqtt = {"qos": 1, "clean_session": False, "topic": topic}
        transport = open_transport(broker, mqtt=mqtt)
        with exchanging(transport) as (producers, consumers):
            send_all(producers, batch(envelopes(5)), expected_outcomes=5)
            collect(consumers, 5, acknowledge=False)
            proxy.cut()
            signals_until(SignalKind.REOPENED, consumers)
            parts = collect(consumers, 5)
    assert joined(parts, "redelivered").all()
    assert sorted(joined(parts, "envelope")["sequence"].tolist()) == list(range(5))


def test_exactly_once_is_kept_when_a_connection_is_lost_between_message_and_acknowledgement(
    mosquitto_broker: Broker, topic: str
) -> None:
    with proxied(mosquitto_broker) as (proxy, broker):
        transport = open_transport(
            broker, mqtt={"qos": 2, "clean_session": False, "topic": topic, "version": "5"}
        )
        with exchanging(transport) as (producers, consumers):
            send_all(producers, batch(envelopes(5)), expected_outcomes=5)
            collect(consumers, 5, acknowledge=False)
            proxy.cut()
            signals_until(SignalKind.REOPENED, consumers, producers)
            send_all(producers, batch(envelopes(1, first=5)), expected_outcomes=1)
            parts = collect(consumers, 1)
    assert joined(parts, "envelope")["sequence"].tolist() == [5]


def test_a_session_keeps_messages_while_a_consumer_is_away_and_ends_with_the_run(
    mosquitto_broker: Broker, version: str, topic: str
) -> None:
    mqtt = {"version": version, "qos": 1, "clean_session": False, "topic": topic}
    run_id = f"session-{topic.replace('/', '-')}"
    with proxied(mosquitto_broker) as (proxy, broker):
        away = open_transport(broker, run_id, mqtt=mqtt)
        here = open_transport(mosquitto_broker, mqtt=mqtt)
        [made] = here.declare([Destination(0)])
        with consuming(away, [made]) as consumers, producing(here, [made]) as producers:
            proxy.shut()
            proxy.cut()
            assert eventually(lambda: consumers.signals())
            send_all(producers, batch(envelopes(7)), expected_outcomes=7)
            proxy.open()
            signals_until(SignalKind.REOPENED, consumers)
            parts = collect(consumers, 7)
    assert joined(parts, "envelope")["sequence"].tolist() == list(range(7))
    with producing(here, [made]) as producers:
        send_all(producers, batch(envelopes(1)), expected_outcomes=1)
    with consuming(open_transport(mosquitto_broker, run_id, mqtt=mqtt), [made]) as consumers:
        assert len(consumers.receive(0.3)) == 0


# -- topics ----------------------------------------------------------------------------------------


def test_a_retained_message_reaches_who_subscribes_later_and_is_removed_in_the_end(
    mosquitto_broker: Broker, version: str
) -> None:
    transport = open_transport(mosquitto_broker, mqtt={"version": version, "retain": True})
    with declared(transport) as made:
        with producing(transport, made) as producers:
            send_all(producers, batch(envelopes(3)))
        with consuming(transport, made) as consumers:
            parts = collect(consumers, 1)
        assert joined(parts, "envelope")["sequence"].tolist() == [2]
    with consuming(transport, made) as consumers:
        assert len(consumers.receive(0.3)) == 0


def test_a_group_divides_what_others_get_in_full(
    mosquitto_broker: Broker, version: str, topic: str
) -> None:
    mqtt = {"version": version, "topic": topic, "shared_group": "team"}
    transport = open_transport(mosquitto_broker, mqtt=mqtt)
    with foreign_subscriber(mosquitto_broker, topic) as copies:
        with exchanging(transport, consumer_lanes=2) as (producers, consumers):
            send_all(producers, batch(envelopes(100)))
            parts = collect(consumers, 100)
        assert eventually(lambda: len(copies) == 100)
    assert set(joined(parts, "lane").tolist()) == {0, 1}


def test_filters_with_wildcards_tell_routes_apart(mosquitto_broker: Broker, topic: str) -> None:
    mqtt = {"topic": f"{topic}/%d/value", "topic_filter": f"{topic}/%d/+"}
    transport = open_transport(
        mosquitto_broker, producers=2, consumers=2, destinations=2, mqtt=mqtt
    )
    with declared(transport, 2) as made:
        routes = [0, 1, 1, 0]
        with consuming(transport, made) as consumers, producing(transport, made) as producers:
            send_all(producers, batch(envelopes(4, producer=routes), route=routes))
            parts = collect(consumers, 4)
    assert np.array_equal(joined(parts, "route"), joined(parts, "envelope")["producer"])


# -- clients that are not ours ---------------------------------------------------------------------


@contextmanager
def foreign_client(
    broker: Broker, protocol: MQTTProtocolVersion = MQTTProtocolVersion.MQTTv311
) -> Iterator[paho.Client]:
    client = paho.Client(CallbackAPIVersion.VERSION2, protocol=protocol)
    client.connect(broker.host, broker.port)
    client.loop_start()
    try:
        yield client
    finally:
        client.disconnect()
        client.loop_stop()


@contextmanager
def foreign_subscriber(
    broker: Broker,
    topic: str,
    qos: int = 0,
    protocol: MQTTProtocolVersion = MQTTProtocolVersion.MQTTv311,
) -> Iterator[list[paho.MQTTMessage]]:
    """What a plain paho client is sent."""
    messages: list[paho.MQTTMessage] = []
    subscribed = threading.Event()
    with foreign_client(broker, protocol) as client:
        client.on_message = lambda client, data, message: messages.append(message)
        client.on_subscribe = lambda *_: subscribed.set()
        client.subscribe(topic, qos)
        assert subscribed.wait(PATIENCE_SECONDS)
        yield messages


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_paho_reads_the_send_time_of_our_messages(
    mosquitto_broker: Broker, version: str, topic: str, qos: int
) -> None:
    transport = open_transport(
        mosquitto_broker, mqtt={"version": version, "qos": qos, "topic": topic}
    )
    made = envelopes(50)
    with (
        foreign_subscriber(mosquitto_broker, topic, qos) as messages,
        producing(transport, transport.find([Destination(0)])) as producers,
    ):
        send_all(producers, batch(made, body_bytes=100), expected_outcomes=50 if qos else 0)
        assert eventually(lambda: len(messages) == 50)
    bodies = [message.payload for message in messages]
    assert [struct.unpack_from("<Q", body)[0] for body in bodies] == made["sent_ns"].tolist()
    assert {len(body) for body in bodies} == {100}


@pytest.mark.parametrize("qos", [0, 1])
def test_every_message_has_the_user_properties_of_the_scenario_and_its_own_win(
    mosquitto_broker: Broker, topic: str, qos: int
) -> None:
    given = {"kind": "order", "number": 3, "urgent": True, "naïve": "ü"}
    common = {"kind": "order", "number": "3", "urgent": "true", "naïve": "ü"}
    own: list[Headers] = [{"kind": b"offer", "more": b"x"}, {}]
    mqtt = {"version": "5", "qos": qos, "topic": topic, "user_properties": given}
    transport = open_transport(mosquitto_broker, mqtt=mqtt)
    transport.probe()
    made = transport.find([Destination(0)])
    with (
        foreign_subscriber(mosquitto_broker, topic, qos, MQTTProtocolVersion.MQTTv5) as messages,
        consuming(transport, made, want=frozenset({Part.HEADERS})) as consumers,
        producing(transport, made) as producers,
    ):
        send_all(producers, batch(envelopes(20)), expected_outcomes=20 if qos else 0)
        send_all(producers, whole([b"a", b""], headers=own), expected_outcomes=2 if qos else 0)
        parts = collect(consumers, 22)
        assert eventually(lambda: len(messages) == 22)
    expected = [common] * 20 + [common | {"kind": "offer", "more": "x"}, common]
    assert [dict(one.properties.UserProperty) for one in messages] == expected
    assert [len(one.payload) for one in messages] == [64] * 20 + [1, 0]
    encoded = [{name: text.encode() for name, text in each.items()} for each in expected]
    assert column(parts, "headers") == encoded
    assert joined(parts, "size").tolist() == [64] * 20 + [1, 0]


def test_mosquitto_sub_reads_the_send_time_of_our_messages(
    mosquitto_broker: Broker, topic: str
) -> None:
    program = shutil.which("mosquitto_sub")
    if program is None:
        pytest.skip("mosquitto_sub is not installed; install mosquitto-clients")
    address = ["-h", mosquitto_broker.host, "-p", str(mosquitto_broker.port)]
    transport = open_transport(mosquitto_broker, mqtt={"topic": topic, "retain": True})
    made = envelopes(1)
    with producing(transport, transport.find([Destination(0)])) as producers:
        send_all(producers, batch(made, body_bytes=40))
    command = [program, *address, "-t", topic, "-C", "1", "-W", "10", "-F", "%x"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    body = bytes.fromhex(printed.stdout.strip())
    assert struct.unpack_from("<Q", body)[0] == made["sent_ns"][0]
    assert len(body) == 40


def test_a_foreign_publishers_messages_are_measured_in_a_run_that_only_consumes(
    mosquitto_broker: Broker, topic: str
) -> None:
    scenario = Scenario.model_validate(
        {
            "producers": 0,
            "load": {"messages": 200},
            "message": {"timestamped": True},
            "phases": {"warmup_seconds": 0, "measure_seconds": 20, "drain_seconds": 2},
            "mqtt": {"topic": topic, "qos": 1},
        }
    )

    def publish(_load: Any) -> None:
        with foreign_client(mosquitto_broker) as client:
            for _ in range(200):
                sent = client.publish(topic, struct.pack("<Q", CLOCK.now_ns()), qos=1)
            sent.wait_for_publish(PATIENCE_SECONDS)

    done = run_load(make_plan(scenario, "foreign"), mosquitto_broker, meanwhile=publish)
    assert [result.failure for result in done.results] == [None]
    assert done.total(CONSUMER, "received") == 200
    latency = done.histogram("latency")
    assert latency.count == 200
    assert 0 < (latency.mean_us or 0) < PATIENCE_SECONDS * 1e6


# -- many lanes ------------------------------------------------------------------------------------


def test_one_agent_drives_a_thousand_connections(mosquitto_broker: Broker) -> None:
    scenario = Scenario.model_validate(
        {
            "producers": 500,
            "consumers": 500,
            "destinations": 500,
            "load": {"rate_per_second": 1000},
            "phases": {"warmup_seconds": 0, "measure_seconds": 2},
            "mqtt": {"qos": 1},
        }
    )
    before = threading.active_count()
    most = before

    def watch(_load: Any) -> None:
        nonlocal most
        most = threading.active_count()

    done = run_load(make_plan(scenario, "thousand"), mosquitto_broker, meanwhile=watch)
    assert most < before + 20, "a thread per connection?"
    accounts = done.accounts()
    assert (accounts.sent, accounts.received_once, accounts.lost) == (2000, 2000, 0)
    assert done.total(PRODUCER, "confirmed") == 2000


def test_slow_consumers_take_their_time(mosquitto_broker: Broker) -> None:
    scenario = Scenario.model_validate(
        {
            "load": {"rate_per_second": 200, "messages": 200},
            "consumer": {"rate_per_second": 100},
            "phases": {"warmup_seconds": 0, "drain_seconds": 5},
            "mqtt": {"qos": 1},
        }
    )
    done = run_load(make_plan(scenario, "slow"), mosquitto_broker)
    accounts = done.accounts()
    assert (accounts.sent, accounts.received_once) == (200, 200)
    assert (done.histogram("latency").mean_us or 0) > 200_000
