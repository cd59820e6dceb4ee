"""Whole agents in every topology, without a broker: what is planned is what arrives."""

from __future__ import annotations

import secrets
from typing import Any

import pytest
from agents import Load, run_load
from hypothesis import given, settings
from hypothesis import strategies as st

from bench_spark.agent.timeline import CONSUMER, PRODUCER
from bench_spark.config.broker import Broker
from bench_spark.config.models import Scenario
from bench_spark.plan import make_plan
from bench_spark.transports.loopback import LoopbackConsumers, LoopbackProducers

LOOPBACK = Broker(kind="loopback")
QUICK = {"warmup_seconds": 0.05, "measure_seconds": 0.15, "drain_seconds": 0.2}


def run(**keys: Any) -> Load:
    phases = {"warmup_seconds": 0.05, "measure_seconds": 0.15, "drain_seconds": 20}
    scenario = Scenario.model_validate({"phases": phases, **keys})
    return run_load(make_plan(scenario, f"whole-{secrets.token_hex(4)}"), LOOPBACK)


def assert_delivered(load: Load, expected: int | None) -> None:
    accounts = load.accounts()
    assert load.control.failures == []
    assert accounts.closes
    assert accounts.received_once == accounts.sent * load.plan.copies == expected
    assert load.total(CONSUMER, "received") == expected
    assert load.histogram("latency").count == expected


@st.composite
def topologies(draw: st.DrawFn) -> dict[str, Any]:
    topology = draw(st.sampled_from(["fan-in", "fan-out", "straight-run", "round-robin"]))
    producers = draw(st.integers(1, 12))
    if topology == "straight-run":
        return {"topology": topology, "producers": producers}
    destinations = draw(st.integers(1, producers))
    consumers = draw(st.integers(1, destinations if topology == "fan-in" else 12))
    return {
        "topology": topology,
        "producers": producers,
        "consumers": consumers,
        "destinations": destinations,
        "subscriptions_per_consumer": draw(st.integers(1, 4)) if topology == "fan-out" else 1,
    }


@given(keys=topologies(), rate=st.integers(20, 2000))
@settings(max_examples=15, deadline=None)
def test_a_load_on_schedule_arrives_as_planned(keys: dict[str, Any], rate: int) -> None:
    load = run(**keys, load={"rate_per_second": rate})
    assert_delivered(load, load.plan.expected_deliveries)


@given(keys=topologies(), limit_bytes=st.sampled_from([1, 5_000, 1_000_000]))
@settings(max_examples=10, deadline=None)
def test_a_maximum_load_arrives_in_all_its_copies_however_little_may_be_on_its_way(
    keys: dict[str, Any], limit_bytes: int
) -> None:
    load = run(
        **keys, load={"mode": "maximum", "messages": 200, "backlog_limit_bytes": limit_bytes}
    )
    assert load.total(PRODUCER, "sent") == 200
    assert_delivered(load, load.plan.expected_deliveries)


def test_a_closed_loop_keeps_its_windows_in_a_topology() -> None:
    load = run(
        topology="round-robin", producers=3, consumers=4, load={"mode": "window", "messages": 300}
    )
    assert_delivered(load, 300)


def test_the_drain_ends_as_soon_as_every_copy_has_come() -> None:
    load = run(topology="fan-out", producers=2, consumers=5, load={"rate_per_second": 100})
    assert_delivered(load, load.plan.expected_deliveries)
    drained = [row.tick_start_ns for _, row in load.rows]
    assert (max(drained) - min(drained)) / 1e9 < 10, "and not after the 20 s it might take"


@pytest.mark.parametrize("phase", ["warmup", "measure"])
def test_the_warm_up_is_in_the_events_under_its_own_name(phase: str) -> None:
    load = run(topology="fan-out", producers=2, consumers=3, load={"rate_per_second": 400})
    sent, received = load.total(PRODUCER, "sent", phase), load.total(CONSUMER, "received", phase)
    assert sent > 0
    assert received == sent * 3


@pytest.mark.parametrize(
    ("end", "name", "value"),
    [
        (LoopbackConsumers, "detach", lambda self: False),
        (LoopbackProducers, "has_closed_in_order", False),
    ],
)
def test_what_nobody_could_wait_for_is_indeterminate_and_not_lost(
    monkeypatch: pytest.MonkeyPatch, end: type, name: str, value: Any
) -> None:
    received = LoopbackConsumers.receive
    monkeypatch.setattr(end, name, value, raising=False)
    monkeypatch.setattr(
        LoopbackConsumers,
        "receive",
        lambda self, timeout: received(self, timeout).at(slice(0, None, 2)),
    )
    load = run(topology="fan-out", producers=2, consumers=3, phases=QUICK)
    accounts = load.accounts()
    assert accounts.closes
    assert accounts.lost == accounts.left_in_broker == 0
    assert 0 < accounts.indeterminate < accounts.sent * 3


def test_agents_say_how_many_connections_they_have() -> None:
    load = run(topology="fan-in", producers=20, consumers=2)
    ready = load.control.agents[0].reports["ready"]
    assert ready["connections"] == {"producers": 20, "consumers": 2}
