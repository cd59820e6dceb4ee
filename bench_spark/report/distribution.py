"""A histogram as a line over percentiles, with the same width for every nine. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from bench_spark.core.hdr import SparseHistogram

MOST_DECADES = 4.0
"""99.99 %."""
POINTS_PER_DECADE = 40


def percentile_of(decades: float) -> float:
    """0, 1, 2, 3 and 4 decades are 0 %, 90 %, 99 %, 99.9 % and 99.99 %."""
    return 100.0 * (1.0 - math.pow(10.0, -decades))


def told_decades(count: int) -> float:
    """As far as so many values tell: beyond, less than one of them is above the percentile."""
    return min(MOST_DECADES, math.log10(count)) if count > 1 else 0.0


def distribution_rows(
    histograms: Mapping[str, SparseHistogram], highest_us: int
) -> Sequence[dict[str, Any]]:
    """Rows of `decades`, `percentile` and a value per measure; a measure may end before others."""
    told = {name: told_decades(found.count) for name, found in histograms.items() if found.count}
    most = max(told.values(), default=0.0)
    steps = [step / POINTS_PER_DECADE for step in range(math.ceil(most * POINTS_PER_DECADE))]
    rows = []
    for decades in [*steps, most] if told else []:
        percentile = percentile_of(decades)
        values = {
            name: histograms[name].percentile(percentile, highest_us).value_us
            for name, end in told.items()
            if decades <= end
        }
        rows.append({"decades": round(decades, 5), "percentile": round(percentile, 5), **values})
    return rows
