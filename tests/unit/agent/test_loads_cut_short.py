"""Whole agents that are stopped, or lose a connection or their driver while the load runs."""

from __future__ import annotations

import threading
import time

import pytest
from agents import Load, run_load, start_load
from patience import eventually
from unit.loopbacks import (
    BOTH_PHASES,
    LOOPBACK,
    Watch,
    assert_all_arrived,
    breaking_at,
    pairs,
    plan,
    sent,
)

from bench_spark.agent.agent import AgentResult
from bench_spark.agent.timeline import CONSUMER, PRODUCER
from bench_spark.errors import LaneLost
from bench_spark.transports.base import Signal, SignalKind

# -- ending early ----------------------------------------------------------------------------------


def test_a_stop_in_mid_run_keeps_what_was_measured(watch: Watch) -> None:
    def stop_soon(load: Load) -> None:
        assert eventually(lambda: watch.received.total() > 500)
        load.stop()

    began = time.monotonic()
    load = run_load(
        plan(
            load={"rate_per_second": 2000},
            phases={"warmup_seconds": 0.1, "measure_seconds": 60, "drain_seconds": 60},
        ),
        LOOPBACK,
        stop_soon,
    )
    assert time.monotonic() - began < 20
    assert_all_arrived(load)
    assert sent(load) > 100
    assert load.total(PRODUCER, "due") >= sent(load)
    assert watch.deleted == ["loopback-0"]


def test_a_stop_before_the_start_sends_nothing(watch: Watch) -> None:
    hold = threading.Event()
    watch.at = lambda step: hold.wait(300) and None if step == "attach" else None
    load = start_load(plan(phases={"measure_seconds": 60}), LOOPBACK)
    assert eventually(lambda: "declared" in load.control.agents[0].reached)
    load.stop()
    assert eventually(lambda: load.control.stop_reason is not None)
    hold.set()
    load.wait(20)
    assert load.control.start_at_ns is None
    assert watch.sent.total() == 0
    assert watch.deleted == ["loopback-0"]
    assert load.results == [AgentResult(agent=0)]


def test_a_driver_that_dies_in_mid_run_loses_no_rows(watch: Watch) -> None:
    load = start_load(
        plan(load={"rate_per_second": 1000}, phases={"warmup_seconds": 0, "measure_seconds": 60}),
        LOOPBACK,
    )
    assert eventually(lambda: watch.received.total() > 300)
    load.server.close()
    load.wait(20)
    assert sent(load) == load.total(CONSUMER, "received") == watch.sent.total()
    assert load.results[0].rows
    assert watch.deleted == ["loopback-0"]


# -- failures while the load runs ------------------------------------------------------------------


def assert_partial_result_is_kept(load: Load, watch: Watch, text: str) -> None:
    assert [failure.text for failure in load.control.failures] == [text]
    assert load.control.failures[0].kind == "LaneLost"
    assert load.results[0].failure == ("LaneLost", text)
    assert sum(sent(load, phase) for phase in BOTH_PHASES) == watch.sent.total() > 100
    accounts = load.accounts()
    assert accounts.closes
    assert accounts.sent == sent(load)
    assert watch.deleted == ["loopback-0"]


@pytest.mark.parametrize("step", ["send", "receive"])
def test_a_transport_that_breaks_in_mid_run_leaves_what_was_measured(
    watch: Watch, step: str
) -> None:
    def break_later(reached: str) -> None:
        if reached == step and watch.received.total() > 200:
            raise LaneLost("the broker is gone")

    watch.at = break_later
    load = run_load(plan(load={"rate_per_second": 2000}, phases={"measure_seconds": 60}), LOOPBACK)
    assert_partial_result_is_kept(load, watch, "the broker is gone")


def test_a_connection_that_will_not_close_costs_nothing_measured(watch: Watch) -> None:
    watch.at = breaking_at("close_producers", LaneLost("reset by peer"))
    load = run_load(plan(load={"rate_per_second": 1000}), LOOPBACK)
    assert load.results[0].failure == ("LaneLost", "reset by peer")
    accounts = load.accounts()
    assert (accounts.closes, accounts.received_once) == (True, 500)


