"""A broker that stands still for two seconds: the measure from the due time must show it (F2)."""

from __future__ import annotations

import os
import signal
import time

import pytest
from agents import Load, run_load
from contract import running
from fault_records import Seen

from bench_spark.plan import make_plan
from bench_spark.scenario.load_sections import Load as LoadModel
from bench_spark.scenario.load_sections import Phases
from bench_spark.scenario.models import Scenario


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.fault(case=4)
def test_a_frozen_broker_shows_in_the_latency_from_the_due_time(seen: Seen) -> None:
    """Frozen for 2 s of 10, the messages due meanwhile wait from 0 to 2 s, evenly.

    They are a fifth of all, so a tenth waits a second or more, a twentieth 1.5 s, and one in a
    hundred 1.9 s. The time since sending may hide some of it, because what cannot be sent waits.
    """
    scenario = Scenario(
        name="frozen",
        load=LoadModel(rate_per_second=1000),
        phases=Phases(warmup_seconds=2, measure_seconds=10, drain_seconds=5),
    )
    with running("rabbitmq") as status:
        assert status.pid is not None

        def freeze(load: Load) -> None:
            assert status.pid is not None
            time.sleep(2 + 3)
            os.kill(status.pid, signal.SIGSTOP)
            time.sleep(2)
            os.kill(status.pid, signal.SIGCONT)

        load = run_load(make_plan(scenario, "frozen"), status.broker, freeze)

    assert not load.control.failures
    found = load.histogram("delivery_latency")
    assert found.count == load.accounts().received_once == 10_000
    told = (f"p{one} {found.percentile(one).value_us / 1e6:.2f} s" for one in (90, 95, 99))
    seen(f"{found.count:,} messages: " + ", ".join(told))
    for percentile, seconds, tolerance in ((90, 1.0, 0.15), (95, 1.5, 0.08), (99, 1.9, 0.03)):
        measured = found.percentile(percentile).value_us / 1e6
        assert measured == pytest.approx(seconds, rel=tolerance), f"p{percentile}"
