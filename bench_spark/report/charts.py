"""Charts as Vega-Lite specifications. Pure: from rows to a document that says what to draw.

The same specification is drawn in three places: in a page by Vega itself, and as SVG and PNG files
by vl-convert (`chart_files.py`). Colours are named by their role; `PAGE` leaves them to the page's
style sheet, which knows whether the reader wants it dark, and `PAPER` is for files.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Spec = dict[str, Any]
Row = Mapping[str, Any]
Kind = Literal["duration", "rate", "share", "bytes", "bytes_per_second", "number"]

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
HEIGHT = 220
Y_AXIS_WIDTH = 66
"""The same in all charts: their time axes are to lie under each other."""
SERIES_COLOURS = 8
MOST_LOG_TICKS = 8

UNITS: Mapping[Kind, str] = {
    "duration": "",
    "rate": "msg/s",
    "share": "%",
    "bytes": "MB",
    "bytes_per_second": "MB/s",
    "number": "",
}
_SCALES: Mapping[Kind, float] = {"share": 100.0, "bytes": 1e-6, "bytes_per_second": 1e-6}
_DISTRIBUTION_TICKS = {0.0: "0 %", 0.30103: "50 %", 1.0: "90 %", 2.0: "99 %"} | {
    3.0: "99.9 %",
    4.0: "99.99 %",
}


@dataclass(frozen=True)
class Line:
    """One line of a chart: a field of its rows, and what the legend calls it."""

    field: str
    label: str


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


def over_time(
    title: str,
    rows: Sequence[Row],
    lines: Sequence[Line],
    kind: Kind,
    span: tuple[float, float],
    measured: tuple[float, float],
) -> Spec:
    """Lines over the seconds since the measured phase began; what is outside it is shaded.

    `span` is the time axis, which all charts of a page share.
    """
    x = {
        "field": "second",
        "type": "quantitative",
        "scale": {"domain": list(span), "nice": False},
        "axis": {"title": "seconds of the measured phase", "grid": False, "tickCount": 8},
    }
    outside = [
        {"from": start, "to": end}
        for start, end in ((span[0], measured[0]), (measured[1], span[1]))
        if end > start
    ]
    shade = {
        "data": {"values": outside},
        "mark": {"type": "rect", "style": "outside", "aria": False},
        "encoding": {"x": x | {"field": "from"}, "x2": {"field": "to"}},
    }
    drawn = _lines(rows, lines, x, kind, tooltip_of_x={"field": "second", "format": ".1f"})
    return _chart(title, [*([shade] if outside else []), *drawn])


def distribution(title: str, rows: Sequence[Row], lines: Sequence[Line]) -> Spec:
    """Durations by percentile; `decades` is log10(1 / (1 - p)), so every nine has the same width.

    A line ends where a run has too few messages to tell more.
    """
    ticks = ", ".join(f"'{value:g}': '{text}'" for value, text in _DISTRIBUTION_TICKS.items())
    most = max([1.0, *(row["decades"] for row in rows)])
    x = {
        "field": "decades",
        "type": "quantitative",
        "scale": {"domain": [0, most], "nice": False},
        "axis": {
            "title": "percentile",
            "values": [value for value in _DISTRIBUTION_TICKS if value <= most],
            # 0.30103 is not written exactly by every formatter: keys are found by what %g gives.
            "labelExpr": f"{{{ticks}}}[format(datum.value, '.6~g')]",
        },
    }
    tooltip = {"field": "percentile", "format": ".5~g", "title": "percentile"}
    return _chart(title, _lines(rows, lines, x, "duration", tooltip_of_x=tooltip))


def against(
    title: str,
    rows: Sequence[Row],
    x_title: str,
    x_values: Sequence[Any],
    y_title: str,
    kind: Kind,
    marked: Sequence[Row] = (),
) -> Spec:
    """A value against a swept parameter: rows have `x`, `y`, `low`, `high`, `series` and `text`.

    `marked` are points, with `x` and `y`, that get their `text` written beside them.
    """
    series = list(dict.fromkeys(row["series"] for row in rows))
    numbers = _are_numbers(x_values)
    x: Spec = {"field": "x", "axis": {"title": x_title, "grid": False, "labelOverlap": True}}
    if numbers:
        x |= {"type": "quantitative", "scale": _number_scale(x_values)}
        x["axis"] |= {"values": list(x_values), "tickCount": len(x_values), "format": ",~r"}
    else:
        texts = [str(value) for value in x_values]
        x |= {"type": "ordinal", "sort": texts, "scale": {"paddingOuter": 0.2}}
        x["axis"]["labelAngle"] = 0 if sum(map(len, texts)) < 60 else -40
    values = [
        {**row, "x": row["x"] if numbers else str(row["x"])}
        | {name: _scaled(row[name], kind) for name in ("y", "low", "high")}
        for row in rows
    ]
    y = _y_encoding("y", kind, [row[name] for row in values for name in ("low", "high")])
    # A line that is called like the whole figure needs no legend.
    names = [name for name in series if series != [y_title]]
    colour = {"color": _colour("series", names)} if names else {}
    tooltip = [
        {"field": "x", "title": _tooltip_title(x_title)},
        *([{"field": "series", "title": "series"}] if names else []),
        {"field": "text", "title": _tooltip_title(y_title)},
    ]
    shared = {"x": x, **colour}
    spread = [row for row in values if row["low"] != row["high"]]
    extent = {
        "data": {"values": spread},
        "mark": {"type": "rule", "strokeWidth": 1.5, "opacity": 0.6, "aria": False},
        "encoding": shared | {"y": y | {"field": "low"}, "y2": {"field": "high"}},
    }
    line = {
        "mark": {"type": "line", "strokeWidth": 2},
        "encoding": shared | {"y": y},
    }
    points = {
        "mark": {"type": "point", "filled": True, "size": 55, "opacity": 1},
        "encoding": shared | {"y": y, "tooltip": tooltip},
    }
    layers = [line, *([extent] if spread else []), points]
    if marked:
        named = [{**row, "y": _scaled(row["y"], kind)} for row in marked]
        layers += _marks(named, {"x": x, "y": y})
    chart = _chart(title, layers)
    return chart | {"data": {"values": values}, "usermeta": {"legend": names}}


def _marks(rows: Sequence[Row], place: Spec) -> list[Spec]:
    ring = {"type": "point", "size": 180, "strokeWidth": 2, "filled": False, "opacity": 1}
    text = {"type": "text", "dy": 18, "fontSize": 12, "style": "mark-name"}
    return [
        {"data": {"values": list(rows)}, "mark": ring, "encoding": place},
        {
            "data": {"values": list(rows)},
            "mark": text,
            "encoding": {**place, "text": {"field": "text", "type": "nominal"}},
        },
    ]


def changes(title: str, rows: Sequence[Row]) -> Spec:
    """Ratios with their intervals around 1, a line to each: `name`, `value`, `low`, `high`."""
    known = [
        {"low": row["value"], "high": row["value"]}
        | {key: value for key, value in row.items() if value is not None}
        for row in rows
        if row["value"] > 0
    ]
    ends = [row[name] for row in known for name in ("low", "high") if row[name] > 0]
    domain = [min([0.9, *ends]) * 0.98, max([1.1, *ends]) * 1.02]
    x = {
        "field": "value",
        "type": "quantitative",
        "scale": {"type": "log", "domain": domain, "nice": False},
        "axis": {"title": "times the baseline", "format": ".3~r", "tickCount": 6},
    }
    names = [row["name"] for row in known]
    y = {
        "field": "name",
        "type": "nominal",
        "sort": names,
        "axis": {"title": None, "grid": True, "labelLimit": 150, "ticks": False},
    }
    tooltip = [{"field": name, "type": "nominal"} for name in ("name", "text", "verdict")]
    layers: list[Spec] = [
        {
            "data": {"values": [{"value": 1}]},
            "mark": {"type": "rule", "style": "cursor", "strokeWidth": 1.5, "aria": False},
            "encoding": {"x": x},
        },
        {
            "mark": {"type": "rule", "strokeWidth": 2.5},
            "encoding": {"x": x | {"field": "low"}, "x2": {"field": "high"}, "y": y},
        },
        {
            "mark": {"type": "point", "filled": True, "size": 70, "opacity": 1},
            "encoding": {"x": x, "y": y, "tooltip": tooltip},
        },
    ]
    return _chart(title, layers) | {"data": {"values": known}, "height": 26 * len(known)}


def _chart(title: str, layers: Sequence[Spec]) -> Spec:
    labels = next(
        (layer["usermeta"]["legend"] for layer in layers if "usermeta" in layer), list[str]()
    )
    return {
        "width": "container",
        "height": HEIGHT,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "padding": {"left": 0, "right": 12, "top": 4, "bottom": 4},
        "description": title,
        "usermeta": {"legend": labels},
        "layer": [
            {key: value for key, value in layer.items() if key != "usermeta"} for layer in layers
        ],
    }


def _lines(
    rows: Sequence[Row], lines: Sequence[Line], x: Spec, kind: Kind, tooltip_of_x: Spec
) -> list[Spec]:
    """The lines, and a cursor that tells the values of all of them."""
    labels = [line.label for line in lines]
    # Not by their labels: to Vega, `p99.9` is the field `9` of the field `p99`.
    keys = [f"y{number}" for number in range(len(lines))]
    told_by_x = (x["field"], tooltip_of_x["field"])
    known = [
        {name: row[name] for name in told_by_x}
        | {key: _scaled(row.get(line.field), kind) for key, line in zip(keys, lines, strict=True)}
        for row in rows
    ]
    values = [row[key] for row in known for key in keys]
    label_of = ", ".join(
        f"{key}: {_quoted(label)}" for key, label in zip(keys, labels, strict=True)
    )
    drawn = {
        "data": {"values": known},
        "usermeta": {"legend": labels},
        "transform": [
            {"fold": keys, "as": ["key", "value"]},
            {"filter": "isValid(datum.value)"},
            {"calculate": f"{{{label_of}}}[datum.key]", "as": "line"},
        ],
        "mark": {"type": "line", "strokeWidth": 1.75, "clip": True},
        "encoding": {
            "x": x,
            "y": _y_encoding("value", kind, values),
            "color": _colour("line", labels),
        },
    }
    texts = [
        {"calculate": _text_expression(f"datum.{key}", kind), "as": f"{key}_text"} for key in keys
    ]
    tooltip = [{"title": x["axis"]["title"], **tooltip_of_x, "type": "quantitative"}]
    tooltip += [
        {"field": f"{key}_text", "type": "nominal", "title": _tooltip_title(label)}
        for key, label in zip(keys, labels, strict=True)
    ]
    cursor = {
        "data": {"values": known},
        "transform": texts,
        "mark": {"type": "rule", "style": "cursor", "aria": False},
        "params": [{"name": "cursor", "select": _nearest(x["field"])}],
        "encoding": {
            "x": x,
            "opacity": {"condition": {"param": "cursor", "empty": False, "value": 0.7}, "value": 0},
            "tooltip": tooltip,
        },
    }
    return [drawn, cursor]


def _nearest(field: str) -> Spec:
    """The row that is nearest to the pointer."""
    select: Spec = {"type": "point", "fields": [field], "nearest": True}
    return select | {"on": "pointerover", "clear": "pointerout"}


def _colour(field: str, names: Sequence[str]) -> Spec:
    return {"field": field, "type": "nominal", "scale": {"domain": list(names)}, "sort": None}


def _y_encoding(field: str, kind: Kind, values: Iterable[float | None]) -> Spec:
    """Without a title: what is drawn is in the caption, where it can be read without turning."""
    known = [value for value in values if value is not None]
    axis: Spec = {
        "title": None,
        "minExtent": Y_AXIS_WIDTH,
        "maxExtent": Y_AXIS_WIDTH,
        "tickCount": 5,
    }
    encoding: Spec = {"field": field, "type": "quantitative", "axis": axis}
    if kind == "duration":
        ticks = log_ticks(known)
        shown = (
            ticks if len(ticks) <= MOST_LOG_TICKS else [tick for tick in ticks if _is_power(tick)]
        )
        label = _duration_expression("datum.value")
        axis |= {"values": shown, "tickCount": len(shown), "labelExpr": label}
        domain = [ticks[0], ticks[-1]]
        return encoding | {"scale": {"type": "log", "domain": domain, "nice": False}}
    axis["labelExpr"] = "format(datum.value, '~s')" if kind == "rate" else "datum.label"
    axis["format"] = ",.4~r"
    return encoding | {"scale": {"zero": True, "domainMin": 0, "nice": True}}


def log_ticks(values: Iterable[float]) -> list[float]:
    """1, 2, 5, 10, 20 ... from the last that is not above the values to the first not below."""
    known = [max(1.0, value) for value in values]
    low, high = min(known, default=1.0), max(known, default=10.0)
    # One more at each end: logarithms of numbers just below a power are rounded to it.
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    steps = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
    first = max(place for place, step in enumerate(steps) if step <= low)
    last = next(place for place, step in enumerate(steps) if step >= high)
    return steps[first : max(last, first + 1) + 1]


def _is_power(tick: float) -> bool:
    return math.log10(tick).is_integer()


def _scaled(value: float | None, kind: Kind) -> float | None:
    if value is None:
        return None
    if kind == "duration":
        return max(1.0, value)  # the axis is logarithmic, and clocks tell whole microseconds
    return float(f"{value * _SCALES.get(kind, 1.0):.6g}")


def _are_numbers(values: Iterable[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _number_scale(values: Sequence[float]) -> Spec:
    """Logarithmic where the values themselves go by factors."""
    known = sorted(value for value in values if value > 0)
    is_wide = len(known) == len(values) > 2 and known[-1] / known[0] >= 50
    domain = [min(values), max(values)]
    if is_wide:
        return {"type": "log", "domain": domain, "nice": False}
    return {"zero": False, "domain": domain, "nice": False, "padding": 12}


def _text_expression(value: str, kind: Kind) -> str:
    if kind == "duration":
        told = _duration_expression(value)
    else:
        told = f"format({value}, ',.4~r') + {_quoted(' ' + UNITS[kind] if UNITS[kind] else '')}"
    return f"isValid({value}) ? {told} : '-'"


def _duration_expression(value: str) -> str:
    return (
        f"{value} >= 1e6 ? format({value} / 1e6, '.3~r') + ' s' : "
        f"{value} >= 1e3 ? format({value} / 1e3, '.3~r') + ' ms' : "
        f"format({value}, '.3~r') + ' us'"
    )


def _tooltip_title(text: str) -> str:
    """Vega-Lite writes titles of tooltips into an expression, and escapes only some of them."""
    return " ".join(text.split()).replace("\\", "/").replace('"', "'")


def _quoted(text: str) -> str:
    """A text inside a Vega expression, whose strings are JavaScript's."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return f"'{escaped}'"
