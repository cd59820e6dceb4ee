"""What was measured, as tables and verdicts."""

from __future__ import annotations

import pytest

from benchmarks.figures import (
    CLIENT_CPU,
    P99,
    RATE,
    Bar,
    Spread,
    one_per_row,
    ratio,
    side_by_side,
    spread,
    verdict,
)

RESULTS = {
    "ours": [{RATE: 300.0, CLIENT_CPU: 2.0}, {RATE: 10.0}, {RATE: 200.0, CLIENT_CPU: 4.0}],
    "theirs": [{RATE: 100.0, P99: 7.0}] * 3,
    "broken": [],
}


def test_a_disturbed_repetition_moves_the_extremes_and_not_the_median() -> None:
    assert spread(RESULTS, "ours", RATE) == Spread(200.0, 10.0, 300.0)
    assert spread(RESULTS, "ours", CLIENT_CPU) == Spread(3.0, 2.0, 4.0)


@pytest.mark.parametrize(
    ("of", "beside", "measure", "expected"),
    [
        ("ours", "theirs", RATE, 2.0),
        ("theirs", "ours", RATE, 0.5),
        ("ours", "theirs", CLIENT_CPU, None),
        ("ours", "broken", RATE, None),
    ],
)
def test_a_ratio_is_that_of_the_medians_if_both_have_one(
    of: str, beside: str, measure: object, expected: float | None
) -> None:
    assert ratio(RESULTS, of, beside, measure) == expected  # type: ignore[arg-type]


def test_a_ratio_to_nothing_is_none() -> None:
    assert ratio({"a": [{RATE: 1.0}], "b": [{RATE: 0.0}]}, "a", "b", RATE) is None


@pytest.mark.parametrize(
    ("bar", "expected"),
    [
        (
            Bar(RATE, "ours", "theirs", at_least=1.5),
            "- **met**: messages per second of ours at least 1.5 x theirs (2.00)",
        ),
        (
            Bar(RATE, "ours", "theirs", at_least=2.0),
            "- **met**: messages per second of ours at least 2 x theirs (2.00)",
        ),
        (
            Bar(RATE, "ours", "theirs", at_least=2.1),
            "- **missed**: messages per second of ours at least 2.1 x theirs (2.00)",
        ),
        (
            Bar(RATE, "theirs", "ours", at_most=0.33),
            "- **missed**: messages per second of theirs at most 0.33 x ours (0.50)",
        ),
        (
            Bar(CLIENT_CPU, "ours", at_most=30),
            "- **met**: client CPU, us per message of ours at most 30 (3.00)",
        ),
        (
            Bar(RATE, "ours", at_most=99, above="theirs"),
            "- **missed**: messages per second of ours at most 99 above theirs (100.00)",
        ),
        (
            Bar(P99, "theirs", at_most=1.0, above="ours"),
            "- **not measured**: latency p99, us of theirs at most 1 above ours",
        ),
        (
            Bar(P99, "ours", "theirs", at_most=1.0),
            "- **not measured**: latency p99, us of ours at most 1 x theirs",
        ),
    ],
)
def test_a_verdict_is_computed_from_what_was_reached(bar: Bar, expected: str) -> None:
    assert verdict(bar, RESULTS) == expected


def test_contenders_stand_side_by_side_with_their_ratios_below() -> None:
    assert side_by_side(RESULTS, (RATE, P99), "theirs") == [
        "|  | ours | theirs | broken |",
        "|---|---:|---:|---:|",
        "| messages per second | 200 (10 .. 300) | 100 (100 .. 100) | - |",
        "| ... x theirs | 2.00 | 1.00 |  |",
        "| latency p99, us | - | 7 (7 .. 7) | - |",
        "| ... x theirs |  | 1.00 |  |",
    ]


def test_a_measure_that_nobody_has_takes_no_row() -> None:
    lines = side_by_side({"ours": [{RATE: 1.0}]}, (RATE, P99), "ours")
    assert not any("p99" in line for line in lines)


def test_what_the_baseline_lacks_has_no_ratio() -> None:
    lines = side_by_side(RESULTS, (CLIENT_CPU,), "theirs")
    assert lines[2:] == ["| client CPU, us per message | 3.00 (2.00 .. 4.00) | - | - |"]


def test_contenders_that_do_different_work_have_a_row_each() -> None:
    assert one_per_row(RESULTS, (RATE, CLIENT_CPU)) == [
        "|  | messages per second | client CPU, us per message |",
        "|---|---:|---:|",
        "| ours | 200 (10 .. 300) | 3.00 (2.00 .. 4.00) |",
        "| theirs | 100 (100 .. 100) | - |",
        "| broken | - | - |",
    ]
