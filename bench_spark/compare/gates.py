"""Conditions for pipelines: `p99 > 1.10x`, `receive_rate < 0.95x`, `latency.p99 > 5ms`, `lost > 0`.

A gate is missed when its condition holds. Unless it is to be strict, it must hold for the whole
confidence interval: a pipeline that fails by chance is soon ignored. Where there is no interval the
number itself decides, strict or not.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bench_spark.compare.estimates import Estimate
from bench_spark.compare.metrics import Metric, Unit, named
from bench_spark.errors import ConfigurationError
from bench_spark.scenario.shown import shown_value

RULE = (
    "METRIC OPERATOR NUMBER with an operator of >, >=, <, <= and a number followed by x "
    "(times the baseline), us, ms or s (a duration), % (a share), or nothing"
)

_FORM = re.compile(
    r"\s*(?P<metric>[A-Za-z_][\w.]*)\s*(?P<operator>>=|<=|>|<)\s*"
    r"(?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*(?P<unit>[A-Za-z%]*)\s*"
)
_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_RATIO = "x"
_FACTORS: Mapping[Unit, Mapping[str, float]] = {
    "us": {"us": 1.0, "ms": 1e3, "s": 1e6},
    "per_second": {"": 1.0},
    "share": {"%": 0.01, "": 1.0},
    "cpu_share": {"%": 0.01, "": 1.0},
    "count": {"": 1.0},
    "bytes_per_second": {"": 1.0},
}


@dataclass(frozen=True)
class Gate:
    text: str
    metrics: tuple[Metric, ...]
    """What it is about: the first of these that the runs have."""
    operator: str
    threshold: float
    """A ratio, or in the unit of the metric."""
    is_ratio: bool

    def holds(self, estimate: Estimate, is_strict: bool) -> bool:
        compare = _OPERATORS[self.operator]
        # The end of the interval that is nearest to the threshold's other side.
        end = estimate.low if self.operator.startswith(">") else estimate.high
        judged = estimate.value if is_strict or end is None else end
        return compare(judged, self.threshold)


def parse_gate(text: str, option: str = "--fail-if") -> Gate:
    found = _FORM.fullmatch(text)
    if found is None:
        raise ConfigurationError(f"{option}: {shown_value(text)} cannot be read; allowed: {RULE}")
    metrics = named(found["metric"], option)
    number, unit = float(found["number"]), found["unit"]
    if unit == _RATIO:
        return Gate(text.strip(), metrics, found["operator"], number, is_ratio=True)
    factors = _FACTORS[metrics[0].unit]
    if unit not in factors:
        allowed = ", ".join([_RATIO, *(known or "nothing" for known in factors)])
        raise ConfigurationError(
            f"{option}: {shown_value(text)}: {shown_value(unit) if unit else 'a bare number'} is "
            f"no unit of {found['metric']}; allowed: {allowed}"
        )
    return Gate(text.strip(), metrics, found["operator"], number * factors[unit], is_ratio=False)
