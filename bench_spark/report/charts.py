"""Charts as Vega-Lite specifications, from rows to a document that says what to draw; and files.

The same specification is drawn in three places: in a page by Vega itself, and as SVG and PNG files
by vl-convert. That brings Vega, Vega-Lite and Vega-Embed with it, so that neither making a report
nor opening one needs the network.

`PAGE` leaves them to the page's style sheet, which knows whether the reader wants it dark; `PAPER`
is for files.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from bench_spark.cache import cache_directory
from bench_spark.config.objectives import Unit
from bench_spark.core.hdr import SparseHistogram

if TYPE_CHECKING:
    from types import ModuleType

Spec = dict[str, Any]
"""A Vega-Lite specification."""

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
SERIES_COLOURS = 8


class Palette(TypedDict):
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


class SeriesColours:
    """Gives each series a colour that it keeps in all charts of a page."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        """Place in the palette by the name of the series."""

    def of(self, names: Sequence[str]) -> list[int]:
        """Different ones within a chart, as long as the palette has them.

        Charts that share no series may share colours: the first of the palette are the easiest to
        tell apart.
        """
        for name in names:
            if name not in self._places:
                uses = Counter(self._places[other] for other in names if other in self._places)
                self._places[name] = min(range(SERIES_COLOURS), key=lambda place: uses[place])
        return [self._places[name] for name in names]


def themed(spec: Spec, palette: Palette, colours: SeriesColours) -> Spec:
    """The chart with colours of this palette."""
    places = colours.of(spec["usermeta"]["legend"])
    series = [palette["series"][place] for place in places] or list(palette["series"])
    return {"$schema": SCHEMA, **spec, "config": _config(palette, series)}


def _config(palette: Palette, series: list[str]) -> Spec:
    axis = {
        "labelColor": palette["ink"],
        "titleColor": palette["ink"],
        "gridColor": palette["grid"],
        "domainColor": palette["faint"],
        "tickColor": palette["faint"],
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
    }
    legend = {
        "orient": "top",
        "title": None,
        "labelColor": palette["ink"],
        "labelFontSize": 12,
        "labelLimit": 320,
        "symbolType": "stroke",
        "symbolStrokeWidth": 3,
        "symbolOpacity": 1,
    }
    return {
        "background": palette["background"],
        "font": palette["font"],
        "view": {"stroke": None},
        "axis": axis,
        "legend": legend,
        "title": {"color": palette["ink"], "anchor": "start", "fontSize": 14},
        "range": {"category": series},
        "mark": {"color": palette["series"][0]},
        "rule": {"color": palette["series"][0]},
        "style": {
            "outside": {"color": palette["outside"]},
            "cursor": {"color": palette["faint"]},
            "mark-name": {"color": palette["ink"]},
        },
    }


Row = Mapping[str, Any]

HEIGHT = 220
Y_AXIS_WIDTH = 66
"""The same in all charts: their time axes are to lie under each other."""
MOST_LOG_TICKS = 8
SMALLEST_DRAWN = 1e-9

UNITS: Mapping[Unit, str] = {
    "per_second": "msg/s",
    **dict.fromkeys(("share", "cpu_share"), "%"),
    "bytes": "MB",
    "bytes_per_second": "MB/s",
}
"""What stands above a chart. Durations have their units beside each number, counts have none."""
_SCALES: Mapping[Unit, float] = {
    **dict.fromkeys(("share", "cpu_share"), 100.0),
    **dict.fromkeys(("bytes", "bytes_per_second"), 1e-6),
}


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
    rows: Iterable[Row], lines: Sequence[Line], columns_of_x: Sequence[str], unit: Unit
) -> list[dict[str, Any]]:
    """The rows as they are drawn: where on the axis, and a value for each line."""
    keys = keys_of(lines)
    return [
        {name: row[name] for name in columns_of_x}
        | {key: scaled(row.get(line.field), unit) for key, line in zip(keys, lines, strict=True)}
        for row in rows
    ]


def line_layers(
    data: Spec,
    lines: Sequence[Line],
    x: Spec,
    y: Spec,
    unit: Unit,
    tooltip_of_x: Spec,
    points: str,
) -> list[Spec]:
    """The lines, and a cursor that shows the values of all of them.

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
        {"calculate": _text_expression(f"datum.{key}", unit), "as": f"{key}_text"} for key in keys
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


SECOND_TOOLTIP = {"field": "second", "format": ".1f"}


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


