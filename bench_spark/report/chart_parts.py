"""What charts are made of: lines over an axis, scales, and how values are written. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from bench_spark.report.chart_theme import Spec

Row = Mapping[str, Any]
Kind = Literal["duration", "rate", "share", "bytes", "bytes_per_second", "number"]

HEIGHT = 220
Y_AXIS_WIDTH = 66
"""The same in all charts: their time axes are to lie under each other."""
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


@dataclass(frozen=True)
class Line:
    """One line of a chart: a field of its rows, and what the legend calls it."""

    field: str
    label: str


def chart(title: str, layers: Sequence[Spec]) -> Spec:
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


def keys_of(lines: Sequence[Line]) -> list[str]:
    """Fields of the rows that are drawn.

    Not the labels: to Vega, `p99.9` is the field `9` of the field `p99`.
    """
    return [f"y{number}" for number in range(len(lines))]


def plotted(
    rows: Iterable[Row], lines: Sequence[Line], told_by_x: Sequence[str], kind: Kind
) -> list[dict[str, Any]]:
    """The rows as they are drawn: where on the axis, and a value for each line."""
    keys = keys_of(lines)
    return [
        {name: row[name] for name in told_by_x}
        | {key: scaled(row.get(line.field), kind) for key, line in zip(keys, lines, strict=True)}
        for row in rows
    ]


def line_layers(
    data: Spec,
    lines: Sequence[Line],
    x: Spec,
    y: Spec,
    kind: Kind,
    tooltip_of_x: Spec,
    points: str,
) -> list[Spec]:
    """The lines, and a cursor that tells the values of all of them.

    `data` holds rows of `plotted`, and `points` is how many they are: a Vega expression.
    """
    labels = [line.label for line in lines]
    keys = keys_of(lines)
    label_of = ", ".join(
        f"{key}: {_quoted(label)}" for key, label in zip(keys, labels, strict=True)
    )
    drawn = {
        "data": data,
        "usermeta": {"legend": labels},
        "transform": [
            {"fold": keys, "as": ["key", "value"]},
            {"filter": "isValid(datum.value)"},
            {"calculate": f"{{{label_of}}}[datum.key]", "as": "line"},
        ],
        "mark": {"type": "line", "strokeWidth": 1.75, "clip": True},
        "encoding": {"x": x, "y": y, "color": colour("line", labels)},
    }
    texts = [
        {"calculate": _text_expression(f"datum.{key}", kind), "as": f"{key}_text"} for key in keys
    ]
    tooltip = [{"title": x["axis"]["title"], **tooltip_of_x, "type": "quantitative"}]
    tooltip += [
        {"field": f"{key}_text", "type": "nominal", "title": tooltip_title(label)}
        for key, label in zip(keys, labels, strict=True)
    ]
    # What the pointer meets: bands side by side, unseen. (Of Vega-Lite's own search for the nearest
    # point the tooltip loses all fields that are texts.)
    band = {"type": "rule", "opacity": 0, "aria": False}
    hover = {
        "data": data,
        "transform": texts,
        "mark": band | {"strokeWidth": {"expr": f"max(3, width / max(1, {points}))"}},
        "params": [{"name": "cursor", "select": _pointed_at(x["field"])}],
        "encoding": {"x": x, "tooltip": tooltip},
    }
    shown = {"condition": {"param": "cursor", "empty": False, "value": 0.7}, "value": 0}
    cursor = {
        "data": data,
        "mark": {"type": "rule", "style": "cursor", "aria": False},
        "encoding": {"x": x, "opacity": shown},
    }
    return [drawn, cursor, hover]


def time_axis(scale: Spec) -> Spec:
    return {
        "field": "second",
        "type": "quantitative",
        "scale": {**scale, "nice": False},
        "axis": {"title": "seconds of the measured phase", "grid": False, "tickCount": 8},
    }


TOLD_SECOND = {"field": "second", "format": ".1f"}


def outside_of(span: tuple[float, float], measured: tuple[float, float]) -> list[Row]:
    """What of the time axis is not the measured phase."""
    return [
        {"from": start, "to": end}
        for start, end in (
            (span[0], min(measured[0], span[1])),
            (max(measured[1], span[0]), span[1]),
        )
        if end > start
    ]


def shade(data: Spec, x: Spec) -> Spec:
    return {
        "data": data,
        "mark": {"type": "rect", "style": "outside", "aria": False},
        "encoding": {"x": x | {"field": "from"}, "x2": {"field": "to"}},
    }


def _pointed_at(field: str) -> Spec:
    select: Spec = {"type": "point", "fields": [field]}
    return select | {"on": "pointerover", "clear": "pointerout"}


def colour(field: str, names: Sequence[str]) -> Spec:
    return {"field": field, "type": "nominal", "scale": {"domain": list(names)}, "sort": None}


def y_encoding(field: str, kind: Kind, values: Iterable[float | None]) -> Spec:
    """Without a title: what is drawn is in the caption, where it can be read without turning."""
    if kind == "duration":
        domain, ticks = log_axis(values)
        scale = {"type": "log", "domain": domain, "nice": False}
        return duration_encoding(field, scale, {"values": ticks, "tickCount": len(ticks)})
    return number_encoding(field, kind)


def duration_encoding(field: str, scale: Spec, ticks: Spec) -> Spec:
    label = {"labelExpr": _duration_expression("datum.value")}
    return _on_y(field, scale, {**ticks, **label})


def number_encoding(field: str, kind: Kind) -> Spec:
    label = "format(datum.value, '~s')" if kind == "rate" else "datum.label"
    scale = {"zero": True, "domainMin": 0, "nice": True}
    return _on_y(field, scale, {"tickCount": 5, "labelExpr": label, "format": ",.4~r"})


def _on_y(field: str, scale: Spec, axis: Spec) -> Spec:
    room = {"title": None, "minExtent": Y_AXIS_WIDTH, "maxExtent": Y_AXIS_WIDTH}
    return {"field": field, "type": "quantitative", "scale": scale, "axis": {**room, **axis}}


def log_axis(values: Iterable[float | None]) -> tuple[list[float], list[float]]:
    """From where to where, and the ticks: not too many of them."""
    ticks = log_ticks(value for value in values if value is not None)
    shown = ticks if len(ticks) <= MOST_LOG_TICKS else [tick for tick in ticks if _is_power(tick)]
    return [ticks[0], ticks[-1]], shown


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


def scaled(value: float | None, kind: Kind) -> float | None:
    if value is None:
        return None
    if kind == "duration":
        return max(1.0, value)  # the axis is logarithmic, and clocks tell whole microseconds
    return float(f"{value * _SCALES.get(kind, 1.0):.6g}")


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


def tooltip_title(text: str) -> str:
    """Vega-Lite writes titles of tooltips into an expression, and escapes only some of them."""
    return " ".join(text.split()).replace("\\", "/").replace('"', "'")


def _quoted(text: str) -> str:
    """A text inside a Vega expression, whose strings are JavaScript's."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return f"'{escaped}'"
