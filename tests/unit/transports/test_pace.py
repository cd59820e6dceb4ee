"""How fast connections are opened, on a clock that only moves when somebody sleeps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_spark.process import Backoff
from bench_spark.transports.base import OPENED_TOGETHER, OpeningPace


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@given(rate=st.floats(0.5, 5000), wanted=st.integers(1, 2000))
def test_connections_are_opened_no_faster_than_asked_and_hardly_slower(
    rate: float, wanted: int
) -> None:
    time = Time()
    pace = OpeningPace(rate, time.clock, time.sleep)
    opened = 0
    while opened < wanted:
        taken = pace.take(wanted - opened)
        assert 1 <= taken <= min(OPENED_TOGETHER, wanted - opened)
        opened += taken
        assert opened - max(1.0, rate * 0.05) <= rate * time.now + 1e-6
    assert time.now <= wanted / rate


@pytest.mark.parametrize(("wanted", "together"), [(1, 1), (5, 5), (1000, OPENED_TOGETHER)])
def test_without_a_rate_groups_are_as_large_as_they_can_be(wanted: int, together: int) -> None:
    time = Time()
    assert OpeningPace(None, time.clock, time.sleep).take(wanted) == together
    assert time.now == 0


def test_pauses_double_up_to_the_longest_and_are_never_in_step() -> None:
    backoff = Backoff(0.1, 2.0)
    highest = [0.1, 0.2, 0.4, 0.8, 1.6, *[2.0] * 20]
    pauses = [backoff.next_seconds() for _ in highest]
    assert all(most / 2 <= pause <= most for pause, most in zip(pauses, highest, strict=True))
    assert len(set(pauses)) == len(pauses)
    backoff.reset()
    assert backoff.next_seconds() <= 0.1
