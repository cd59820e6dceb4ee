"""The result of a run as a document, and its status, from ticks made by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hand_ticks import (
    RATE,
    HandTick,
    consumer,
    facts,
    good_ticks,
    plan,
    producer,
    summary,
)

from bench_spark.driver.accounts import Accounts
from bench_spark.driver.control import DRIVER, Failure
from bench_spark.results.checks import declared_limit


@pytest.mark.parametrize(
    ("late_us", "spread_us"),
    [([3.0, 12.5, 7.0], 9.5), ([4.0], 0.0), ([4.0, None], None), ([], None)],
)
def test_how_far_apart_agents_began_is_known_if_all_have_said(
    late_us: list[float | None], spread_us: float | None
) -> None:
    agents = [{"agent": n, "started_late_us": late} for n, late in enumerate(late_us)]
    assert summary(agents=agents).document["start_spread_us"] == spread_us


def test_the_connections_of_all_agents_are_added_up() -> None:
    told = {"agent": 0, "connections": {"producers": 4, "consumers": 5}}
    assert summary(agents=[told, told]).document["connections"] == {"producers": 8, "consumers": 10}
    assert summary(agents=[told, {"agent": 1}]).document["connections"] is None


def test_the_time_for_which_producers_were_blocked_is_never_longer_than_the_phase() -> None:
    """Events add up 500 connections that were blocked for 2 of 3 s."""
    blocked = [
        producer(second, due=RATE, sent=RATE // 2, blocked_ns=500 * 10**9) for second in (5, 6)
    ]
    text = summary([*blocked, producer(7, due=RATE)], plan=plan(producers=500)).document["reasons"]
    assert any("blocked its producers, each for 2.0 s on average" in one for one in text)


@pytest.mark.parametrize(
    ("changes", "status", "exit_code", "others"),
    [
        ({}, "degraded", 4, []),
        ({"plan": plan(slo=["p99 < 1us"])}, "degraded", 4, []),
        ({"failures": (Failure(1, "LaneLost", "reset"),)}, "degraded", 4, ["agent 1: reset"]),
        ({"failures": (Failure(DRIVER, "StoreError", "full"),)}, "degraded", 4, []),
        ({"interrupted_by": 130}, "aborted", 130, ["interrupted"]),
    ],
)
def test_a_result_that_is_not_stored_says_so_and_is_never_valid(
    changes: dict[str, Any], status: str, exit_code: int, others: list[str]
) -> None:
    found = summary(**changes).not_stored("full; it lacks all", instead_of="full")
    document = found.document
    assert (document["status"], document["exit_code"], found.exit_code) == (
        status,
        exit_code,
        exit_code,
    )
    assert document["reasons"] == [*others, "full; it lacks all"]


def test_an_agent_is_named_once() -> None:
    ended = (Failure(1, "RunError", "agent 1: its connection ended"),)
    assert summary(failures=ended).document["reasons"] == ["agent 1: its connection ended"]


# -- status and exit code ------------------------------------------------------------------------

LOST = Accounts(sent=300, received_once=290, lost=10)
BROKEN = (Failure(1, "LaneLost", "reset by peer"),)
LIMITED = plan(amqp={"queue": {"arguments": {"x-max-length": 5}}})
LENIENT = plan(audit={"undelivered_share": 0.01})
MAXIMUM = plan(load={"mode": "maximum"})
CONSUMING = plan(producers=0)
UNKNOWN = Accounts(sent=300, received_once=299, indeterminate=1)
LEFT = Accounts(sent=300, received_once=284, left_in_broker=16)
FAILED = Accounts(sent=300, received_once=297, failed=3)


def slow_ticks() -> list[HandTick]:
    """Half of what was due stayed unsent."""
    return [
        *(producer(second, due=RATE, sent=RATE // 2) for second in range(5, 8)),
        *(consumer(second, [100] * (RATE // 2)) for second in range(5, 8)),
    ]


NACKED = [
    *(producer(second, due=RATE, sent=RATE, confirmed=99, refused=1) for second in range(5, 8)),
    *(consumer(second, [100] * 99) for second in range(5, 8)),
]


@pytest.mark.parametrize(
    ("ticks", "changes", "status", "exit_code", "reason"),
    [
        (None, {}, "valid", 0, None),
        (None, {"failures": BROKEN}, "degraded", 4, "agent 1: reset by peer"),
        (
            slow_ticks(),
            {"accounts": Accounts(sent=150, received_once=150)},
            "degraded",
            4,
            "rate was not kept",
        ),
        (None, {"accounts": LOST}, "degraded", 5, "10 confirmed messages lost"),
        (None, {"accounts": LOST, "confirms": False}, "degraded", 4, "10 messages lost"),
        (None, {"accounts": LOST, "plan": LIMITED}, "valid", 0, None),
        (None, {"accounts": LOST, "failures": BROKEN}, "degraded", 5, "reset by peer"),
        (None, {"interrupted_by": 130}, "aborted", 130, "interrupted"),
        (None, {"interrupted_by": 143}, "aborted", 143, "interrupted"),
        (None, {"interrupted_by": 130, "accounts": LOST}, "aborted", 130, "interrupted"),
        ([], {"interrupted_by": 130, "measured_from": None}, "aborted", 130, "interrupted"),
        ([], {"measured_from": None, "accounts": None}, "failed", 4, "never started"),
        (
            [],
            {"measured_from": None, "accounts": None, "failures": BROKEN},
            "failed",
            4,
            "reset by peer",
        ),
        (None, {"accounts": Accounts(sent=300, received_once=1)}, "degraded", 4, "300 sent, but 1"),
        (None, {"accounts": UNKNOWN}, "degraded", 4, "fate of 1 messages is unknown"),
        (None, {"accounts": UNKNOWN, "plan": LENIENT}, "valid", 0, None),
        (None, {"accounts": LEFT}, "degraded", 4, "5% of the 300 expected"),
        (None, {"accounts": LEFT, "plan": MAXIMUM}, "valid", 0, None),
        ([], {"accounts": Accounts()}, "degraded", 4, "nothing was sent in the measured phase"),
        ([], {"accounts": Accounts(), "plan": MAXIMUM}, "degraded", 4, "nothing was sent"),
        ([], {"accounts": None, "plan": CONSUMING}, "degraded", 4, "warm-up took all"),
        (NACKED, {"accounts": FAILED}, "degraded", 4, "refused 3 of 300 messages"),
    ],
    ids=[
        "valid",
        "an agent failed",
        "schedule missed",
        "confirmed and lost",
        "lost without confirms",
        "lost as the queue's limit allows",
        "loss goes before failure",
        "interrupted",
        "terminated",
        "interruption goes before loss",
        "interrupted before the start",
        "never started",
        "failed before the start",
        "accounts do not close",
        "fate unknown",
        "fate unknown of as many as may be",
        "left in the broker at a rate",
        "left in the broker at the maximum",
        "nothing sent",
        "nothing sent at the maximum",
        "nothing left after the warm-up",
        "refused",
    ],
)
def test_status_and_exit_code(
    ticks: list[HandTick] | None,
    changes: dict[str, Any],
    status: str,
    exit_code: int,
    reason: str | None,
) -> None:
    found = summary(ticks, **changes)
    assert (found.document["status"], found.exit_code) == (status, exit_code)
    assert found.document["exit_code"] == exit_code
    if reason is None:
        assert found.document["reasons"] == []
    else:
        assert any(reason in text for text in found.document["reasons"])


REFUSING = {"x-max-length": 5, "x-overflow": "reject-publish"}


@pytest.mark.parametrize(
    ("kind", "keys", "limit"),
    [
        ("amqp", {}, None),
        ("amqp", {"amqp": {"queue": {"arguments": {"x-max-length": 5}}}}, "x-max-length=5"),
        ("amqp", {"amqp": {"queue": {"arguments": {"x-message-ttl": 9}}}}, "x-message-ttl=9"),
        ("amqp", {"amqp": {"queue": {"arguments": {"x-max-priority": 9}}}}, None),
        ("amqp", {"amqp": {"queue": {"arguments": {"x-max-length": 399}}}}, "x-max-length=399"),
        ("amqp", {"amqp": {"queue": {"arguments": {"x-max-length": 400}}}}, None),
        ("amqp", {"amqp": {"queue": {"arguments": {"x-max-length-bytes": 10**9}}}}, None),
        ("amqp", {"amqp": {"queue": {"arguments": {"x-message-ttl": 86_400_000}}}}, None),
        ("amqp", {"amqp": {"queue": {"arguments": REFUSING}}}, None),
        ("kafka", {"kafka": {"topic": {"properties": {"retention.ms": "604800000"}}}}, None),
        ("kafka", {"kafka": {"topic": {"properties": {"retention.bytes": -1}}}}, None),
        ("kafka", {"kafka": {"topic": {"properties": {"retention.ms": 7}}}}, "retention.ms=7"),
        ("kafka", {"kafka": {"topic": {"properties": {"flush.ms": 7}}}}, None),
        ("amqp", {"kafka": {"topic": {"properties": {"retention.ms": 7}}}}, None),
        ("kafka", {"amqp": {"queue": {"arguments": {"x-max-length": 5}}}}, None),
    ],
)
def test_a_limit_excuses_losses_if_it_can_have_dropped_messages_of_this_run(
    kind: str, keys: dict[str, Any], limit: str | None
) -> None:
    """400 messages, of 1000 bytes each, in 13 s."""
    run = facts(plan=plan(**keys), broker={"kind": kind})
    assert declared_limit(run, sent=400, sent_bytes=400_000) == limit
    found = summary(plan=plan(**keys), broker={"kind": kind}, accounts=LOST)
    assert found.exit_code == (0 if limit else 5)


# -- the document itself -------------------------------------------------------------------------


def test_the_document_is_plain_json_with_every_part() -> None:
    document = json.loads(json.dumps(summary().document, allow_nan=False))
    assert {
        "run_id",
        "status",
        "reasons",
        "scenario",
        "broker",
        "counts",
        "rates",
        "expected",
        "delivery_rate",
        "measures",
        "percentiles",
        "spec",
        "audit",
        "resources",
        "environment",
    } <= document.keys()
    assert document["spec"]["latency_p99_us"] == document["measures"]["latency"]["p99_us"]
    assert document["spec"]["messages_acked"] == 300


def test_the_fields_of_the_metrics_specification_have_its_names() -> None:
    failing = producer(6, refused=2, returned=3, errors=1)
    spec = summary([*good_ticks(), failing]).document["spec"]
    assert list(spec) == [
        "latency_min_us",
        "latency_max_us",
        "latency_mean_us",
        "latency_p50_us",
        "latency_p95_us",
        "latency_p99_us",
        "latency_p999_us",
        "messages_sent",
        "messages_received",
        "messages_acked",
        "bytes_sent",
        "bytes_received",
        "errors",
        "send_rate",
        "receive_rate",
        "delivery_rate",
    ]
    assert spec["errors"] == 6, "lost connections, and messages that could not be published"


def test_a_run_that_never_started_has_a_document_too() -> None:
    document = summary([], measured_from=None, measured_until=None, accounts=None).document
    assert document["rates"] == {"send_rate": 0.0, "receive_rate": 0.0}
    assert document["measures"] == {}
    assert document["measured_seconds"] == 0.0
    json.dumps(document, allow_nan=False)
