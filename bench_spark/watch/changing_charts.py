"""Charts of a run that goes on, and what of them a page does not know yet. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bench_spark.report.html_run import caption_of
from bench_spark.report.time_charts import Axes, TimeChart, axes_of, drawn_row, live_spec

NO_AXES = Axes((), {})


class _Row(NamedTuple):
    source: Mapping[str, Any]
    """As it came: one that is the same need not be made ready for drawing again."""
    drawn: dict[str, Any]
    version: int
    """In which it became as it is."""


@dataclass
class _Chart:
    caption: str
    spec: dict[str, Any]
    rows: dict[float, _Row] = field(default_factory=dict)
    axes: Axes = NO_AXES

    def update(
        self,
        described: TimeChart,
        span: tuple[float, float],
        measured: tuple[float, float],
        version: int,
    ) -> None:
        known, self.rows = self.rows, {}
        for row in described.rows:
            second = row["second"]
            if span[0] <= second <= span[1]:
                earlier = known.get(second)
                if earlier is None or earlier.source != row:
                    earlier = _Row(row, drawn_row(described, row), version)
                self.rows[second] = earlier
        self.axes = axes_of(described, [row.drawn for row in self.rows.values()], span, measured)


class ChangingCharts:
    """Every update has a number. A page says which one it has, and is told what came later.

    A page that has drawn other charts, or other lines in them, is told everything.
    """

    def __init__(self) -> None:
        self.layout = ""
        self.version = 0
        self._charts: dict[str, _Chart] = {}

    def update(
        self,
        charts: Iterable[TimeChart],
        span: tuple[float, float],
        measured: tuple[float, float],
    ) -> None:
        listed = list(charts)
        layout = _layout_of(listed)
        if layout != self.layout:
            self.layout = layout
            self._charts = {
                f"chart-{number}": _Chart(caption_of(chart), live_spec(chart))
                for number, chart in enumerate(listed, start=1)
            }
        self.version += 1
        for known, chart in zip(self._charts.values(), listed, strict=True):
            known.update(chart, span, measured, self.version)

    def since(self, layout: str, version: int) -> dict[str, Any]:
        """What a page with this layout and version is to be told."""
        is_new = layout != self.layout
        told: dict[str, dict[str, Any]] = {}
        for name, chart in self._charts.items():
            rows = [row.drawn for row in chart.rows.values() if is_new or row.version > version]
            drawn = {"caption": chart.caption, "spec": chart.spec} if is_new else {}
            told[name] = {
                **drawn,
                "rows": rows,
                "outside": chart.axes.outside,
                "signals": chart.axes.signals,
            }
        return {"layout": self.layout, "version": self.version, "charts": told}


def _layout_of(charts: Iterable[TimeChart]) -> str:
    named = [[chart.title, chart.kind, [line.label for line in chart.lines]] for chart in charts]
    return hashlib.sha256(json.dumps(named).encode()).hexdigest()[:16]
