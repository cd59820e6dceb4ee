"""Each check of the audit, both ways."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

import pytest
from hand_ticks import START_SECONDS, facts, plan

from bench_spark.driver.accounts import Accounts
from bench_spark.results.audit import audit
from bench_spark.results.checks import Check, Evidence, ReceivedAgainstSent, verdict_of

GOOD: dict[str, Any] = {
    "accounts": Accounts(sent=10_000, received_once=10_000),
    "busiest_agent_share": 0.3,
    "busiest_host_share": 0.4,
    "spark_cores": 0.5,
    "due": 10_000,
    "sent": 10_000,
    "received": 10_000,
    "unconfirmed": 0,
    "send_rate": 1000.0,
    "receive_rate": None,
    "mode": "rate",
    "latency_p50_us": 500,
    "blocked_seconds": 0.0,
    "lost_is_explained_by": None,
    "expected": 10_000,
    "link_speed_mbit": 1000,
    "bytes_sent": 10_000_000,
}
_COUNTS = (
    "due",
    "sent",
    "late",
    "received",
    "unconfirmed",
    "refused",
    "returned",
    "given_up",
    "duplicates",
    "bytes_sent",
    "bytes_received",
)
_DERIVED = (
    *("has_schedule", "blocked_seconds", "expected", "lost_is_explained_by"),
    *("received_against_sent", "outages", "lacks_drain", "has_other_verdict"),
)


def evidence(**changes: Any) -> Evidence:
    """Of a good run of 10 s, with these changes: fields of its facts, counts, keys of its scenario,
    or values of what `Evidence` derives."""
    given = GOOD | changes
    host = {name: given.get(name) for name in ("link_speed_mbit", "has_compiled_kernels", "host")}
    host["shares_host_with_broker"] = given.get("shares_host", False)
    host = {name: value for name, value in host.items() if value is not None}
    latency = {
        "p50_us": given["latency_p50_us"],
        "negative": given.get("negative", 0),
        "lower_bounds": given.get("lower_bounds", ()),
    }
    stalled = given.get("stalled_seconds", {})
    names = ("accounts", "busiest_agent_share", "busiest_host_share", "spark_cores")
    names += ("confirms", "clock_bound_ns", "silences")
    whole = facts(
        plan=given.get("plan") or plan(**scenario(given)),
        measured=(START_SECONDS + 5, START_SECONDS + 5 + given.get("measured_seconds", 10.0)),
        environment={"hosts": [host]},
        agents=[{"agent": agent, "stalled_seconds": seconds} for agent, seconds in stalled.items()],
        **{name: given[name] for name in names if name in given},
    )
    derived = {name: given[name] for name in _DERIVED if name in given}
    kind = type("Given", (Evidence,), derived)
    found: Evidence = kind(
        whole,
        totals=None,
        counts=defaultdict(int, {name: given[name] for name in _COUNTS if name in given}),
        rates={name: given[name] for name in ("send_rate", "receive_rate")},
        measures={"latency": latency, "send_lag": {"lower_bounds": ["p99_us"]}},
        samples_by_pair=given.get("samples_by_pair", ()),
    )
    return found


def scenario(given: dict[str, Any]) -> dict[str, Any]:
    samples = given.get("samples_wanted", 0)
    load = {"mode": "maximum" if samples else given["mode"]}
    load |= {"rate_per_second": 1000} if load["mode"] in ("rate", "request") else {}
    load |= {} if samples else {"messages": given.get("messages", 10_000)}
    return {
        "load": load,
        "phases": {"warmup_seconds": given.get("warmup_seconds", 5.0), "measure_seconds": 10},
        "producers": given.get("producers", 1),
        "consumers": given.get("consumers", 1),
        "audit": {"undelivered_share": given.get("undelivered_share", 0.001)},
        "sampling": {"samples": samples},
    }


def checks(**changes: Any) -> dict[str, Check]:
    return {check.name: check for check in audit(evidence(**changes))}


def test_a_good_run_passes_every_check() -> None:
    found = audit(evidence())
    assert {check.name for check in found} == {"schedule", "accounts", "generator_cpu", "clocks"}
    assert {check.verdict for check in found} == {"pass"}
    assert verdict_of(found)["passed"] is True


@pytest.mark.parametrize(
    ("changes", "check", "limited_by"),
    [
        ({}, "schedule", None),
        ({"sent": 1}, "schedule", "broker"),
        ({"sent": 1, "blocked_seconds": 2.5}, "schedule", "broker"),
        ({"sent": 1, "busiest_agent_share": 0.95}, "schedule", "generator"),
        ({"sent": 1, "busiest_host_share": 0.97}, "schedule", "generator"),
        ({"sent": 1, "busiest_host_share": 0.97, "shares_host": True}, "schedule", "host"),
        ({"latency_p50_us": 8_800_000}, "backlog", "broker"),
        ({"busiest_agent_share": 0.95}, "generator_cpu", "generator"),
        ({"busiest_agent_share": None}, "generator_cpu", None),
        ({"busiest_host_share": 0.97}, "host_cpu", "host"),
        ({"stalled_seconds": {2: 0.5}}, "generator_stall", "generator"),
        ({"stalled_seconds": {2: 4.0}}, "generator_stall", "generator"),
    ],
)
def test_a_check_that_knows_whose_limit_it_was_says_so(
    changes: dict[str, Any], check: str, limited_by: str | None
) -> None:
    assert checks(**changes)[check].as_dict().get("limited_by") == limited_by


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
UNKNOWN_TEN = Accounts(sent=10_000, received_once=9_990, indeterminate=10)
UNKNOWN_ELEVEN = Accounts(sent=10_000, received_once=9_989, indeterminate=11)
SILENCES = (
    {"consumers": [3], "after_seconds": 12.3, "seconds": 7.0},
    {"consumers": [4, 9], "after_seconds": 12.3, "seconds": 6.0},
)
LEFT_500 = Accounts(sent=10_000, received_once=9_500, left_in_broker=500)
LEFT_501 = Accounts(sent=10_000, received_once=9_499, left_in_broker=501)
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
        (
            {"host": "h1", "has_compiled_kernels": False},
            "kernels",
            "warn",
            "agents on h1 ran their inner loops un",
        ),
        (
            {"sent": 9989},
            "schedule",
            "fail",
            "9989 of 10000 messages due were sent in time, 0 after the .* and 11 not at all",
        ),
        ({"late": 100}, "schedule", "pass", "sent"),
        (
            {"late": 101},
            "schedule",
            "fail",
            "9899 of 10000 .* in time, 101 after the measured phase, and 0 not at all",
        ),
        ({"late": 95, "sent": 9994}, "schedule", "fail", "95 after .*, and 6 not"),
        ({"late": 200, "measured_seconds": 5.0}, "schedule", "pass", "sent"),
        ({"late": 201, "measured_seconds": 5.0}, "schedule", "fail", "201 after"),
        ({"due": 2, "sent": 2, "late": 1}, "schedule", "pass", "sent"),
        ({"due": 2, "sent": 2, "late": 2}, "schedule", "fail", "0 of 2 messages due"),
        (
            {"samples_wanted": 100, "samples_by_pair": (0, 3), "lacks_drain": True},
            "samples",
            "fail",
            "the fewest 0: the run was cut short$",
        ),
        (
            {"samples_wanted": 100, "samples_by_pair": (2, 3)},
            "samples",
            "warn",
            "the fewest 2: phases.measure_seconds were over before$",
        ),
        (
            {"due": 0, "sent": 0, "lacks_drain": True},
            "schedule",
            "fail",
            "not kept: the run ended before a message was due",
        ),
        ({"sent": 1, "blocked_seconds": 2.5}, "schedule", "fail", "broker blocked .* 2.5 s"),
        ({"sent": 1, "busiest_agent_share": 0.95}, "schedule", "fail", "use more agents"),
        ({"sent": 1}, "schedule", "fail", "broker .* took no more"),
        ({"sent": 1, "outages": OUTAGES}, "schedule", "fail", "down, the longest for 5.0 s"),
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
        ({"accounts": UNKNOWN_TEN}, "indeterminate", "warn", "fate of 10 messages is unknown$"),
        (
            {"accounts": UNKNOWN_ELEVEN},
            "indeterminate",
            "fail",
            "fate of 11 messages is unknown, of 10000 expected: more than the 0.10% of "
            "audit.undelivered_share",
        ),
        ({"accounts": UNKNOWN_ELEVEN, "expected": 11_000}, "indeterminate", "warn", "fate of 11"),
        (
            {"accounts": UNKNOWN_TEN, "undelivered_share": 0.0},
            "indeterminate",
            "fail",
            "fate of 10",
        ),
        (
            {"accounts": UNKNOWN_ELEVEN, "undelivered_share": 1.0},
            "indeterminate",
            "warn",
            "fate of 11",
        ),
        ({"accounts": UNKNOWN_ELEVEN, "lacks_drain": True}, "indeterminate", "warn", "fate of 11"),
        (
            {
                "accounts": Accounts(sent=5_000, received_once=9_989, indeterminate=11, copies=2),
            },
            "indeterminate",
            "fail",
            "of 10000 expected",
        ),
        ({"accounts": LOST}, "accounts", "pass", "all 10"),
        ({"accounts": UNKNOWN_ELEVEN}, "accounts", "pass", "all 10000 messages"),
        ({"accounts": LOST}, "loss", "fail", "2 confirmed messages lost"),
        ({"accounts": LOST, "confirms": False}, "loss", "warn", "2 messages lost"),
        (
            {"accounts": LOST, "confirms": False, "expected": 1_999},
            "loss",
            "fail",
            "2 messages lost, and no declared limit explains it, of 1999 expected: more than",
        ),
        (
            {
                "accounts": Accounts(sent=10_000, received_once=9_989, lost=8, indeterminate=3),
                "confirms": False,
            },
            "loss",
            "fail",
            "8 messages lost",
        ),
        (
            {"accounts": LOST, "lost_is_explained_by": "x-max-length=5"},
            "loss",
            "warn",
            "as x-max-length=5 allows",
        ),
        ({"accounts": LEFT_500}, "drain", "warn", "500 messages were still in the broker .*ended$"),
        ({"accounts": LEFT_501}, "drain", "fail", "501 messages .* 5% of the 10000 expected"),
        ({"accounts": LEFT_501, "mode": "request"}, "drain", "fail", "501 messages"),
        ({"accounts": LEFT_501, "mode": "maximum"}, "drain", "warn", "501 messages"),
        ({"accounts": LEFT_501, "mode": "window"}, "drain", "warn", "501 messages"),
        ({"accounts": LEFT_501, "lacks_drain": True}, "drain", "warn", "501 messages"),
        ({"refused": 10}, "refused", "warn", "refused 10 of 10000 messages$"),
        ({"refused": 11}, "refused", "fail", "refused 11 of 10000 messages: more than the 0.10%"),
        ({"refused": 11, "consumers": 0}, "refused", "fail", "refused 11 of 10000"),
        ({"returned": 10}, "refused", "warn", "refused 0 and returned 10 of 10000 messages$"),
        ({"refused": 5, "returned": 6}, "refused", "fail", "refused 5 and returned 6 of .* 0.10%"),
        ({"given_up": 10}, "given_up", "warn", "10 of 10000 messages were given up by their send"),
        ({"given_up": 11}, "given_up", "fail", "11 of 10000 .* more than the 0.10%"),
        ({"duplicates": 11}, "repeats", "warn", "11 messages came more than once"),
        (
            {"stalled_seconds": {2: 0.5}},
            "generator_stall",
            "warn",
            "in the 10 s measured: agent 2 for 0.5 s;",
        ),
        (
            {"stalled_seconds": {2: 0.3, 7: 4.0}},
            "generator_stall",
            "fail",
            "agent 7 for 4.0 s, agent 2 for 0.3 s;",
        ),
        (
            {"stalled_seconds": dict.fromkeys(range(5), 1.0)},
            "generator_stall",
            "fail",
            "agent 2 for 1.0 s, and 2 more",
        ),
        (
            {"silences": SILENCES[:1]},
            "silence",
            "fail",
            "consumer 3 received nothing for 7 s, from second 12 of the measured phase on, while "
            "messages for it were confirmed$",
        ),
        (
            {"silences": SILENCES, "confirms": False, "mode": "maximum"},
            "silence",
            "fail",
            "were sent; 1 more had such a time",
        ),
        (
            {"silences": SILENCES[1:]},
            "silence",
            "fail",
            "the 2 consumers that share with consumer 4 received nothing for 6 s",
        ),
        ({"sent": 0}, "messages", "fail", "nothing was sent in the measured phase: lengthen"),
        (
            {"sent": 0, "received_against_sent": ReceivedAgainstSent(0.0, 6309.4, 63094, 0)},
            "messages",
            "fail",
            "; the 6309 msg/s received are what the warm-up had left, and no result$",
        ),
        ({"sent": 0, "consumers": 0}, "messages", "fail", "nothing was sent"),
        ({"received": 0}, "messages", "fail", "none of the 10000 messages .* was received"),
        ({"received": 0, "lacks_drain": True}, "messages", "fail", "none of the 10000 messages"),
        ({"accounts": None, "received": 9_990}, "accounts", "warn", "losses are not counted"),
        (
            {"accounts": None, "received": 9_989},
            "indeterminate",
            "fail",
            "11 messages were not received, of 10000 expected: more than the 0.10%",
        ),
        (
            {"received": 0, "producers": 0},
            "messages",
            "fail",
            "nothing was received .* the warm-up took all there was; .*phases.warmup_seconds to 0",
        ),
        ({"consumers": 0, "accounts": None}, "accounts", "pass", "all 10000 .* answer"),
        (
            {"consumers": 0, "unconfirmed": 10},
            "indeterminate",
            "warn",
            "10 of 10000 .* no answer",
        ),
        ({"consumers": 0, "unconfirmed": 11}, "indeterminate", "fail", "11 of 10000 .* 0.10%"),
        ({"consumers": 0, "unconfirmed": None}, "accounts", "warn", "confirms nothing"),
        ({"producers": 0, "received": 9_999}, "accounts", "warn", "only 9999 of the 10000"),
        (
            {"received_against_sent": ReceivedAgainstSent(1000.0, 1019.0, 0, 0)},
            "rates",
            "pass",
            "received 1019 of 1000 msg/s sent$",
        ),
        (
            {"received_against_sent": ReceivedAgainstSent(1000.0, 979.0, 0, 7)},
            "rates",
            "warn",
            "2.1% less: the broker was behind; 7 messages arrived after",
        ),
        # More than a tenth more, and more than was under way at the ends of the phase.
        (
            {"received_against_sent": ReceivedAgainstSent(1000.0, 1101.0, 0, 0)},
            "rates",
            "fail",
            "10.1% more: messages came more than once",
        ),
        (
            {"received_against_sent": ReceivedAgainstSent(1000.0, 1090.0, 900, 0)},
            "rates",
            "warn",
            "9.0% more: 900 messages of the warm-up arrived",
        ),
        (
            {
                "received_against_sent": ReceivedAgainstSent(1000.0, 1101.0, 200, 0),
                "measured_seconds": 2.0,
            },
            "rates",
            "warn",
            "10.1% more",
        ),
        ({"negative": 3}, "clocks", "fail", "3 latencies were negative on one clock"),
        ({"negative": 3, "clock_bound_ns": 50_000}, "clocks", "warn", "error of 50 us"),
        ({"negative": 3, "producers": 0}, "clocks", "warn", "3 latencies were negative"),
        ({"clock_bound_ns": 500_000}, "clocks", "pass", "within 500 us"),
        ({"clock_bound_ns": 501_000}, "clocks", "warn", "unreliable"),
        ({"clock_bound_ns": 501_000, "latency_p50_us": None}, "clocks", "pass", "agree"),
        ({"warmup_seconds": 4.9}, "warmup", "warn", "4.9 s is short"),
        ({"shares_host": True}, "host", "warn", "share a host"),
        ({"bytes_sent": 1_000_000_000}, "link", "warn", "80% of the 1000 Mbit/s"),
        (
            {"lower_bounds": ["p99_us", "p999_us"]},
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
        ({"has_schedule": False}, "schedule"),
        ({}, "loss"),
        ({}, "drain"),
        ({}, "refused"),
        ({}, "indeterminate"),
        ({"consumers": 0}, "indeterminate"),
        ({}, "messages"),
        ({}, "generator_stall"),
        ({}, "silence"),
        ({"sent": 0, "lacks_drain": True, "has_other_verdict": True}, "messages"),
        ({"due": 0, "sent": 0}, "schedule"),
        ({}, "warmup"),
        ({}, "host"),
        ({"bytes_sent": 990_000_000}, "link"),
        ({"bytes_sent": 10_000_000_000_000, "link_speed_mbit": None}, "link"),
        ({"bytes_sent": 10_000_000_000_000, "shares_host": True}, "link"),
        ({"accounts": None}, "loss"),
        ({"consumers": 0, "sent": 0}, "accounts"),
        ({"producers": 0}, "accounts"),
        ({"producers": 0, "messages": None}, "accounts"),
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
