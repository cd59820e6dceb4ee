"""Figures of a suite: a number against the parameter that was swept, one line per series.

Every column of numbers is a figure; so are throughput and the broker's CPU and disk, whether or not
the table shows them. Axes that are neither along the bottom nor lines make further figures.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench_spark.config.suite import RATE, Value, value_text
from bench_spark.report.charts import UNITS, Kind, Spec, against
from bench_spark.report.formatting import byte_size, duration, per_cent, rate, share
from bench_spark.report.suite_table import Figure, SuiteTable, TableCell, TableColumn, Unit

MOST_SERIES = 8
"""More lines than that cannot be told from each other."""

_KINDS: Mapping[Unit, Kind] = {
    "us": "duration",
    "per_second": "rate",
    "share": "share",
    "cpu_share": "share",
    "bytes": "bytes",
}


@dataclass(frozen=True)
class SuiteFigure:
    name: str
    """Of its files, without their endings."""
    caption: str
    spec: Spec
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    """The same numbers as a table."""


@dataclass(frozen=True)
class _Layout:
    x: str
    series: tuple[str, ...]
    panels: tuple[str, ...]


def suite_figures(table: SuiteTable) -> list[SuiteFigure]:
    layout = _layout(table)
    panels: dict[tuple[str, ...], list[TableCell]] = {}
    for cell in table.cells:
        key = tuple(value_text(cell.parameters.get(name)) for name in layout.panels)
        panels.setdefault(key, []).append(cell)
    return [
        figure
        for place, column in _columns(table)
        for key, cells in panels.items()
        if (figure := _figure(table, layout, place, column, key, cells)) is not None
    ]


def _columns(table: SuiteTable) -> Iterator[tuple[int, TableColumn]]:
    """With their places among a cell's figures; of a column that is there twice the first."""
    seen: set[str] = set()
    for place, column in enumerate(table.all_columns):
        if column.unit in _KINDS and column.name not in seen:
            seen.add(column.name)
            yield place, column


def _layout(table: SuiteTable) -> _Layout:
    names = [name for name in dict.fromkeys([*table.rows, table.across]) if name is not None]
    varied = [name for name in names if len(_values(table, name)) > 1] or names[:1]
    x = table.x or max(varied, key=lambda name: (_numbers(table, name), varied.index(name)))
    others = [name for name in varied if name != x and not _follows(table, name, x)]
    series: tuple[str, ...]
    if table.series is not None:
        series = (table.series,) if table.series != x else ()
    elif len({_texts(cell, others) for cell in table.cells}) <= MOST_SERIES:
        series = tuple(others)
    else:
        series = tuple(others[-1:])
    return _Layout(x, series, tuple(name for name in others if name not in series))


def _values(table: SuiteTable, name: str) -> list[Value]:
    by_text = {
        value_text(cell.parameters.get(name)): cell.parameters.get(name) for cell in table.cells
    }
    return list(by_text.values())


def _numbers(table: SuiteTable, name: str) -> int:
    """How many numbers an axis has; one of words has none."""
    values = _values(table, name)
    numbers = [value for value in values if _is_number(value)]
    return len(numbers) if len(numbers) == len(values) or name == RATE else 0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _follows(table: SuiteTable, name: str, x: str) -> bool:
    """Whether an axis advances together with the one along the bottom."""
    pairs = {_texts(cell, (x, name)) for cell in table.cells}
    return len(pairs) == len({pair[0] for pair in pairs})


def _texts(cell: TableCell, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(value_text(cell.parameters.get(name)) for name in names)


def _figure(
    table: SuiteTable,
    layout: _Layout,
    place: int,
    column: TableColumn,
    panel: tuple[str, ...],
    cells: Sequence[TableCell],
) -> SuiteFigure | None:
    kind = _KINDS[column.unit]
    points = [
        _point(table, layout, cell, figure, column)
        for cell in cells
        if isinstance(figure := cell.figures[place], Figure)
    ]
    if not points:
        return None
    if all(_is_number(point["x"]) for point in points):
        points.sort(key=lambda point: point["x"])
    where = ", ".join(
        f"{table.headings[name]} {text}" for name, text in zip(layout.panels, panel, strict=True)
    )
    unit = f", {UNITS[kind]}" if UNITS[kind] and UNITS[kind] not in column.heading else ""
    title = f"{column.heading}{unit}" + (f" ({where})" if where else "")
    x_title = table.headings[layout.x]
    values = list(dict.fromkeys(point["x"] for point in points))
    spec = against(title, points, x_title, values, column.heading, kind)
    return SuiteFigure(
        name="-".join(filter(None, (column.name, *map(_file_name, panel)))),
        caption=title,
        spec=spec,
        headings=[x_title, "series", column.heading],
        rows=[[str(point["x"]), point["series"], point["text"]] for point in points],
    )


def _point(
    table: SuiteTable, layout: _Layout, cell: TableCell, figure: Figure, column: TableColumn
) -> dict[str, Any]:
    x = cell.parameters.get(layout.x)
    if not _is_number(x):
        # `max` and `sustained` stand where the load has found itself.
        found = cell.rate_found if layout.x == RATE else None
        x = round(found.median) if found is not None else value_text(x)
    named = [
        f"{table.headings[name]} {value_text(cell.parameters.get(name))}" for name in layout.series
    ]
    return {
        "x": x,
        "series": ", ".join(named) or column.heading,
        "y": figure.median,
        "low": figure.lowest,
        "high": figure.highest,
        "text": figure_text(figure, column.unit, cell.measured > 1),
    }


def _file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._]+", "_", text).strip("_.") or "_"


def figure_text(figure: Figure, unit: Unit, is_repeated: bool) -> str:
    text = _number(figure.median, unit, figure.is_lower_bound)
    if not is_repeated:
        return text
    return f"{text} ({_number(figure.lowest, unit)}..{_number(figure.highest, unit)})"


def _number(value: float, unit: Unit, is_lower_bound: bool = False) -> str:
    match unit:
        case "text":
            raise AssertionError("a text is no number")
        case "cpu_share":
            return per_cent(value)
        case "bytes":
            return byte_size(value)
        case "us":
            return duration(value, is_lower_bound)
        case "per_second":
            return rate(value)
        case "share":
            return share(value)
