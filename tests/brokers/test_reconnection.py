"""Lanes that are lost and come back, and what became of their messages."""

from __future__ import annotations

import json
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract import (
    PATIENCE_SECONDS,
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
    signals_until,
)
from proxy import Proxy, proxied

from bench_spark.config.broker import Broker
from bench_spark.transports.base import Destination, Signal, SignalKind
from bench_spark.transports.batches import OutcomeKind

BOTH_ENDS_REOPENED = 2


@pytest.fixture
def way(broker: Broker) -> Iterator[tuple[Proxy, Broker]]:
    with proxied(broker) as found:
        yield found


def test_both_ends_come_back_as_a_new_generation_and_carry_messages(
    way: tuple[Proxy, Broker],
) -> None:
    proxy, broker = way
    transport = open_transport(broker, amqp={"confirms": 50})
    with exchanging(transport) as (producers, consumers):
        send_all(producers, batch(envelopes(20)), expected_outcomes=20)
        collect(consumers, 20)
        proxy.cut()
        told = signals_until(SignalKind.REOPENED, producers, consumers)
        kinds = [(one.kind, one.generation, one.is_reopening) for one in told]
        assert (
            kinds
            == [(SignalKind.LOST, 0, True), (SignalKind.REOPENED, 1, False)] * BOTH_ENDS_REOPENED
        )
        settled = send_all(producers, batch(envelopes(30, first=20)), expected_outcomes=30)
        assert settled.kinds == [OutcomeKind.CONFIRMED] * 30
        assert sorted(settled.envelopes["sequence"].tolist()) == list(range(20, 50))
        parts = collect(consumers, 30)
        assert sorted(joined(parts, "envelope")["sequence"].tolist()) == list(range(20, 50))


def test_a_lane_is_tried_until_the_port_opens_and_takes_nothing_meanwhile(
    way: tuple[Proxy, Broker],
) -> None:
    proxy, broker = way
    transport = open_transport(broker)
    with exchanging(transport, producer_lanes=2) as (producers, consumers):
        # Consumer lanes are opened before producer lanes, and the control connection is gone.
        assert eventually(lambda: proxy.connections == 3)
        proxy.shut()
        proxy.cut(1)
        assert eventually(lambda: any(s.kind is SignalKind.LOST for s in producers.signals()))
        deadline = time.monotonic() + 1.0
        sent = 0
        while time.monotonic() < deadline:
            longest = time.monotonic()
            assert producers.send(batch(envelopes(1), lane=0)) == 0
            sent += producers.send(batch(envelopes(1, first=sent), lane=1))
            producers.outcomes()
            assert producers.signals() == []
            assert time.monotonic() - longest < 30, "reopening made the agent wait"
            time.sleep(0.01)
        proxy.open()
        told = signals_until(SignalKind.REOPENED, producers)
        assert [one.lane for one in told] == [0]
        send_all(producers, batch(envelopes(1, first=sent), lane=0))
        collect(consumers, sent + 1)


def test_unconfirmed_messages_of_the_old_generation_are_unknown(
    way: tuple[Proxy, Broker],
) -> None:
    proxy, broker = way
    transport = open_transport(broker, amqp={"confirms": 50})
    with declared(transport) as made, producing(transport, made) as producers:
        send_all(producers, batch(envelopes(3)), expected_outcomes=3)
        proxy.is_mute = True
        time.sleep(0.1)
        assert producers.send(batch(envelopes(7, first=3))) == 7
        proxy.is_mute = False
        proxy.cut()
        signals_until(SignalKind.REOPENED, producers)
        outcomes = producers.outcomes()
        unknown = outcomes.kind == OutcomeKind.UNKNOWN
        confirmed = outcomes.kind == OutcomeKind.CONFIRMED
        # Some may have come through in the moment before the cut.
        assert unknown.sum() + confirmed.sum() == 7
        assert unknown.any()
        assert producers.in_flight() == 0
        # The new channel counts from 1 again, and nothing of the old ledger is in its way.
        settled = send_all(producers, batch(envelopes(5, first=10)), expected_outcomes=5)
        assert settled.envelopes["sequence"].tolist() == list(range(10, 15))


