"""Charts as Vega-Lite specifications. Pure: from rows to a document that says what to draw.

The same specification is drawn in three places: in a page by Vega itself, and as SVG and PNG files
by vl-convert (`chart_files.py`). Colours come with `chart_theme.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from bench_spark.report.chart_parts import (
    TOLD_SECOND,
    Kind,
    Line,
    Row,
    chart,
    colour,
    line_layers,
    outside_of,
    plotted,
    scaled,
    shade,
    time_axis,
    tooltip_title,
    y_encoding,
)
from bench_spark.report.chart_theme import Spec

_DISTRIBUTION_TICKS = {0.0: "0 %", 0.30103: "50 %", 1.0: "90 %", 2.0: "99 %"} | {
    3.0: "99.9 %",
    4.0: "99.99 %",
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
    x = time_axis({"domain": list(span)})
    outside = outside_of(span, measured)
    shaded = [shade({"values": outside}, x)] if outside else []
    return chart(title, [*shaded, *_lines(rows, lines, x, kind, TOLD_SECOND)])


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
    return chart(title, _lines(rows, lines, x, "duration", tooltip))


def _lines(
    rows: Sequence[Row], lines: Sequence[Line], x: Spec, kind: Kind, tooltip_of_x: Spec
) -> list[Spec]:
    known = plotted(rows, lines, (x["field"], tooltip_of_x["field"]), kind)
    values = [value for row in known for key, value in row.items() if key.startswith("y")]
    y = y_encoding("value", kind, values)
    return line_layers({"values": known}, lines, x, y, kind, tooltip_of_x, str(len(known)))


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
        | {name: scaled(row[name], kind) for name in ("y", "low", "high")}
        for row in rows
    ]
    y = y_encoding("y", kind, [row[name] for row in values for name in ("low", "high")])
    # A line that is called like the whole figure needs no legend.
    names = [name for name in series if series != [y_title]]
    coloured = {"color": colour("series", names)} if names else {}
    tooltip = [
        {"field": "x", "title": tooltip_title(x_title)},
        *([{"field": "series", "title": "series"}] if names else []),
        {"field": "text", "title": tooltip_title(y_title)},
    ]
    shared = {"x": x, **coloured}
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
        named = [{**row, "y": scaled(row["y"], kind)} for row in marked]
        layers += _marks(named, {"x": x, "y": y})
    return chart(title, layers) | {"data": {"values": values}, "usermeta": {"legend": names}}


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
    return chart(title, layers) | {"data": {"values": known}, "height": 26 * len(known)}


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
