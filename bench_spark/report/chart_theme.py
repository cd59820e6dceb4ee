"""The colours of charts, by their role.

`PAGE` leaves them to the page's style sheet, which knows whether the reader wants it dark; `PAPER`
is for files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Spec = dict[str, Any]
"""A Vega-Lite specification."""

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
SERIES_COLOURS = 8


@dataclass(frozen=True)
class Palette:
    ink: str
    faint: str
    grid: str
    outside: str
    background: str
    series: tuple[str, ...]
    font: str


PAGE = Palette(
    ink="var(--ink)",
    faint="var(--faint)",
    grid="var(--grid)",
    outside="var(--outside)",
    background="transparent",
    series=tuple(f"var(--series-{number})" for number in range(1, SERIES_COLOURS + 1)),
    font="system-ui, sans-serif",
)
PAPER = Palette(
    ink="#1b1f24",
    faint="#57606a",
    grid="#e3e6ea",
    outside="#f1f3f5",
    background="white",
    series=(
        *("#0b63a5", "#bf4a0a", "#0a7550", "#8a4fbf"),
        *("#8a6a00", "#b02a68", "#4f5d6b", "#007a87"),
    ),
    font="sans-serif",
)


def themed(spec: Spec, palette: Palette) -> Spec:
    """The chart in these colours."""
    return {"$schema": SCHEMA, **spec, "config": _config(palette)}


def _config(palette: Palette) -> Spec:
    axis = {
        "labelColor": palette.ink,
        "titleColor": palette.ink,
        "gridColor": palette.grid,
        "domainColor": palette.faint,
        "tickColor": palette.faint,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
    }
    legend = {
        "orient": "top",
        "title": None,
        "labelColor": palette.ink,
        "labelFontSize": 12,
        "labelLimit": 320,
        "symbolType": "stroke",
        "symbolStrokeWidth": 3,
        "symbolOpacity": 1,
    }
    return {
        "background": palette.background,
        "font": palette.font,
        "view": {"stroke": None},
        "axis": axis,
        "legend": legend,
        "title": {"color": palette.ink, "anchor": "start", "fontSize": 14},
        "range": {"category": list(palette.series)},
        "mark": {"color": palette.series[0]},
        "rule": {"color": palette.series[0]},
        "style": {
            "outside": {"color": palette.outside},
            "cursor": {"color": palette.faint},
            "mark-name": {"color": palette.ink},
        },
    }
