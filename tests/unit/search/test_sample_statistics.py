"""Statistics of samples, against closed formulas and numpy."""

from __future__ import annotations

from itertools import pairwise
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_spark.search.statistics import describe, samples_outside


@given(st.lists(st.floats(0, 1e9), min_size=2, max_size=300))
def test_median_mean_and_deviation_are_numpys(values: list[float]) -> None:
    found = describe(values)
    assert found.median == pytest.approx(np.median(values))
    assert found.mean == pytest.approx(np.mean(values))
    assert found.stddev == pytest.approx(np.std(values, ddof=1), abs=1e-6)
    assert found.samples == len(values)
    assert min(values) <= found.low <= found.median <= found.high <= max(values)


def test_one_sample_has_no_deviation() -> None:
    found = describe([7.0])
    assert (found.median, found.stddev, found.low, found.high) == (7.0, 0.0, 7.0, 7.0)


def test_no_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="no samples"):
        describe([])


@pytest.mark.parametrize(
    ("count", "outside"),
    # As printed in tables of the sign test at 5 %: the interval is x(k + 1) to x(n - k).
    [(1, 0), (5, 0), (6, 0), (8, 0), (9, 1), (10, 1), (12, 2), (20, 5), (25, 7), (50, 17)],
)
def test_the_interval_is_that_of_the_sign_test(count: int, outside: int) -> None:
    assert samples_outside(count) == outside


@given(st.integers(6, 1000), st.sampled_from([0.5, 0.9, 0.95]))
def test_the_interval_is_the_narrowest_that_covers(count: int, confidence: float) -> None:
    outside = samples_outside(count, confidence)
    assert coverage(count, outside) >= confidence - 1e-9
    assert coverage(count, outside + 1) < confidence + 1e-9


def coverage(count: int, outside: int) -> float:
    beyond = sum(comb(count, below) for below in range(outside + 1))
    return 1 - 2 * beyond / 2**count


def test_many_samples_join_on_to_the_exact_ones() -> None:
    steps = [samples_outside(count) for count in range(990, 1020)]
    assert all(0 <= after - before <= 1 for before, after in pairwise(steps))


def test_the_interval_holds_the_true_median_as_often_as_it_says() -> None:
    random = np.random.default_rng(5)
    intervals = [describe(list(random.exponential(1.0, 60))) for _ in range(2000)]
    hits = sum(found.low <= np.log(2) <= found.high for found in intervals)
    assert 0.94 <= hits / 2000 <= 0.985
