"""The highest sustained rate of simulated brokers, within a bracket and without limits."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_spark.results.checks import LimitedBy
from bench_spark.suites.rate import (
    CLOSE_ENOUGH,
    LOWEST_RATE,
    MOST_TRIALS,
    Bounds,
    Kept,
    Sustained,
    find_sustained,
)


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


# -- trials that disagree ------------------------------------------------------------------------


def voted(
    answers: dict[float, list[bool]], bounds: Bounds | None = None, capacity: float = 1_000
) -> Sustained:
    """A broker that keeps what it has the capacity for, but has other answers for some rates."""

    def run(rate: float) -> Kept:
        queue = answers.get(rate)
        is_kept = queue.pop(0) if queue else rate < capacity
        return Kept(True) if is_kept else Kept(False, "broker", "late", None, "as audited")

    return find_sustained(1_000, run, bounds)


def edge_of(found: Sustained) -> list[tuple[float, bool]]:
    trials = [found.trials[place] for place in found.edge]
    return [(trial.rate_per_second, trial.verdict.kept) for trial in trials]


def test_an_even_vote_that_no_trial_is_left_to_decide_is_not_settled() -> None:
    found = voted({1_019.0: [False, True]}, Bounds(close_enough=1.06, most_trials=5))
    tried = [trial.rate_per_second for trial in found.trials]
    assert tried == [774.6, 964.1, 1_076.0, 1_019.0, 1_019.0]
    assert (found.end, found.is_settled) == ("disputed", False)
    assert edge_of(found) == [(1_019.0, True), (1_019.0, False)]
    assert (found.rate_per_second, found.range_high_per_second) == (964.1, 1_076.0)
    assert found.text == "964 msg/s, not settled: 964 to 1,076 msg/s"


def test_a_higher_rate_that_was_kept_is_tried_again_and_then_disputes_the_answer() -> None:
    found = voted({964.1: [True, False, True]}, Bounds(most_trials=20), capacity=880)
    at_964 = [trial.verdict.kept for trial in found.trials if trial.rate_per_second == 964.1]
    assert at_964 == [True, False, True], "the third trial has the casting vote"
    assert (found.end, found.is_settled) == ("disputed", False)
    assert found.rate_per_second is not None
    assert 0.98 * 880 < found.rate_per_second < 880
    assert edge_of(found)[0] == (964.1, True)
    assert found.range_high_per_second is not None
    assert 964.1 < found.range_high_per_second < 1.02 * 964.1


def test_trials_that_are_used_up_leave_a_range() -> None:
    found = voted({}, Bounds(most_trials=3))
    assert (found.end, found.is_settled) == ("trials", False)
    assert edge_of(found) == [(964.1, True), (1_076.0, False)]
    assert found.text == "964 msg/s, not settled: 964 to 1,076 msg/s"


@given(
    answers=st.lists(st.booleans(), min_size=40, max_size=40),
    most_trials=st.integers(2, 40),
    is_open=st.booleans(),
)
def test_a_settled_answer_is_contradicted_by_no_vote(
    answers: list[bool], most_trials: int, is_open: bool
) -> None:
    coin = iter(answers)
    found = find_sustained(
        1_000,
        lambda _: Kept(True) if next(coin) else Kept(False, "broker"),
        Bounds(most_trials=most_trials, is_open=is_open),
    )
    votes: dict[float, list[bool]] = {}
    for trial in found.trials:
        votes.setdefault(trial.rate_per_second, []).append(trial.verdict.kept)
    above = found.above_per_second
    contradicted = above is not None and any(
        rate >= above and 2 * sum(kept) >= len(kept) and any(kept) for rate, kept in votes.items()
    )
    if found.is_settled:
        assert not contradicted
        assert above is None or votes[above].count(False) >= 2
        assert found.rate_per_second is None or votes[found.rate_per_second].count(True) >= 2
    elif found.end == "disputed":
        assert contradicted
    assert [kept for _, kept in edge_of(found)] in ([True, False], [True], [False])


def test_the_limit_is_told_in_the_words_of_the_audit() -> None:
    assert voted({}).limit == "as audited"


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        (["broker", "broker"], "broker"),
        (["generator", "broker"], "generator"),
        (["broker", "host"], "host"),
    ],
)
def test_in_doubt_it_is_not_the_brokers_limit(by: list[LimitedBy], expected: str) -> None:
    seen: dict[float, int] = {}

    def run(rate: float) -> Kept:
        if rate < 900:
            return Kept(True)
        seen[rate] = seen.get(rate, 0) + 1
        who = by[(seen[rate] - 1) % 2]
        return Kept(False, who, "late", None, f"{who} says the audit")

    found = find_sustained(1_000, run)
    assert (found.limited_by, found.limit) == (expected, f"{expected} says the audit")
    assert found.is_lower_bound is (expected != "broker")


# -- without limits ------------------------------------------------------------------------------

OPEN = Bounds(is_open=True, most_trials=15)
P99 = "p99 < 20ms"


def queue_of(capacity: float, least_ms: float = 1.0) -> Callable[[float], Kept]:
    """Latency grows like that of a queue, and has to stay below 20 ms."""

    def run(rate: float) -> Kept:
        if rate >= capacity:
            return Kept(False, "broker", "94 % sent in time")
        if least_ms / (1 - rate / capacity) < 20:
            return Kept(True)
        return Kept(False, "broker", "too late", P99)

    return run


@given(r0=st.floats(10, 1e7), share=st.floats(0.005, 8))
def test_an_open_search_finds_the_edge_wherever_it_is(r0: float, share: float) -> None:
    capacity = max(r0 * share, 1.1 * LOWEST_RATE)
    found = find_sustained(r0, broker_of(capacity), OPEN)
    assert found.rate_per_second is not None
    assert found.above_per_second is not None
    assert found.rate_per_second <= capacity < found.above_per_second
    assert len(found.trials) <= OPEN.most_trials
    if 0.05 <= share <= 3:
        assert found.above_per_second / found.rate_per_second <= CLOSE_ENOUGH
        assert found.is_settled


@given(capacity=st.floats(1000, 1e6), least_ms=st.floats(0.1, 19))
def test_the_rate_that_has_the_latency_asked_for_is_found(capacity: float, least_ms: float) -> None:
    found = find_sustained(capacity, queue_of(capacity, least_ms), Bounds(1, 1.2, 1.05, 30, True))
    edge = capacity * (1 - least_ms / 20)
    assert found.rate_per_second is not None
    assert found.above_per_second is not None
    assert found.rate_per_second <= edge <= found.above_per_second
    assert found.above_per_second / found.rate_per_second <= 1.05
    assert found.is_settled
    assert found.objective == (P99 if found.above_per_second < capacity else None)


def test_an_objective_is_named_as_the_limit() -> None:
    found = find_sustained(10_000, queue_of(10_000, 10), OPEN)
    assert found.text.endswith(" msg/s, limited by p99 < 20ms")
    assert not found.is_lower_bound


def test_what_no_rate_reaches_is_looked_for_down_to_the_lowest() -> None:
    found = find_sustained(10_000, lambda rate: Kept(False, "broker", "late", P99), OPEN)
    assert (found.rate_per_second, found.above_per_second) == (None, LOWEST_RATE)
    assert found.text == "< 1 msg/s, limited by p99 < 20ms"
    assert found.is_settled


def test_without_trials_to_settle_it_the_answer_is_what_was_kept_so_far() -> None:
    found = find_sustained(10_000, broker_of(9_000), Bounds(is_open=True, most_trials=2))
    assert (found.rate_per_second, found.above_per_second) == (7_746, 12_000)
    assert not found.is_settled


def test_an_accident_at_the_first_trial_of_an_open_search_is_voted_down() -> None:
    first = [Kept(False, "broker")]
    found = find_sustained(1000, lambda rate: first.pop() if first else broker_of(900)(rate), OPEN)
    assert found.rate_per_second is not None
    assert found.rate_per_second > 750


@given(r0=st.floats(1, 1e7), capacity=st.floats(1, 1e7))
def test_rates_have_four_digits(r0: float, capacity: float) -> None:
    for bounds in (OPEN, Bounds()):
        for trial in find_sustained(r0, broker_of(capacity), bounds).trials:
            assert trial.rate_per_second == float(f"{trial.rate_per_second:.4g}")
            assert math.isfinite(trial.rate_per_second)


def test_a_rate_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no throughput"):
        find_sustained(0, broker_of(1))
