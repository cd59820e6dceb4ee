"""The vectorised histogram against the hdrhistogram package, bucket by bucket."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hdrh.histogram import HdrHistogram
from hypothesis import given
from hypothesis import strategies as st

from bench_spark.core.hdr import (
    HIGHEST_LIMIT_US,
    TOTALS,
    Histogram,
    Percentile,
    SparseHistogram,
    index_of,
    merge_sparse,
    shape_for,
)

TEN_SECONDS_US = 10_000_000
RANGES_US = (2, 1_000, 2_047, 2_048, 60_000, TEN_SECONDS_US, 2**24, 2_000_000_000, HIGHEST_LIMIT_US)
PERCENTILES = (0.0, 0.001, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.999, 100.0)

durations_us = st.one_of(
    st.integers(0, 5_000),
    st.integers(0, TEN_SECONDS_US),
    st.sampled_from([0, 1, 1023, 1024, 2047, 2048, 4095, 4096, TEN_SECONDS_US]),
)


def histogram_of_us(values_us: list[int], highest_us: int = TEN_SECONDS_US) -> Histogram:
    histogram = Histogram(shape_for(highest_us))
    histogram.record_ns(np.array(values_us, dtype=np.int64) * 1000)
    return histogram


def reference_of_us(values_us: list[int], highest_us: int = TEN_SECONDS_US) -> HdrHistogram:
    reference = HdrHistogram(1, highest_us, 3)
    for value_us in values_us:
        assert reference.record_value(value_us)
    return reference


def counts_of(reference: HdrHistogram) -> npt.NDArray[np.int64]:
    return np.array([reference.get_count_at_index(i) for i in range(reference.counts_len)])


def sample_us(kind: str, count: int = 20_000) -> list[int]:
    generator = np.random.default_rng(20)
    if kind == "lognormal":
        values = np.minimum(generator.lognormal(np.log(800), 1.5, count), TEN_SECONDS_US)
    else:
        values = generator.integers(0, TEN_SECONDS_US, count, endpoint=True)
    return [int(value) for value in values]


class TestShape:
    @pytest.mark.parametrize("highest_us", RANGES_US)
    def test_has_the_buckets_of_hdrhistogram(self, highest_us: int) -> None:
        shape, reference = shape_for(highest_us), HdrHistogram(1, highest_us, 3)
        assert shape.size == reference.counts_len
        assert shape.highest_equivalent_us.tolist() == [
            reference.get_highest_equivalent_value(reference.get_value_from_index(index))
            for index in range(reference.counts_len)
        ]

    def test_puts_every_edge_of_a_bucket_where_hdrhistogram_does(self) -> None:
        shape, reference = shape_for(HIGHEST_LIMIT_US), HdrHistogram(1, HIGHEST_LIMIT_US, 3)
        ends = shape.highest_equivalent_us
        starts = np.concatenate([[0], ends[:-1] + 1])
        for edges in (starts, ends):
            assert index_of(edges).tolist() == list(range(shape.size))
        for value in [*starts[::97].tolist(), *ends[::97].tolist()]:
            assert index_of(np.array([value]))[0] == reference.get_counts_array_index(value)

    def test_is_made_once_per_range(self) -> None:
        assert shape_for(TEN_SECONDS_US) is shape_for(TEN_SECONDS_US)

    @pytest.mark.parametrize("highest_us", [-1, 0, 1, HIGHEST_LIMIT_US + 1])
    def test_refuses_a_range_that_cannot_be_stored(self, highest_us: int) -> None:
        with pytest.raises(ValueError, match="range must end at"):
            shape_for(highest_us)


class TestRecording:
    @pytest.mark.parametrize("kind", ["lognormal", "uniform"])
    def test_random_latencies_fill_the_same_buckets(self, kind: str) -> None:
        values_us = sample_us(kind)
        histogram, reference = histogram_of_us(values_us), reference_of_us(values_us)
        assert np.array_equal(histogram.counts, counts_of(reference))
        assert histogram.count == len(values_us)
        assert histogram.sum_us == sum(values_us)
        assert (histogram.min_us, histogram.max_us) == (min(values_us), max(values_us))

    @given(st.lists(st.lists(durations_us, max_size=30), max_size=5))
    def test_batches_add_up(self, batches: list[list[int]]) -> None:
        histogram = Histogram(shape_for(TEN_SECONDS_US))
        for batch in batches:
            histogram.record_ns(np.array(batch, dtype=np.int64) * 1000)
        values_us = [value for batch in batches for value in batch]
        assert np.array_equal(histogram.counts, counts_of(reference_of_us(values_us)))
        assert histogram.sum_us == sum(values_us)
        assert histogram.min_us == min(values_us, default=0)
        assert histogram.max_us == max(values_us, default=0)

    @pytest.mark.parametrize(
        ("value_ns", "value_us"), [(0, 0), (999, 0), (1_000, 1), (1_999, 1), (2_000, 2)]
    )
    def test_nanoseconds_are_rounded_down(self, value_ns: int, value_us: int) -> None:
        histogram = Histogram(shape_for(TEN_SECONDS_US))
        histogram.record_ns(np.array([value_ns]))
        assert histogram.sparse().values_us.tolist() == [value_us]
        assert histogram.negative == 0

    @pytest.mark.fault(case=15)
    def test_negative_values_become_zero_and_are_counted(self) -> None:
        histogram = Histogram(shape_for(TEN_SECONDS_US))
        histogram.record_ns(np.array([-1, -5_000_000, 0, 7_000]))
        assert histogram.negative == 2
        assert histogram.counts[0] == 3
        assert histogram.count == 4
        assert (histogram.min_us, histogram.max_us, histogram.sum_us) == (0, 7, 7)

    def test_a_batch_of_only_negative_values_has_zero_as_its_largest(self) -> None:
        histogram = Histogram(shape_for(TEN_SECONDS_US))
        histogram.record_ns(np.array([-3_000]))
        assert (histogram.min_us, histogram.max_us, histogram.count) == (0, 0, 1)

    def test_values_above_the_range_are_counted_apart_with_their_true_maximum_and_sum(self) -> None:
        histogram = histogram_of_us([5, TEN_SECONDS_US, TEN_SECONDS_US + 1, 25_000_000])
        assert histogram.overflow == 2
        assert histogram.counts.sum() == 2
        assert histogram.count == 4
        assert histogram.max_us == 25_000_000
        assert histogram.sum_us == 5 + 2 * TEN_SECONDS_US + 1 + 25_000_000

    def test_only_overflow_still_has_a_minimum(self) -> None:
        histogram = histogram_of_us([30_000_000, 20_000_000])
        assert (histogram.min_us, histogram.max_us) == (20_000_000, 30_000_000)
        assert histogram.count == histogram.overflow == 2

    def test_absurd_values_do_not_wrap_the_sum(self) -> None:
        largest_ns = 2**63 - 1
        histogram = Histogram(shape_for(TEN_SECONDS_US))
        histogram.record_ns(np.full(3_000, largest_ns))
        assert histogram.sum_us == 3_000 * (largest_ns // 1000)
        assert histogram.sparse().sum_us == 2**63 - 1

    def test_clearing_leaves_nothing(self) -> None:
        histogram = histogram_of_us([1, 2, 30_000_000])
        histogram.record_ns(np.array([-1]))
        histogram.clear()
        assert histogram.sparse() == SparseHistogram.empty()
        histogram.record_ns(np.array([9_000]))
        assert histogram.min_us == 9


class TestMerging:
    @given(st.lists(st.lists(st.integers(-5, 3 * TEN_SECONDS_US), max_size=20), max_size=6))
    def test_parts_merge_into_what_one_histogram_would_have_seen(
        self, parts: list[list[int]]
    ) -> None:
        whole = histogram_of_us([value for part in parts for value in part])
        merged = Histogram(shape_for(TEN_SECONDS_US))
        for part in parts:
            merged.merge(histogram_of_us(part))
        assert np.array_equal(merged.counts, whole.counts)
        assert merged.sparse() == whole.sparse()
        assert merge_sparse([histogram_of_us(part).sparse() for part in parts]) == whole.sparse()

    def test_counts_beyond_a_doubles_precision_stay_exact(self) -> None:
        one = SparseHistogram(
            7, 7, 7, 0, 0, np.array([7], np.int32), np.array([2**53 + 1], np.int64)
        )
        assert merge_sparse([one, one, one]).counts.tolist() == [3 * (2**53 + 1)]

    def test_different_ranges_do_not_merge(self) -> None:
        with pytest.raises(ValueError, match="10000000 us and at 1000 us"):
            histogram_of_us([1]).merge(Histogram(shape_for(1_000)))

    def test_only_overflow_merges(self) -> None:
        part = histogram_of_us([20_000_000]).sparse()
        merged = merge_sparse([part, part, SparseHistogram.empty()])
        assert (merged.count, merged.overflow, merged.min_us) == (2, 2, 20_000_000)
        assert len(merged.values_us) == 0

    def test_a_snapshot_does_not_change_afterwards(self) -> None:
        histogram = histogram_of_us([5])
        snapshot = histogram.sparse()
        histogram.record_ns(np.array([5_000]))
        assert snapshot.counts.tolist() == [1]


class TestPercentiles:
    @pytest.mark.parametrize("kind", ["lognormal", "uniform"])
    def test_equal_those_of_hdrhistogram(self, kind: str) -> None:
        values_us = sample_us(kind)
        sparse, reference = histogram_of_us(values_us).sparse(), reference_of_us(values_us)
        for percentile in PERCENTILES:
            expected_us = min(reference.get_value_at_percentile(percentile), max(values_us))
            assert sparse.percentile(percentile) == Percentile(expected_us, is_lower_bound=False)

    @given(
        st.lists(durations_us, max_size=40),
        st.one_of(st.sampled_from(PERCENTILES), st.floats(0, 100)),
    )
    def test_equal_those_of_hdrhistogram_for_few_values(
        self, values_us: list[int], percentile: float
    ) -> None:
        expected_us = reference_of_us(values_us).get_value_at_percentile(percentile)
        found = histogram_of_us(values_us).sparse().percentile(percentile)
        assert found == Percentile(min(expected_us, max(values_us, default=0)), False)

    @given(
        st.lists(st.integers(0, 3 * TEN_SECONDS_US), min_size=1, max_size=40),
        st.floats(0.001, 100),
    )
    def test_lie_between_the_value_of_their_rank_and_the_maximum(
        self, values_us: list[int], percentile: float
    ) -> None:
        rank = max(1, int(np.floor(percentile * len(values_us) / 100 + 0.5)))
        exact_us = int(np.sort(values_us)[rank - 1])
        found = histogram_of_us(values_us).sparse().percentile(percentile, TEN_SECONDS_US)
        assert found.value_us <= max(values_us)
        assert found.is_lower_bound == (exact_us > TEN_SECONDS_US)
        if found.is_lower_bound:
            # The last bucket reaches a little beyond the range.
            assert TEN_SECONDS_US <= found.value_us <= TEN_SECONDS_US * (1 + 1 / 1024)
        else:
            assert exact_us <= found.value_us <= exact_us * (1 + 1 / 1024)

    def test_zero_is_the_lower_end_of_the_first_bucket_and_the_others_the_upper(self) -> None:
        sparse = histogram_of_us([5_001, 9_000]).sparse()
        assert sparse.percentile(0).value_us == 5_000
        assert sparse.percentile(0.001).value_us == sparse.percentile(50).value_us == 5_003

    def test_none_is_above_the_true_maximum(self) -> None:
        sparse = histogram_of_us([11_396_122], highest_us=60_000_000).sparse()
        assert sparse.values_us.tolist() == [11_403_263]
        assert {sparse.percentile(p).value_us for p in (0.001, 50, 99.9, 100)} == {11_396_122}

    @pytest.mark.fault(case=15)
    def test_overflow_takes_part_in_the_rank_as_a_lower_bound(self) -> None:
        sparse = histogram_of_us([100] * 90 + [20_000_000] * 10).sparse()
        assert sparse.percentile(90, TEN_SECONDS_US) == Percentile(100, is_lower_bound=False)
        assert sparse.percentile(91, TEN_SECONDS_US) == Percentile(
            TEN_SECONDS_US, is_lower_bound=True
        )
        assert sparse.percentile(91) == Percentile(100, is_lower_bound=True)

    def test_only_overflow_is_bounded_by_its_smallest_value(self) -> None:
        sparse = histogram_of_us([20_000_000, 30_000_000]).sparse()
        assert sparse.percentile(50) == Percentile(20_000_000, is_lower_bound=True)

    @pytest.mark.parametrize("percentile", [-0.1, 100.1, float("nan")])
    def test_outside_of_the_scale_are_refused(self, percentile: float) -> None:
        with pytest.raises(ValueError, match=r"0 \.\. 100"):
            SparseHistogram.empty().percentile(percentile)


class TestSparse:
    def test_lists_filled_buckets_in_ascending_order(self) -> None:
        sparse = histogram_of_us([3_000, 5, 3_001, 5, 9_999_999]).sparse()
        assert sparse.values_us.tolist() == [5, 3_001, 10_002_431]
        assert sparse.counts.tolist() == [2, 2, 1]
        assert sparse.values_us.dtype == np.dtype(np.int32)
        assert sparse.counts.dtype == np.dtype(np.int64)

    def test_means_come_from_the_values_and_not_from_their_buckets(self) -> None:
        assert histogram_of_us([3_000_000, 3_000_001]).sparse().mean_us == 3_000_000.5
        assert histogram_of_us([10, 20_000_000]).sparse().mean_us == 10_000_005

    def test_an_empty_one_has_no_mean_and_only_zeros(self) -> None:
        empty = Histogram(shape_for(TEN_SECONDS_US)).sparse()
        assert empty == SparseHistogram.empty() == merge_sparse([]) == merge_sparse([empty])
        assert (empty.count, empty.mean_us) == (0, None)
        assert empty.percentile(99) == Percentile(0, is_lower_bound=False)

    def test_equality_looks_at_totals_and_buckets(self) -> None:
        assert histogram_of_us([1, 4_096]).sparse() == histogram_of_us([4_096, 1]).sparse()
        assert histogram_of_us([1, 4_096]).sparse() != histogram_of_us([1, 4_097]).sparse()
        assert histogram_of_us([1]).sparse() != histogram_of_us([1, 1]).sparse()
        assert histogram_of_us([1]).sparse() != "a histogram"


class TestEncoding:
    @given(st.lists(durations_us, max_size=60))
    def test_is_what_hdrhistogram_itself_would_write(self, values_us: list[int]) -> None:
        encoded = histogram_of_us(values_us).sparse().encode(TEN_SECONDS_US)
        assert encoded.encode() == reference_of_us(values_us).encode()

    def test_decodes_to_equal_counts_and_percentiles(self) -> None:
        values_us = sample_us("lognormal")
        histogram = histogram_of_us(values_us)
        decoded = HdrHistogram.decode(histogram.sparse().encode(TEN_SECONDS_US))
        assert np.array_equal(counts_of(decoded), histogram.counts)
        assert decoded.get_total_count() == len(values_us)
        for percentile in PERCENTILES:
            found = histogram.sparse().percentile(percentile)
            decoded_us = decoded.get_value_at_percentile(percentile)
            assert min(decoded_us, max(values_us)) == found.value_us

    def test_keeps_large_counts(self) -> None:
        histogram = histogram_of_us([1_234])
        for _ in range(40):
            histogram.merge(histogram)
        decoded = HdrHistogram.decode(histogram.sparse().encode(TEN_SECONDS_US))
        assert decoded.get_total_count() == 2**40

    def test_leaves_overflow_out(self) -> None:
        sparse = histogram_of_us([8, 20_000_000]).sparse()
        assert HdrHistogram.decode(sparse.encode(TEN_SECONDS_US)).get_total_count() == 1

    @given(st.lists(durations_us, max_size=60))
    def test_is_read_back_as_it_was(self, values_us: list[int]) -> None:
        sparse = histogram_of_us(values_us).sparse()
        totals = {name: getattr(sparse, name) for name in TOTALS}
        assert SparseHistogram.decode(sparse.encode(TEN_SECONDS_US), totals) == sparse

    def test_refuses_a_range_that_is_too_small(self) -> None:
        with pytest.raises(ValueError, match="outside"):
            histogram_of_us([9_000_000]).sparse().encode(1_000)
