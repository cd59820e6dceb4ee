"""Conditions for pipelines: what can be said, what is refused, and when one holds."""

from __future__ import annotations

import pytest

from bench_spark.compare.comparison import parse_gate
from bench_spark.compare.estimates import Estimate, exact
from bench_spark.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "metric", "operator", "threshold", "is_ratio"),
    [
        ("p99 > 1.10x", "delivery_latency.p99", ">", 1.1, True),
        ("p99>1.1x", "delivery_latency.p99", ">", 1.1, True),
        ("  latency.p99.9 >= 2x ", "latency.p999", ">=", 2.0, True),
        ("latency.p999 > 5ms", "latency.p999", ">", 5_000.0, False),
        ("confirm_latency.mean > 250 us", "confirm_latency.mean", ">", 250.0, False),
        ("p50 > 1.5s", "delivery_latency.p50", ">", 1_500_000.0, False),
        ("receive_rate < 0.95x", "receive_rate", "<", 0.95, True),
        ("receive_rate <= 5e3", "receive_rate", "<=", 5_000.0, False),
        ("delivery_rate < 99.9%", "delivery_rate", "<", 0.999, False),
        ("lost > 0", "lost", ">", 0.0, False),
        ("broker_cpu > 80%", "broker_cpu", ">", 0.8, False),
    ],
)
def test_a_condition_names_a_metric_an_operator_and_a_limit(
    text: str, metric: str, operator: str, threshold: float, is_ratio: bool
) -> None:
    gate = parse_gate(text)
    assert (gate.metrics[0].name, gate.operator, gate.is_ratio) == (metric, operator, is_ratio)
    assert gate.threshold == pytest.approx(threshold)
    assert gate.text == text.strip()


def test_a_statistic_alone_counts_from_the_due_time_where_both_runs_have_one() -> None:
    assert [metric.name for metric in parse_gate("p99 > 2x").metrics] == [
        "delivery_latency.p99",
        "latency.p99",
        "confirm_latency.p99",
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "METRIC OPERATOR NUMBER"),
        ("p99", "METRIC OPERATOR NUMBER"),
        ("p99 = 1.1x", "METRIC OPERATOR NUMBER"),
        ("p99 > fast", "METRIC OPERATOR NUMBER"),
        ("p99 > -1x", "METRIC OPERATOR NUMBER"),
        ("p99 > 1.1x and lost > 0", "METRIC OPERATOR NUMBER"),
        ("p98 > 1.1x", "did you mean p9"),
        ("latncy.p99 > 1.1x", "did you mean latency.p99?"),
        ("latency.max > 1.1x", "is not compared"),
        ("p99 > 5", "give a unit: us, ms, s or x"),
        ("p99 > 5%", "'%' is no unit of p99"),
        ("receive_rate > 5ms", "'ms' is no unit of receive_rate; allowed: x, nothing, /s"),
    ],
)
def test_what_cannot_be_read_is_refused_with_what_is_allowed(text: str, told: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^--fail-if: ") as refused:
        parse_gate(text)
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("text", "estimate", "holds", "holds_strictly"),
    [
        ("p99 > 1.10x", Estimate(1.3, 1.15, 1.5), True, True),
        ("p99 > 1.10x", Estimate(1.3, 1.05, 1.5), False, True),
        ("p99 > 1.10x", Estimate(1.05, 1.0, 1.2), False, False),
        ("p99 > 1.10x", Estimate(1.3), True, True),
        ("p99 > 1.10x", Estimate(1.0), False, False),
        ("receive_rate < 0.95x", Estimate(0.9, 0.85, 0.94), True, True),
        ("receive_rate < 0.95x", Estimate(0.9, 0.85, 0.97), False, True),
        ("lost > 0", exact(0.0), False, False),
        ("lost > 0", exact(1.0), True, True),
        ("lost >= 1", exact(1.0), True, True),
        ("delivery_rate <= 99%", exact(0.99), True, True),
    ],
)
def test_the_whole_interval_must_lie_beyond_the_limit_unless_it_is_strict(
    text: str, estimate: Estimate, holds: bool, holds_strictly: bool
) -> None:
    gate = parse_gate(text)
    assert gate.holds(estimate, by_value=False) == holds
    assert gate.holds(estimate, by_value=True) == holds_strictly


@pytest.mark.parametrize(
    ("text", "estimate", "expected"),
    [
        ("p99 > 1.10x", Estimate(1.3), True),
        ("p99 > 1.10x", Estimate(1.3, 1.15, 9.0), False),
        ("p99 > 1.10x", Estimate(1.3, 1.05, 1.6), False),
        ("p99 > 1.10x", Estimate(1.3, 1.05, 1.7), True),
        ("p99 > 1.10x", Estimate(0.5, 0.1, 1.2), False),
        ("receive_rate < 0.95x", Estimate(0.087, 0.01, 1.2), True),
        ("receive_rate < 0.95x", Estimate(0.9, 0.01, 0.94), False),
        ("p99 > 5ms", Estimate(6_000, 4_000, 8_000), True),
        ("p99 > 5ms", Estimate(5_500, 4_000, 7_000), False),
        ("lost > 0", exact(0.0), False),
        ("lost > 0", exact(7.0), False),
    ],
)
def test_an_interval_with_both_sides_of_a_limit_and_far_beyond_it_cannot_tell(
    text: str, estimate: Estimate, expected: bool
) -> None:
    assert parse_gate(text).cannot_tell(estimate, practical=1.5) is expected
