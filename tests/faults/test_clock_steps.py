"""The wall clock set by five seconds in the middle of a run."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from agents import Load, run_load
from fault_records import Seen
from whole_runs import CarryOut, Loading

from bench_spark.agent.recorder import PRODUCER
from bench_spark.config.broker import Broker
from bench_spark.config.models import Scenario
from bench_spark.core.clock import NANOSECONDS, WallClockWatch
from bench_spark.plan import make_plan

STEPS = (5, -5)


@pytest.fixture
def set_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets the wall clock of this process by so many seconds."""
    real_ns, real = time.time_ns, time.time

    def by(seconds: int) -> None:
        monkeypatch.setattr(time, "time_ns", lambda: real_ns() + seconds * NANOSECONDS)
        monkeypatch.setattr(time, "time", lambda: real() + seconds)

    return by


@pytest.mark.fault(case=15)
@pytest.mark.parametrize("seconds", STEPS)
def test_pacing_and_latencies_do_not_follow_the_wall_clock(
    seconds: int, set_clock: Callable[[int], None], loopback_broker: Broker, seen: Seen
) -> None:
    keys = {
        "phases": {"warmup_seconds": 0, "measure_seconds": 2, "drain_seconds": 2},
        "load": {"rate_per_second": 1000},
    }

    def step(load: Load) -> None:
        time.sleep(0.7)
        set_clock(seconds)

    plan = make_plan(Scenario.model_validate(keys), f"stepped{seconds}")
    load = run_load(plan, loopback_broker, step)
    latency, lag = load.histogram("delivery_latency"), load.histogram("send_lag")
    assert load.total(PRODUCER, "sent") == load.accounts().received_once == 2000
    assert latency.negative == latency.overflow == lag.negative == 0
    assert max(latency.max_us, lag.max_us) < 4_000_000, "less than a step, on the busiest machine"
    by_second = [row.counters["sent"] for _, row in load.rows if row.role == PRODUCER]
    assert len(by_second) < 2 + 5, "no tick was made by the step, however late the last ones are"
    longest_ms = latency.max_us / 1000
    seen(f"{seconds:+} s: sent {sum(by_second):,} of 2,000, longest latency {longest_ms:.1f} ms")


@pytest.mark.fault(case=15)
def test_a_run_tells_that_the_clock_was_set(
    set_clock: Callable[[int], None],
    loopback_broker: Broker,
    carry_out: CarryOut,
) -> None:
    def step(loading: Loading) -> None:
        loading.sleep_until(0.5)
        set_clock(-5)

    phases = {"warmup_seconds": 0, "measure_seconds": 1.5, "drain_seconds": 2}
    keys: dict[str, Any] = {"phases": phases, "load": {"rate_per_second": 500}}
    outcome = carry_out(loopback_broker, step, **keys)
    told = outcome.check("wall_clock")
    assert told.startswith("warn")
    assert "set -5.0 s" in told
    assert "into the measured phase" in told
    assert outcome.counts["received_once"] == 750


def test_a_step_is_told_from_a_slow_correction_and_from_being_held_up() -> None:
    now_ns, wall_ns = [0], [1_000 * NANOSECONDS]
    held_up_ns = [0]

    def read_now() -> int:
        now_ns[0] += held_up_ns[0]
        return now_ns[0]

    def tick(wall_step_ns: int = 0) -> None:
        now_ns[0] += NANOSECONDS // 10
        wall_ns[0] += NANOSECONDS // 10 + wall_step_ns
        watch.look()

    watch = WallClockWatch(read_now, lambda: wall_ns[0])
    for _ in range(100):
        tick(wall_step_ns=50_000)  # 500 ppm, as much as NTP ever corrects
    assert watch.steps == []
    held_up_ns[0] = NANOSECONDS
    tick()
    held_up_ns[0] = 0
    wall_ns[0] += 2 * NANOSECONDS  # what went by while it was held up
    tick()
    assert watch.steps == []
    tick(5 * NANOSECONDS)
    tick(-5 * NANOSECONDS)
    tick()
    assert [round(step.by_ns / NANOSECONDS) for step in watch.steps] == [5, -5]