@pytest.mark.parametrize("ack_every", [1, 5])
def test_what_was_received_before_is_never_acknowledged_on_the_new_connection(
    way: tuple[Proxy, Broker], ack_every: int
) -> None:
    proxy, broker = way
    amqp = {"ack": "manual", "ack_every": ack_every, "prefetch": 50}
    transport = open_transport(broker, amqp=amqp)
    with declared(transport) as made:
        with consuming(transport, made) as consumers:
            with producing(transport, made) as producers:
                send_all(producers, batch(envelopes(10)))
            first = collect(consumers, 10, acknowledge=False)
            proxy.cut()
            signals_until(SignalKind.REOPENED, consumers)
            again = collect(consumers, 10, acknowledge=False)
            assert joined(again, "redelivered").all()
            # Tags 1 to 10 are alive once more; those of the old channel must not settle them.
            assert sum(consumers.acknowledge(part) for part in first) == 0
            proxy.cut()
            signals_until(SignalKind.REOPENED, consumers)
            third = collect(consumers, 10)
            assert sorted(joined(third, "envelope")["sequence"].tolist()) == list(range(10))
        assert eventually(lambda: left_in(transport, made) == (0,))


def test_a_queue_that_went_with_its_consumer_is_declared_again(way: tuple[Proxy, Broker]) -> None:
    proxy, broker = way
    name = f"bound-{time.time_ns()}"
    amqp = {"queue": {"auto_delete": True}, "exchange": {"name": name}}
    transport = open_transport(broker, amqp=amqp)
    with exchanging(transport) as (producers, consumers):
        proxy.cut()
        signals_until(SignalKind.REOPENED, producers, consumers)
        send_all(producers, batch(envelopes(5)))
        collect(consumers, 5)


def test_a_queue_named_by_the_broker_that_is_gone_is_lost_for_good_by_name(
    way: tuple[Proxy, Broker],
) -> None:
    proxy, broker = way
    transport = open_transport(broker, amqp={"queue": {"server_named": True, "auto_delete": True}})
    made = transport.declare([Destination(0)])
    with consuming(transport, made) as consumers:
        proxy.cut()
        told: list[Signal] = []

        def is_lost_for_good() -> bool:
            told.extend(consumers.signals())
            return len(told) == 2

        assert eventually(is_lost_for_good)
        assert [(one.kind, one.is_reopening) for one in told] == [
            (SignalKind.LOST, True),
            (SignalKind.LOST, False),
        ]
        assert made[0].name is not None
        assert made[0].name in told[1].reason
        assert "server_named" in told[1].reason


@pytest.mark.fault(case=6)
def test_a_queue_deleted_in_mid_run_is_not_declared_again(rabbitmq_broker: Broker) -> None:
    transport = open_transport(rabbitmq_broker)
    made = transport.declare([Destination(0)])
    with consuming(transport, made) as consumers:
        open_transport(rabbitmq_broker).delete(made)
        [told] = signals_until(SignalKind.LOST, consumers)
        assert not told.is_reopening
        assert "cancelled" in told.reason


def test_a_connection_that_the_broker_closes_without_blame_comes_back(
    rabbitmq_broker: Broker,
) -> None:
    run_id = f"forced-{time.time_ns()}"
    transport = open_transport(rabbitmq_broker, run_id, amqp={"confirms": 10})
    with declared(transport) as made, producing(transport, made) as producers:

        def close_it() -> bool:
            # The management plugin learns of connections with some delay.
            found = [
                one["name"]
                for one in manage(rabbitmq_broker, "GET", "connections")
                if run_id in one.get("client_properties", {}).get("connection_name", "")
            ]
            for name in found:
                manage(rabbitmq_broker, "DELETE", f"connections/{urllib.parse.quote(name)}")
            return bool(found)

        assert eventually(close_it)
        lost, _ = signals_until(SignalKind.REOPENED, producers)
        assert "320" in lost.reason
        send_all(producers, batch(envelopes(5)), expected_outcomes=5)


