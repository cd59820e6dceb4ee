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

from bench_spark.driver.accounts import Accounts, Counted
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


def test_sending_counts_messages_of_the_phase_and_receiving_what_its_seconds_brought() -> None:
    """A backlog of the warm-up is sent, and received, in the measured seconds."""
    ticks = [
        *good_ticks()[:-1],
        producer(5, "warmup", sent=177),
        consumer(5, [5] * 30, "warmup"),
        consumer(9, [3_000_000] * RATE),
    ]
    document = summary(ticks).document
    assert document["rates"]["send_rate"] == pytest.approx(RATE), "what was asked for, not 159"
    assert document["rates"]["receive_rate"] == pytest.approx((200 + 30) / 3)
    assert document["spec"]["messages_sent"] == document["spec"]["messages_received"] == 300
    assert document["spec"]["send_rate"] == pytest.approx(300 / 3)
    assert document["spec"]["receive_rate"] == pytest.approx(300 / 3)


def test_what_the_warm_up_had_left_is_no_result_of_a_phase_without_a_message() -> None:
    left = [consumer(second, [5] * RATE, "warmup") for second in (5, 6)]
    found = summary(left, accounts=Accounts())
    document = found.document
    assert (document["status"], found.exit_code) == ("degraded", 4)
    assert document["counts"]["sent"] == document["counts"]["received"] == 0
    assert document["rates"] == {"send_rate": 0, "receive_rate": pytest.approx(2 * RATE / 3)}
    assert (document["spec"]["receive_rate"], document["measures"]) == (0, {})
    assert document["reasons"][0].endswith(
        "; the 67 msg/s received are what the warm-up had left, and no result"
    )


def test_a_message_of_the_phase_that_goes_out_just_after_it_was_sent_at_its_rate() -> None:
    ticks = good_ticks()
    ticks[4] = producer(7, due=RATE, sent=RATE - 3, confirmed=RATE)
    rates = summary([*ticks, producer(8, sent=3)]).document["rates"]
    assert rates["send_rate"] == pytest.approx(RATE)


@pytest.mark.parametrize(
    ("of_warmup", "late", "verdict", "said"),
    [
        (0, 0, "pass", "received 100 of 100 msg/s sent"),
        (5, 0, "pass", "received 102 of 100 msg/s sent"),
        (7, 0, "warn", "2.3% more: 7 messages of the warm-up arrived in the measured seconds"),
        (29, 0, "warn", "9.7% more"),
        (31, 0, "fail", "10.3% more: 31 messages of the warm-up"),
        (100, 40, "fail", "20.0% more: 100 messages of the warm-up"),
        (0, 7, "warn", "2.3% less: the broker was behind; 7 messages arrived after the measured"),
        (10, 90, "warn", "26.7% less: the broker was behind; 90 messages arrived after"),
    ],
)
def test_the_audit_says_why_less_or_more_was_received_than_sent(
    of_warmup: int, late: int, verdict: str, said: str
) -> None:
    ticks = [
        *good_ticks()[:-1],
        consumer(5, [5] * of_warmup, "warmup"),
        consumer(7, [300] * (RATE - late)),
        consumer(8, [900_000] * late),
    ]
    document = summary(ticks).document
    [check] = [one for one in document["audit"]["checks"] if one["name"] == "rates"]
    assert check["verdict"] == verdict
    assert said in check["text"]
    assert document["status"] == ("degraded" if verdict == "fail" else "valid")
    assert (document["exit_code"] == 4) is (verdict == "fail")


def test_every_copy_of_a_fan_out_is_expected_at_the_rate_of_sending() -> None:
    ticks = [*good_ticks(), *(consumer(second, [5] * RATE) for second in (5, 6, 7))]
    document = summary(
        ticks,
        plan=plan(topology="fan-out", consumers=2),
        accounts=Accounts(sent=300, received_once=600, copies=2),
    ).document
    assert document["copies"] == 2
    [check] = [one for one in document["audit"]["checks"] if one["name"] == "rates"]
    assert (check["verdict"], check["text"]) == ("pass", "received 200 of 200 msg/s sent")