def y_encoding(field: str, unit: Unit, domain: Any, ticks: Any) -> Spec:
    """Without a title: what is drawn is in the caption, where it can be read without turning.

    `domain` and `ticks` are those of `y_axis`, or expressions for them.
    """
    label = "format(datum.value, '~s')" if unit == "per_second" else "datum.label"
    axis: Spec = {
        "title": None,
        "minExtent": Y_AXIS_WIDTH,
        "maxExtent": Y_AXIS_WIDTH,
        "values": ticks,
        "labelExpr": _duration_expression("datum.value") if unit == "us" else label,
    }
    scale: Spec = {"type": "log"}
    if unit != "us":
        axis["format"] = ",.4~r"
        scale = {"type": "linear", "zero": False}
    return {
        "field": field,
        "type": "quantitative",
        "scale": scale | {"domain": domain, "nice": False},
        "axis": axis,
    }


def y_axis(values: Iterable[float | None], unit: Unit) -> tuple[list[float], list[float]]:
    """Where the axis of these values begins and ends, and its ticks. No value lies at an end, where
    the frame of the chart would hide its line."""
    known = [value for value in values if value is not None]
    return log_axis(known) if unit == "us" else number_axis(known)


def number_axis(values: Sequence[float]) -> tuple[list[float], list[float]]:
    """From 0 to a round number; a little further at an end where a value is there."""
    high = max(values, default=0.0)
    if high < SMALLEST_DRAWN:
        high = 1.0
    power = 10.0 ** math.floor(math.log10(high / 5))
    step = next(factor * power for factor in (1, 2, 5, 10, 20) if factor * power >= high / 5)
    # In whole millionths of a step: rounding must not add a tick.
    steps = math.ceil(round(high / step, 6))
    top = max(steps * step, high * 1.02)
    low = -0.02 * top if any(value < 0.005 * top for value in values) else 0.0
    return [low, top], [float(f"{place * step:.6g}") for place in range(steps + 1)]


def log_axis(values: Sequence[float]) -> tuple[list[float], list[float]]:
    """With not too many ticks."""
    ticks = log_ticks(values)
    known = [max(1.0, value) for value in values] or [ticks[0], ticks[-1]]
    shown = ticks if len(ticks) <= MOST_LOG_TICKS else [tick for tick in ticks if _is_power(tick)]
    return [min(ticks[0], min(known) / 1.1), max(ticks[-1], max(known) * 1.1)], shown


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


def scaled(value: float | None, unit: Unit) -> float | None:
    if value is None:
        return None
    if unit == "us":
        return max(1.0, value)  # the axis is logarithmic, and clocks tell whole microseconds
    return float(f"{value * _SCALES.get(unit, 1.0):.6g}")


def _text_expression(value: str, unit: Unit) -> str:
    if unit == "us":
        text = _duration_expression(value)
    else:
        text = f"format({value}, ',.4~r') + {_quoted(' ' + UNITS[unit] if unit in UNITS else '')}"
    return f"isValid({value}) ? {text} : '-'"


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


MOST_DECADES = 4.0
"""99.99 %."""
POINTS_PER_DECADE = 40


def percentile_of(decades: float) -> float:
    """0, 1, 2, 3 and 4 decades are 0 %, 90 %, 99 %, 99.9 % and 99.99 %."""
    return 100.0 * (1.0 - math.pow(10.0, -decades))


def known_decades(count: int) -> float:
    """As far as so many values reach: beyond, less than one of them is above the percentile."""
    return min(MOST_DECADES, math.log10(count)) if count > 1 else 0.0


def distribution_rows(
    histograms: Mapping[str, SparseHistogram], highest_us: int
) -> Sequence[dict[str, Any]]:
    """Rows of `decades`, `percentile` and a value per measure; a measure may end before others."""
    ends = {name: known_decades(found.count) for name, found in histograms.items() if found.count}
    most = max(ends.values(), default=0.0)
    steps = [step / POINTS_PER_DECADE for step in range(math.ceil(most * POINTS_PER_DECADE))]
    rows = []
    for decades in [*steps, most] if ends else []:
        percentile = percentile_of(decades)
        values = {
            name: histograms[name].percentile(percentile, highest_us).value_us
            for name, end in ends.items()
            if decades <= end
        }
        rows.append({"decades": round(decades, 5), "percentile": round(percentile, 5), **values})
    return rows


_DISTRIBUTION_TICKS = {0.0: "0 %", 0.30103: "50 %", 1.0: "90 %", 2.0: "99 %"} | {
    3.0: "99.9 %",
    4.0: "99.99 %",
}


def over_time(
    title: str,
    rows: Sequence[Row],
    lines: Sequence[Line],
    unit: Unit,
    span: tuple[float, float],
    measured: tuple[float, float],
) -> Spec:
    """Lines over the seconds since the measured phase began; what is outside it is shaded.

    `span` is the time axis, which all charts of a page share.
    """
    x = time_axis({"domain": list(span)})
    outside = outside_of(span, measured)
    shaded = [shade({"values": outside}, x)] if outside else []
    return chart(title, [*shaded, *_lines(rows, lines, x, unit, SECOND_TOOLTIP)])


