"""How many messages a result counts, expects and divides by seconds, from ticks made by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hand_ticks import (
    RATE,
    START_SECONDS,
    START_US,
    HandTick,
    consumer,
    good_ticks,
    plan,
    producer,
    summary,
)

from bench_spark.collector.accounts import Accounts
from bench_spark.collector.evidence import Counted
from bench_spark.plan import Plan

# -- counts and rates ----------------------------------------------------------------------------


def test_counts_are_about_messages_of_the_measured_phase() -> None:
    counts = summary().document["counts"]
    assert (counts["due"], counts["sent"], counts["unsent"]) == (300, 300, 0)
    assert (counts["confirmed"], counts["received"], counts["received_once"]) == (300, 300, 300)
    assert (counts["lost"], counts["duplicates"], counts["left_in_broker"]) == (0, 0, 0)
    assert (counts["bytes_received"], counts["errors"]) == (300_000, 0)


def test_a_measured_message_counts_whenever_it_arrives() -> None:
    late = [*good_ticks()[:-1], consumer(9, [2_000_000] * RATE)]
    document = summary(late).document
    assert document["counts"]["received"] == 300
    assert document["measures"]["latency"]["max_us"] == 2_000_000
    assert document["rates"]["receive_rate"] == pytest.approx(200 / 3)


def test_rates_are_about_the_seconds_of_the_measured_phase() -> None:
    document = summary([*good_ticks(), producer(8, sent=50), consumer(5, [5] * 30, "warmup")])
    rates = document.document["rates"]
    assert rates["send_rate"] == pytest.approx(RATE)
    assert rates["receive_rate"] == pytest.approx((300 + 30) / 3)


def test_a_phase_with_an_open_end_has_the_rates_that_agents_counted() -> None:
    """The last second goes on into the drain, and events count by the second."""
    document = summary(counted=Counted(sent=240, received=210), measured_until=START_SECONDS + 7.1)
    assert document.document["rates"]["send_rate"] == pytest.approx(240 / 2.1)
    assert document.document["rates"]["receive_rate"] == pytest.approx(210 / 2.1)


@pytest.mark.parametrize("nanoseconds", [0, 1, 499, 500, 501, 999])
def test_the_measured_window_is_the_same_at_any_nanosecond(nanoseconds: int) -> None:
    start = (START_US * 1000 + nanoseconds) / 1e9
    found = summary(measured_from=start + 5, measured_until=start + 8)
    assert found.document["rates"]["send_rate"] == pytest.approx(RATE)
    assert found.document["percentiles"]["interval_max"]["latency"]["intervals"] == 3
    assert found.exit_code == 0


def test_duplicates_are_what_was_received_more_than_once() -> None:
    again = [*good_ticks(), consumer(7, [100] * 5)]
    assert summary(again).document["counts"]["duplicates"] == 5


@pytest.mark.parametrize(
    ("identity", "agents", "corrupted", "status"),
    [
        ({"content_hash": True}, 1, 2, "degraded"),
        ({"content_hash": True}, 2, None, "valid"),
        ({}, 1, None, "valid"),
    ],
)
def test_corrupted_messages_are_told_where_contents_were_compared(
    identity: dict[str, Any], agents: int, corrupted: int | None, status: str
) -> None:
    asked = plan(
        identity={"carrier": "append", **identity}, agents=agents, producers=2, consumers=2
    )
    changed = [
        HandTick("consumer", phase, second, {"corrupted": 1})
        for phase, second in (("warmup", 4), ("measure", 6), ("measure", 7))
    ]
    document = summary([*good_ticks(), *changed], plan=asked).document
    assert document["counts"]["corrupted"] == corrupted
    assert document["status"] == status
    checks = [check["name"] for check in document["audit"]["checks"]]
    assert ("content" in checks) == (corrupted is not None)


def test_without_confirms_nothing_is_said_of_them() -> None:
    document = summary(confirms=False).document
    assert document["counts"]["confirmed"] is None
    assert document["spec"]["messages_acked"] is None


def test_without_accounts_losses_are_not_claimed() -> None:
    counts = summary(accounts=None).document["counts"]
    assert counts["received_once"] == 300
    assert counts["lost"] is counts["duplicates"] is counts["indeterminate"] is None


def test_malformed_foreign_and_errors_count_in_any_phase() -> None:
    odd = HandTick("consumer", "warmup", 1, {"malformed": 1, "foreign": 2, "errors": 3})
    counts = summary([*good_ticks(), odd, producer(6, errors=4)]).document["counts"]
    assert (counts["malformed"], counts["foreign"], counts["errors"]) == (1, 2, 7)


# -- expected ------------------------------------------------------------------------------------


def test_the_delivery_rate_is_of_what_the_load_asked_for() -> None:
    document = summary(accounts=Accounts(sent=300, received_once=270, left_in_broker=30)).document
    assert document["expected"] == 300
    assert document["delivery_rate"] == pytest.approx(0.9)


@pytest.mark.parametrize(
    "changes", [{"plan": plan(load={"mode": "maximum"})}, {"interrupted_by": 130}]
)
def test_where_nothing_was_planned_what_was_sent_is_expected(changes: dict[str, Any]) -> None:
    ticks = [tick for tick in good_ticks() if tick.second < 7]
    document = summary(ticks, accounts=Accounts(sent=200, received_once=150, lost=50), **changes)
    assert document.document["expected"] == 200
    assert document.document["delivery_rate"] == pytest.approx(0.75)


FAN_OUT = plan(topology="fan-out", producers=1, consumers=4)
FAN_OUT_AT_ITS_OWN_SPEED = plan(
    topology="fan-out", producers=1, consumers=4, load={"mode": "maximum"}
)


@pytest.mark.parametrize("asked", [FAN_OUT, FAN_OUT_AT_ITS_OWN_SPEED])
def test_every_copy_of_a_fan_out_is_expected(asked: Plan) -> None:
    accounts = Accounts(sent=300, received_once=900, left_in_broker=300, copies=4)
    document = summary(plan=asked, accounts=accounts).document
    assert (document["copies"], document["expected"]) == (4, 1200)
    assert document["delivery_rate"] == pytest.approx(0.75)
    assert accounts.closes


def test_unsent_messages_of_a_fan_out_are_missing_at_every_consumer() -> None:
    ticks = [*good_ticks(), producer(7, due=4)]
    accounts = Accounts(sent=300, received_once=1200, copies=4)
    ticks.append(HandTick("consumer", "measure", 7, {}, {"delivery_latency": [100] * 1200}))
    document = summary(ticks, plan=FAN_OUT, accounts=accounts).document
    assert document["counts"]["unsent"] == 4
    bounds = document["measures"]["delivery_latency"]["lower_bounds"]
    assert bounds == ["p99_us", "p999_us"], "16 of 1216"


# -- runs with one end ---------------------------------------------------------------------------

PUBLISHING = plan(consumers=0)
CONSUMING = plan(producers=0)
CONSUMING_MESSAGES = plan(producers=0, load={"messages": 500})


def test_without_consumers_what_they_would_have_counted_is_unknown_and_not_zero() -> None:
    ticks = [
        producer(second, due=RATE, sent=RATE, confirmed=RATE - 3, refused=1) for second in (5, 6, 7)
    ]
    document = summary(ticks, plan=PUBLISHING, accounts=None).document
    counts = document["counts"]
    assert (counts["sent"], counts["confirmed"]) == (300, 291)
    assert (counts["refused"], counts["unconfirmed"]) == (3, 6)
    for name in ("received", "received_once", "lost", "duplicates", "foreign", "bytes_received"):
        assert counts[name] is None
    assert document["rates"] == {"send_rate": pytest.approx(RATE), "receive_rate": None}
    assert document["delivery_rate"] is None
    assert document["expected"] == 300
    assert document["spec"]["latency_p99_us"] is None
    assert document["status"] == "valid"
    assert document["counts"].keys() == summary().document["counts"].keys()


def test_without_producers_what_they_would_have_counted_is_unknown_and_not_zero() -> None:
    ticks = [HandTick("consumer", "measure", 5, {"received": 200, "bytes": 900, "redelivered": 4})]
    document = summary(ticks, plan=CONSUMING, accounts=None, confirms=False).document
    counts = document["counts"]
    assert (counts["received"], counts["bytes_received"], counts["redelivered"]) == (200, 900, 4)
    for name in ("due", "unsent", "sent", "confirmed", "received_once", "lost", "foreign"):
        assert counts[name] is None
    assert document["rates"] == {"send_rate": None, "receive_rate": pytest.approx(200 / 3)}
    assert (document["expected"], document["delivery_rate"]) == (None, None)
    assert document["status"] == "valid"
    assert document["counts"].keys() == summary().document["counts"].keys()


def test_the_rate_of_publishing_a_number_is_from_the_first_to_the_last_confirmation() -> None:
    """The first message was sent in the middle of a second, and the last confirmed in another."""
    ticks = [
        producer(4, "warmup", sent=900, confirmed=900),
        HandTick(
            "producer",
            "measure",
            5,
            {"due": 300, "sent": 300, "confirmed": 200},
            {"confirm_latency": [100] * 200},
        ),
        HandTick("producer", "measure", 6, {"confirmed": 100}, {"confirm_latency": [900] * 100}),
    ]
    document = summary(
        ticks,
        plan=plan(consumers=0, load={"mode": "maximum", "messages": 300}),
        accounts=None,
        measured_from=START_SECONDS + 5.5,
        measured_until=START_SECONDS + 6.5,
    ).document
    assert document["rates"]["send_rate"] == pytest.approx(300)
    assert document["percentiles"]["interval_max"]["confirm_latency"]["max_us"] == 900
    assert document["status"] == "valid"


def test_the_rate_of_a_number_of_messages_is_from_the_first_to_the_last() -> None:
    ticks = [
        HandTick("consumer", "warmup", 4, {"received": 70}),
        HandTick("consumer", "measure", 5, {"received": 400}),
        HandTick("consumer", "measure", 6, {"received": 100}),
    ]
    document = summary(
        ticks,
        plan=CONSUMING_MESSAGES,
        accounts=None,
        confirms=False,
        measured_from=START_SECONDS + 5.9,
        measured_until=START_SECONDS + 6.1,
    ).document
    assert document["rates"]["receive_rate"] == pytest.approx(2500)
    assert document["measured_seconds"] == pytest.approx(0.2)
    assert document["expected"] == 500
