"""Which numbers of a result are shown, and how: three significant digits and a unit."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from itertools import pairwise
from typing import Any, TextIO

from bench_spark.config.objectives import MEASURES, Unit
from bench_spark.config.problems import shown_text
from bench_spark.store.schema import PERCENTILES


def rewrites_lines(stream: TextIO) -> bool:
    """Whether it is a terminal that understands more than text."""
    return stream.isatty() and os.environ.get("TERM", "") != "dumb"


UNKNOWN = "-"

_DURATION_UNITS = ((1_000_000, "s"), (1_000, "ms"), (1, "us"))
_BYTE_UNITS = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"))
_LONGEST_LINE = 2_000


def count(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,.0f}"


def rate(per_second: float | None) -> str:
    """Messages per second; a decimal only where it says something."""
    if per_second is None:
        return UNKNOWN
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:,.1f}".removesuffix(".0")


def duration(value_us: float | None, is_lower_bound: bool = False) -> str:
    """Microseconds as us, ms or s. A lower bound is written tightly, to fit the same column."""
    if value_us is None:
        return UNKNOWN
    rounded = _significant(value_us)
    scale, unit = next(
        (entry for entry in _DURATION_UNITS if rounded >= entry[0]), _DURATION_UNITS[-1]
    )
    number = _digits(rounded / scale) if unit != "us" else f"{rounded:.0f}"
    return f">={number}{unit}" if is_lower_bound else f"{number} {unit}"


def share(value: float | None) -> str:
    """A share as per cent, cut and not rounded: 100 % is written only where nothing is missing."""
    if value is None:
        return UNKNOWN
    # In decimal, because 0.29 * 100 as floats would be cut to 28.999.
    thousandths = int(Decimal(repr(value)) * 100_000)
    if value > 0 and thousandths == 0:
        return "<0.001 %"
    return f"{thousandths / 1000:.3f}".rstrip("0").rstrip(".") + " %"


def per_cent(value: float | None) -> str:
    """A share that is known to some per cent anyway, such as one of CPU time."""
    return UNKNOWN if value is None else f"{value * 100:.1f} %"


def byte_size(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    for scale, unit in _BYTE_UNITS:
        if value >= scale:
            return f"{_digits(value / scale)} {unit}"
    return f"{value:,.0f} B"


def seconds(value: float) -> str:
    """A length of time as it is said: 0.5 s, 15 s, 2 min 30 s, 3 h 20 min."""
    if value < 120:
        return f"{value:.1f}".removesuffix(".0") + " s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 120:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest} min" if rest else f"{hours} h"


SHOWN_AS: Mapping[Unit, Callable[[float | None], str]] = {
    "us": duration,
    "per_second": rate,
    "share": share,
    "cpu_share": per_cent,
    "count": count,
    "bytes": byte_size,
    "bytes_per_second": lambda value: UNKNOWN if value is None else f"{byte_size(value)}/s",
}
"""How a number of each unit is written."""

_FEWEST_STEPPED = 5


def number_ranges(numbers: Iterable[int]) -> str:
    """0, 1, 2 and 5 as `0-2,5`; every second up to 98 as `0,2..98`; nothing as `-`."""
    ordered = sorted(numbers)
    steps = {after - before for before, after in pairwise(ordered)}
    if len(ordered) >= _FEWEST_STEPPED and len(steps) == 1 and steps != {1}:
        return f"{ordered[0]},{ordered[1]}..{ordered[-1]}"
    ranges: list[list[int]] = []
    for number in ordered:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(f"{a}-{b}" if a != b else str(a) for a, b in ranges) or UNKNOWN


def dotted(part: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values of nested keys by their dotted names."""
    for key, value in part.items():
        if isinstance(value, Mapping) and value:
            yield from dotted(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def words(name: str) -> str:
    """A field's name as words."""
    return name.replace("_", " ")


def one_line(text: str) -> str:
    """Text from outside (a broker's answer, say) that cannot disturb a terminal."""
    return shown_text(" ".join(text.split()), _LONGEST_LINE)


def _significant(value: float, digits: int = 3) -> float:
    if value == 0:
        return 0.0
    return round(value, digits - 1 - math.floor(math.log10(abs(value))))


def _digits(value: float) -> str:
    """Three digits for numbers below 1000."""
    rounded = _significant(value)
    if rounded < 10:
        return f"{rounded:.2f}"
    return f"{rounded:.1f}" if rounded < 100 else f"{value:,.0f}"


Document = Mapping[str, Any]

AGGREGATIONS = ("run", "interval_max", "interval_mean")

PERCENTILE_COLUMNS = (
    *((name, f"p{percentile:g}") for name, percentile in PERCENTILES),
    ("max_us", "max"),
)
"""Field of a measure, and what its column is called."""

STATISTIC_LABELS = {field.removesuffix("_us"): label for field, label in PERCENTILE_COLUMNS}


def in_order(names: Iterable[str]) -> list[str]:
    """Measures in the order people ask for them; ones that are not known here come last."""
    return sorted(names, key=lambda name: (*MEASURES, name).index(name))


def statistics_of(document: Document, aggregation: str, measure: str) -> Mapping[str, Any]:
    """The numbers of a measure in one of the three aggregations."""
    if aggregation == "run":
        found: Mapping[str, Any] = document["measures"][measure]
        return found
    aggregated: Mapping[str, Any] = document["percentiles"][aggregation][measure]
    return aggregated


def percentile_cells(statistics: Mapping[str, Any]) -> list[str]:
    """A row under the labels of `PERCENTILE_COLUMNS`."""
    return [shown_statistic(statistics, field) for field, _ in PERCENTILE_COLUMNS]


def shown_statistic(statistics: Mapping[str, Any], field: str) -> str:
    """A duration, with >= where slower messages are missing from it."""
    is_lower_bound = field in (statistics.get("lower_bounds") or ())
    return duration(statistics.get(field), is_lower_bound)
