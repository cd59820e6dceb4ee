"""NAME OPERATOR NUMBER, with a unit: how `slo` and `--fail-if` say what is wanted of a number."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from bench_spark.scenario.shown import shown_value

Unit = Literal["us", "per_second", "share", "cpu_share", "count", "bytes_per_second"]

OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}

FACTORS: Mapping[Unit, Mapping[str, float]] = {
    "us": {"us": 1.0, "ms": 1e3, "s": 1e6},
    "per_second": {"": 1.0, "/s": 1.0, "k": 1e3, "k/s": 1e3},
    "share": {"%": 0.01, "": 1.0},
    "cpu_share": {"%": 0.01, "": 1.0},
    "count": {"": 1.0, "k": 1e3},
    "bytes_per_second": {"": 1.0},
}
"""By what a number in each unit is multiplied; the first is the one that numbers are kept in."""

_FORM = re.compile(
    r"\s*(?P<name>[A-Za-z_][\w.]*)\s*(?P<operator>>=|<=|==|!=|>|<)\s*"
    r"(?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*(?P<unit>[A-Za-z%/]*)\s*"
)


@dataclass(frozen=True)
class Condition:
    """As it was written."""

    text: str
    name: str
    operator: str
    number: float
    unit: str


def parse_condition(text: str, operators: Collection[str]) -> Condition | None:
    """None if the text is no condition with one of these operators."""
    found = _FORM.fullmatch(text)
    if found is None or found["operator"] not in operators:
        return None
    number = float(found["number"])
    return Condition(text.strip(), found["name"], found["operator"], number, found["unit"])


def wrong_unit(condition: Condition, factors: Mapping[str, float], others: Collection[str]) -> str:
    """Why a condition's unit is none of these, nor of the `others` that it might have had."""
    allowed = ", ".join([*others, *(known or "nothing" for known in factors)])
    given = shown_value(condition.unit) if condition.unit else "a bare number"
    return f"{given} is no unit of {condition.name}; allowed: {allowed}"
