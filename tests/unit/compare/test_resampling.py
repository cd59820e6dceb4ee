"""Block bootstrap: what is drawn, and percentiles of what was drawn against plain numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_spark.compare.estimates import (
    FEWEST_BLOCKS,
    IntervalHistograms,
    block_length,
    block_weights,
    ratios,
)
from bench_spark.core.hdr import Histogram, merge_sparse, shape_for

RANDOM = np.random.default_rng(7)
HIGHEST_US = 10_000_000


@given(st.integers(1, 200), st.data())
def test_every_resample_has_as_many_intervals_as_the_run(
    intervals: int, data: st.DataObject
) -> None:
    length = data.draw(st.integers(1, intervals))
    weights = block_weights(intervals, length, 20, RANDOM)
    assert weights.shape == (20, intervals)
    assert (weights.sum(axis=1) == intervals).all()


def test_neighbours_are_drawn_together() -> None:
    weights = block_weights(100, 10, 500, RANDOM)
    neighbours = np.corrcoef(weights[:, :-1].ravel(), weights[:, 1:].ravel())[0, 1]
    far_apart = np.corrcoef(weights[:, :-50].ravel(), weights[:, 50:].ravel())[0, 1]
    assert neighbours > 0.8
    assert abs(far_apart) < 0.2


def test_intervals_at_the_ends_are_drawn_as_often_as_those_between() -> None:
    drawn = block_weights(30, 5, 20_000, RANDOM).mean(axis=0)
    assert drawn == pytest.approx(np.ones(30), abs=0.05)


@pytest.mark.parametrize(
    ("values", "length"),
    [
        (np.zeros(0), 1),
        (np.array([5.0]), 1),
        (np.ones(27), 3),
        (np.tile([1.0, -1.0], 32), 4),  # neighbours that are unlike each other need no more
        (np.arange(1000.0), 83),  # a trend: the longest that theory is good for
    ],
)
def test_blocks_are_as_long_as_neighbours_are_alike(values: np.ndarray, length: int) -> None:
    assert block_length(values) == length


def test_there_are_always_blocks_to_choose_from() -> None:
    for intervals in (10, 11, 50):
        assert intervals // block_length(np.arange(float(intervals))) >= FEWEST_BLOCKS


def test_a_ratio_of_sums_weighs_each_interval_as_often_as_it_was_drawn() -> None:
    weights = np.array([[1, 1, 1], [3, 0, 0], [0, 0, 3]])
    found = ratios(weights, np.array([10.0, 20.0, 60.0]), np.array([1.0, 1.0, 2.0]))
    assert found == pytest.approx([22.5, 10.0, 30.0])


def test_nothing_measured_is_no_number() -> None:
    assert np.isnan(ratios(np.array([[1]]), np.array([0.0]), np.array([0.0]))).all()


def histograms_of(intervals: list[list[int]]) -> IntervalHistograms:
    """As `series.py` makes them, from values in microseconds."""
    sparse = []
    for values in intervals:
        histogram = Histogram(shape_for(HIGHEST_US))
        histogram.record_ns(np.array(values, dtype=np.int64) * 1000)
        sparse.append(histogram.sparse())
    values_us = np.unique(np.concatenate([found.values_us for found in sparse])).astype(np.int64)
    counts = np.zeros((len(sparse), len(values_us)), dtype=np.int64)
    for row, found in zip(counts, sparse, strict=True):
        row[np.searchsorted(values_us, found.values_us)] = found.counts
    return IntervalHistograms(
        values_us,
        counts,
        np.array([found.overflow for found in sparse]),
        np.array([float(found.sum_us) for found in sparse]),
        HIGHEST_US,
        np.array([found.max_us for found in sparse]),
    )


@given(
    st.lists(st.lists(st.integers(0, 20_000_000), min_size=1, max_size=20), min_size=1, max_size=6),
    st.sampled_from([50.0, 90.0, 99.0, 99.9]),
)
def test_percentiles_of_resamples_are_those_of_merged_histograms(
    intervals: list[list[int]], percentile: float
) -> None:
    weights = block_weights(len(intervals), 1, 5, RANDOM)
    [found] = histograms_of(intervals).percentiles(weights, [percentile])
    for row, value in zip(weights, found, strict=True):
        parts = []
        for times, values in zip(row, intervals, strict=True):
            histogram = Histogram(shape_for(HIGHEST_US))
            histogram.record_ns(np.array(values * times, dtype=np.int64) * 1000)
            parts.append(histogram.sparse())
        assert value == merge_sparse(parts).percentile(percentile, HIGHEST_US).value_us


def test_means_are_of_the_values_themselves() -> None:
    intervals = [[10, 20], [3_000_001]]
    found = histograms_of(intervals).means(np.array([[1, 1], [2, 0]]))
    assert found == pytest.approx([3_000_031 / 3, 15.0])


def test_many_buckets_are_worked_through_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    histograms = histograms_of([[1, 5, 9], [2, 4, 8]])
    weights = block_weights(2, 1, 50, RANDOM)
    whole = histograms.percentiles(weights, [50.0, 99.0])
    monkeypatch.setattr("bench_spark.compare.estimates._CELLS_AT_ONCE", 13)
    assert np.array_equal(histograms.percentiles(weights, [50.0, 99.0]), whole)