def test_repeats_that_nobody_can_tell_apart_are_no_deliveries() -> None:
    """Bodies below 32 bytes carry no number."""
    ticks = [*good_ticks(), consumer(7, [300] * 2)]
    document = summary(ticks, plan=plan(message={"bytes": 16}), accounts=None).document
    assert (document["counts"]["received"], document["expected"]) == (302, 300)
    assert document["delivery_rate"] == document["spec"]["delivery_rate"] == 1.0
    [check] = [one for one in document["audit"]["checks"] if one["name"] == "repeats"]
    assert (check["verdict"], check["text"][:35]) == ("warn", "2 messages more were received than ")


def test_what_the_warm_up_was_late_with_is_expected_of_small_bodies() -> None:
    """They belong to the phase in which they were sent: more than the schedule has in it."""
    ticks = [*good_ticks(), producer(5, due=2, sent=2), consumer(5, [5] * 2)]
    document = summary(ticks, plan=plan(message={"bytes": 16}), accounts=None).document
    assert (document["counts"]["sent"], document["counts"]["received"]) == (302, 302)
    assert (document["expected"], document["delivery_rate"]) == (302, 1.0)
    assert document["rates"]["send_rate"] == pytest.approx(RATE), "no more than was asked for"


def test_repeats_alone_do_not_pass_for_throughput() -> None:
    ticks = [*good_ticks(), consumer(6, [5] * 60)]
    [check] = [one for one in summary(ticks).document["audit"]["checks"] if one["name"] == "rates"]
    assert (check["verdict"], "more than once" in check["text"]) == ("fail", True)


def test_a_phase_with_an_open_end_has_the_rates_that_agents_counted() -> None:
    """The last second goes on into the drain, and events count by the second."""
    document = summary(counted=Counted(sent=240, received=210), measured_until=START_SECONDS + 7.1)
    assert document.document["rates"]["send_rate"] == pytest.approx(240 / 2.1)
    assert document.document["rates"]["receive_rate"] == pytest.approx(210 / 2.1)


@pytest.mark.parametrize("nanoseconds", [0, 1, 499, 500, 501, 999])
def test_the_measured_window_is_the_same_at_any_nanosecond(nanoseconds: int) -> None:
    start = (START_US * 1000 + nanoseconds) / 1e9
    found = summary(measured_from=start + 5, measured_until=start + 8)
    assert found.document["rates"]["send_rate"] == RATE, "not above it by a hair"
    assert found.document["percentiles"]["interval_max"]["latency"]["intervals"] == 3
    assert found.exit_code == 0


def test_duplicates_are_what_was_received_more_than_once() -> None:
    again = [*good_ticks(), consumer(7, [100] * 5)]
    assert summary(again).document["counts"]["duplicates"] == 5