def distribution(title: str, rows: Sequence[Row], lines: Sequence[Line]) -> Spec:
    """Durations by percentile; `decades` is log10(1 / (1 - p)), so every nine has the same width.

    A line ends where a run has too few messages.
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
    return chart(title, _lines(rows, lines, x, "us", tooltip))


def _lines(
    rows: Sequence[Row], lines: Sequence[Line], x: Spec, unit: Unit, tooltip_of_x: Spec
) -> list[Spec]:
    known = plotted(rows, lines, (x["field"], tooltip_of_x["field"]), unit)
    values = [value for row in known for key, value in row.items() if key.startswith("y")]
    y = y_encoding("value", unit, *y_axis(values, unit))
    return line_layers({"values": known}, lines, x, y, unit, tooltip_of_x, str(len(known)))


def against(
    title: str,
    rows: Sequence[Row],
    x_title: str,
    x_values: Sequence[Any],
    y_title: str,
    unit: Unit,
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
        | {name: scaled(row[name], unit) for name in ("y", "low", "high")}
        for row in rows
    ]
    ends = [row[name] for row in values for name in ("low", "y", "high")]
    y = y_encoding("y", unit, *y_axis(ends, unit))
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
        named = [{**row, "y": scaled(row["y"], unit)} for row in marked]
        layers += _marks(named, {"x": x, "y": y}, x_values)
    return chart(title, layers) | {"data": {"values": values}, "usermeta": {"legend": names}}


def _marks(rows: Sequence[Row], place: Spec, x_values: Sequence[Any]) -> list[Spec]:
    ring = {"type": "point", "size": 180, "strokeWidth": 2, "filled": False, "opacity": 1}
    text = {"type": "text", "dy": 18, "fontSize": 12, "style": "mark-name"}
    # The text of a point at an end stays inside the chart.
    aligned = {max(x_values): "right", min(x_values): "left"}
    return [
        {"data": {"values": list(rows)}, "mark": ring, "encoding": place},
        *(
            {
                "data": {"values": [row]},
                "mark": text | {"align": aligned.get(row["x"], "center")},
                "encoding": {**place, "text": {"field": "text", "type": "nominal"}},
            }
            for row in rows
        ),
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
        "axis": {
            "title": "times the baseline",
            # Not as a format: of a logarithmic scale that leaves most labels out.
            "labelExpr": "format(datum.value, '.3~r')",
            "tickCount": 6,
            "labelOverlap": False,
        },
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
    kind = {"type": "log"} if is_wide else {"zero": False}
    return {**kind, "domain": [min(values), max(values)], "nice": False, "padding": 12}


# -- files ----------------------------------------------------------------------------------------

WIDTH, HEIGHT = 720, 400
PNG_SCALE = 2.0

_SNIPPET = "window.vegaEmbed = vegaEmbed;"
DRAWN_AS = (".svg", ".png")


def drawn(spec: Spec, ending: str, colours: SeriesColours | None = None) -> bytes:
    """A chart as the content of a file with one of the endings above.

    `colours`: those of the other charts that belong to it.
    """
    on_paper = _on_paper(spec, colours or SeriesColours())
    if ending == ".svg":
        text: str = _library().vegalite_to_svg(on_paper)
        return text.encode()
    image: bytes = _library().vegalite_to_png(on_paper, scale=PNG_SCALE)
    return image


def _on_paper(spec: Spec, colours: SeriesColours) -> Spec:
    sized = {"width": WIDTH, "height": HEIGHT, "title": spec["description"], "padding": 12}
    return themed(
        {**spec, **sized, "autosize": {"type": "fit", "contains": "padding"}}, PAPER, colours
    )


def browser_library() -> str:
    """JavaScript that defines `vegaEmbed`. Putting it together takes seconds, so it is kept."""
    library = _library()
    known_by = hashlib.sha256(f"{library.__version__} {_SNIPPET}".encode()).hexdigest()[:16]
    file = cache_directory() / "vega" / f"embed-{known_by}.js"
    try:
        return file.read_text()
    except FileNotFoundError:
        # Inside an element `script` this would end it; in JavaScript both forms mean the same.
        text: str = library.javascript_bundle(_SNIPPET).replace("</script", r"<\/script")
        _keep(file, text)
        return text


def _keep(file: Path, text: str) -> None:
    """Whole or not at all: another command may be reading."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_suffix(f".{os.getpid()}")
        unfinished.write_text(text)
        unfinished.replace(file)
    except OSError:
        pass  # a cache that cannot be written costs seconds, not the report


def _library() -> ModuleType:
    # Loaded when something is drawn: it is large, and most commands draw nothing.
    import vl_convert

    return vl_convert
