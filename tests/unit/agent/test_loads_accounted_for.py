"""Whole agents: what is lost, what comes twice, and loads of which only one end is here."""

from __future__ import annotations

import time

import numpy as np
import pytest
from agents import run_load
from unit.loopbacks import (
    LOOPBACK,
    Watch,
    WatchedProducers,
    plan,
    sent,
)

from bench_spark.agent.recorder import CONSUMER, PRODUCER
from bench_spark.agent.wire import Message
from bench_spark.collector.control import RunControl
from bench_spark.collector.evidence import (
    accounts_of,
    measured_span,
)
from bench_spark.errors import BrokerRefused
from bench_spark.measure.clock import NANOSECONDS
from bench_spark.transports.base import Outcomes, Received, no_outcomes

# -- what is lost, and what comes twice ------------------------------------------------------------


def test_planted_losses_and_duplicates_are_counted_exactly(watch: Watch) -> None:
    dropped = 0

    def tamper(received: Received) -> Received:
        """Drop every message whose number ends in 3, deliver those that end in 5 twice."""
        nonlocal dropped
        last_digit = received.head["sequence"] % 10
        dropped += int(np.count_nonzero(last_digit == 3))
        times = np.where(last_digit == 3, 0, np.where(last_digit == 5, 2, 1))
        return received.rows(np.repeat(np.arange(len(received)), times))

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


@pytest.fixture
def slow_confirmations(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages are confirmed a second after the first question about them, all at once."""
    watch.confirms = True
    original = WatchedProducers.outcomes
    asked: list[float] = []

    def late(producers: WatchedProducers) -> Outcomes:
        if not producers.in_flight():
            return no_outcomes()
        asked.append(time.monotonic())
        if asked[-1] - asked[0] < 1:
            return no_outcomes()
        asked.clear()
        return original(producers)

    monkeypatch.setattr(WatchedProducers, "outcomes", late)


@pytest.mark.usefixtures("slow_confirmations")
def test_publishing_a_number_lasts_from_the_first_message_to_the_last_confirmation() -> None:
    """A client that buffers would else seem as fast as its buffer is large, or have to send what
    it has buffered in the warm-up first."""
    phases = {"warmup_seconds": 0.5, "drain_seconds": 5}
    few = {"mode": "maximum", "messages": 10}
    for _ in range(5):
        load = run_load(plan(consumers=0, load=few, phases=phases), LOOPBACK)
        if sent(load, "warmup"):
            break  # else a busy machine kept the agent from its whole warm-up
    began, ended = measured_span(load.plan, load.control)
    assert began is not None
    assert ended is not None
    assert load.control.start_at_ns is not None
    assert began - load.control.start_at_ns / NANOSECONDS > 0.9
    assert ended - began > 0.9
    assert load.total(PRODUCER, "confirmed") == sent(load) == 10
    assert load.total(PRODUCER, "confirmed", "warmup") == sent(load, "warmup") > 0
