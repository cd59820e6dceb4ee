"""Statistics of throughput samples, against closed formulas, numpy and chance itself."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_spark.core.throughput import (
    SampledThroughput,
    median_interval,
    median_rank,
    throughput,
    throughput_of_all,
)


def coverage(count: int, rank: int) -> float:
    """How surely the rank-th lowest and highest of so many values hold the median."""
    return 1 - 2 * sum(math.comb(count, below) for below in range(rank)) / 2**count


@pytest.mark.parametrize(
    ("count", "rank"),
    [(0, None), (1, None), (5, None), (6, 1), (8, 1), (9, 2), (20, 6), (50, 18), (100, 40)],
)
def test_ranks_are_those_of_the_published_tables(count: int, rank: int | None) -> None:
    assert median_rank(count) == rank


@given(st.integers(1, 400), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_the_interval_is_the_narrowest_that_is_sure_enough(count: int, confidence: float) -> None:
    rank = median_rank(count, confidence)
    if rank is not None:
        assert rank <= (count + 1) // 2
        assert coverage(count, rank) >= confidence
    assert coverage(count, (rank or 0) + 1) < confidence


def test_the_interval_holds_the_median_as_often_as_it_says() -> None:
    random = np.random.default_rng(7)
    held = 0
    for _ in range(2000):
        low, high = median_interval(random.exponential(size=100))
        assert low is not None
        assert high is not None
        held += low <= math.log(2) <= high
    assert 0.94 < held / 2000 < 0.985  # 96.5 % by the formula


@given(st.lists(st.floats(1e-3, 1e9), min_size=6, max_size=200))
def test_figures_agree_with_numpy(values: list[float]) -> None:
    found = throughput(np.array(values))
    assert found.samples == len(values)
    assert found.median_per_second == pytest.approx(np.median(values))
    assert found.mean_per_second == pytest.approx(np.mean(values))
    assert found.stddev_per_second == pytest.approx(np.std(values, ddof=1))
    assert found.low_per_second in values
    assert found.high_per_second in values
    assert found.median_per_second is not None
    assert found.low_per_second is not None
    assert found.high_per_second is not None
    assert found.low_per_second <= found.median_per_second <= found.high_per_second


def test_what_too_few_samples_cannot_say_is_left_out() -> None:
    assert throughput(np.zeros(0)) == SampledThroughput(0, None, None, None, None, None)
    assert throughput(np.array([5.0])) == SampledThroughput(1, 5.0, 5.0, None, None, None)
    few = throughput(np.array([1.0, 2.0, 3.0]))
    assert (few.stddev_per_second, few.low_per_second) == (1.0, None)


def test_pairs_side_by_side_add_up() -> None:
    one = SampledThroughput(100, 1000.0, 1010.0, 30.0, 990.0, 1005.0)
    other = SampledThroughput(100, 500.0, 510.0, 40.0, 480.0, 520.0)
    assert throughput_of_all([one, other]) == SampledThroughput(
        200, 1500.0, 1520.0, 50.0, 1470.0, 1525.0
    )
    assert throughput_of_all([one]) == one


def test_a_figure_that_one_pair_lacks_has_no_sum() -> None:
    one = SampledThroughput(100, 1000.0, 1010.0, 30.0, 990.0, 1005.0)
    none = SampledThroughput(0, None, None, None, None, None)
    assert throughput_of_all([one, none]) == SampledThroughput(100, None, None, None, None, None)
    assert throughput_of_all([]) == SampledThroughput(0, None, None, None, None, None)
