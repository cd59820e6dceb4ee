"""What the join of all messages, and objectives, make of a result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hand_ticks import facts

from bench_spark.agent.timeline import Timeline
from bench_spark.config.models import Scenario
from bench_spark.core.clock import NANOSECONDS
from bench_spark.core.hdr import Histogram, SparseHistogram, shape_for
from bench_spark.driver.accounts import Accounts
from bench_spark.plan import make_plan
from bench_spark.results.document import RunSummary, summarise
from bench_spark.results.facts import (
    MissedWhileRunning,
    TraceFacts,
    is_judged_live,
    missed_in_window,
)
from bench_spark.results.totals import Tick
from bench_spark.trace.joining import COUNTS, JoinedMessages

START_NS = 1_700_000_000 * NANOSECONDS
TIMELINE = Timeline(START_NS, 0, 2 * NANOSECONDS, NANOSECONDS)


class Second:
    """A second in which 100 messages were sent, or received after 1 ms."""

    phase = "measure"
    tick_seconds = 1.0

    def __init__(self, role: str, number: int) -> None:
        self.role = role
        self.start_seconds = START_NS / NANOSECONDS + number
        self.measures = ("latency",) if role == "consumer" else ()

    def counter(self, name: str) -> int:
        of_role = ("sent", "due") if self.role == "producer" else ("received",)
        return 100 if name in of_role else 0

    def histogram(self, measure: str) -> SparseHistogram:
        return of_us(1_000, 100)


def of_us(value_us: int, count: int) -> SparseHistogram:
    found = Histogram(shape_for(10_000_000))
    found.record_ns(np.full(count, value_us * 1_000))
    return found.sparse()


def joined(**changes: int) -> JoinedMessages:
    counts = dict.fromkeys(COUNTS, 0) | {"sent": 200, "received": 200, "received_once": 200}
    ticks = {"latency": {0: of_us(2_000, 100), 1: of_us(4_000, 100)}}
    return JoinedMessages({0: counts | changes}, ticks)


def summary(
    trace: JoinedMessages | None = None, slo: tuple[str, ...] = (), **changes: Any
) -> RunSummary:
    scenario = Scenario.model_validate(
        {
            "load": {"rate_per_second": 100},
            "phases": {"warmup_seconds": 0, "measure_seconds": 2},
            "trace": "off" if trace is None else "all",
            "slo": list(slo),
        }
    )
    made = facts(
        plan=make_plan(scenario, "run-1"),
        broker={"kind": "loopback", "name": "here"},
        measured=(START_NS / NANOSECONDS, START_NS / NANOSECONDS + 2),
        trace=None if trace is None else TraceFacts(trace, TIMELINE, 0.5),
        **{"accounts": Accounts(sent=200, received_once=200), "confirms": False, **changes},
    )
    ticks: list[Tick] = [Second(role, n) for n in (0, 1) for role in ("consumer", "producer")]
    return summarise(ticks, made)


def checks(found: RunSummary) -> dict[str, str]:
    return {check["name"]: check["verdict"] for check in found.document["audit"]["checks"]}


def test_a_join_that_agrees_is_told_and_changes_no_measure() -> None:
    found = summary(joined())
    assert checks(found)["trace"] == "pass"
    assert found.document["measures"]["latency"]["p99_us"] == 1_000
    assert "source" not in found.document["measures"]["latency"]
    trace = found.document["trace"]
    assert (trace["missing"], trace["duplicates"], trace["producers"]) == (0, 0, [])
    assert trace["measures"]["latency"]["max_us"] == 4_000


def test_latencies_that_agents_could_not_take_come_from_the_join() -> None:
    found = summary(joined(untimed=150)).document
    assert found["measures"]["latency"]["count"] == 200
    assert found["measures"]["latency"]["max_us"] == 4_000
    assert found["measures"]["latency"]["source"] == "join"
    assert found["percentiles"]["interval_mean"]["latency"]["max_us"] == 3_000
    assert found["percentiles"]["interval_max"]["latency"]["intervals"] == 2


@pytest.mark.parametrize(
    ("changes", "verdict", "status"),
    [
        ({"received_once": 199}, "fail", "degraded"),
        ({"sent": 201}, "fail", "degraded"),
        ({"received": 199, "received_once": 199, "unexpected": 1}, "warn", "valid"),
    ],
)
def test_a_join_that_counts_otherwise_is_told(
    changes: dict[str, int], verdict: str, status: str
) -> None:
    found = summary(joined(**changes))
    assert (checks(found)["trace"], found.document["status"]) == (verdict, status)


def test_corrupted_and_unexpected_messages_are_told() -> None:
    found = checks(summary(joined(corrupted=3, unexpected=2)))
    assert (found["content"], found["unexpected"]) == ("fail", "warn")


# -- objectives ----------------------------------------------------------------------------------


def test_a_valid_run_that_misses_an_objective_ends_with_one() -> None:
    found = summary(slo=("p99 < 1us", "lost == 0"))
    assert (found.exit_code, found.document["exit_code"], found.document["status"]) == (
        1,
        1,
        "valid",
    )
    missed, met = found.document["slo"]
    assert missed == {
        "objective": "p99 < 1us",
        "path": "measures.latency.p99_us",
        "value": 1_000,
        "met": False,
        "note": None,
    }
    assert met["met"]


def test_objectives_that_are_met_leave_the_exit_code_alone() -> None:
    assert summary(slo=("p99 <= 1ms", "delivery_rate >= 100%")).exit_code == 0


@pytest.mark.parametrize(
    ("changes", "exit_code"),
    [
        ({"interrupted_by": 130}, 130),
        ({"accounts": Accounts(sent=200, received_once=199, lost=1), "confirms": True}, 5),
        ({"accounts": Accounts(sent=200, received_once=199, lost=1)}, 4),
    ],
)
def test_what_is_worse_than_a_missed_objective_decides(
    changes: dict[str, Any], exit_code: int
) -> None:
    assert summary(slo=("p99 < 1us",), **changes).exit_code == exit_code


def test_an_objective_that_ended_the_run_is_missed_whatever_the_whole_run_says() -> None:
    stopped = MissedWhileRunning("p99 < 5ms", 9_000.0, 12.0)
    found = summary(slo=("p99 < 5ms",), stopped_by=stopped)
    [entry] = found.document["slo"]
    assert (entry["met"], entry["value"], found.exit_code) == (False, 9_000.0, 1)
    assert "after 12 s" in entry["note"]
    assert "schedule" not in checks(found)


def test_a_window_misses_only_what_it_knows() -> None:
    window = {"measures": {"latency": {"p99_us": 9_000}}, "rates": {"receive_rate": 10.0}}
    assert missed_in_window(["lost == 0", "p99 < 10ms"], window, 12.0) is None
    missed = missed_in_window(["lost == 0", "p99 < 5ms"], window, 12.0)
    assert missed == MissedWhileRunning("p99 < 5ms", 9_000, 12.0)
    assert [is_judged_live(text) for text in ("p99 < 5ms", "receive_rate > 1", "lost == 0")] == [
        True,
        True,
        False,
    ]
