"""Numbers as people read them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_spark.config.problems import plural
from bench_spark.report import formatting as formatting


@pytest.mark.parametrize(
    ("value_us", "expected"),
    [
        (None, "-"),
        (0, "0 us"),
        (7, "7 us"),
        (999, "999 us"),
        (999.4, "999 us"),
        (999.6, "1.00 ms"),
        (1_000, "1.00 ms"),
        (1_234, "1.23 ms"),
        (9_999, "10.0 ms"),
        (12_345, "12.3 ms"),
        (123_456, "123 ms"),
        (999_499, "999 ms"),
        (999_500, "1.00 s"),
        (1_500_000, "1.50 s"),
        (75_000_000, "75.0 s"),
        (2_000_000_000, "2,000 s"),
    ],
)
def test_durations_have_three_digits_and_the_unit_that_fits(
    value_us: float | None, expected: str
) -> None:
    assert formatting.duration(value_us) == expected


@given(st.integers(min_value=0, max_value=999_000_000))
def test_a_duration_or_its_lower_bound_fits_its_column_and_is_off_by_half_a_per_cent(
    value_us: int,
) -> None:
    text = formatting.duration(value_us)
    number, unit = text.split()
    scale = {"us": 1, "ms": 1_000, "s": 1_000_000}[unit]
    assert abs(float(number) * scale - value_us) <= 0.005 * value_us + 1e-9
    assert len(text) <= 7
    assert len(formatting.duration(value_us, is_lower_bound=True)) <= 8


def test_a_lower_bound_says_so() -> None:
    assert formatting.duration(12_345, is_lower_bound=True) == ">=12.3ms"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "-"),
        (1.0, "100 %"),
        (0.999_999_9, "99.999 %"),
        (0.29, "29 %"),
        (0.742_9, "74.29 %"),
        (0.0, "0 %"),
        (0.000_001, "<0.001 %"),
        (1.000_01, "100.001 %"),
    ],
)
def test_shares_are_cut_so_that_nearly_all_is_never_all(value: float | None, expected: str) -> None:
    assert formatting.share(value) == expected


@given(st.integers(min_value=1, max_value=10**12))
def test_one_missing_message_is_never_100_per_cent(expected: int) -> None:
    assert formatting.share((expected - 1) / expected) != "100 %"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "-"),
        (0, "0"),
        (0.5, "0.5"),
        (99.94, "99.9"),
        (100.4, "100"),
        (9_998.7, "9,999"),
        (1_234_567.8, "1,234,568"),
    ],
)
def test_rates_have_decimals_only_where_they_matter(value: float | None, expected: str) -> None:
    assert formatting.rate(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "-"),
        (1_000, "1,000 B"),
        (67_108_864, "67.1 MB"),
        (8_000_000_000, "8.00 GB"),
        (3 * 10**12, "3.00 TB"),
    ],
)
def test_byte_sizes(value: float | None, expected: str) -> None:
    assert formatting.byte_size(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "0 s"),
        (0.5, "0.5 s"),
        (10.0, "10 s"),
        (119, "119 s"),
        (150, "2 min 30 s"),
        (3600, "60 min"),
        (12_000, "3 h 20 min"),
        (7_200, "2 h"),
    ],
)
def test_lengths_of_time(value: float, expected: str) -> None:
    assert formatting.seconds(value) == expected


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [([], "-"), ([3], "3"), ([0, 1, 2, 5], "0-2,5"), ([4, 2, 0], "0,2,4"), ([1, 0], "0-1")],
)
def test_numbers_in_a_row_become_ranges(numbers: list[int], expected: str) -> None:
    assert formatting.number_ranges(numbers) == expected


@given(st.sets(st.integers(min_value=0, max_value=200)))
def test_ranges_hold_exactly_the_numbers_given(numbers: set[int]) -> None:
    shown = formatting.number_ranges(numbers)
    if stepped := re.fullmatch(r"([0-9]+),([0-9]+)\.\.([0-9]+)", shown):
        first, second, last = map(int, stepped.groups())
        assert set(range(first, last + 1, second - first)) == numbers
        return
    found: set[int] = set()
    for part in re.findall(r"[0-9]+(?:-[0-9]+)?", shown):
        begin, _, end = part.partition("-")
        found |= set(range(int(begin), int(end or begin) + 1))
    assert found == numbers


@pytest.mark.parametrize(("number", "expected"), [(1, "1 agent"), (2_000, "2,000 agents")])
def test_plurals(number: int, expected: str) -> None:
    assert plural(number, "agent") == expected


def test_text_from_outside_cannot_move_the_cursor() -> None:
    assert formatting.one_line("no\x1b[2J access\r\n to  vhost") == "no\\x1b[2J access to vhost"
