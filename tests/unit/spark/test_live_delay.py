"""The audit's check `live`: what people who watched the run have seen, and when."""

from __future__ import annotations

import pytest

from bench_spark.spark.metrics import LiveDelay, late_after, live_check

SECOND = 1_000_000_000
NONE = "no live metrics before the measured phase ended"


def judged(
    written: dict[int, float], until: int = 15, now: int = 30, late: float = 5.0
) -> tuple[str, str]:
    """Of windows by the second they end in, each written so many seconds later."""
    delay = LiveDelay(late_after_seconds=late)
    for end, later in sorted(written.items(), key=lambda one: one[0] + one[1]):
        for _ in range(2):  # a row per measure
            delay.written(end * SECOND, round((end + later) * SECOND))
    check = live_check(delay, 0, until * SECOND, now * SECOND)
    assert check.name == "live"
    return check.verdict, check.text


@pytest.mark.parametrize(
    ("written", "until", "verdict", "text"),
    [
        (
            dict.fromkeys(range(1, 16), 1.2),
            15,
            "pass",
            "the newest live metrics came 1.2 s after their window",
        ),
        (
            dict.fromkeys(range(1, 15), 1.0) | {15: 6.5},
            15,
            "warn",
            "the newest live metrics came 6.5 s after their window; 1 of 15 windows were late "
            "(more than 5 s), the longest by 6.5 s",
        ),
        (
            dict.fromkeys(range(1, 11), 1.0),
            15,
            "warn",
            "the newest live metrics came 1.0 s after their window; 5 of 15 windows were late "
            "(more than 5 s), the longest by 1.0 s, 5 of them not written at all",
        ),
        ({}, 15, "warn", f"{NONE}, 15 s after the load began"),
        ({1: 14.5}, 15, "warn", f"{NONE}, 15 s after the load began"),
        ({}, 3, "pass", f"{NONE}: 3.0 s of load are too few to be watched"),
    ],
)
def test_live(written: dict[int, float], until: int, verdict: str, text: str) -> None:
    assert judged(written, until) == (verdict, text)


def test_a_longer_trigger_makes_windows_late_later() -> None:
    assert late_after(2.0) == 5.0
    assert late_after(10.0) == 25.0
