"""Whole agents whose senders wait for their own messages, through memory."""

from __future__ import annotations

from typing import Any

import pytest
from agents import Load, run_load

from bench_spark.errors import ConfigurationError
from bench_spark.plan import make_plan
from bench_spark.scenario.broker import Broker
from bench_spark.scenario.models import Scenario

LOOPBACK = Broker(name="loopback", kind="loopback")


def scenario(**keys: Any) -> Scenario:
    load = {"mode": "request", "rate_per_second": 300} | keys.pop("load", {})
    phases = {"warmup_seconds": 0.2, "measure_seconds": 0.8, "drain_seconds": 2}
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


def test_what_is_due_while_all_wait_is_late_and_at_last_unsent() -> None:
    """A consumer takes 100 messages a second, and 300 are asked for."""
    load = run("late", producers=2, consumer={"rate_per_second": 100})
    accounts = load.accounts()
    assert load.total("producer", "due") == 240
    assert accounts.sent < 240
    assert accounts.sent == accounts.received_once
    assert load.histogram("send_lag").max_us > 100_000
    assert load.histogram("latency").max_us < 500_000, "nobody sends more than one at a time"


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"topology": "fan-out", "consumers": 2}, "request does not go with topology fan-out"),
        ({"consumers": 0}, "request needs both ends"),
        ({"amqp": {"producer_transaction": 2}}, "nothing would ever be committed"),
        ({"sampling": {"samples": 3}}, "needs load.mode window or maximum"),
        ({"load": {"fill_first": True}}, "needs load.mode window"),
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
