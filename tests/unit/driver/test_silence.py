"""Consumers that get nothing while messages for them are confirmed, as the driver finds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from unit.driver.played_runs import Play

from bench_spark.agent.protocol import Delivered
from bench_spark.core.clock import NANOSECONDS
from bench_spark.driver.accounts import silences_of
from bench_spark.plan import timeline_of

WARMUP_SECONDS = 2.0
PHASES = {"warmup_seconds": WARMUP_SECONDS, "measure_seconds": 30.0, "drain_seconds": 4.0}


class Deliveries:
    """Agents of a played run that report once a second."""

    def __init__(self, agents: int = 1, **keys: Any) -> None:
        self.play = Play(agents, keys={"phases": PHASES} | keys)
        self.play.start()
        start_ns = self.play.control.start_at_ns
        assert start_ns is not None
        scenario = self.play.control._plan.scenario
        self.timeline = timeline_of(scenario, start_ns)
        self.second = 0.0

    def pass_second(
        self,
        confirmed: Mapping[int, int] | None = None,
        received: Mapping[int, int] | None = None,
        agents: Sequence[int] = (0,),
        seconds: float = 1.0,
    ) -> None:
        """By group and by subscription, what the first of these agents has counted meanwhile."""
        self.second += seconds
        at_ns = self.timeline.start_ns + round(self.second * NANOSECONDS)
        for agent in agents:
            is_first = agent == agents[0]
            found = [_columns(counts if is_first else None) for counts in (confirmed, received)]
            delivered = Delivered(*found[0], *found[1])
            message = {"type": "deliveries", "at_ns": at_ns, "groups": len(found[0][0])}
            self.play.control.on_message(agent, message, delivered.to_bytes())

    def silences(self) -> list[tuple[list[int], float, float]]:
        measured_from = self.timeline.measure_start_ns / NANOSECONDS
        found = silences_of(self.play.control, measured_from)
        return [
            (one["consumers"], round(one["after_seconds"], 3), round(one["seconds"], 3))
            for one in found
        ]


def _columns(counts: Mapping[int, int] | None) -> tuple[Any, Any]:
    counts = counts or {}
    return np.array([*counts], np.int64), np.array([*counts.values()], np.int64)


def test_nothing_for_five_seconds_is_a_silence_with_its_beginning_and_length() -> None:
    run = Deliveries()
    for _ in range(6):
        run.pass_second({0: 100}, {0: 100})
    for _ in range(7):
        run.pass_second({0: 100}, {0: 1} if run.second < 7 else {})
    run.pass_second({0: 100}, {0: 600})
    for _ in range(3):
        run.pass_second({0: 100}, {0: 100})
    # The last message came in the seventh second, the fifth of the measured phase.
    assert run.silences() == [([0], 5.0, 6.0)]


@pytest.mark.parametrize(("silent", "found"), [(4, 0), (5, 1)])
def test_less_than_five_seconds_is_none(silent: int, found: int) -> None:
    run = Deliveries()
    for _ in range(4):
        run.pass_second({0: 100}, {0: 99})
    for _ in range(silent):
        run.pass_second({0: 100})
    run.pass_second({0: 100}, {0: 99})
    assert len(run.silences()) == found


def test_a_load_of_a_message_in_ten_seconds_is_not_silent_even_if_one_was_lost() -> None:
    run = Deliveries()
    run.pass_second({0: 2}, {0: 1})
    for _ in range(3):
        run.pass_second({}, {0: 1})
        run.pass_second({0: 1})
        for _ in range(8):
            run.pass_second()
    assert run.silences() == []


@pytest.mark.parametrize("every", [2, 3])
def test_confirmations_now_and_then_are_enough(every: int) -> None:
    """A load in bursts, or of a message in two seconds."""
    run = Deliveries()
    for _ in range(4):
        run.pass_second({0: 100}, {0: 100})
    for second in range(12):
        run.pass_second({0: 300} if second % every == 0 else {})
    run.pass_second({}, {0: 1200})
    last = 12 - every
    assert run.silences() == [([0], 2.0, 1.0 + last)]


def test_a_pause_of_the_schedule_is_no_silence_though_a_message_is_missing() -> None:
    run = Deliveries()
    for _ in range(4):
        run.pass_second({0: 100}, {0: 99})
    run.pass_second({0: 1})  # of a message that was received before it was confirmed
    for _ in range(8):
        run.pass_second()
    run.pass_second({0: 100})
    run.pass_second({0: 100}, {0: 200})
    assert run.silences() == []


def test_small_bodies_that_came_twice_hide_no_silence() -> None:
    run = Deliveries(message={"bytes": 16})
    for _ in range(10):
        run.pass_second({0: 100}, {0: 200})
    for _ in range(8):
        run.pass_second({0: 100})
    assert run.silences() == [([0], 8.0, 8.0)]


def test_a_request_in_ten_seconds_is_no_silence_though_one_was_lost() -> None:
    run = Deliveries(load={"mode": "request", "rate_per_second": 0.1})
    run.pass_second({0: 1})
    run.pass_second()
    for _ in range(3):
        run.pass_second({0: 1}, {0: 1})
        for _ in range(9):
            run.pass_second()
    assert run.silences() == []


@pytest.mark.parametrize("mode", ["maximum", "window"])
def test_producers_that_wait_for_a_silent_consumer_need_be_confirmed_only_once(mode: str) -> None:
    run = Deliveries(load={"mode": mode})
    for _ in range(2 + run.timeline.warmup_ns // NANOSECONDS):
        run.pass_second({0: 1000}, {0: 900})
    run.pass_second({0: 1000})
    for _ in range(5):
        run.pass_second()
    assert run.silences() == [([0], 2.0, 6.0)]


def test_consumers_have_nothing_to_receive_while_the_broker_holds_the_producers_back() -> None:
    """A limit of the queue has dropped some, so that these are missing for good."""
    limited = {"queue": {"arguments": {"x-max-length": 1000}}}
    run = Deliveries(load={"mode": "maximum"}, amqp=limited)
    for _ in range(2 + run.timeline.warmup_ns // NANOSECONDS):
        run.pass_second({0: 1000}, {0: 990})
    for _ in range(7):
        run.pass_second()
    for _ in range(2):
        run.pass_second({0: 1000}, {0: 990})
    assert run.silences() == []


def test_a_consumer_that_has_all_there_is_waits_for_nothing() -> None:
    run = Deliveries(load={"mode": "maximum"})
    run.pass_second({0: 1000}, {0: 1000})
    for _ in range(20):
        run.pass_second()
    assert run.silences() == []


def test_the_warm_up_and_the_drain_do_not_count() -> None:
    run = Deliveries()
    run.pass_second({0: 100})
    run.pass_second({0: 100})
    for _ in range(4):
        run.pass_second({0: 100})
    run.play.reach("produced")
    for _ in range(9):
        run.pass_second({0: 1})
    assert run.silences() == []


def test_each_subscription_is_watched_for_itself() -> None:
    run = Deliveries(producers=2, consumers=2, destinations=2)
    for _ in range(10):
        run.pass_second({0: 100, 1: 100}, {0: 100})
    assert run.silences() == [([1], 0.0, 8.0)]


def test_every_copy_is_to_arrive() -> None:
    run = Deliveries(producers=1, consumers=3, destinations=1, topology="fan-out")
    for _ in range(10):
        run.pass_second({0: 100}, {0: 100, 2: 100})
    assert [consumers for consumers, _, _ in run.silences()] == [[1]]


def test_consumers_that_share_a_subscription_are_one() -> None:
    run = Deliveries(producers=1, consumers=3, destinations=1)
    for _ in range(10):
        run.pass_second({0: 100}, {0: 33})
    assert run.silences() == []
    for _ in range(7):
        run.pass_second({0: 100})
    assert [consumers for consumers, _, _ in run.silences()] == [[0, 1, 2]]


def test_an_agent_with_consumers_that_does_not_report_is_waited_for() -> None:
    keys = {"producers": 1, "consumers": 1, "destinations": 1, "placement": "split"}
    run = Deliveries(agents=2, **keys)
    producing, consuming = 0, 1
    assert run.play.control._plan.assignments[consuming].consumers
    for _ in range(4):
        run.pass_second({0: 100}, {0: 100}, agents=(producing, consuming))
    for _ in range(8):
        run.pass_second({0: 100}, agents=(producing,))
    run.pass_second({0: 100}, {0: 900}, agents=(consuming,))
    assert run.silences() == [], "it had stood still, and then took in what was there"
    for _ in range(8):
        run.pass_second({0: 100}, agents=(producing, consuming))
    assert [consumers for consumers, _, _ in run.silences()] == [[0]]
