"""The highest sustained rate of simulated brokers, and the verdict about one run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_spark.search.sustained import (
    CLOSE_ENOUGH,
    MOST_TRIALS,
    Kept,
    LimitedBy,
    backlogs,
    find_sustained,
    growth_per_second,
    judge_rate,
)
from bench_spark.search.ticks import Second


def broker_of(capacity: float, limited_by: LimitedBy = "broker") -> Callable[[float], Kept]:
    return lambda rate: Kept(True) if rate <= capacity else Kept(False, limited_by)


@given(r0=st.floats(1, 1e7), share=st.floats(0.52, 1.18))
def test_the_edge_is_found_to_two_per_cent(r0: float, share: float) -> None:
    found = find_sustained(r0, broker_of(r0 * share))
    assert found.rate_per_second is not None
    assert found.above_per_second is not None
    assert found.rate_per_second <= r0 * share < found.above_per_second
    assert found.above_per_second / found.rate_per_second <= CLOSE_ENOUGH
    assert len(found.trials) <= MOST_TRIALS
    assert not found.is_lower_bound


@given(r0=st.floats(1, 1e6), share=st.floats(0.52, 1.15))
def test_both_ends_of_the_answer_have_two_votes(r0: float, share: float) -> None:
    found = find_sustained(r0, broker_of(r0 * share))
    tried = [trial.rate_per_second for trial in found.trials]
    assert tried.count(found.rate_per_second) == tried.count(found.above_per_second) == 2


@given(verdicts=st.lists(st.booleans(), min_size=MOST_TRIALS, max_size=MOST_TRIALS))
def test_a_broker_that_tosses_a_coin_ends_the_search_all_the_same(verdicts: list[bool]) -> None:
    coin = iter(verdicts)

    def toss(rate: float) -> Kept:
        return Kept(True) if next(coin) else Kept(False, "broker")

    found = find_sustained(1000, toss)
    assert len(found.trials) <= MOST_TRIALS
    if found.rate_per_second is not None and found.above_per_second is not None:
        assert found.rate_per_second < found.above_per_second


def test_one_accident_does_not_halve_the_answer() -> None:
    """The very first trial fails although the broker could keep its rate."""
    first = [Kept(False, "broker")]
    found = find_sustained(1000, lambda rate: first.pop() if first else broker_of(750)(rate))
    assert found.rate_per_second is not None
    assert found.rate_per_second > 730


def test_a_blurred_edge_is_met_within_its_width() -> None:
    for seed in range(200):
        random = np.random.default_rng(seed)

        def blurred(rate: float, random: np.random.Generator = random) -> Kept:
            is_kept = rate <= 900 * (1 + 0.01 * random.standard_normal())
            return Kept(True) if is_kept else Kept(False, "broker")

        found = find_sustained(1000, blurred)
        assert found.rate_per_second == pytest.approx(900, rel=0.05)


def test_a_generator_that_gives_out_makes_a_lower_bound() -> None:
    found = find_sustained(10_000, broker_of(8_000, "generator"))
    assert found.is_lower_bound
    assert found.limited_by == "generator"
    assert found.text.startswith(">= 7,")
    assert found.text.endswith("msg/s, generator-limited")


def test_a_broker_that_keeps_all_is_a_lower_bound() -> None:
    found = find_sustained(10_000, broker_of(1e9))
    assert (found.rate_per_second, found.above_per_second) == (12_000, None)
    assert found.text == ">= 12,000 msg/s"


def test_a_broker_that_keeps_nothing_has_no_rate() -> None:
    found = find_sustained(10_000, broker_of(1))
    assert (found.rate_per_second, found.above_per_second) == (None, 5_000)
    assert found.text == "< 5,000 msg/s"


def test_a_rate_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no throughput"):
        find_sustained(0, broker_of(1))


# -- the verdict about one run -------------------------------------------------------------------

RATE = 1000.0
EVEN = [Second(1.0, 1000, 1000)] * 10


def document(**changes: Any) -> dict[str, Any]:
    counts = {"due": 10_000, "sent": 10_000, "received_once": 10_000}
    return {
        "status": changes.pop("status", "valid"),
        "rates": {"send_rate": changes.pop("send_rate", RATE)},
        "resources": {"busiest_agent_share_of_core": changes.pop("busy", 0.5)},
        "counts": counts | changes,
    }


LEAKING = [Second(1.0, 1000, 994)] * 10
STEPPED = [Second(1.0, 1000, 1), *[Second(1.0, 1000, 1000)] * 9]
BURST = [*EVEN[:5], Second(1.0, 1000, 0), Second(1.0, 1000, 2000), *EVEN[:3]]


@pytest.mark.parametrize(
    ("changes", "ticks", "verdict"),
    [
        ({}, EVEN, Kept(True)),
        ({"sent": 9_990, "received_once": 9_990}, EVEN, Kept(True)),
        ({"sent": 9_989, "received_once": 9_989}, EVEN, Kept(False, "broker")),
        ({"sent": 9_989, "received_once": 9_989, "busy": 0.95}, EVEN, Kept(False, "generator")),
        ({"received_once": 9_999}, EVEN, Kept(False, "broker")),
        ({"busy": None, "received_once": 9_999}, EVEN, Kept(False, "broker")),
        ({}, [Second(1.0, 1000, 995)] * 10, Kept(True)),
        ({}, LEAKING, Kept(False, "broker")),
        ({}, STEPPED, Kept(True)),
        ({}, BURST, Kept(False, "broker")),
        ({}, [], Kept(False, "broker")),
        ({"status": "failed"}, EVEN, Kept(False, "broker")),
        ({"busy": 0.99}, EVEN, Kept(True)),
        ({"send_rate": 0.99 * RATE}, EVEN, Kept(True)),
        ({"send_rate": 0.98 * RATE}, EVEN, Kept(False, "broker")),
        ({"send_rate": None}, EVEN, Kept(True)),
    ],
)
def test_a_rate_is_kept_by_all_five_rules(
    changes: dict[str, Any], ticks: list[Second], verdict: Kept
) -> None:
    assert judge_rate(document(**changes), ticks, RATE) == verdict


def test_a_fan_out_is_kept_if_every_copy_arrives() -> None:
    copied = [Second(1.0, 1000, 4000)] * 10
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
    ticks = [Second(length, 1000, 1000 - round(slope * length)) for length in lengths]
    assert growth_per_second(ticks, backlogs(ticks, start)) == pytest.approx(slope, abs=1e-6)
