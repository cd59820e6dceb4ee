"""Each check of the audit, both ways."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from bench_spark.collector.accounts import Accounts
from bench_spark.summary.audit import audit
from bench_spark.summary.checks import AuditInput, Check, verdict_of

GOOD = AuditInput(
    mode="rate",
    due=10_000,
    sent=10_000,
    wanted_rate_per_second=1000.0,
    send_rate_per_second=1000.0,
    blocked_seconds=0.0,
    busiest_agent_share=0.3,
    busiest_host_share=0.4,
    spark_cores=0.5,
    accounts=Accounts(sent=10_000, received_once=10_000),
    received=10_000,
    ends="both",
    asked_for=10_000,
    unconfirmed=0,
    lost_is_explained_by=None,
    confirms=True,
    clock_bound_ns=0,
    negative=0,
    latency_p50_us=500,
    warmup_seconds=5.0,
    shares_host=False,
    bytes_per_second=1_000_000.0,
    link_speed_mbit=1000,
    lower_bounds={"latency": []},
)


def checks(**changes: Any) -> dict[str, Check]:
    found = audit(replace(GOOD, **changes))
    return {check.name: check for check in found}


def test_a_good_run_passes_every_check() -> None:
    found = audit(GOOD)
    assert {check.name for check in found} == {"schedule", "accounts", "generator_cpu", "clocks"}
    assert {check.verdict for check in found} == {"pass"}
    assert verdict_of(found)["passed"] is True


@pytest.mark.parametrize(
    ("taken", "verdict", "says"),
    [
        ((100, 100), "pass", "every pair has its 100 samples"),
        ((100, 37), "warn", "1 of 2 pairs have fewer than 100 samples of the throughput, the few"),
        ((0, 0), "fail", "2 of 2 pairs"),
    ],
)
def test_samples_that_are_missing_are_told(taken: tuple[int, ...], verdict: str, says: str) -> None:
    found = checks(samples_wanted=100, samples_by_pair=taken)["samples"]
    assert found.verdict == verdict
    assert says in found.text


LOST = Accounts(sent=10, received_once=8, lost=2)
OUTAGES = tuple(
    {
        "agent": 1,
        "role": "producer",
        "member": member,
        "losses": 1,
        "reopened": 1,
        "down_seconds": 1.0 + member,
        "reason": "connection lost: reset",
    }
    for member in range(5)
)


@pytest.mark.parametrize(
    ("changes", "name", "verdict", "words"),
    [
        ({"sent": 9990}, "schedule", "pass", "10 unsent"),
        ({"sent": 9989}, "schedule", "fail", "11 of 10000 messages stayed unsent"),
        ({"send_rate_per_second": 990.0}, "schedule", "pass", "sent"),
        ({"send_rate_per_second": 989.0}, "schedule", "fail", "989 of 1000 msg/s"),
        ({"due": 0, "sent": 0}, "schedule", "fail", "not kept"),
        ({"sent": 1, "blocked_seconds": 2.5}, "schedule", "fail", "broker blocked .* 2.5 s"),
        ({"sent": 1, "busiest_agent_share": 0.95}, "schedule", "fail", "use more agents"),
        ({"sent": 1}, "schedule", "fail", "broker .* took no more"),
        ({"sent": 1, "outages": OUTAGES}, "schedule", "fail", "down for 15.0 s in all"),
        (
            {"outages": OUTAGES[:1]},
            "connections",
            "fail",
            "1 connections were lost .* 1 opened again.*agent 1 producer 0 for 1.0 s .*reset",
        ),
        ({"outages": OUTAGES}, "connections", "fail", "producer 4 for 5.0 s.* and 2 more"),
        ({"sent": 1, "busiest_host_share": 0.97}, "schedule", "fail", "host was 97% busy"),
        (
            {"sent": 1, "busiest_host_share": 0.97, "shares_host": True},
            "schedule",
            "fail",
            "broker and generator shared a host that was 97% busy",
        ),
        ({"latency_p50_us": 8_800_000}, "backlog", "warn", r"took 8\.8 s or longer"),
        ({"busiest_host_share": 0.97}, "host_cpu", "warn", "97% busy"),
        (
            {"busiest_host_share": 0.97, "shares_host": True},
            "spark_cpu",
            "warn",
            "0.5 cores of a busy machine",
        ),
        ({"busiest_agent_share": 0.89}, "generator_cpu", "pass", "89%"),
        ({"busiest_agent_share": 0.9}, "generator_cpu", "warn", "own queueing"),
        ({"busiest_agent_share": None}, "generator_cpu", "warn", "not known"),
        (
            {"busiest_agent_share": 0.99, "mode": "maximum"},
            "generator_cpu",
            "warn",
            "maximum may be the generator's",
        ),
        ({"accounts": None}, "accounts", "warn", "below 32 bytes"),
        ({"accounts": Accounts(sent=10, received_once=9)}, "accounts", "fail", "10 sent, but 9"),
        ({"received": 9999}, "accounts", "fail", "accounted for"),
        (
            {"accounts": Accounts(sent=10, received_once=7, indeterminate=3)},
            "accounts",
            "warn",
            "fate of 3 messages",
        ),
        ({"accounts": LOST}, "accounts", "pass", "all 10"),
        ({"accounts": LOST}, "loss", "fail", "2 confirmed messages lost"),
        ({"accounts": LOST, "confirms": False}, "loss", "fail", "2 messages lost"),
        (
            {"accounts": LOST, "lost_is_explained_by": "x-max-length=5"},
            "loss",
            "warn",
            "as x-max-length=5 allows",
        ),
        (
            {"accounts": Accounts(sent=10, received_once=6, left_in_broker=4)},
            "drain",
            "warn",
            "4 messages were still in the broker",
        ),
        ({"ends": "producers", "accounts": None}, "accounts", "pass", "all 10000 .* answer"),
        ({"ends": "producers", "unconfirmed": 3}, "accounts", "warn", "3 of 10000 .* no answer"),
        ({"ends": "producers", "unconfirmed": None}, "accounts", "warn", "confirms nothing"),
        ({"ends": "consumers", "received": 9_999}, "accounts", "warn", "only 9999 of the 10000"),
        (
            {"ends": "consumers", "received": 0, "asked_for": None},
            "accounts",
            "warn",
            "nothing was received",
        ),
        ({"negative": 3}, "clocks", "fail", "3 latencies were negative on one clock"),
        ({"negative": 3, "clock_bound_ns": 50_000}, "clocks", "warn", "error of 50 us"),
        ({"clock_bound_ns": 500_000}, "clocks", "pass", "within 500 us"),
        ({"clock_bound_ns": 501_000}, "clocks", "warn", "unreliable"),
        ({"clock_bound_ns": 501_000, "latency_p50_us": None}, "clocks", "pass", "agree"),
        ({"warmup_seconds": 4.9}, "warmup", "warn", "4.9 s is short"),
        ({"shares_host": True}, "host", "warn", "share a host"),
        ({"bytes_per_second": 100_000_000.0}, "link", "warn", "80% of the 1000 Mbit/s"),
        (
            {"lower_bounds": {"latency": ["p99_us", "p999_us"], "delivery_latency": []}},
            "lower_bounds",
            "warn",
            "latency: p99, p999 are lower bounds",
        ),
    ],
)
def test_each_check_has_its_verdict_and_says_why(
    changes: dict[str, Any], name: str, verdict: str, words: str
) -> None:
    found = checks(**changes)[name]
    assert found.verdict == verdict
    assert re.search(words, found.text)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"wanted_rate_per_second": None}, "schedule"),
        ({}, "loss"),
        ({}, "drain"),
        ({}, "warmup"),
        ({}, "host"),
        ({"bytes_per_second": 99_000_000.0}, "link"),
        ({"bytes_per_second": 1e12, "link_speed_mbit": None}, "link"),
        ({"bytes_per_second": 1e12, "shares_host": True}, "link"),
        ({"accounts": None}, "loss"),
        ({"ends": "producers", "sent": 0}, "accounts"),
        ({"ends": "consumers"}, "accounts"),
        ({"ends": "consumers", "asked_for": None}, "accounts"),
        ({}, "lower_bounds"),
    ],
)
def test_what_does_not_apply_is_not_mentioned(changes: dict[str, Any], name: str) -> None:
    assert name not in checks(**changes)


def test_only_a_failed_check_fails_the_audit() -> None:
    warned = [Check("a", "pass", "x"), Check("b", "warn", "y")]
    assert verdict_of(warned)["passed"] is True
    assert verdict_of([*warned, Check("c", "fail", "z")]) == {
        "passed": False,
        "checks": [
            {"name": "a", "verdict": "pass", "text": "x"},
            {"name": "b", "verdict": "warn", "text": "y"},
            {"name": "c", "verdict": "fail", "text": "z"},
        ],
    }
