"""Whole agents whose senders wait for their own messages, through memory."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from agents import Load, run_load
from unit.loopbacks import Watch

from bench_spark.agent import endpoints as ends_module
from bench_spark.config.broker import Broker
from bench_spark.config.models import Scenario
from bench_spark.errors import ConfigurationError
from bench_spark.plan import make_plan
from bench_spark.transports.batches import Received

LOOPBACK = Broker(name="loopback", kind="loopback")


def scenario(**keys: Any) -> Scenario:
    load = {"mode": "request", "rate_per_second": 300} | keys.pop("load", {})
    phases = {"warmup_seconds": 0.2, "measure_seconds": 0.8, "drain_seconds": 20}
    made = {"producers": 4, "consumers": 1, "message": {"bytes": 64}, "phases": phases}
    return Scenario.model_validate(made | {"load": load} | keys)


def run(run_id: str, **keys: Any) -> Load:
    load = run_load(make_plan(scenario(**keys), run_id), LOOPBACK)
    assert not load.control.failures
    return load


def test_senders_that_wait_keep_the_rate_together() -> None:
    load = run("together", consumers=2, destinations=2)
    accounts = load.accounts()
    assert accounts.sent == accounts.received_once == 240
    assert load.total("producer", "due") == 240
    round_trip, latency = load.histogram("round_trip"), load.histogram("latency")
    assert round_trip.count == latency.count == 240
    assert round_trip.sum_us >= latency.sum_us


@pytest.mark.usefixtures("punctual_agents")
def test_what_is_due_while_all_wait_is_late_and_at_last_unsent() -> None:
    """A consumer takes 100 messages a second, and 300 are asked for."""
    phases = {"warmup_seconds": 0.2, "measure_seconds": 3, "drain_seconds": 20}
    began = time.monotonic()
    load = run("late", producers=2, consumer={"rate_per_second": 100}, phases=phases)
    lasted_us = (time.monotonic() - began) * 1_000_000
    accounts = load.accounts()
    assert load.total("producer", "due") == 900
    assert accounts.sent < 900
    assert accounts.sent == accounts.received_once
    assert load.histogram("send_lag").max_us > 100_000
    # Two senders are busy for the sum of all latencies, if each has one message under way.
    assert load.histogram("latency").sum_us <= 2 * lasted_us


def test_messages_that_never_come_are_given_up_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Producer 0's messages do not arrive: it waits 0.2 s for each of them."""

    def without_first_producer(received: Received) -> Received:
        return received.at(np.flatnonzero(received.envelope["producer"] != 0))

    watch = Watch(alter=without_first_producer)
    monkeypatch.setattr(ends_module, "make_transport", watch.make)
    load = run(
        "given-up",
        load={"request_timeout_seconds": 0.2, "rate_per_second": 100},
        phases={"warmup_seconds": 0.2, "measure_seconds": 0.8, "drain_seconds": 2},
    )
    sent = load.total("producer", "sent")
    missing = sent - load.accounts().received_once
    assert missing > 0
    assert load.histogram("round_trip").count == sent - missing
    waiting_at_the_end = missing - load.total("producer", "given_up")
    assert waiting_at_the_end in (0, 1)


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"topology": "fan-out", "consumers": 2}, "request does not go with topology fan-out"),
        ({"consumers": 0}, "request needs both ends"),
        ({"amqp": {"producer_transaction": 2}}, "nothing would ever be committed"),
        ({"sampling": {"samples": 3}}, "needs load.mode window or maximum"),
        ({"load": {"prefill": True}}, "needs load.mode window"),
    ],
)
def test_loads_whose_senders_would_wait_for_ever_are_refused(
    keys: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        scenario(**keys)


def test_bodies_that_do_not_say_whose_they_are_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"too few for load\.mode: request"):
        make_plan(scenario(message={"bytes": 16}), "r")
