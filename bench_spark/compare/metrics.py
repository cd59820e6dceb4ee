"""What can be compared: names, units, and which way is better."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bench_spark.errors import ConfigurationError
from bench_spark.scenario.conditions import Unit
from bench_spark.scenario.nearest import nearest
from bench_spark.scenario.shown import shown_value
from bench_spark.scenario.suite_file import MEASURES
from bench_spark.tables import PERCENTILES

STATISTICS = (*(name.removesuffix("_us") for name, _ in PERCENTILES), "mean")
"""Not the maximum: one message decides it, and no resample of a run has a larger one."""
_HEADLINE = ("latency", "confirm_latency")
"""Measures that a statistic without one is about: the first that the runs have."""


@dataclass(frozen=True)
class Metric:
    name: str
    unit: Unit
    higher_is_better: bool = False
    practical: float = 1.5
    """A change by this factor, up or down, is one that people would act on: an interval that holds
    both it and no change at all tells nothing."""


RATES = (
    Metric("receive_rate", "per_second", higher_is_better=True, practical=1.1),
    Metric("send_rate", "per_second", higher_is_better=True, practical=1.1),
)
COUNTED = (
    Metric("delivery_rate", "share", higher_is_better=True),
    Metric("lost", "count"),
    Metric("duplicates", "count"),
)
"""Counted message by message: there is nothing to be unsure of."""
BROKER = (
    Metric("broker_cpu", "cpu_share"),
    Metric("broker_written", "bytes_per_second"),
    Metric("broker_device_written", "bytes_per_second"),
)
DURATIONS = tuple(
    Metric(f"{measure}.{statistic}", "us") for measure in MEASURES for statistic in STATISTICS
)
BY_NAME = {metric.name: metric for metric in (*RATES, *COUNTED, *DURATIONS, *BROKER)}


def named(name: str, where: str) -> tuple[Metric, ...]:
    """The metrics that a name may mean, the first that is there counts."""
    statistic = name.replace("99.9", "999")
    if statistic in STATISTICS:
        return tuple(BY_NAME[f"{measure}.{statistic}"] for measure in _HEADLINE)
    if statistic in BY_NAME:
        return (BY_NAME[statistic],)
    guess = nearest(name, [*BY_NAME, *STATISTICS])
    rates = ", ".join(metric.name for metric in (*RATES, *COUNTED, *BROKER))
    raise ConfigurationError(
        f"{where}: {shown_value(name)} is not compared; allowed: {rates}, a statistic "
        f"({', '.join(STATISTICS)}), or MEASURE.STATISTIC with a measure of {', '.join(MEASURES)}"
        + (f"; did you mean {guess}?" if guess else "")
    )


def shown_metrics(available: Iterable[str]) -> list[str]:
    """In the order of this module; of durations the percentiles that people ask for."""
    known = set(available)
    usual = {"p50", "p95", "p99", "p999", "mean"}
    return [name for name in BY_NAME if name in known and name.partition(".")[2] in usual | {""}]
