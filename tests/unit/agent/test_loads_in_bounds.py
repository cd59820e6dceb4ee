"""Whole agents that must not run ahead: backlog limits, full destinations, windows."""

from __future__ import annotations

import numpy as np
import pytest
from agents import run_load
from unit.loopbacks import (
    LOOPBACK,
    Watch,
    assert_all_arrived,
    pairs,
    plan,
    sent,
)

from bench_spark.agent import flow as flow_module
from bench_spark.agent.timeline import CONSUMER
from bench_spark.core.clock import NANOSECONDS
from bench_spark.errors import BrokerRefused
from bench_spark.transports.batches import Received

# -- bounds ----------------------------------------------------------------------------------------


def test_maximum_pauses_at_the_backlog_limit(watch: Watch) -> None:
    watch.delay = lambda: watch.most_in_flight_together < 50  # nothing arrives before the limit
    load = run_load(
        plan(
            load={"mode": "maximum", "backlog_limit_bytes": 50_000, "messages": 500},
            message={"bytes": 1000},
            phases={"warmup_seconds": 0, "drain_seconds": 5},
        ),
        LOOPBACK,
    )
    assert_all_arrived(load)
    assert watch.most_in_flight_together == 50
    assert sent(load) > 50


def test_a_full_destination_is_back_pressure_and_loses_nothing(watch: Watch) -> None:
    watch.capacity_messages = 7
    load = run_load(
        plan(load={"mode": "maximum", "messages": 3000}, phases={"warmup_seconds": 0}),
        LOOPBACK,
    )
    assert_all_arrived(load)
    assert watch.most_in_flight_together <= 7


@pytest.mark.parametrize("in_flight", [1, 7])
def test_a_window_never_has_more_in_flight_than_allowed(watch: Watch, in_flight: int) -> None:
    load = run_load(
        plan(
            **pairs(3),
            load={"mode": "window", "in_flight": in_flight, "messages": 3000},
            phases={"warmup_seconds": 0},
        ),
        LOOPBACK,
    )
    assert_all_arrived(load)
    assert watch.most_in_flight == {0: in_flight, 1: in_flight, 2: in_flight}
    assert min(watch.sent.values()) > 0.5 * max(watch.sent.values())


def foreign_twin(received: Received) -> Received:
    """Every message comes with one of another run that is otherwise just like it."""
    count = len(received)
    twins = received.at(np.repeat(np.arange(count), 2))
    twins.envelope["run_tag"][1::2] += 1
    return twins


@pytest.mark.parametrize("mode", ["window", "maximum"])
def test_messages_of_another_run_neither_free_a_window_nor_the_backlog(
    watch: Watch, mode: str
) -> None:
    watch.alter = foreign_twin
    load = run_load(
        plan(
            load={"mode": mode, "in_flight": 5, "backlog_limit_bytes": 5000, "messages": 1000},
            phases={"warmup_seconds": 0},
        ),
        LOOPBACK,
    )
    assert load.total(CONSUMER, "foreign") > 0
    assert watch.most_in_flight_together <= 5
    assert load.accounts().closes


def test_a_window_that_nothing_returns_to_ends_the_run_with_a_reason(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow_module, "STALL_NS", NANOSECONDS // 5)
    watch.delay = lambda: True
    load = run_load(plan(load={"mode": "window"}, phases={"measure_seconds": 30}), LOOPBACK)
    assert [failure.kind for failure in load.control.failures] == ["RunError"]
    assert "window is stalled" in load.control.failures[0].text
    accounts = load.accounts()
    assert (accounts.closes, accounts.received_once) == (True, 0)


# -- filling a window first ------------------------------------------------------------------------


def test_a_window_is_full_before_any_consumer_attaches(watch: Watch) -> None:
    seen: list[tuple[int, int]] = []
    watch.at = lambda step: (
        seen.append((watch.sent.total(), watch.received.total())) if step == "attach" else None
    )
    load = run_load(
        plan(
            **pairs(3),
            load={"mode": "window", "in_flight": 700, "prefill": True, "messages": 6000},
            phases={"warmup_seconds": 0},
        ),
        LOOPBACK,
    )
    assert_all_arrived(load)
    assert seen == [(2100, 0)]
    assert watch.most_in_flight == {0: 700, 1: 700, 2: 700}


def test_without_asking_consumers_attach_before_anything_is_sent(watch: Watch) -> None:
    seen: list[int] = []
    watch.at = lambda step: seen.append(watch.sent.total()) if step == "attach" else None
    run_load(plan(load={"mode": "window"}), LOOPBACK)
    assert seen == [0]


def test_a_window_that_the_broker_does_not_take_ends_the_run_with_a_reason(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow_module, "STALL_NS", NANOSECONDS // 5)
    watch.capacity_messages = 60
    load = run_load(
        plan(load={"mode": "window", "prefill": True}, phases={"measure_seconds": 30}), LOOPBACK
    )
    [failure] = load.control.failures
    assert "cannot be filled" in failure.text
    # What was taken is received all the same.
    assert load.accounts().received_once + load.total(CONSUMER, "received", "warmup") == 60


def test_a_consumer_that_cannot_attach_later_is_a_failure_of_the_run(watch: Watch) -> None:
    def refuse(step: str) -> None:
        if step == "attach":
            raise BrokerRefused("no such queue")

    watch.at = refuse
    load = run_load(plan(load={"mode": "window", "prefill": True}), LOOPBACK)
    assert [failure.text for failure in load.control.failures] == ["no such queue"]
    assert load.accounts().closes
