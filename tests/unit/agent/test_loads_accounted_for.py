"""Whole agents: what is lost, what comes twice, and loads of which only one end is here."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from agents import Load, run_load
from unit.loopbacks import (
    LOOPBACK,
    Watch,
    WatchedProducers,
    plan,
    sent,
)
from unit.results.hand_ticks import facts

from bench_spark.agent.protocol import EventRow, Message
from bench_spark.agent.timeline import CONSUMER, PRODUCER
from bench_spark.core.clock import NANOSECONDS
from bench_spark.core.hdr import SparseHistogram
from bench_spark.driver.accounts import accounts_of, measured_span
from bench_spark.driver.control import RunControl
from bench_spark.errors import BrokerRefused
from bench_spark.results.document import summarise
from bench_spark.suites.rate import judge_rate
from bench_spark.suites.window import measured_ticks
from bench_spark.transports.batches import Outcomes, Received, no_outcomes

# -- what is lost, and what comes twice ------------------------------------------------------------


def test_planted_losses_and_duplicates_are_counted_exactly(watch: Watch) -> None:
    dropped = 0

    def tamper(received: Received) -> Received:
        """Drop every message whose number ends in 3, deliver those that end in 5 twice."""
        nonlocal dropped
        last_digit = received.envelope["sequence"] % 10
        dropped += int(np.count_nonzero(last_digit == 3))
        times = np.where(last_digit == 3, 0, np.where(last_digit == 5, 2, 1))
        return received.at(np.repeat(np.arange(len(received)), times))

    watch.alter = tamper
    load = run_load(
        plan(
            load={"rate_per_second": 2000},
            phases={"warmup_seconds": 0, "measure_seconds": 0.5, "drain_seconds": 0.2},
        ),
        LOOPBACK,
    )
    accounts = load.accounts()
    assert (accounts.sent, accounts.lost, accounts.received_once) == (1000, 100, 900)
    assert accounts.missing[0][0] == (3, 4)
    assert load.total(CONSUMER, "duplicates") == 100
    assert load.total(CONSUMER, "received") == 1000
    assert load.histogram("latency").count == 900
    assert dropped == 100


def test_the_driver_knows_the_final_numbers_before_it_hears_that_sending_is_over(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it could take everything for arrived while the last messages are on their way."""
    heard: list[Message] = []
    on_message = RunControl.on_message

    def listen(control: RunControl, agent: int, message: Message, payload: bytes) -> None:
        heard.append(message)
        on_message(control, agent, message, payload)

    monkeypatch.setattr(RunControl, "on_message", listen)
    run_load(plan(load={"rate_per_second": 2000}), LOOPBACK)
    over = next(place for place, m in enumerate(heard) if m.get("step") == "produced")
    progress = [message for message in heard[:over] if message["type"] == "progress"]
    assert progress[-1]["sent"] == heard[over]["sent"] == 1400


# -- one end only ----------------------------------------------------------------------------------


def test_without_consumers_a_number_of_messages_goes_into_a_sink(watch: Watch) -> None:
    """More than a loopback destination could hold."""
    watch.confirms = True
    watch.capacity_messages = 100
    many = {"mode": "maximum", "messages": 20_000}
    phases = {"warmup_seconds": 0, "drain_seconds": 5}
    load = run_load(plan(consumers=0, load=many, phases=phases), LOOPBACK)
    assert load.control.failures == []
    assert sent(load) == load.total(PRODUCER, "confirmed") == 20_000
    assert load.total(CONSUMER, "received") == 0
    assert accounts_of(load.plan, load.control) is None


@pytest.mark.parametrize("keep", [False, True])
def test_what_was_made_is_deleted_unless_it_is_to_be_kept(watch: Watch, keep: bool) -> None:
    run_load(plan(consumers=0, keep_destinations=keep), LOOPBACK)
    assert watch.deleted == ([] if keep else ["loopback-0"])


def test_what_was_made_for_a_load_that_never_started_is_not_kept(watch: Watch) -> None:
    def fail(step: str) -> None:
        if step == "open_producers":
            raise BrokerRefused("not today")

    watch.at = fail
    run_load(plan(consumers=0, keep_destinations=True), LOOPBACK)
    assert watch.deleted == ["loopback-0"]


CLOCKS_DIFFER = 0.01
"""Seconds between a run's own clock and the wall clock."""