@pytest.mark.parametrize(
    ("identity", "agents", "corrupted", "status"),
    [
        ({"content_hash": True}, 1, 2, "degraded"),
        ({"content_hash": True}, 2, None, "degraded"),
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
    assert ("content" in checks) == ("content_hash" in identity)


def test_without_confirms_nothing_is_said_of_them() -> None:
    document = summary(confirms=False).document
    assert document["counts"]["confirmed"] is None
    assert document["spec"]["messages_acked"] is None


@pytest.mark.parametrize(
    ("warmup", "by_tick", "acked"),
    [(100, (100, 100, 200, 0), 300), (100, (0, 150, 100, 100), 250), (0, (0, 0, 0, 0), 0)],
    ids=["acknowledged late", "some never", "automatic"],
)
def test_acked_is_about_the_messages_that_received_is_about(
    warmup: int, by_tick: tuple[int, ...], acked: int
) -> None:
    """Those of the warm-up are acknowledged first, some of them in the measured phase."""
    phases = ("warmup", "measure", "measure", "measure")
    ticks = [
        HandTick("consumer", phase, 4 + number, {"acked": by_tick[number]})
        for number, phase in enumerate(phases)
    ]
    received = [HandTick("consumer", "warmup", 5, {"received": warmup})] + [
        HandTick("consumer", "measure", second, {"received": 100}) for second in (5, 6, 7)
    ]
    counts = summary([*ticks, *received, producer(5, sent=300)]).document["counts"]
    assert (counts["received"], counts["acked"]) == (300, acked)


def test_without_accounts_losses_are_not_claimed() -> None:
    counts = summary(accounts=None).document["counts"]
    assert counts["received_once"] == 300
    assert counts["lost"] is counts["duplicates"] is counts["indeterminate"] is None


def test_numbers_that_only_the_driver_knows_to_be_nobodys_leave_no_count_of_the_order() -> None:
    late = HandTick("consumer", "measure", 6, {"out_of_order": 40})
    known = Accounts(sent=300, received_once=300)
    counts = summary([*good_ticks(), late], accounts=known).document["counts"]
    assert counts["out_of_order"] == 40
    forged = Accounts(sent=300, received_once=290, lost=10, unexpected=10)
    counts = summary([*good_ticks(), late], accounts=forged).document["counts"]
    assert (counts["out_of_order"], counts["unexpected"]) == (None, 10)


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
    assert document["reasons"] == [
        "6 of 300 messages had no answer when the drain ended: more than the 0.10% of "
        "audit.undelivered_share",
        "the broker refused 3 of 300 messages: more than the 0.10% of audit.undelivered_share",
    ]
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


# -- rates against what was asked ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rate", "seconds"), [(0.5, 5.0), (2.5, 15.0), (0.1, 15.0), (10, 1.55), (3, 15.5), (7, 10.1)]
)
def test_a_whole_number_of_messages_is_no_rate_that_was_not_kept_nor_more_than_it(
    rate: float, seconds: float
) -> None:
    asked = plan(
        load={"rate_per_second": rate}, phases={"warmup_seconds": 5, "measure_seconds": seconds}
    )
    messages = asked.expected_messages
    assert messages
    document = summary(
        [
            producer(5, due=messages, sent=messages, confirmed=messages),
            consumer(5, [100] * messages),
        ],
        plan=asked,
        accounts=Accounts(sent=messages, received_once=messages),
        measured_until=START_SECONDS + 5 + seconds,
    ).document
    assert (document["status"], document["reasons"]) == ("valid", [])
    assert document["rates"]["send_rate"] == min(rate, messages / seconds)


@pytest.mark.parametrize(("late", "status"), [(9, "valid"), (75, "degraded")])
def test_what_is_sent_after_the_measured_phase_is_counted_and_no_rate_that_was_kept(
    late: int, status: str
) -> None:
    """The broker takes less than is due, and the rest in the second of grace."""
    ticks = [producer(second, due=RATE, sent=RATE - late // 3) for second in (5, 6, 7)]
    ticks += [consumer(second, [100] * (RATE - late // 3)) for second in (5, 6, 7)]
    ticks += [producer(8, sent=late), consumer(8, [100] * late)]
    document = summary(ticks, confirms=False).document
    assert (document["counts"]["sent"], document["counts"]["late"]) == (300, late)
    assert document["status"] == status


# -- content, returns and messages that are missing ------------------------------------------------

SHARED = plan(
    identity={"carrier": "append", "content_hash": True}, agents=2, producers=2, consumers=2
)


@pytest.mark.parametrize(("corrupted", "verdict"), [(0, "warn"), (1, "fail")])
def test_content_that_nobody_can_compare_is_said_and_what_is_known_counts(
    corrupted: int, verdict: str
) -> None:
    ticks = [*good_ticks(), HandTick("consumer", "measure", 7, {"corrupted": corrupted})]
    document = summary(ticks, plan=SHARED).document
    assert document["counts"]["corrupted"] is None
    [content] = [one for one in document["audit"]["checks"] if one["name"] == "content"]
    assert content["verdict"] == verdict


def test_a_run_of_which_half_came_back_is_not_valid() -> None:
    ticks = [
        tick
        for second in (5, 6, 7)
        for tick in (
            producer(second, due=RATE, sent=RATE, confirmed=RATE // 2, returned=RATE // 2),
            consumer(second, [100] * (RATE // 2)),
        )
    ]
    found = summary(ticks, accounts=Accounts(sent=300, received_once=150, failed=150))
    assert (found.document["status"], found.exit_code) == ("degraded", 4)
    assert found.document["reasons"] == [
        "the broker refused 0 and returned 150 of 300 messages: more than the 0.10% of "
        "audit.undelivered_share"
    ]


@pytest.mark.parametrize(("received", "status"), [(1, "degraded"), (500, "valid")])
def test_messages_that_were_asked_for_and_are_not_there_degrade_a_run_that_only_consumes(
    received: int, status: str
) -> None:
    ticks = [HandTick("consumer", "measure", 5, {"received": received})]
    found = summary(ticks, plan=CONSUMING_MESSAGES, accounts=None, confirms=False)
    assert found.document["status"] == status
