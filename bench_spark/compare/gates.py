"""Conditions for pipelines: `p99 > 1.10x`, `receive_rate < 0.95x`, `latency.p99 > 5ms`, `lost > 0`.

A gate is missed when its condition holds. Unless it is to be strict, it must hold for the whole
confidence interval: a pipeline that fails by chance is soon ignored. Where the interval is missing,
or too wide to tell, the number itself decides: a gate is not passed because a measurement is poor.
"""

from __future__ import annotations

from dataclasses import dataclass

from bench_spark.compare.estimates import Estimate
from bench_spark.compare.metrics import Metric, named
from bench_spark.errors import ConfigurationError
from bench_spark.scenario.conditions import FACTORS, OPERATORS, parse_condition, wrong_unit
from bench_spark.scenario.shown import shown_value

RULE = (
    "METRIC OPERATOR NUMBER with an operator of >, >=, <, <= and a number followed by x "
    "(times the baseline), us, ms or s (a duration), % (a share), /s (a rate), k (thousands), or "
    "nothing"
)

_OPERATORS = (">", ">=", "<", "<=")
_RATIO = "x"


@dataclass(frozen=True)
class Gate:
    text: str
    metrics: tuple[Metric, ...]
    """What it is about: the first of these that the runs have."""
    operator: str
    threshold: float
    """A ratio, or in the unit of the metric."""
    is_ratio: bool

    def cannot_tell(self, estimate: Estimate, practical: float) -> bool:
        """Whether the interval is missing, or holds the limit and a change of practical size beyond
        it."""
        is_vague = estimate.is_vague_above if self._is_above else estimate.is_vague_below
        return is_vague(self.threshold, practical)

    def holds(self, estimate: Estimate, by_value: bool) -> bool:
        """`by_value`: for the number itself, and not for its whole interval."""
        # The end of the interval that is nearest to the threshold's other side.
        end = estimate.low if self._is_above else estimate.high
        judged = estimate.value if by_value or end is None else end
        return OPERATORS[self.operator](judged, self.threshold)

    @property
    def _is_above(self) -> bool:
        return self.operator.startswith(">")


def parse_gate(text: str, option: str = "--fail-if") -> Gate:
    condition = parse_condition(text, _OPERATORS)
    if condition is None:
        raise ConfigurationError(f"{option}: {shown_value(text)} cannot be read; allowed: {RULE}")
    metrics = named(condition.name, option)
    if condition.unit == _RATIO:
        return Gate(condition.text, metrics, condition.operator, condition.number, is_ratio=True)
    factors = FACTORS[metrics[0].unit]
    if condition.unit not in factors:
        problem = wrong_unit(condition, factors, (_RATIO,))
        raise ConfigurationError(f"{option}: {shown_value(text)}: {problem}")
    threshold = condition.number * factors[condition.unit]
    return Gate(condition.text, metrics, condition.operator, threshold, is_ratio=False)
