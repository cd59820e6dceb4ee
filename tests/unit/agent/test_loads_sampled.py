"""Whole agents that send until every pair has its samples."""

from __future__ import annotations

from typing import Any

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

from bench_spark.agent.sampler import seconds_of
from bench_spark.agent.timeline import CONSUMER
from bench_spark.driver.accounts import counted_while_measured, measured_span, samples_of
from bench_spark.plan import Plan
from bench_spark.transports.batches import Received


def sampled_plan(samples: int = 20, agents: int = 1, **load: Any) -> Plan:
    return plan(
        **pairs(2),
        agents=agents,
        load={"mode": "window", "in_flight": 50} | load,
        sampling={"samples": samples, "threshold_seconds": 0.005},
        phases={"warmup_seconds": 0, "measure_seconds": 30, "drain_seconds": 5},
    )


@pytest.mark.parametrize("agents", [1, 2])
@pytest.mark.parametrize("mode", ["window", "maximum"])
def test_a_run_ends_when_every_pair_has_its_samples(watch: Watch, agents: int, mode: str) -> None:
    load = run_load(sampled_plan(agents=agents, mode=mode), LOOPBACK)
    assert_all_arrived(load)
    found = samples_of(load.plan, load.control)
    assert found is not None
    assert [one.agent for one in found] == list(range(agents))
    samples = np.concatenate([one.samples for one in found])
    assert [(int(row["pair"]), int(row["number"])) for row in samples] == [
        (pair, number) for pair in range(2) for number in range(20)
    ]
    assert np.all(seconds_of(samples) > 0.005)
    measured_from, measured_until = measured_span(load.plan, load.control)
    assert measured_from is not None
    assert measured_until is not None
    assert measured_until - measured_from < 25, "the cap is 30 s"
    assert samples["started_ns"].min() / 1e9 >= measured_from
    assert samples["ended_ns"].max() / 1e9 <= measured_until + 0.001


def test_what_was_received_while_it_was_measured_does_not_count_the_drain(watch: Watch) -> None:
    load = run_load(sampled_plan(in_flight=3000), LOOPBACK)
    counted = counted_while_measured(load.plan, load.control)
    assert counted is not None
    assert counted.sent == sent(load)
    received = load.total(CONSUMER, "received")
    assert received - 6000 <= counted.received <= received


def test_the_first_windows_are_not_sampled(watch: Watch) -> None:
    """Two windows are received before a sample begins."""
    arrivals: list[tuple[int, int]] = []

    def note(received: Received) -> Received:
        arrivals.append((int(received.received_ns[0]), watch.received[0]))
        return received

    watch.alter = note
    load = run_load(
        plan(
            load={"mode": "window", "in_flight": 300},
            sampling={"samples": 3, "threshold_seconds": 0.001},
            phases={"warmup_seconds": 0, "measure_seconds": 30},
        ),
        LOOPBACK,
    )
    found = samples_of(load.plan, load.control)
    assert found is not None
    began_ns = int(found[0].samples["started_ns"][0])
    assert dict(arrivals)[began_ns] >= 600
    assert all(seen < 600 for at_ns, seen in arrivals if at_ns < began_ns)


def test_a_run_that_gets_too_few_samples_ends_at_its_time(watch: Watch) -> None:
    short = {"warmup_seconds": 0, "measure_seconds": 3, "drain_seconds": 5}
    load = run_load(
        plan(load={"mode": "window"}, sampling={"samples": 10_000}, phases=short), LOOPBACK
    )
    assert_all_arrived(load)
    found = samples_of(load.plan, load.control)
    assert found is not None
    assert 0 < len(found[0].samples) <= 300
