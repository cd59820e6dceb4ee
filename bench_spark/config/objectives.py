"""The key `slo`: what a run must reach, as conditions on numbers of its result."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, get_args

from pydantic import AfterValidator, Field

from bench_spark.config.problems import Described, did_you_mean, shown_value
from bench_spark.store.schema import PERCENTILES

MEASURES = (
    "latency",
    "delivery_latency",
    "confirm_latency",
    "round_trip",
    "send_lag",
    "insert_duration",
)
STATISTICS = ("min", "mean", *(name.removesuffix("_us") for name, _ in PERCENTILES), "max")

Aggregation = Literal["run", "interval_max", "interval_mean"]
Unit = Literal[
    "us", "per_second", "share", "cpu_share", "count", "bytes", "bytes_per_second", "text"
]

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
    if not condition.unit:
        *first, last = [*factors, *others]
        return f"give a unit: {', '.join(first)} or {last}"
    allowed = ", ".join([*others, *(known or "nothing" for known in factors)])
    return f"{shown_value(condition.unit)} is no unit of {condition.name}; allowed: {allowed}"


COUNTS = (
    *("due", "unsent", "sent", "confirmed", "unconfirmed", "refused", "returned", "received"),
    *("received_once", "duplicates", "left_in_broker", "lost", "indeterminate", "acked"),
    *("redelivered", "out_of_order", "corrupted", "malformed", "foreign", "errors", "reconnects"),
    *("bytes_sent", "bytes_received", "unexpected", "repeats_dropped", "given_up"),
    "late",
)
"""Every count of the document; columns of files are in this order, so new ones come last."""

TRACED_COUNTS = ("missing", "duplicates", "out_of_order", "corrupted", "unexpected")
"""Of `trace`, where every message is traced."""

_RATES = ("send_rate", "receive_rate")
_SAMPLED = ("median", "mean", "low", "high")
_AGGREGATIONS = get_args(Aggregation)
HEADLINE = ("delivery_latency", "latency", "confirm_latency")
"""Measures that a statistic without one is about: the first that the run has. Only open loops have
the first of them, and runs that only publish have neither of the first two."""

UNIT_OF_PATH: Mapping[str, Unit] = {
    **{f"measures.{name}.{one}_us": "us" for name in MEASURES for one in STATISTICS},
    **{
        f"percentiles.{aggregation}.{name}.{one}_us": "us"
        for aggregation in _AGGREGATIONS
        for name in MEASURES
        for one in STATISTICS
        if aggregation != "run" or one.startswith("p")
    },
    **{f"counts.{name}": "count" for name in COUNTS},
    **{f"rates.{name}": "per_second" for name in _RATES},
    **{f"throughput.{name}_per_second": "per_second" for name in _SAMPLED},
    **{f"trace.{name}": "count" for name in TRACED_COUNTS},
    "delivery_rate": "share",
    "expected": "count",
}

SHORT_NAMES: Mapping[str, tuple[str, ...]] = {
    **{name: (f"trace.{name}",) for name in TRACED_COUNTS},
    **{name: (f"counts.{name}",) for name in COUNTS},
    **{name: (f"rates.{name}",) for name in _RATES},
    **{f"{name}.{one}": (f"measures.{name}.{one}_us",) for name in MEASURES for one in STATISTICS},
    **{one: tuple(f"measures.{name}.{one}_us" for name in HEADLINE) for one in STATISTICS},
}


def headline_measure(measures: Collection[str]) -> str | None:
    """The measure that a statistic without one is about in a run that has these."""
    return next((name for name in HEADLINE if name in measures), None)


def paths_named(name: str) -> tuple[str, ...]:
    """The paths that a name may mean: the first that a document has counts. None: no such name."""
    plain = re.sub(r"\b(p\d+)\.(\d)", r"\1\2", name)
    return (plain,) if plain in UNIT_OF_PATH else SHORT_NAMES.get(plain, ())


def value_at(document: Mapping[str, Any], path: str) -> float | None:
    """The number there; None if there is none."""
    found = _inside(document, path)
    return found if isinstance(found, int | float) and not isinstance(found, bool) else None


def _inside(document: Mapping[str, Any], path: str) -> Any:
    found: Any = document
    for name in filter(None, path.split(".")):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


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
        raise ValueError(
            f"{shown_value(condition.name)} is no number of a result; allowed: a path such as "
            "measures.delivery_latency.p99_us, counts.lost or rates.receive_rate, or a short name "
            "such as p99, latency.p50, lost, receive_rate or delivery_rate"
            + did_you_mean(condition.name, [*SHORT_NAMES, *UNIT_OF_PATH])
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
    found = _inside(document, parent)
    return isinstance(found, Mapping) and name in (found.get("lower_bounds") or ())
