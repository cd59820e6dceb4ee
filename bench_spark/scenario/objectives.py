"""The key `slo`: what a run must reach, as conditions on numbers of its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, Field

from bench_spark.scenario.conditions import FACTORS, OPERATORS, parse_condition, wrong_unit
from bench_spark.scenario.keys import Described
from bench_spark.scenario.nearest import nearest
from bench_spark.scenario.result_paths import SHORT_NAMES, UNIT_OF_PATH, paths_named, value_at
from bench_spark.scenario.shown import shown_value

OBJECTIVE_RULE = (
    "NAME OPERATOR NUMBER with an operator of <, <=, >, >=, ==, != and a number followed by us, ms "
    "or s (a duration), % (a share), /s (a rate), k (thousands), or nothing"
)
LONGEST_OBJECTIVE = 200


class Judged(NamedTuple):
    """What a document says of an objective."""

    path: str
    value: float | None
    """None if the run has no such number."""
    is_met: bool
    is_lower_bound: bool
    """The true value is at least this one: what should stay below a limit may be above it."""


@dataclass(frozen=True)
class Objective:
    text: str
    paths: tuple[str, ...]
    operator: str
    threshold: float
    """In the unit of the number."""

    def judge(self, document: Mapping[str, Any]) -> Judged:
        """A number that is not known meets nothing."""
        for path in self.paths:
            value = value_at(document, path)
            if value is not None:
                is_bound = _is_lower_bound(document, path)
                is_proven = not is_bound or self.operator.startswith(">")
                is_met = is_proven and OPERATORS[self.operator](value, self.threshold)
                return Judged(path, value, is_met, is_bound)
        return Judged(self.paths[0], None, is_met=False, is_lower_bound=False)


def parse_objective(text: str) -> Objective:
    """Raises ValueError with what is wrong and what would be allowed."""
    condition = parse_condition(text, OPERATORS)
    if condition is None or len(text) > LONGEST_OBJECTIVE:
        raise ValueError(f"allowed: {OBJECTIVE_RULE}")
    paths = paths_named(condition.name)
    if not paths:
        guess = nearest(condition.name, [*SHORT_NAMES, *UNIT_OF_PATH])
        raise ValueError(
            f"{shown_value(condition.name)} is no number of a result; allowed: a path such as "
            "measures.delivery_latency.p99_us, counts.lost or rates.receive_rate, or a short name "
            "such as p99, latency.p50, lost, receive_rate or delivery_rate"
            + (f"; did you mean {guess}?" if guess else "")
        )
    factors = FACTORS[UNIT_OF_PATH[paths[0]]]
    if condition.unit not in factors:
        raise ValueError(wrong_unit(condition, factors, ()))
    threshold = condition.number * factors[condition.unit]
    return Objective(condition.text, paths, condition.operator, threshold)


def _checked(text: str) -> str:
    return parse_objective(text).text


ObjectiveText = Annotated[str, AfterValidator(_checked)]
Objectives = Annotated[
    list[ObjectiveText],
    Field(max_length=1000),
    Described("list of texts", f"a list of {OBJECTIVE_RULE}"),
]


def _is_lower_bound(document: Mapping[str, Any], path: str) -> bool:
    parent, _, name = path.rpartition(".")
    found: Any = document
    for part in parent.split(".") if parent else ():
        found = found.get(part) if isinstance(found, Mapping) else None
    return isinstance(found, Mapping) and name in (found.get("lower_bounds") or ())
