"""The estimate of a suite's rest, corrected by what its trials took."""

from __future__ import annotations

import pytest

from bench_spark.suites.suite import TimeLeft


def test_before_the_first_trial_the_expectation_is_all_there_is() -> None:
    left = TimeLeft({"a": 10, "b": 20})
    assert left.seconds == 30
    assert left.text == "about 30 s left"


def test_what_trials_took_corrects_what_is_expected_of_the_others() -> None:
    left = TimeLeft({"a": 10, "b": 20, "c": 40})
    left.took("a", 15)
    assert left.seconds == pytest.approx(90)
    left.took("b", 15)
    assert left.seconds == pytest.approx(40)
    left.took("c", 1)
    assert left.seconds == 0


def test_trials_that_fail_at_once_leave_no_time_behind() -> None:
    left = TimeLeft({"a": 0, "b": 20})
    left.took("a", 0.1)
    assert left.seconds == 20