@pytest.fixture
def slow_confirmations(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Messages are confirmed a second after the first question about them, all at once; returns
    when that was."""
    watch.confirms = True
    original = WatchedProducers.outcomes
    asked: list[float] = []
    confirmed_at: list[float] = []

    def late(producers: WatchedProducers) -> Outcomes:
        if not producers.in_flight():
            return no_outcomes()
        asked.append(time.monotonic())
        if asked[-1] - asked[0] < 1:
            return no_outcomes()
        asked.clear()
        confirmed_at.append(time.time())
        return original(producers)

    monkeypatch.setattr(WatchedProducers, "outcomes", late)
    return confirmed_at


def test_publishing_a_number_lasts_from_the_first_message_to_the_last_confirmation(
    slow_confirmations: list[float],
) -> None:
    """A client that buffers would else seem as fast as its buffer is large, or have to send what
    it has buffered in the warm-up first."""
    phases = {"warmup_seconds": 1, "drain_seconds": 60}
    few = {"mode": "maximum", "messages": 10}
    load = run_load(plan(consumers=0, load=few, phases=phases), LOOPBACK)
    began, ended = measured_span(load.plan, load.control)
    assert began is not None
    assert ended is not None
    *of_warmup, last = slow_confirmations
    assert max(of_warmup) - CLOCKS_DIFFER < began < last
    assert ended > last - CLOCKS_DIFFER
    assert ended - began > 0.9
    assert load.total(PRODUCER, "confirmed") == sent(load) == 10
    assert load.total(PRODUCER, "confirmed", "warmup") == sent(load, "warmup") > 0


# -- bodies that carry only the time of sending ----------------------------------------------------


@dataclass
class _RowTick:
    """A row of one agent as the merged tick that summing up takes."""

    row: EventRow

    @property
    def role(self) -> str:
        return self.row.role

    @property
    def phase(self) -> str:
        return self.row.phase

    @property
    def start_seconds(self) -> float:
        return self.row.tick_start_ns / NANOSECONDS

    @property
    def tick_seconds(self) -> float:
        return self.row.tick_seconds

    @property
    def measures(self) -> Iterable[str]:
        return self.row.histograms

    def counter(self, name: str) -> int:
        return self.row.counters.get(name, 0)

    def histogram(self, measure: str) -> SparseHistogram:
        return self.row.histograms[measure]


def document_of(load: Load) -> dict[str, Any]:
    measured_from, measured_until = measured_span(load.plan, load.control)
    run = facts(
        plan=load.plan,
        accounts=accounts_of(load.plan, load.control),
        confirms=False,
        measured_from=measured_from,
        measured_until=measured_until,
    )
    rows = sorted((row for _, row in load.rows), key=lambda row: row.tick)
    return summarise([_RowTick(row) for row in rows], run).document


def test_a_rate_that_the_consumer_cannot_take_is_not_kept(
    watch: Watch, punctual_agents: None
) -> None:
    """What it was behind with went out within a second after the end."""
    watch.capacity_messages = 20
    load = run_load(
        plan(
            load={"rate_per_second": 1000},
            consumer={"rate_per_second": 950},
            phases={"warmup_seconds": 0, "measure_seconds": 5, "drain_seconds": 30},
        ),
        LOOPBACK,
    )
    document = document_of(load)
    late, unsent = document["counts"]["late"], document["counts"]["unsent"]
    # What the consumer and the broker hold is sent, and not received yet.
    assert late + unsent > 150
    assert document["status"] == "degraded"
    [schedule] = [one for one in document["audit"]["checks"] if one["name"] == "schedule"]
    assert (schedule["verdict"], schedule["limited_by"]) == ("fail", "broker")
    ticks = measured_ticks(_RowTick(row) for _, row in load.rows)
    assert not judge_rate(document, ticks, 1000).kept


@pytest.mark.parametrize("body_bytes", [16, 32])
def test_both_ends_count_a_message_in_the_same_phase(watch: Watch, body_bytes: int) -> None:
    """The first send takes longer than the warm-up, so that most of it goes out afterwards. A body
    of 16 bytes does not say when it was due: then it belongs to the phase in which it was sent."""
    sends = itertools.count()

    def stall_at_first(step: str) -> None:
        if step == "send" and next(sends) == 0:
            time.sleep(0.7)

    watch.at = stall_at_first
    load = run_load(
        plan(
            load={"rate_per_second": 1000},
            message={"bytes": body_bytes},
            phases={"warmup_seconds": 0.5, "measure_seconds": 1, "drain_seconds": 30},
        ),
        LOOPBACK,
    )
    late = 500 - sent(load, "warmup")
    assert late > 0 if body_bytes < 32 else late == 0
    for phase, due in (("warmup", 500 - late), ("measure", 1000 + late)):
        assert load.total(PRODUCER, "due", phase) == due
        assert sent(load, phase) == due
        assert load.total(CONSUMER, "received", phase) == due
    document = document_of(load)
    assert document["expected"] == document["counts"]["sent"] == 1000 + late
    assert document["delivery_rate"] == 1.0
    assert document["rates"]["send_rate"] == pytest.approx(1000)
    assert document["counts"]["unsent"] == 0


def test_the_worst_interval_of_a_fan_out_is_known_and_not_below_the_run(watch: Watch) -> None:
    """Some messages of the last second arrive in the drain."""
    held = itertools.count()
    watch.delay = lambda: next(held) % 7 == 0
    load = run_load(
        plan(
            topology="fan-out",
            producers=1,
            consumers=3,
            destinations=1,
            load={"rate_per_second": 500},
            interval_seconds=1,
            phases={"warmup_seconds": 0.2, "measure_seconds": 2, "drain_seconds": 30},
        ),
        LOOPBACK,
    )
    document = document_of(load)
    assert document["copies"] == 3
    assert document["delivery_rate"] == 1.0
    for measure in ("latency", "delivery_latency"):
        of_run, worst = (document["percentiles"][name][measure] for name in ("run", "interval_max"))
        assert worst["intervals"] == 2
        for name, value in of_run.items():
            assert value is not None
            assert worst[name] >= value
