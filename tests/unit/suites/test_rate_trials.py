"""Loads of a search: which of them stands for the answer, and what the exit code is."""

from __future__ import annotations

import pytest

from bench_spark.errors import EXIT_DATA_LOST, EXIT_DEGRADED, EXIT_GATE_MISSED, EXIT_VALID
from bench_spark.suites.rate import (
    End,
    Kept,
    RateTrial,
    Sustained,
    exit_code_of,
    received_per_second,
    standing_for,
    status_of,
)


def run(run_id: str, rate: float, kept: bool, status: str = "valid") -> RateTrial:
    document = {"run_id": run_id, "status": status}
    verdict = Kept(kept, None if kept else "broker", "" if kept else "late", document=document)
    return RateTrial(rate, verdict)


def found_at(rate: float | None, *trials: RateTrial, end: End = "settled") -> Sustained:
    return Sustained(
        rate_per_second=rate,
        above_per_second=2000.0,
        range_high_per_second=2000.0,
        limited_by="broker",
        limit="",
        objective=None,
        end=end,
        trials=trials,
        edge=(),
    )


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (1000.0, "valid"),
        (500.0, "only degraded"),
        (None, "lowest"),
    ],
)
def test_a_run_that_kept_the_rate_and_is_valid_stands_for_the_answer(
    rate: float | None, expected: str
) -> None:
    trials = (
        run("not kept", 1000.0, kept=False),
        run("degraded", 1000.0, kept=True, status="degraded"),
        run("valid", 1000.0, kept=True),
        run("only degraded", 500.0, kept=True, status="degraded"),
        run("lowest", 100.0, kept=False),
    )
    assert standing_for(found_at(rate, *trials)).document["run_id"] == expected


@pytest.mark.parametrize(
    ("rate", "status", "codes", "expected"),
    [
        (1000.0, "valid", [EXIT_DEGRADED, EXIT_VALID, EXIT_GATE_MISSED], EXIT_VALID),
        (1000.0, "degraded", [EXIT_DEGRADED], EXIT_DEGRADED),
        (None, "valid", [EXIT_GATE_MISSED], EXIT_DEGRADED),
        (1000.0, "valid", [EXIT_DATA_LOST, EXIT_VALID], EXIT_DATA_LOST),
        (None, "degraded", [EXIT_DATA_LOST], EXIT_DATA_LOST),
    ],
)
def test_the_answer_and_lost_messages_decide_the_exit_code(
    rate: float | None, status: str, codes: list[int], expected: int
) -> None:
    standing = run("it", 1000.0, kept=rate is not None, status=status)
    assert exit_code_of(found_at(rate, standing), codes) == expected


@pytest.mark.parametrize("end", ["trials", "disputed"])
def test_a_search_that_is_not_settled_is_degraded(end: End) -> None:
    standing = run("it", 1000.0, kept=True)
    disputed = found_at(1000.0, standing, end=end)
    assert status_of(found_at(1000.0, standing)) == "valid"
    assert status_of(disputed) == "degraded"
    assert exit_code_of(disputed, [EXIT_VALID]) == EXIT_DEGRADED


@pytest.mark.parametrize(
    ("rate", "copies", "expected"), [(900.0, None, 900.0), (900.0, 3, 300.0), (None, 1, 0.0)]
)
def test_throughput_is_counted_in_messages_and_not_in_copies(
    rate: float | None, copies: int | None, expected: float
) -> None:
    found = {"rates": {"receive_rate": rate}, "copies": copies}
    assert received_per_second(found) == expected
