"""Percentiles as HdrHistogram has them, and honest about what was never seen."""

from __future__ import annotations

import numpy as np
import pytest
from hand_ticks import interval_statistics
from hdrh.histogram import HdrHistogram
from hypothesis import given, settings
from hypothesis import strategies as st

from bench_spark.core.hdr import Histogram, SparseHistogram, shape_for
from bench_spark.results.totals import statistics
from bench_spark.store.schema import PERCENTILES

HIGHEST_US = 10_000_000
NAMES = [name for name, _ in PERCENTILES]


def histogram(values_us: list[int], highest_us: int = HIGHEST_US) -> SparseHistogram:
    found = Histogram(shape_for(highest_us))
    found.record_ns(np.array(values_us, dtype=np.int64) * 1000)
    return found.sparse()


@settings(max_examples=40)
@given(st.lists(st.integers(1, HIGHEST_US), min_size=1, max_size=300))
def test_percentiles_are_those_of_hdrhistogram(values_us: list[int]) -> None:
    theirs = HdrHistogram(1, HIGHEST_US, 3)
    for value in values_us:
        theirs.record_value(value)
    ours = statistics(histogram(values_us), HIGHEST_US)
    for name, percentile in PERCENTILES:
        assert ours[name] == min(theirs.get_value_at_percentile(percentile), max(values_us))
    assert ours["lower_bounds"] == []


def test_the_other_numbers_are_of_the_values_themselves() -> None:
    found = statistics(histogram([3, 5000, 70_001]), HIGHEST_US)
    assert (found["min_us"], found["max_us"], found["count"]) == (3, 70_001, 3)
    assert found["mean_us"] == pytest.approx((3 + 5000 + 70_001) / 3)


def test_without_values_there_are_no_numbers() -> None:
    found = statistics(SparseHistogram.empty(), HIGHEST_US)
    assert {found[name] for name in [*NAMES, "min_us", "mean_us", "max_us"]} == {None}
    assert (found["count"], found["lower_bounds"]) == (0, [])


def test_a_percentile_above_the_range_is_a_lower_bound() -> None:
    found = statistics(histogram([100] * 98 + [5000, 9000], highest_us=1000), 1000)
    assert found["p95_us"] == 100
    assert (found["p99_us"], found["p999_us"]) == (1000, 1000)
    assert found["lower_bounds"] == ["p99_us", "p999_us"]
    assert (found["overflow"], found["max_us"]) == (2, 9000)


@pytest.mark.parametrize(
    ("seen", "never_seen", "lower_bounds"),
    [
        (1000, 0, []),
        (999, 1, []),
        (998, 2, ["p999_us"]),
        (990, 10, ["p999_us"]),
        (989, 11, ["p99_us", "p999_us"]),
        (95, 5, ["p99_us", "p999_us"]),
        (94, 6, ["p95_us", "p99_us", "p999_us"]),
        (90, 10, ["p95_us", "p99_us", "p999_us"]),
        (89, 11, ["p90_us", "p95_us", "p99_us", "p999_us"]),
        (75, 25, ["p90_us", "p95_us", "p99_us", "p999_us"]),
        (74, 26, ["p75_us", "p90_us", "p95_us", "p99_us", "p999_us"]),
        (50, 50, ["p75_us", "p90_us", "p95_us", "p99_us", "p999_us"]),
        (1, 99, NAMES),
    ],
)
def test_percentiles_that_unseen_messages_reach_are_lower_bounds(
    seen: int, never_seen: int, lower_bounds: list[str]
) -> None:
    """They are the slowest: more than 1 - q of the count, and the percentile lies among them."""
    assert statistics(histogram([7] * seen), HIGHEST_US, never_seen)["lower_bounds"] == lower_bounds


def test_interval_max_and_mean_by_hand() -> None:
    calm, rough = histogram([100] * 99 + [200]), histogram([100] * 50 + [1000] * 50)
    worst, mean = interval_statistics([calm, SparseHistogram.empty(), rough], HIGHEST_US)
    assert (worst["p50_us"], mean["p50_us"]) == (100, 100.0)
    assert (worst["p75_us"], mean["p75_us"]) == (1000, 550.0)
    assert (worst["p99_us"], mean["p99_us"]) == (1000, 550.0)
    assert (worst["p999_us"], mean["p999_us"]) == (1000, 600.0)
    assert (worst["max_us"], mean["max_us"]) == (1000, 600.0)
    assert (worst["mean_us"], mean["mean_us"]) == (550.0, (101 + 550) / 2)
    assert worst["intervals"] == mean["intervals"] == 2


def test_a_bound_in_one_interval_is_a_bound_of_both_aggregations() -> None:
    fine, over = histogram([10] * 100, 1000), histogram([10] * 50 + [5000] * 50, 1000)
    worst, mean = interval_statistics([fine, over], 1000)
    assert worst["lower_bounds"] == mean["lower_bounds"]
    assert set(worst["lower_bounds"]) == {"p75_us", "p90_us", "p95_us", "p99_us", "p999_us"}


def test_no_intervals_are_no_numbers() -> None:
    worst, mean = interval_statistics([], HIGHEST_US)
    assert worst["p50_us"] is mean["p50_us"] is None
    assert worst["intervals"] == 0