def test_a_lane_that_is_lost_ends_the_run_and_leaves_what_was_measured(watch: Watch) -> None:
    def lose_a_lane(load: Load) -> None:
        assert eventually(lambda: watch.received.total() > 200)
        watch.signals = [Signal(SignalKind.LOST, time.time_ns(), 0, reason="reset by peer")]

    load = run_load(
        plan(load={"rate_per_second": 2000}, phases={"measure_seconds": 60}), LOOPBACK, lose_a_lane
    )
    assert_partial_result_is_kept(load, watch, "loopback:0: reset by peer")
    assert load.total_of_all_phases(PRODUCER, "errors") == 1


def test_a_lane_that_comes_back_costs_the_run_nothing_but_a_gap(watch: Watch) -> None:
    def lose_a_lane(load: Load) -> None:
        assert eventually(lambda: watch.received.total() > 100)
        lost_ns = time.time_ns()
        lost = Signal(SignalKind.LOST, lost_ns, 0, reason="reset by peer", is_reopening=True)
        watch.signals = [lost]
        assert eventually(lambda: watch.signals == [])
        time.sleep(0.3)
        watch.signals = [Signal(SignalKind.REOPENED, lost_ns + 250_000_000, 0, generation=1)]

    load = run_load(
        plan(**pairs(2), load={"rate_per_second": 1000}, phases={"measure_seconds": 1}),
        LOOPBACK,
        lose_a_lane,
    )
    assert load.control.failures == []
    assert_all_arrived(load)
    assert load.total_of_all_phases(PRODUCER, "errors") == 1
    assert load.total_of_all_phases(PRODUCER, "reconnects") == 1
    assert load.total_of_all_phases(PRODUCER, "disconnected_ns") == pytest.approx(250_000_000)
    [outage] = load.control.agents[0].reports["closed"]["outages"]
    assert (outage["role"], outage["member"], outage["reason"]) == (PRODUCER, 0, "reset by peer")
    assert outage["down_seconds"] == pytest.approx(0.25)


def test_a_lane_that_does_not_come_back_fails_the_run_and_counts_once(watch: Watch) -> None:
    def lose_a_lane(load: Load) -> None:
        assert eventually(lambda: watch.received.total() > 100)
        at_ns = time.time_ns()
        watch.signals = [
            Signal(SignalKind.LOST, at_ns, 0, reason="reset by peer", is_reopening=True),
            Signal(SignalKind.LOST, at_ns + 100, 0, reason="not reopened within 1 s"),
        ]

    load = run_load(
        plan(load={"rate_per_second": 2000}, phases={"measure_seconds": 60}), LOOPBACK, lose_a_lane
    )
    assert_partial_result_is_kept(load, watch, "loopback:0: not reopened within 1 s")
    assert load.total_of_all_phases(PRODUCER, "errors") == 1


def test_a_failure_in_one_agent_stops_the_other_with_its_result(watch: Watch) -> None:
    def lose_a_lane(load: Load) -> None:
        assert eventually(lambda: watch.received.total() > 200)
        watch.signals = [Signal(SignalKind.LOST, time.time_ns(), 0, reason="reset by peer")]

    load = run_load(
        plan(agents=2, **pairs(2), load={"rate_per_second": 2000}, phases={"measure_seconds": 60}),
        LOOPBACK,
        lose_a_lane,
    )
    assert len(load.control.failures) == 1
    assert sum(sent(load, phase) for phase in BOTH_PHASES) == watch.sent.total()
    assert load.accounts().closes
    assert sorted(watch.deleted) == ["loopback-0", "loopback-1"]


def test_blocked_time_is_booked_also_while_it_lasts(watch: Watch) -> None:
    def block(load: Load) -> None:
        assert load.control.start_at_ns is not None
        blocked_ns = load.control.start_at_ns + 100_000_000
        assert eventually(lambda: watch.received.total() > 50)
        watch.signals = [Signal(SignalKind.BLOCKED, blocked_ns, 0)]
        assert eventually(lambda: watch.signals == [])
        assert eventually(lambda: time.time_ns() > blocked_ns + 500_000_000)
        load.stop()

    load = run_load(
        plan(load={"rate_per_second": 500}, phases={"warmup_seconds": 0, "measure_seconds": 300}),
        LOOPBACK,
        block,
    )
    assert load.total(PRODUCER, "blocked_ns") >= 500_000_000
    assert load.control.failures == []