@pytest.mark.fault(case=5)
def test_a_login_refused_on_the_way_back_ends_the_trying(rabbitmq_broker: Broker) -> None:
    user = f"leaver-{time.time_ns()}"
    manage(rabbitmq_broker, "PUT", f"users/{user}", {"password": "geheim", "tags": ""})
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    manage(rabbitmq_broker, "PUT", f"permissions/%2F/{user}", everything)
    with proxied(rabbitmq_broker) as (proxy, _):
        broker = Broker(kind="amqp", uri=f"amqp://{user}:geheim@127.0.0.1:{proxy.port}/")
        transport = open_transport(broker)
        made = open_transport(rabbitmq_broker).declare([Destination(0)])
        with producing(transport, made) as producers:
            manage(rabbitmq_broker, "DELETE", f"users/{user}")
            proxy.cut()
            told: list[Signal] = []

            def is_lost_for_good() -> bool:
                told.extend(producers.signals())
                return any(not one.is_reopening for one in told)

            assert eventually(is_lost_for_good)
            assert "403" in told[-1].reason
            assert "geheim" not in told[-1].reason
            attempts = proxy.accepted
            time.sleep(0.5)
            assert proxy.accepted == attempts
        open_transport(rabbitmq_broker).delete(made)


def manage(broker: Broker, method: str, path: str, body: Any = None) -> Any:
    parts = urllib.parse.urlsplit(broker.management_uri or "")
    manager = urllib.request.HTTPPasswordMgrWithDefaultRealm()
    root = f"http://{parts.hostname}:{parts.port}"
    manager.add_password(None, root, parts.username or "", parts.password or "")
    opener = urllib.request.build_opener(urllib.request.HTTPBasicAuthHandler(manager))
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{root}/api/{path}", data, method=method)
    request.add_header("content-type", "application/json")
    with opener.open(request, timeout=60) as answer:
        return json.loads(answer.read() or b"null")


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize("state", ["shut", "mute"])
def test_closing_while_lanes_are_down_neither_hangs_nor_leaks(
    rabbitmq_broker: Broker, state: str
) -> None:
    with proxied(rabbitmq_broker) as (proxy, broker):
        transport = open_transport(broker)
        made = transport.declare([Destination(0)])
        before = descriptors()
        with consuming(transport, made) as consumers, producing(transport, made) as producers:
            if state == "shut":
                proxy.shut()
            proxy.is_mute = state == "mute"
            proxy.cut()
            signals_until(SignalKind.LOST, producers, consumers)
            deadline = time.monotonic() + 0.7
            while time.monotonic() < deadline:
                producers.outcomes()
                consumers.receive(0.01)
            started = time.monotonic()
        assert time.monotonic() - started < PATIENCE_SECONDS
        proxy.cut()
        assert eventually(lambda: descriptors() <= before)
        open_transport(rabbitmq_broker).delete(made)


def test_a_silent_broker_is_lost_by_its_heartbeat_and_comes_back_when_it_speaks(
    rabbitmq_broker: Broker,
) -> None:
    with proxied(rabbitmq_broker) as (proxy, broker):
        transport = open_transport(broker, amqp={"heartbeat_seconds": 1, "confirms": 10})
        with declared(transport) as made, producing(transport, made) as producers:
            proxy.is_mute = True
            [lost] = signals_until(SignalKind.LOST, producers)
            assert lost.is_reopening
            proxy.is_mute = False
            signals_until(SignalKind.REOPENED, producers)
            send_all(producers, batch(envelopes(5)), expected_outcomes=5)


def test_many_lanes_come_back_together(rabbitmq_broker: Broker) -> None:
    with proxied(rabbitmq_broker) as (proxy, broker):
        transport = open_transport(broker, producers=100)
        with declared(transport) as made, producing(transport, *[made] * 100) as producers:
            proxy.cut()
            told: list[Signal] = []

            def are_all_back() -> bool:
                told.extend(producers.signals())
                return sum(one.kind is SignalKind.REOPENED for one in told) == 100

            assert eventually(are_all_back)
            lanes = np.arange(100).tolist()
            send_all(producers, batch(envelopes(100, lanes), lanes))
            assert eventually(lambda: left_in(transport, made) == (100,))
