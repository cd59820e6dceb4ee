"""A broker that stands still for two seconds: the measure from the due time must show it."""

from __future__ import annotations

import os
import signal
import time

import pytest
from agents import Load, run_load
from fault_records import Seen

from bench_spark.brokers import BrokerStatus
from bench_spark.config.models import Scenario
from bench_spark.config.sections import Load as LoadModel
from bench_spark.config.sections import Phases
from bench_spark.plan import make_plan

MEASURED_SECONDS = 5


@pytest.mark.slow
@pytest.mark.fault(case=4)
def test_a_frozen_broker_shows_in_the_latency_from_the_due_time(
    rabbitmq: BrokerStatus, seen: Seen
) -> None:
    """Frozen for 2 s of 5, the messages due meanwhile wait from 0 to 2 s, evenly.

    They are two fifths of all, so a fifth waits a second or more, a tenth 1.5 s, and one in a
    hundred 1.95 s. The time since sending may hide some of it, because what cannot be sent waits.
    """
    scenario = Scenario(
        name="frozen",
        load=LoadModel(rate_per_second=1000),
        phases=Phases(warmup_seconds=1, measure_seconds=MEASURED_SECONDS, drain_seconds=5),
    )
    frozen_seconds: list[float] = []

    def freeze(load: Load) -> None:
        assert rabbitmq.pid is not None
        time.sleep(1 + 1)
        os.kill(rabbitmq.pid, signal.SIGSTOP)
        stopped = time.monotonic()
        time.sleep(2)
        frozen_seconds.append(time.monotonic() - stopped)
        os.kill(rabbitmq.pid, signal.SIGCONT)

    load = run_load(make_plan(scenario, "frozen"), rabbitmq.broker, freeze)
    assert not load.control.failures
    found = load.histogram("delivery_latency")
    assert found.count == load.accounts().received_once == 1000 * MEASURED_SECONDS
    told = (f"p{one} {found.percentile(one).value_us / 1e6:.2f} s" for one in (80, 90, 99))
    seen(f"{found.count:,} messages: " + ", ".join(told))
    for percentile, tolerance_seconds in ((80, 0.15), (90, 0.12), (99, 0.06)):
        expected_seconds = frozen_seconds[0] - MEASURED_SECONDS * (1 - percentile / 100)
        measured_seconds = found.percentile(percentile).value_us / 1e6
        # A busy machine adds waits of its own.
        assert measured_seconds > expected_seconds - tolerance_seconds, f"p{percentile}"
        assert measured_seconds < expected_seconds + MEASURED_SECONDS, f"p{percentile}"
