"""Connections that are lost while a load runs, and what becomes of the load."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agents import Load, run_load
from contract import (
    PLANES,
    batch,
    collect,
    consuming,
    declared,
    eventually,
    exchanging,
    heads,
    joined,
    open_transport,
    producing,
    send_all,
)
from proxy import Proxy, proxied

from bench_spark import brokers
from bench_spark.agent import loop as loop_module
from bench_spark.agent.recorder import CONSUMER, PRODUCER
from bench_spark.brokers.base import free_ports
from bench_spark.measure.clock import NANOSECONDS
from bench_spark.plan import Plan, make_plan
from bench_spark.scenario.broker import Broker
from bench_spark.scenario.models import Scenario
from bench_spark.transports.base import (
    Consumers,
    Destination,
    OutcomeKind,
    Producers,
    Signal,
    SignalKind,
)

BOTH_ENDS_REOPENED = 2


@pytest.fixture
def way(broker: Broker) -> Iterator[tuple[Proxy, Broker]]:
    with proxied(broker) as found:
        yield found


def signals_until(kind: SignalKind, *sides: Producers | Consumers) -> list[Signal]:
    """All signals of these until each has given one of this kind."""
    found: dict[int, list[Signal]] = {number: [] for number in range(len(sides))}

    def is_told() -> bool:
        for number, side in enumerate(sides):
            found[number] += side.signals()
        return all(any(one.kind is kind for one in told) for told in found.values())

    assert eventually(is_told), found
    return [one for told in found.values() for one in told]


# -- the contract ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("plane")
def test_both_ends_come_back_as_a_new_generation_and_carry_messages(
    way: tuple[Proxy, Broker],
) -> None:
    proxy, broker = way
    transport = open_transport(broker, amqp={"confirms": 50})
    with exchanging(transport) as (producers, consumers):
        send_all(producers, batch(heads(20)), expected_outcomes=20)
        collect(consumers, 20)
        proxy.cut()
        told = signals_until(SignalKind.REOPENED, producers, consumers)
        kinds = [(one.kind, one.generation, one.is_reopening) for one in told]
        assert (
            kinds
            == [(SignalKind.LOST, 0, True), (SignalKind.REOPENED, 1, False)] * BOTH_ENDS_REOPENED
        )
        settled = send_all(producers, batch(heads(30, first=20)), expected_outcomes=30)
        assert settled.kinds == [OutcomeKind.CONFIRMED] * 30
        assert sorted(settled.heads["sequence"].tolist()) == list(range(20, 50))
        parts = collect(consumers, 30)
        assert sorted(joined(parts, "head")["sequence"].tolist()) == list(range(20, 50))


@pytest.mark.usefixtures("plane")
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
            assert producers.send(batch(heads(1), lane=0)) == 0
            sent += producers.send(batch(heads(1, first=sent), lane=1))
            producers.outcomes()
            assert producers.signals() == []
            assert time.monotonic() - longest < 0.5, "reopening made the agent wait"
            time.sleep(0.01)
        proxy.open()
        opened = time.monotonic()
        told = signals_until(SignalKind.REOPENED, producers)
        assert time.monotonic() - opened < 5
        assert [one.lane for one in told] == [0]
        send_all(producers, batch(heads(1, first=sent), lane=0))
        collect(consumers, sent + 1)


@pytest.mark.usefixtures("plane")
def test_unconfirmed_messages_of_the_old_generation_are_unknown(
    way: tuple[Proxy, Broker],
) -> None:
    proxy, broker = way
    transport = open_transport(broker, amqp={"confirms": 50})
    with declared(transport) as made, producing(transport, made) as producers:
        send_all(producers, batch(heads(3)), expected_outcomes=3)
        proxy.is_mute = True
        time.sleep(0.1)
        assert producers.send(batch(heads(7, first=3))) == 7
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
        settled = send_all(producers, batch(heads(5, first=10)), expected_outcomes=5)
        assert settled.heads["sequence"].tolist() == list(range(10, 15))


@pytest.mark.usefixtures("plane")
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
                send_all(producers, batch(heads(10)))
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
            assert sorted(joined(third, "head")["sequence"].tolist()) == list(range(10))
        assert eventually(lambda: transport.depths(made) == (0,))


@pytest.mark.usefixtures("plane")
def test_a_queue_that_went_with_its_consumer_is_declared_again(way: tuple[Proxy, Broker]) -> None:
    proxy, broker = way
    name = f"bound-{time.time_ns()}"
    amqp = {"queue": {"auto_delete": True}, "exchange": {"name": name}}
    transport = open_transport(broker, amqp=amqp)
    with exchanging(transport) as (producers, consumers):
        proxy.cut()
        signals_until(SignalKind.REOPENED, producers, consumers)
        send_all(producers, batch(heads(5)))
        collect(consumers, 5)


@pytest.mark.usefixtures("plane")
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


@pytest.mark.usefixtures("plane")
@pytest.mark.fault(case=6)
def test_a_queue_deleted_in_mid_run_is_not_declared_again(rabbitmq_broker: Broker) -> None:
    transport = open_transport(rabbitmq_broker)
    made = transport.declare([Destination(0)])
    with consuming(transport, made) as consumers:
        open_transport(rabbitmq_broker).delete(made)
        [told] = signals_until(SignalKind.LOST, consumers)
        assert not told.is_reopening
        assert "cancelled" in told.reason


@pytest.mark.usefixtures("plane")
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
        send_all(producers, batch(heads(5)), expected_outcomes=5)


@pytest.mark.usefixtures("plane")
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
    with opener.open(request, timeout=5) as answer:
        return json.loads(answer.read() or b"null")


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.mark.usefixtures("plane")
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
        assert time.monotonic() - started < 5
        proxy.cut()
        assert eventually(lambda: descriptors() <= before)
        open_transport(rabbitmq_broker).delete(made)


def test_a_silent_broker_is_lost_by_its_heartbeat_and_comes_back_when_it_speaks(
    rabbitmq_broker: Broker, plane: str
) -> None:
    with proxied(rabbitmq_broker) as (proxy, broker):
        transport = open_transport(broker, amqp={"heartbeat_seconds": 1, "confirms": 10})
        with declared(transport) as made, producing(transport, made) as producers:
            proxy.is_mute = True
            [lost] = signals_until(SignalKind.LOST, producers)
            assert lost.is_reopening
            proxy.is_mute = False
            signals_until(SignalKind.REOPENED, producers)
            send_all(producers, batch(heads(5)), expected_outcomes=5)


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
            send_all(producers, batch(heads(100, lanes), lanes))
            assert eventually(lambda: transport.depths(made) == (100,))


# -- whole runs ------------------------------------------------------------------------------------


@pytest.fixture(params=["rabbitmq fast", "qpid pika"])
def any_way(request: pytest.FixtureRequest) -> Iterator[tuple[Proxy, Broker, str]]:
    """Each broker and each plane once: what differs between them is tested above."""
    name, _, plane = request.param.partition(" ")
    with proxied(request.getfixturevalue(f"{name}_broker")) as (proxy, broker):
        yield proxy, broker, plane


def plan_of(plane: str, **keys: Any) -> Plan:
    keys["amqp"] = {"plane": plane} | keys.get("amqp", {})
    phases = {"warmup_seconds": 0.3, "measure_seconds": 2, "drain_seconds": 4}
    scenario = Scenario.model_validate({"phases": phases} | keys)
    return make_plan(scenario, f"reconnection-{time.time_ns()}")


def cutting(proxy: Proxy, down_seconds: float = 0.7, after_seconds: float = 0.7) -> Any:
    def cut(load: Load) -> None:
        time.sleep(after_seconds)
        proxy.shut()
        proxy.cut()
        time.sleep(down_seconds)
        proxy.open()

    return cut


def progress_of(load: Load, name: str) -> int:
    return int(load.control.agents[0].progress.get(name, 0))


def go_on_after(load: Load, reopened: int) -> None:
    """Wait until so many lanes are back and carry messages, and end the run then."""
    assert eventually(lambda: progress_of(load, "reopened") == reopened)
    before = progress_of(load, "received_once")
    assert eventually(lambda: progress_of(load, "received_once") > before + 100)
    load.stop()


UNTIL_STOPPED = {"warmup_seconds": 0, "measure_seconds": 120, "drain_seconds": 2}


def reconnects(load: Load) -> int:
    return sum(load.total_of_all_phases(role, "reconnects") for role in (PRODUCER, CONSUMER))


@pytest.mark.parametrize("confirms", [0, 100])
@pytest.mark.fault(case=1)
def test_a_schedule_goes_on_and_every_message_is_accounted_for(
    any_way: tuple[Proxy, Broker, str], confirms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However long it takes to connect again: what was due meanwhile is sent then.
    monkeypatch.setattr(loop_module, "LATE_GRACE_NS", 60 * NANOSECONDS)
    proxy, broker, plane = any_way
    amqp = {"confirms": confirms, "ack": "manual", "ack_every": 10, "prefetch": 100}
    plan = plan_of(plane, producers=2, consumers=2, load={"rate_per_second": 1000}, amqp=amqp)
    load = run_load(plan, broker, cutting(proxy))
    accounts = load.accounts()
    assert load.control.failures == []
    assert reconnects(load) == 4
    assert load.total_of_all_phases(PRODUCER, "errors") == 2
    # Due meanwhile, sent late, never forgotten.
    assert load.total(PRODUCER, "due") == 2000
    assert load.total(PRODUCER, "sent") == accounts.sent == 2000
    assert load.histogram("send_lag").max_us > 600_000
    assert accounts.closes
    assert accounts.received_once >= 1800
    if confirms:
        assert accounts.lost == 0
    else:
        assert accounts.indeterminate == 0
    # The gap is in the rows of its seconds.
    gap = {
        (row.role, row.tick) for _, row in load.rows if row.counters.get("disconnected_ns", 0) > 0
    }
    assert {role for role, _ in gap} == {PRODUCER, CONSUMER}
    assert load.total_of_all_phases(PRODUCER, "disconnected_ns") > 2 * 700_000_000
    [entry] = [state.reports["closed"]["outages"] for state in load.control.agents]
    assert [(one["role"], one["member"], one["losses"], one["reopened"]) for one in entry] == [
        (CONSUMER, 0, 1, 1),
        (CONSUMER, 1, 1, 1),
        (PRODUCER, 0, 1, 1),
        (PRODUCER, 1, 1, 1),
    ]


@pytest.mark.fault(case=2)
def test_unacknowledged_messages_come_again_and_are_told_apart(
    any_way: tuple[Proxy, Broker, str],
) -> None:
    proxy, broker, plane = any_way
    amqp = {"ack": "manual", "ack_every": 2000, "prefetch": 5000}
    # The idle rest is acknowledged after a second, so the stream must be dense.
    plan = plan_of(plane, load={"rate_per_second": 1500}, amqp=amqp)
    load = run_load(plan, broker, cutting(proxy, down_seconds=0.3))
    accounts = load.accounts()
    assert load.control.failures == []
    assert accounts.closes
    # On a busy machine the cut may come while messages of the warm-up are still on their way.
    assert load.total_of_all_phases(CONSUMER, "redelivered") > 0
    assert load.total_of_all_phases(CONSUMER, "duplicates") > 0
    received = load.total(CONSUMER, "received")
    assert received == accounts.received_once + load.total(CONSUMER, "duplicates")


def test_other_lanes_stay_in_time_while_one_is_down(rabbitmq_broker: Broker) -> None:
    plane = PLANES[0]
    with proxied(rabbitmq_broker) as (proxy, broker):

        def cut_one(load: Load) -> None:
            time.sleep(0.7)
            proxy.shut()
            # The consumer's connection came first, then those of the producers.
            proxy.cut(1)
            time.sleep(0.8)
            proxy.open()

        plan = plan_of(plane, producers=4, load={"rate_per_second": 1000})
        load = run_load(plan, broker, cut_one)
    accounts = load.accounts()
    assert load.control.failures == []
    assert reconnects(load) == 1
    assert accounts.closes
    assert load.total(PRODUCER, "sent") == load.total(PRODUCER, "due") == 2000
    # A quarter of the messages of 0.8 of 2 seconds waited; all others went out in time.
    lag = load.histogram("send_lag")
    late = int(lag.counts[lag.values_us > 300_000].sum())
    assert 70 < late < 470


@pytest.mark.parametrize("consumer_too", [False, True])
def test_a_window_goes_on_after_a_cut(
    any_way: tuple[Proxy, Broker, str], consumer_too: bool
) -> None:
    proxy, broker, plane = any_way

    def cut(load: Load) -> None:
        assert eventually(lambda: progress_of(load, "received_once") > 100)
        proxy.shut()
        proxy.cut(*([] if consumer_too else [1]))
        time.sleep(0.3)
        proxy.open()
        go_on_after(load, reopened=2 if consumer_too else 1)

    plan = plan_of(plane, phases=UNTIL_STOPPED, load={"mode": "window", "in_flight": 20})
    load = run_load(plan, broker, cut)
    assert load.control.failures == []
    assert load.accounts().closes


def test_a_maximum_whose_backlog_was_lost_goes_on(any_way: tuple[Proxy, Broker, str]) -> None:
    """The queue goes with its consumer, and all that was in it."""
    proxy, broker, plane = any_way

    def cut(load: Load) -> None:
        assert eventually(lambda: progress_of(load, "received_once") > 100)
        cutting(proxy, down_seconds=0.3, after_seconds=0)(load)
        go_on_after(load, reopened=BOTH_ENDS_REOPENED)

    amqp = {
        "queue": {"auto_delete": True},
        "ack": "manual",
        "prefetch": 1,
        "ack_every": 1,
    }
    load_keys = {"mode": "maximum", "backlog_limit_bytes": 200_000}
    message = {"bytes": 1000}
    plan = plan_of(plane, phases=UNTIL_STOPPED, load=load_keys, amqp=amqp, message=message)
    load = run_load(plan, broker, cut)
    assert load.control.failures == []
    assert load.accounts().closes


def test_with_no_time_to_reconnect_a_lost_lane_ends_the_run(
    any_way: tuple[Proxy, Broker, str],
) -> None:
    proxy, broker, plane = any_way
    plan = plan_of(plane, reconnect_seconds=0, load={"rate_per_second": 500})
    load = run_load(plan, broker, cutting(proxy))
    assert {failure.kind for failure in load.control.failures} == {"LaneLost"}
    assert f"127.0.0.1:{proxy.port}" in load.control.failures[0].text
    assert reconnects(load) == 0
    assert load.accounts().closes


def test_a_broker_that_stays_away_fails_the_run_and_keeps_what_was_measured(
    any_way: tuple[Proxy, Broker, str],
) -> None:
    proxy, broker, plane = any_way

    def cut(load: Load) -> None:
        assert eventually(lambda: progress_of(load, "sent") > 200)
        proxy.shut()
        proxy.cut()

    phases = {"warmup_seconds": 0, "measure_seconds": 60, "drain_seconds": 4}
    keys = {"phases": phases, "reconnect_seconds": 1.0, "load": {"rate_per_second": 500}}
    load = run_load(plan_of(plane, **keys), broker, cut)
    [failure] = load.control.failures
    assert failure.kind == "LaneLost"
    assert f"127.0.0.1:{proxy.port}" in failure.text
    assert "not reopened within 1 s" in failure.text
    assert load.total(PRODUCER, "sent") > 100
    assert load.accounts().closes
    assert load.total_of_all_phases(PRODUCER, "disconnected_ns") > 800_000_000


def test_lanes_down_at_the_end_have_the_drain_to_come_back(rabbitmq_broker: Broker) -> None:
    plane = PLANES[0]
    with proxied(rabbitmq_broker) as (proxy, broker):

        def cut(load: Load) -> None:
            time.sleep(1.0)
            proxy.shut()
            proxy.cut()

        phases = {"warmup_seconds": 0, "measure_seconds": 2, "drain_seconds": 1}
        plan = plan_of(plane, phases=phases, load={"rate_per_second": 500})
        started = time.monotonic()
        load = run_load(plan, broker, cut)
        assert time.monotonic() - started < 15
        assert load.total(PRODUCER, "due") == 1000
        assert load.total(PRODUCER, "sent") < 700
        assert load.accounts().closes


@pytest.mark.fault(case=1)
def test_a_broker_that_is_killed_and_started_again_gets_its_queues_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However long the broker takes to come back: what was due meanwhile is sent then.
    monkeypatch.setattr(loop_module, "LATE_GRACE_NS", 60 * NANOSECONDS)
    plane = PLANES[0]
    [port] = free_ports(1)
    status = brokers.start("qpid", state=tmp_path, port=port)
    try:

        def restart(load: Load) -> None:
            assert eventually(lambda: progress_of(load, "received_once") > 100)
            assert status.pid is not None
            os.kill(status.pid, signal.SIGKILL)
            brokers.stop("qpid", state=tmp_path)  # what is left of it
            brokers.start("qpid", state=tmp_path, port=port)
            assert eventually(lambda: progress_of(load, "reopened") == BOTH_ENDS_REOPENED)

        phases = {"warmup_seconds": 0, "measure_seconds": 3, "drain_seconds": 3}
        plan = plan_of(plane, phases=phases, load={"rate_per_second": 300}, amqp={"confirms": 100})
        load = run_load(plan, status.broker, restart)
        assert load.control.failures == []
        accounts = load.accounts()
        assert accounts.closes
        assert accounts.sent == load.total(PRODUCER, "due") == 900
        assert accounts.received_once > 600
    finally:
        brokers.stop("qpid", state=tmp_path)
