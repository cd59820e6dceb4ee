"""Objectives: what can be said, what is refused, and when one is met."""

from __future__ import annotations

import re
from typing import Any

import pytest

from bench_spark.config.loader import load_scenario
from bench_spark.config.objectives import (
    SHORT_NAMES,
    UNIT_OF_PATH,
    headline_measure,
    parse_objective,
)
from bench_spark.errors import ConfigurationError

DOCUMENT: dict[str, Any] = {
    "measures": {
        "latency": {"p50_us": 900, "p99_us": 40_000, "p999_us": 60_000, "lower_bounds": ["p999_us"]}
    },
    "counts": {"lost": 0, "sent": 12_000, "confirmed": None},
    "rates": {"receive_rate": 999.5},
    "delivery_rate": 0.9995,
}


@pytest.mark.parametrize(
    ("text", "path", "is_met"),
    [
        ("measures.latency.p99_us < 50ms", "measures.latency.p99_us", True),
        ("p99 < 50ms", "measures.latency.p99_us", True),
        ("p99 <= 40000us", "measures.latency.p99_us", True),
        ("latency.p50 < 0.0005s", "measures.latency.p50_us", False),
        ("lost == 0", "counts.lost", True),
        ("counts.lost != 0", "counts.lost", False),
        ("sent >= 12k", "counts.sent", True),
        ("receive_rate >= 1k/s", "rates.receive_rate", False),
        ("receive_rate > 999/s", "rates.receive_rate", True),
        ("delivery_rate >= 99.9%", "delivery_rate", True),
        ("delivery_rate>=0.9999", "delivery_rate", False),
    ],
)
def test_a_number_of_the_result_meets_an_objective_or_not(
    text: str, path: str, is_met: bool
) -> None:
    judged = parse_objective(text).judge(DOCUMENT)
    assert (judged.path, judged.is_met) == (path, is_met)


@pytest.mark.parametrize("text", ["confirmed > 0", "delivery_latency.p99 < 1s", "due > 0"])
def test_what_is_not_known_meets_nothing(text: str) -> None:
    judged = parse_objective(text).judge(DOCUMENT)
    assert (judged.value, judged.is_met) == (None, False)


def test_a_lower_bound_shows_that_a_limit_is_exceeded_but_never_that_it_is_kept() -> None:
    assert not parse_objective("p99.9 < 1s").judge(DOCUMENT).is_met
    assert parse_objective("p999 > 50ms").judge(DOCUMENT).is_met


@pytest.mark.parametrize("others", [(), ("latency",), ("latency", "confirm_latency")])
def test_in_an_open_loop_a_statistic_counts_from_the_due_time(others: tuple[str, ...]) -> None:
    measures = {name: {"p99_us": 5} for name in (*others, "delivery_latency")}
    judged = parse_objective("p99 < 1ms").judge({"measures": measures})
    assert judged.path == "measures.delivery_latency.p99_us"
    assert headline_measure(measures) == "delivery_latency"


@pytest.mark.parametrize(
    ("overrides", "measure"),
    [
        ([], "delivery_latency"),
        (["load.mode=request"], "delivery_latency"),
        (["load.mode=maximum"], "latency"),
        (["load.mode=window"], "latency"),
        (["message.bytes=8"], "latency"),
        (["consumers=0"], "confirm_latency"),
        (["producers=0", "load.messages=5", "phases.warmup_seconds=0"], "latency"),
    ],
)
def test_a_scenario_says_what_a_statistic_alone_is_of(overrides: list[str], measure: str) -> None:
    assert load_scenario("steady", overrides).headline_measure == measure


def test_without_consumers_a_statistic_is_of_the_confirmation() -> None:
    document = {"measures": {"confirm_latency": {"p99_us": 5}}}
    assert parse_objective("p99 < 1ms").judge(document).path == "measures.confirm_latency.p99_us"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "NAME OPERATOR NUMBER"),
        ("p99", "NAME OPERATOR NUMBER"),
        ("p99 = 5ms", "NAME OPERATOR NUMBER"),
        ("p99 < fast", "NAME OPERATOR NUMBER"),
        ("p99 < 5ms and lost == 0", "NAME OPERATOR NUMBER"),
        ("p99 < 5", "give a unit: us, ms or s"),
        ("lost < 5%", "'%' is no unit of lost; allowed: nothing, k"),
        ("losst == 0", "did you mean lost?"),
        ("measures.latncy.p99_us < 5ms", "did you mean measures.latency.p99_us?"),
        ("scenario.load.rate_per_second > 5", "is no number of a result"),
    ],
)
def test_what_cannot_be_read_is_refused_with_what_can(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        parse_objective(text)


def test_a_scenario_with_a_wrong_objective_is_refused_by_its_key() -> None:
    with pytest.raises(ConfigurationError, match="slo"):
        load_scenario("steady", ['slo=["p99 < 5ms", "losst == 0"]'])


def test_a_scenario_keeps_its_objectives() -> None:
    assert load_scenario("steady", ['slo=["p99 < 5ms"]']).slo == ["p99 < 5ms"]


def test_every_short_name_stands_for_numbers_that_exist() -> None:
    assert {path for paths in SHORT_NAMES.values() for path in paths} <= UNIT_OF_PATH.keys()
