"""The result of a run, from ticks made by hand."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from bench_spark.agent.sampling import SAMPLE_DTYPE
from bench_spark.collector.accounts import Accounts
from bench_spark.collector.control import Failure
from bench_spark.collector.evidence import AgentSamples, Counted
from bench_spark.measure.hdr import Histogram, SparseHistogram, shape_for
from bench_spark.plan import Plan, make_plan
from bench_spark.scenario.models import Scenario
from bench_spark.summary.document import RunSummary, summarise
from bench_spark.summary.facts import RunFacts
from bench_spark.summary.judging import declared_limit

START_US = 1_700_000_000_123_456
"""Ticks are stored in whole microseconds ..."""
START_SECONDS = (START_US * 1000 + 789) / 1e9
"""... but a run starts at any nanosecond."""
RATE = 100


@dataclass
class HandTick:
    """A tick as the merged events give it."""

    role: str
    phase: str
    second: int
    counters: dict[str, int] = field(default_factory=dict)
    values_us: dict[str, list[int]] = field(default_factory=dict)
    tick_seconds: float = 1.0

    @property
    def start_seconds(self) -> float:
        return (START_US + self.second * 1_000_000) / 1e6

    @property
    def measures(self) -> Iterable[str]:
        return self.values_us

    def counter(self, name: str) -> int:
        return self.counters.get(name, 0)

    def histogram(self, measure: str) -> SparseHistogram:
        found = Histogram(shape_for(10_000_000))
        found.record_ns(np.array(self.values_us[measure], dtype=np.int64) * 1000)
        return found.sparse()


def plan(**keys: Any) -> Plan:
    defaults = {
        "load": {"rate_per_second": RATE},
        "phases": {"warmup_seconds": 5, "measure_seconds": 3},
    }
    return make_plan(Scenario.model_validate(defaults | keys), "run-1")


def facts(**changes: Any) -> RunFacts:
    """Of a run without incident: 5 s of warm-up, 3 s measured, 300 messages."""
    made = RunFacts(
        plan=plan(),
        broker={"kind": "amqp", "name": "here"},
        measured_from=START_SECONDS + 5,
        measured_until=START_SECONDS + 8,
        accounts=Accounts(sent=300, received_once=300),
        confirms=True,
        failures=(),
        interrupted_by=None,
        busiest_agent_share=0.2,
        busiest_host_share=0.4,
        spark_cores=0.3,
        clock_bound_ns=0,
        environment={"hosts": []},
    )
    return replace(made, **changes)


def producer(second: int, phase: str = "measure", **counters: int) -> HandTick:
    return HandTick("producer", phase, second, counters)


def consumer(second: int, values_us: list[int], phase: str = "measure") -> HandTick:
    counters = {"received": len(values_us), "bytes": 1000 * len(values_us)}
    return HandTick("consumer", phase, second, counters, {"latency": values_us})


def good_ticks() -> list[HandTick]:
    seconds = range(5, 8)
    return [
        producer(4, "warmup", due=RATE, sent=RATE, confirmed=RATE),
        consumer(4, [900_000] * RATE, "warmup"),
        *(producer(second, due=RATE, sent=RATE, confirmed=RATE) for second in seconds),
        *(consumer(second, [100 * (second - 4)] * RATE) for second in seconds),
    ]


def summary(ticks: list[HandTick] | None = None, **changes: Any) -> RunSummary:
    return summarise(good_ticks() if ticks is None else ticks, facts(**changes))


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


# -- throughput at the consumers -----------------------------------------------------------------


def taken(pair: int, *messages: int) -> np.ndarray[Any, Any]:
    """Samples of 10 ms each."""
    return np.array(
        [
            (pair, number, count, number * 10_000_000, (number + 1) * 10_000_000)
            for number, count in enumerate(messages)
        ],
        dtype=SAMPLE_DTYPE,
    )


def sampled_plan(pairs: int) -> Plan:
    return plan(
        producers=pairs,
        consumers=pairs,
        destinations=pairs,
        load={"mode": "window"},
        sampling={"samples": 7},
    )


def test_the_throughput_of_all_pairs_is_the_sum_of_theirs() -> None:
    samples = (
        AgentSamples(0, 0, taken(1, 10, 20, 30, 20, 20, 20, 20)),
        AgentSamples(1, 0, taken(0, 5, 6, 7, 8, 9, 10, 11)),
    )
    document = summary(plan=sampled_plan(2), samples=samples).document
    found = document["throughput"]
    assert [pair["pair"] for pair in found["pairs"]] == [0, 1]
    assert [pair["median_per_second"] for pair in found["pairs"]] == [800, 2000]
    assert found["median_per_second"] == 2800
    assert found["mean_per_second"] == pytest.approx(800 + 2000)
    assert (found["low_per_second"], found["high_per_second"]) == (500 + 1000, 1100 + 3000)
    squares = np.var([500, 600, 700, 800, 900, 1000, 1100], ddof=1) + np.var(
        [1000, 2000, 3000, 2000, 2000, 2000, 2000], ddof=1
    )
    assert found["stddev_per_second"] == pytest.approx(np.sqrt(squares))
    assert found["samples"] == 14
    assert document["status"] == "valid"
    json.dumps(document, allow_nan=False)


def test_a_run_whose_pairs_have_no_samples_has_no_throughput_and_says_so() -> None:
    document = summary(plan=sampled_plan(2), samples=(AgentSamples(0, 0, taken(1, 5)),)).document
    assert document["throughput"]["median_per_second"] is None
    assert [pair["samples"] for pair in document["throughput"]["pairs"]] == [0, 1]
    assert document["status"] == "degraded"
    assert "fewer than 7 samples" in document["reasons"][0]


def test_a_run_that_samples_nothing_has_no_throughput() -> None:
    assert summary().document["throughput"] is None


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


# -- percentiles in three ways -------------------------------------------------------------------


def test_run_percentiles_leave_the_warm_up_out() -> None:
    latency = summary().document["measures"]["latency"]
    assert (latency["count"], latency["min_us"], latency["max_us"]) == (300, 100, 300)
    assert (latency["p50_us"], latency["p99_us"]) == (200, 300)
    assert summary().histograms["latency"].count == 300


def test_intervals_are_of_the_measured_phase() -> None:
    percentiles = summary().document["percentiles"]
    assert percentiles["run"]["latency"]["p50_us"] == 200
    assert percentiles["interval_max"]["latency"]["p50_us"] == 300
    assert percentiles["interval_mean"]["latency"]["p50_us"] == pytest.approx(200)
    assert percentiles["interval_max"]["latency"]["intervals"] == 3


@pytest.mark.parametrize(
    ("interval_seconds", "measured_seconds", "intervals"),
    [(1, 3, 3), (2, 3, 2), (2, 2.9, 1), (3, 3, 1), (1, 2.5, 3), (1, 2.4, 2), (10, 3, 1)],
)
def test_a_last_interval_shorter_than_half_is_left_out(
    interval_seconds: int, measured_seconds: float, intervals: int
) -> None:
    found = summary(
        plan=plan(interval_seconds=interval_seconds),
        measured_until=START_SECONDS + 5 + measured_seconds,
    )
    assert found.document["percentiles"]["interval_max"]["latency"]["intervals"] == intervals


def test_the_drain_is_in_no_interval() -> None:
    late = [*good_ticks(), consumer(8, [5_000_000])]
    percentiles = summary(late).document["percentiles"]
    assert percentiles["interval_max"]["latency"]["max_us"] == 300
    assert percentiles["run"]["latency"]["p999_us"] > 4_000_000


# -- what was never seen -------------------------------------------------------------------------


def test_messages_still_on_their_way_make_high_percentiles_lower_bounds() -> None:
    accounts = Accounts(sent=306, received_once=300, left_in_broker=4, indeterminate=2)
    document = summary(accounts=accounts).document
    assert document["measures"]["latency"]["lower_bounds"] == ["p99_us", "p999_us"]
    texts = [check["text"] for check in document["audit"]["checks"]]
    assert any(text.startswith("latency: p99, p999 are lower bounds") for text in texts)


def test_unsent_messages_only_bound_what_is_measured_from_the_schedule() -> None:
    ticks = good_ticks()
    for tick in ticks:
        if "latency" in tick.values_us:
            tick.values_us["delivery_latency"] = tick.values_us["latency"]
    ticks.append(producer(7, due=20))
    measures = summary(ticks).document["measures"]
    assert measures["latency"]["lower_bounds"] == []
    assert measures["delivery_latency"]["lower_bounds"] == ["p95_us", "p99_us", "p999_us"]


def test_what_is_measured_from_the_schedule_says_how_much_sending_in_batches_adds() -> None:
    ticks = good_ticks()
    for tick in ticks:
        if "latency" in tick.values_us:
            tick.values_us["delivery_latency"] = tick.values_us["latency"]
    quick = make_plan(Scenario.model_validate({"load": {"rate_per_second": 10_000}}), "r")
    measures = summary(ticks).document["measures"]
    assert quick.resolution_us == pytest.approx(400)
    assert measures["delivery_latency"]["resolution_us"] == 0, "a hundred a second go one by one"
    assert "resolution_us" not in measures["latency"]


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


# -- status and exit code ------------------------------------------------------------------------

LOST = Accounts(sent=300, received_once=290, lost=10)
BROKEN = (Failure(1, "LaneLost", "reset by peer"),)
LIMITED = plan(amqp={"queue": {"arguments": {"x-max-length": 5}}})


def slow_ticks() -> list[HandTick]:
    """Half of what was due stayed unsent."""
    return [
        *(producer(second, due=RATE, sent=RATE // 2) for second in range(5, 8)),
        *(consumer(second, [100] * (RATE // 2)) for second in range(5, 8)),
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


@pytest.mark.parametrize(
    ("kind", "keys", "limit"),
    [
        ("amqp", {}, None),
        ("amqp", {"amqp": {"queue": {"arguments": {"x-max-length": 5}}}}, "x-max-length=5"),
        ("amqp", {"amqp": {"queue": {"arguments": {"x-message-ttl": 9}}}}, "x-message-ttl=9"),
        ("amqp", {"amqp": {"queue": {"arguments": {"x-max-priority": 9}}}}, None),
        ("kafka", {"kafka": {"topic": {"properties": {"retention.ms": 7}}}}, "retention.ms=7"),
        ("kafka", {"kafka": {"topic": {"properties": {"flush.ms": 7}}}}, None),
        ("amqp", {"kafka": {"topic": {"properties": {"retention.ms": 7}}}}, None),
        ("kafka", {"amqp": {"queue": {"arguments": {"x-max-length": 5}}}}, None),
    ],
)
def test_a_limit_excuses_losses_on_the_protocol_it_is_for(
    kind: str, keys: dict[str, Any], limit: str | None
) -> None:
    assert declared_limit(plan(**keys), [kind]) == limit
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
