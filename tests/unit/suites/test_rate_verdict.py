"""The verdict about one run: whether it kept its rate, what fell short, and who is to blame."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_spark.errors import RunError
from bench_spark.results.checks import LimitedBy
from bench_spark.suites.rate import Kept, backlogs, growth_per_second, judge_rate
from bench_spark.suites.window import MeasuredTick

RATE = 1000.0
EVEN = [MeasuredTick(1.0, 1000, 1000)] * 10


def document(**changes: Any) -> dict[str, Any]:
    counts = {"due": 10_000, "sent": 10_000, "received_once": 10_000}
    return {
        "status": changes.pop("status", "valid"),
        "measured_seconds": 10.0,
        "audit": {"checks": changes.pop("checks", [])},
        "counts": counts | changes,
    }


LEAKING = [MeasuredTick(1.0, 1000, 994)] * 10
STEPPED = [MeasuredTick(1.0, 1000, 1), *[MeasuredTick(1.0, 1000, 1000)] * 9]
BURST = [*EVEN[:4], MeasuredTick(1.0, 1000, 0), MeasuredTick(1.0, 1000, 2000), *EVEN[:4]]


KEPT = Kept(True)


def not_kept(why: str) -> Kept:
    return Kept(False, "broker", why)


def check(name: str, verdict: str, **more: str) -> dict[str, str]:
    return {"name": name, "verdict": verdict, "text": f"{name} says so", **more}


@pytest.mark.parametrize(
    ("changes", "ticks", "verdict"),
    [
        ({}, EVEN, KEPT),
        ({"sent": 9_990, "received_once": 9_990}, EVEN, KEPT),
        ({"sent": 9_900, "received_once": 9_900}, EVEN, not_kept("1.0 % unsent")),
        ({"sent": 9_989, "received_once": 9_989}, EVEN, not_kept("0.1 % unsent")),
        ({"received_once": 9_999}, EVEN, not_kept("1 not received")),
        ({}, [MeasuredTick(1.0, 1000, 995)] * 10, KEPT),
        ({}, LEAKING, not_kept("backlog grew by 0.6 %")),
        ({}, STEPPED, KEPT),
        ({}, BURST, not_kept("backlog of 1 s")),
        ({}, [], not_kept("nothing was sent")),
        ({"due": 0}, EVEN, not_kept("nothing was sent")),
        ({"status": "failed"}, EVEN, not_kept("the run failed")),
        ({"status": "aborted"}, EVEN, not_kept("the run was aborted")),
        ({"status": "degraded"}, EVEN, KEPT),
        ({"checks": [check("generator_cpu", "warn", limited_by="generator")]}, EVEN, KEPT),
        ({"late": 100}, EVEN, KEPT),
        ({"late": 101}, EVEN, not_kept("99.0 % sent in time")),
        ({"late": 200}, EVEN, not_kept("98.0 % sent in time")),
    ],
)
def test_a_rate_is_kept_by_all_five_rules(
    changes: dict[str, Any], ticks: list[MeasuredTick], verdict: Kept
) -> None:
    assert judge_rate(document(**changes), ticks, RATE) == verdict


def objective(text: str, value: float | None, met: bool = False) -> dict[str, Any]:
    path = "measures.latency.p99_us"
    return {"objective": text, "path": path, "value": value, "met": met, "note": None}


def test_a_rate_is_kept_only_with_its_objectives() -> None:
    met = objective("p99 < 50ms", 31_000, met=True)
    missed = objective("p99 < 20ms", 31_000)
    assert judge_rate(document() | {"slo": [met]}, EVEN, RATE) == KEPT
    expected = Kept(False, "broker", "p99 < 20ms: 31.0 ms", "p99 < 20ms")
    assert judge_rate(document() | {"slo": [met, missed]}, EVEN, RATE) == expected
    warned = document(checks=[check("generator_cpu", "warn", limited_by="generator")])
    busy = judge_rate(warned | {"slo": [missed]}, EVEN, RATE)
    assert busy.limited_by == "generator", "an agent without CPU adds to every latency"


PASSED = check("schedule", "pass")
LATE = check("schedule", "fail", limited_by="host")
WARNED = [
    check("generator_cpu", "warn", limited_by="generator"),
    check("host_cpu", "warn", limited_by="host"),
]


@pytest.mark.parametrize(
    ("checks", "by", "limit"),
    [
        ([], "broker", ""),
        ([PASSED], "broker", ""),
        ([LATE, *WARNED], "host", "schedule says so"),
        ([PASSED, check("lost", "fail"), *WARNED], "broker", "lost says so"),
        (
            [PASSED, *WARNED, check("stall", "fail", limited_by="generator")],
            "generator",
            "stall says so",
        ),
        ([PASSED, check("warmup", "warn"), *WARNED], "generator", "generator_cpu says so"),
        ([PASSED, WARNED[1]], "host", "host_cpu says so"),
        ([PASSED, check("warmup", "warn")], "broker", ""),
    ],
)
def test_the_limit_is_the_one_that_the_runs_own_audit_names(
    checks: list[dict[str, str]], by: LimitedBy, limit: str
) -> None:
    found = judge_rate(document(late=5_000, checks=checks), EVEN, RATE)
    assert found == Kept(False, by, "50.0 % sent in time", None, limit)


def test_an_objective_is_not_blamed_where_the_rate_itself_was_not_kept() -> None:
    found = document(late=1_000) | {"slo": [objective("p99 < 20ms", 31_000)]}
    assert judge_rate(found, EVEN, RATE) == not_kept("90.0 % sent in time")


def test_an_objective_that_no_rate_can_meet_ends_the_search() -> None:
    found = document() | {"run_id": "r-01", "slo": [objective("p99 < 20ms", None)]}
    with pytest.raises(RunError, match="p99 < 20ms: not known of run r-01"):
        judge_rate(found, EVEN, RATE)


def test_a_fan_out_is_kept_if_every_copy_arrives() -> None:
    copied = [MeasuredTick(1.0, 1000, 4000)] * 10
    found = document(received_once=40_000) | {"copies": 4}
    assert judge_rate(found, copied, RATE).kept
    assert not judge_rate(found, EVEN, RATE).kept, "one copy in four"
    assert not judge_rate(document(received_once=39_999) | {"copies": 4}, copied, RATE).kept


def test_what_the_warm_up_left_counts_as_backlog() -> None:
    assert judge_rate(document(), EVEN, RATE, backlog_at_start=999).kept
    assert not judge_rate(document(), EVEN, RATE, backlog_at_start=1000).kept


@given(
    slope=st.integers(-50, 50),
    start=st.integers(0, 1000),
    lengths=st.lists(st.sampled_from([1.0, 2.0, 4.0]), min_size=2, max_size=30),
)
def test_a_straight_line_has_its_own_slope(slope: int, start: int, lengths: list[float]) -> None:
    ticks = [MeasuredTick(length, 1000, 1000 - round(slope * length)) for length in lengths]
    assert growth_per_second(ticks, backlogs(ticks, start)) == pytest.approx(slope, abs=1e-6)
