"""Connections that are lost while a load runs, and what becomes of the load."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agents import Load, run_load
from contract import (
    eventually,
)
from proxy import Proxy, proxied

from bench_spark import brokers
from bench_spark.agent.recorder import CONSUMER, PRODUCER
from bench_spark.brokers.base import free_ports
from bench_spark.config.broker import Broker
from bench_spark.config.models import Scenario
from bench_spark.plan import Plan, make_plan

BOTH_ENDS_REOPENED = 2


@pytest.fixture
def any_way(request: pytest.FixtureRequest) -> Iterator[tuple[Proxy, Broker]]:
    """Connections are lost alike before all brokers; a test that names none has RabbitMQ."""
    name = getattr(request, "param", "rabbitmq")
    with proxied(request.getfixturevalue(f"{name}_broker")) as (proxy, broker):
        yield proxy, broker


def plan_of(**keys: Any) -> Plan:
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


@pytest.mark.parametrize(
    ("any_way", "confirms"), [("rabbitmq", 100), ("qpid", 0)], indirect=["any_way"]
)
@pytest.mark.fault(case=1)
def test_a_schedule_goes_on_and_every_message_is_accounted_for(
    any_way: tuple[Proxy, Broker], confirms: int
) -> None:
    proxy, broker = any_way
    amqp = {"confirms": confirms, "ack": "manual", "ack_every": 10, "prefetch": 100}
    plan = plan_of(producers=2, consumers=2, load={"rate_per_second": 1000}, amqp=amqp)
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
    if confirms:
        assert accounts.lost == 0
        assert accounts.received_once >= 2000 - 2 * confirms
    else:
        # What was on its way when the connections were cut: one stretch of each producer's.
        assert accounts.indeterminate == 0
        assert all(len(stretches) == 1 for stretches in accounts.missing.values())
        assert all(last < 999 for [(_, last)] in accounts.missing.values())
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


@pytest.mark.parametrize("any_way", ["rabbitmq", "qpid"], indirect=True)
@pytest.mark.fault(case=2)
def test_unacknowledged_messages_come_again_and_are_told_apart(
    any_way: tuple[Proxy, Broker],
) -> None:
    proxy, broker = any_way
    amqp = {"ack": "manual", "ack_every": 60_000, "prefetch": 65_000}

    def cut_what_is_unacknowledged(load: Load) -> None:
        assert eventually(lambda: progress_of(load, "received_once") > 200)
        proxy.cut()
        go_on_after(load, reopened=BOTH_ENDS_REOPENED)

    # The idle rest is acknowledged after a second, so the stream must be dense.
    plan = plan_of(phases=UNTIL_STOPPED, load={"rate_per_second": 1500}, amqp=amqp)
    load = run_load(plan, broker, cut_what_is_unacknowledged)
    accounts = load.accounts()
    assert load.control.failures == []
    assert accounts.closes
    assert load.total(CONSUMER, "redelivered") > 0
    assert load.total(CONSUMER, "duplicates") > 0
    received = load.total(CONSUMER, "received")
    assert received == accounts.received_once + load.total(CONSUMER, "duplicates")


def test_other_lanes_go_on_while_one_is_down(rabbitmq_broker: Broker) -> None:
    with proxied(rabbitmq_broker) as (proxy, broker):

        def cut_one(load: Load) -> None:
            assert eventually(lambda: progress_of(load, "received_once") > 100)
            proxy.shut()
            # The consumer's connection came first, then those of the producers.
            proxy.cut(1)
            assert eventually(lambda: progress_of(load, "down") == 1)
            before = progress_of(load, "received_once")
            assert eventually(lambda: progress_of(load, "received_once") > before + 300)
            assert progress_of(load, "down") == 1
            proxy.open()
            go_on_after(load, reopened=1)

        plan = plan_of(phases=UNTIL_STOPPED, producers=4, load={"rate_per_second": 1000})
        load = run_load(plan, broker, cut_one)
    assert load.control.failures == []
    assert reconnects(load) == 1
    assert load.accounts().closes


@pytest.mark.parametrize(
    ("any_way", "consumer_too"), [("rabbitmq", True), ("qpid", False)], indirect=["any_way"]
)
def test_a_window_goes_on_after_a_cut(any_way: tuple[Proxy, Broker], consumer_too: bool) -> None:
    proxy, broker = any_way

    def cut(load: Load) -> None:
        assert eventually(lambda: progress_of(load, "received_once") > 100)
        proxy.shut()
        proxy.cut(*([] if consumer_too else [1]))
        time.sleep(0.3)
        proxy.open()
        go_on_after(load, reopened=2 if consumer_too else 1)

    plan = plan_of(phases=UNTIL_STOPPED, load={"mode": "window", "in_flight": 20})
    load = run_load(plan, broker, cut)
    assert load.control.failures == []
    assert load.accounts().closes


def test_a_maximum_whose_backlog_was_lost_goes_on(any_way: tuple[Proxy, Broker]) -> None:
    """The queue goes with its consumer, and all that was in it."""
    proxy, broker = any_way

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
    plan = plan_of(phases=UNTIL_STOPPED, load=load_keys, amqp=amqp, message=message)
    load = run_load(plan, broker, cut)
    assert load.control.failures == []
    assert load.accounts().closes


def test_with_no_time_to_reconnect_a_lost_lane_ends_the_run(
    any_way: tuple[Proxy, Broker],
) -> None:
    proxy, broker = any_way
    plan = plan_of(reconnect_seconds=0, load={"rate_per_second": 500})
    load = run_load(plan, broker, cutting(proxy))
    assert {failure.kind for failure in load.control.failures} == {"LaneLost"}
    assert f"127.0.0.1:{proxy.port}" in load.control.failures[0].text
    assert reconnects(load) == 0
    assert load.accounts().closes


def test_a_broker_that_stays_away_fails_the_run_and_keeps_what_was_measured(
    any_way: tuple[Proxy, Broker],
) -> None:
    proxy, broker = any_way

    def cut(load: Load) -> None:
        assert eventually(lambda: progress_of(load, "sent") > 200)
        proxy.shut()
        proxy.cut()

    phases = {"warmup_seconds": 0, "measure_seconds": 60, "drain_seconds": 4}
    keys = {"phases": phases, "reconnect_seconds": 1.0, "load": {"rate_per_second": 500}}
    load = run_load(plan_of(**keys), broker, cut)
    [failure] = load.control.failures
    assert failure.kind == "LaneLost"
    assert f"127.0.0.1:{proxy.port}" in failure.text
    assert "not reopened within 1 s" in failure.text
    assert load.total(PRODUCER, "sent") > 100
    assert load.accounts().closes
    assert load.total_of_all_phases(PRODUCER, "disconnected_ns") > 800_000_000


@pytest.mark.usefixtures("punctual_agents")
def test_lanes_down_at_the_end_have_the_drain_to_come_back(rabbitmq_broker: Broker) -> None:
    with proxied(rabbitmq_broker) as (proxy, broker):

        def cut(load: Load) -> None:
            time.sleep(1.0)
            proxy.shut()
            proxy.cut()

        phases = {"warmup_seconds": 0, "measure_seconds": 2, "drain_seconds": 1}
        plan = plan_of(phases=phases, load={"rate_per_second": 500})
        load = run_load(plan, broker, cut)
        assert load.total(PRODUCER, "due") == 1000
        assert load.total(PRODUCER, "sent") < 700
        assert load.accounts().closes


@pytest.mark.fault(case=1)
def test_a_broker_that_is_killed_and_started_again_gets_its_queues_back(
    tmp_path: Path,
) -> None:
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
        plan = plan_of(phases=phases, load={"rate_per_second": 300}, amqp={"confirms": 100})
        load = run_load(plan, status.broker, restart)
        assert load.control.failures == []
        accounts = load.accounts()
        assert accounts.closes
        assert accounts.sent == load.total(PRODUCER, "due") == 900
        assert accounts.received_once > 600
    finally:
        brokers.stop("qpid", state=tmp_path)
