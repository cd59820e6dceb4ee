"""Charts of a run that goes on, and what of them a page does not know yet. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from bench_spark.report.html_over_time import caption_of
from bench_spark.report.live_charts import Feed, feed, live_spec
from bench_spark.report.time_charts import TimeChart

NOTHING = Feed((), (), {})


@dataclass
class _Chart:
    caption: str
    spec: dict[str, Any]
    rows: dict[float, tuple[dict[str, Any], int]] = field(default_factory=dict)
    """By second: the row, and the version in which it became as it is."""
    feed: Feed = NOTHING

    def update(self, fed: Feed, version: int) -> None:
        known = self.rows
        self.rows = {}
        for row in fed.rows:
            earlier = known.get(row["second"])
            is_known = earlier is not None and earlier[0] == row
            self.rows[row["second"]] = earlier if is_known and earlier else (row, version)
        self.feed = fed


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
            known.update(feed(chart, span, measured), self.version)

    def since(self, layout: str, version: int) -> dict[str, Any]:
        """What a page with this layout and version is to be told."""
        is_new = layout != self.layout
        told: dict[str, dict[str, Any]] = {}
        for name, chart in self._charts.items():
            rows = [row for row, at in chart.rows.values() if is_new or at > version]
            drawn = {"caption": chart.caption, "spec": chart.spec} if is_new else {}
            told[name] = {
                **drawn,
                "rows": rows,
                "outside": chart.feed.outside,
                "signals": chart.feed.signals,
            }
        return {"layout": self.layout, "version": self.version, "charts": told}


def _layout_of(charts: Iterable[TimeChart]) -> str:
    named = [[chart.title, chart.kind, [line.label for line in chart.lines]] for chart in charts]
    return hashlib.sha256(json.dumps(named).encode()).hexdigest()[:16]
