"""Percentiles and throughput of a result, from ticks made by hand."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hand_ticks import (
    RATE,
    START_SECONDS,
    consumer,
    good_ticks,
    plan,
    producer,
    summary,
)
from hypothesis import example, given
from hypothesis import strategies as st

from bench_spark.agent.sampler import SAMPLE_DTYPE
from bench_spark.config.models import Scenario
from bench_spark.driver.accounts import Accounts, AgentSamples
from bench_spark.plan import Plan, make_plan
from bench_spark.store.schema import PERCENTILES

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
def test_a_last_interval_shorter_than_half_is_part_of_the_one_before(
    interval_seconds: int, measured_seconds: float, intervals: int
) -> None:
    found = summary(
        plan=plan(interval_seconds=interval_seconds),
        measured_until=START_SECONDS + 5 + measured_seconds,
    )
    worst = found.document["percentiles"]["interval_max"]["latency"]
    assert (worst["intervals"], worst["max_us"]) == (intervals, 300)


def test_what_arrives_in_the_drain_belongs_to_the_last_interval() -> None:
    late = [*good_ticks(), consumer(8, [5_000_000] * 60), consumer(12, [9_000_000] * 40)]
    percentiles = summary(late).document["percentiles"]
    worst, mean = (percentiles[name]["latency"] for name in ("interval_max", "interval_mean"))
    assert worst["intervals"] == 3
    assert (worst["p50_us"], worst["p75_us"]) == (300, 5_001_215)
    assert (worst["p99_us"], worst["max_us"]) == (9_000_000, 9_000_000)
    assert mean["p99_us"] == pytest.approx((100 + 200 + 9_000_000) / 3)


def test_a_run_of_which_everything_arrives_late_has_intervals() -> None:
    """As a fan-out to more queues than the broker can serve in time."""
    ticks = [producer(second, due=RATE, sent=RATE) for second in range(5, 8)]
    ticks += [consumer(9, [3_000_000] * 200), consumer(10, [4_000_000] * 100)]
    percentiles = summary(ticks).document["percentiles"]
    run, worst, mean = (
        percentiles[name]["latency"] for name in ("run", "interval_max", "interval_mean")
    )
    assert (worst["intervals"], worst["p99_us"], mean["p99_us"]) == (1, 4_000_000, 4_000_000)
    assert worst["p50_us"] == run["p50_us"]


def test_messages_that_never_arrive_bound_the_intervals_from_below() -> None:
    accounts = Accounts(sent=306, received_once=300, left_in_broker=6)
    worst = summary(accounts=accounts).document["percentiles"]["interval_max"]["latency"]
    assert worst["lower_bounds"] == ["p95_us", "p999_us", "p99_us"], "6 of 106 in the last one"
    ticks = [tick for tick in good_ticks() if not (tick.role == "consumer" and tick.second == 7)]
    worst = summary(ticks, accounts=accounts).document["percentiles"]["interval_max"]["latency"]
    assert worst["intervals"] == 2
    assert set(worst["lower_bounds"]) == {name for name, _ in PERCENTILES}


@given(
    st.lists(
        st.lists(st.integers(0, 12_000_000), min_size=1, max_size=130), min_size=1, max_size=6
    ),
    st.integers(1, 4),
    st.integers(0, 30),
)
@example([[0] * 10 + [10_000_001]] * 2, 1, 0)  # a rank that each interval rounds down
def test_the_worst_interval_is_not_below_the_run(
    seconds: list[list[int]], interval_seconds: int, left: int
) -> None:
    ticks = [consumer(5 + second, values) for second, values in enumerate(seconds)]
    received = sum(map(len, seconds))
    document = summary(
        ticks,
        plan=plan(interval_seconds=interval_seconds),
        accounts=Accounts(sent=received + left, received_once=received, left_in_broker=left),
    ).document
    run, worst = document["measures"]["latency"], document["percentiles"]["interval_max"]["latency"]
    assert worst["max_us"] == max(map(max, seconds))
    for name, _ in PERCENTILES:
        assert run[name] <= worst[name] <= worst["max_us"]
    assert set(run["lower_bounds"]) <= set(worst["lower_bounds"])


# -- what was never seen -------------------------------------------------------------------------


def test_messages_still_on_their_way_make_high_percentiles_lower_bounds() -> None:
    accounts = Accounts(sent=306, received_once=300, left_in_broker=4, indeterminate=2)
    document = summary(accounts=accounts).document
    assert document["measures"]["latency"]["lower_bounds"] == ["p99_us", "p999_us"]
    texts = [check["text"] for check in document["audit"]["checks"]]
    assert any(text.startswith("latency: p99, p999 are lower bounds") for text in texts)


def test_requests_that_were_given_up_make_round_trips_lower_bounds() -> None:
    ticks = [*good_ticks(), producer(7, given_up=3)]
    for tick in ticks:
        if tick.role == "producer" and tick.counter("sent"):
            # One of 100 senders a second never gets its message.
            tick.values_us["round_trip"] = [200] * (RATE - 1)
    waiting = plan(load={"mode": "request", "rate_per_second": RATE})
    document = summary(ticks, plan=waiting).document
    assert document["counts"]["given_up"] == 3
    round_trip = document["measures"]["round_trip"]
    assert round_trip["count"] == 297
    # 3 of 300 have no value: the highest 0.1 % are among them, the highest 1 % are just not.
    assert round_trip["lower_bounds"] == ["p999_us"]
    assert summary().document["counts"]["given_up"] is None


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
    assert quick.resolution_us == pytest.approx(600), "seven messages span the 0.75 ms of a batch"
    assert measures["delivery_latency"]["resolution_us"] == 0, "a hundred a second go one by one"
    assert "resolution_us" not in measures["latency"]


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
