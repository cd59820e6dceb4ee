"""Confidence intervals: against closed formulae, and how often they hold what is true."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_spark.compare.estimates import (
    Estimate,
    Resampled,
    block_length,
    block_weights,
    exact,
    expanded_tail,
    of_repetitions,
    of_resamples,
    ratio_of_repetitions,
    ratio_of_resamples,
    ratios,
    student_quantile,
)

TRIALS = 200


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    [
        (1, math.tan(math.pi * 0.475)),
        (2, 0.95 / math.sqrt(2 * 0.975 * 0.025)),
        (3, 3.182446),
        (4, 2.776445),
        (5, 2.570582),
        (10, 2.228139),
        (30, 2.042272),
        (10_000, 1.965912),  # as good as the normal distribution's 1.959964
    ],
)
def test_students_quantiles_are_those_of_the_tables(degrees: int, quantile: float) -> None:
    assert student_quantile(degrees) == pytest.approx(quantile, abs=1e-5)


def test_few_values_leave_less_out_at_the_ends_than_many() -> None:
    tails = [expanded_tail(values) for values in (5, 10, 100, 10_000)]
    assert tails == sorted(tails)
    assert tails[-1] == pytest.approx(0.025, abs=0.001)


def test_repetitions_have_the_geometric_mean_and_a_t_interval() -> None:
    values = [90.0, 100.0, 120.0]
    logs = np.log(values)
    reach = 4.302653 * logs.std(ddof=1) / math.sqrt(3)
    found = of_repetitions(values)
    assert found.value == pytest.approx(math.exp(logs.mean()))
    assert found.low == pytest.approx(math.exp(logs.mean() - reach))
    assert found.high == pytest.approx(math.exp(logs.mean() + reach))


def test_the_ratio_of_repetitions_is_welchs_interval_of_the_logarithms() -> None:
    before, after = [100.0, 110.0, 105.0, 95.0], [130.0, 128.0, 131.0, 127.0]
    logs = [np.log(before), np.log(after)]
    errors = [side.var(ddof=1) / 4 for side in logs]
    degrees = math.floor(sum(errors) ** 2 / sum(error**2 / 3 for error in errors))
    reach = student_quantile(degrees) * math.sqrt(sum(errors))
    centre = logs[1].mean() - logs[0].mean()
    found = ratio_of_repetitions(before, after)
    assert found is not None
    assert found.value == pytest.approx(math.exp(centre))
    assert (found.low, found.high) == pytest.approx(
        (math.exp(centre - reach), math.exp(centre + reach))
    )


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([0.0, 1.0], [1.0, 2.0], None),
        ([2.0, 2.0], [0.0, 4.0], Estimate(1.0)),
        ([2.0], [4.0], Estimate(2.0)),
        ([2.0, 2.0], [4.0, 4.0], Estimate(2.0, 2.0, 2.0)),
    ],
    ids=["zero below", "zero above", "one each", "no spread"],
)
def test_what_cannot_be_told_of_repetitions_is_not(
    before: list[float], after: list[float], expected: Estimate | None
) -> None:
    found = ratio_of_repetitions(before, after)
    if expected is None or found is None:
        assert found is expected
    else:
        assert found.value == pytest.approx(expected.value)
        assert (found.low is None) == (expected.low is None)


def test_a_run_of_too_few_intervals_has_no_interval() -> None:
    few = Resampled(10.0, np.full(100, 10.0), blocks=4)
    many = Resampled(10.0, np.full(100, 10.0), blocks=5)
    assert of_resamples(few).low is None
    assert of_resamples(many) == exact(10.0)
    ratio = ratio_of_resamples(few, many)
    assert ratio is not None
    assert ratio.low is None


def test_nothing_is_so_many_times_nothing() -> None:
    nothing = Resampled(0.0, np.zeros(10), blocks=10)
    assert ratio_of_resamples(nothing, nothing) is None


@given(st.lists(st.floats(0.1, 1e6), min_size=20, max_size=20), st.floats(0.1, 1e6))
def test_the_number_itself_is_always_in_its_interval(values: list[float], value: float) -> None:
    found = of_resamples(Resampled(value, np.array(values), blocks=10))
    assert found.low is not None
    assert found.high is not None
    assert found.low <= value <= found.high


# -- coverage: how often the interval holds the truth ----------------------------------------------


def run_of(random: np.random.Generator, likeness: float, intervals: int, mean: float) -> Resampled:
    """A run whose seconds resemble the one before by so much (a first-order autoregression)."""
    noise = random.normal(size=intervals + 50) * math.sqrt(1 - likeness**2)
    values = np.zeros(intervals + 50)
    for place in range(1, intervals + 50):
        values[place] = likeness * values[place - 1] + noise[place]
    seconds = mean * (1 + 0.1 * values[50:])
    length = block_length(seconds)
    weights = block_weights(intervals, length, 400, random)
    samples = ratios(weights, seconds, np.ones(intervals))
    return Resampled(float(seconds.mean()), samples, intervals // length)


def share_that_holds(likeness: float, intervals: int, true_ratio: float) -> float:
    random = np.random.default_rng(11)
    held = 0
    for _ in range(TRIALS):
        sides = (
            run_of(random, likeness, intervals, 100.0),
            run_of(random, likeness, intervals, 100.0 * true_ratio),
        )
        found = ratio_of_resamples(*sides)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        held += found.low <= true_ratio <= found.high
    return held / TRIALS


@pytest.mark.parametrize(
    ("likeness", "intervals", "least"),
    [(0.0, 20, 0.92), (0.0, 100, 0.90), (0.5, 30, 0.87), (0.5, 100, 0.87), (0.8, 100, 0.84)],
)
@pytest.mark.parametrize("true_ratio", [1.0, 1.3])
def test_intervals_of_single_runs_hold_the_truth_about_as_often_as_they_say(
    likeness: float, intervals: int, least: float, true_ratio: float
) -> None:
    assert share_that_holds(likeness, intervals, true_ratio) >= least


def test_drawing_single_seconds_would_be_too_sure_of_itself() -> None:
    """Why blocks: the same data, every second on its own."""
    random = np.random.default_rng(3)
    held = {"blocks": 0, "seconds": 0}
    for _ in range(TRIALS):
        noise = random.normal(size=150)
        values = np.zeros(150)
        for place in range(1, 150):
            values[place] = 0.8 * values[place - 1] + 0.6 * noise[place]
        seconds = 100 + 10 * values[50:]
        for name, length in (("blocks", block_length(seconds)), ("seconds", 1)):
            weights = block_weights(100, length, 400, random)
            samples = ratios(weights, seconds, np.ones(100))
            found = of_resamples(Resampled(float(seconds.mean()), samples, 100 // length))
            assert found.low is not None
            assert found.high is not None
            held[name] += found.low <= 100 <= found.high
    assert held["seconds"] / TRIALS < 0.65
    assert held["blocks"] / TRIALS > 0.8


@pytest.mark.parametrize("repetitions", [2, 3, 5])
def test_intervals_of_repetitions_hold_the_truth_as_often_as_they_say(repetitions: int) -> None:
    random = np.random.default_rng(5)
    held = 0
    for _ in range(1000):
        sides = np.exp(0.2 * random.normal(size=(2, repetitions)))
        found = ratio_of_repetitions(list(sides[0]), list(sides[1] * 1.5))
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 1.5 <= found.high
    assert held / 1000 >= 0.94
