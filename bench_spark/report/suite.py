"""The report of a suite: what became of its trials, figures, the table, how to ask.

The table for people has the shape that the suite's `report` asks for. The document and the sheet
have one entry per combination of the axes, with plain numbers whose units end their names; an
unknown value is empty or null, and `unknown` where the broker did not report it.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any, TextIO

import pyarrow as pa
from rich.text import Text

from bench_spark.config.objectives import Unit
from bench_spark.config.problems import plural
from bench_spark.config.suite import RATE, Suite, Value, value_text
from bench_spark.report import blocks
from bench_spark.report.charts import UNITS, Spec, against
from bench_spark.report.formats import Report, Sheet
from bench_spark.report.formatting import (
    SHOWN_AS,
    UNKNOWN,
    Document,
    duration,
    one_line,
    rate,
    seconds,
    words,
)
from bench_spark.report.page import Charts, Page, markdown_table, markdown_text
from bench_spark.report.queries import queries_of_suite
from bench_spark.report.suite_table import (
    UNKNOWN_STATE,
    Spread,
    SuiteTable,
    TableCell,
    TableColumn,
    Warned,
    Words,
)
from bench_spark.report.terminal import console_for, labelled, plain_table, print_block

MOST_SERIES = 8
"""More lines than that cannot be distinguished."""


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
        if column.unit != "text" and column.name not in seen:
            seen.add(column.name)
            yield place, column


def _layout(table: SuiteTable) -> _Layout:
    asked = table.report
    names = [name for name in dict.fromkeys([*asked.rows, asked.across]) if name is not None]
    varied = [name for name in names if len(_values(table, name)) > 1] or names[:1]
    x = asked.figures.x or max(varied, key=lambda name: (_numbers(table, name), varied.index(name)))
    others = [name for name in varied if name != x and not _follows(table, name, x)]
    series: tuple[str, ...]
    if asked.figures.series is not None:
        series = (asked.figures.series,) if asked.figures.series != x else ()
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
    points = [
        _point(table, layout, cell, figure, column)
        for cell in cells
        if isinstance(figure := cell.figures[place], Spread)
    ]
    if not points:
        return None
    if all(_is_number(point["x"]) for point in points):
        points.sort(key=lambda point: point["x"])
    where = ", ".join(
        f"{table.headings[name]} {text}" for name, text in zip(layout.panels, panel, strict=True)
    )
    unit = UNITS.get(column.unit)
    unit = f", {unit}" if unit and unit not in column.heading else ""
    title = f"{column.heading}{unit}" + (f" ({where})" if where else "")
    x_title = table.headings[layout.x]
    values = list(dict.fromkeys(point["x"] for point in points))
    spec = against(title, points, x_title, values, column.heading, column.unit)
    return SuiteFigure(
        name="-".join(filter(None, (column.name, *map(_file_name, panel)))),
        caption=title,
        spec=spec,
        headings=[x_title, "series", column.heading],
        rows=[[str(point["x"]), point["series"], point["text"]] for point in points],
    )


def _point(
    table: SuiteTable, layout: _Layout, cell: TableCell, figure: Spread, column: TableColumn
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


def figure_text(figure: Spread, unit: Unit, is_repeated: bool) -> str:
    text = _number(figure.median, unit, figure.is_lower_bound)
    if not is_repeated:
        return text
    return f"{text} ({_number(figure.lowest, unit)}..{_number(figure.highest, unit)})"


def _number(value: float, unit: Unit, is_lower_bound: bool = False) -> str:
    return duration(value, is_lower_bound) if unit == "us" else SHOWN_AS[unit](value)


class SuiteReport(Report):
    def __init__(self, table: SuiteTable, stored_name: str, broker: str, store: str) -> None:
        super().__init__(document_of(table))
        self._table = table
        self._stored_name = stored_name
        self._broker = broker
        self._store = store

    @property
    def sheet(self) -> Sheet:
        return sheet_of(self._table)

    def write_markdown(self, writer: TextIO) -> None:
        write_markdown(self._table, writer)

    def write_terminal(self, writer: TextIO) -> None:
        write_terminal(self._table, writer)

    def page(self) -> Page:
        table, drawn = self._table, Charts()
        queries = queries_of_suite(self._stored_name, self._broker)
        sql = [blocks.queries_block(queries, self._store)]
        sections = [
            blocks.PageSection("audit", "Can it be trusted?", list(_audit(table))),
            *_figures(table, drawn),
            blocks.PageSection("table", "Table", list(_table(table))),
            blocks.PageSection("suite", "Suite", list(_description(table.suite))),
            blocks.PageSection("sql", "The numbers by SQL", sql),
        ]
        return Page(self._heading(), sections, drawn)

    def _heading(self) -> blocks.Heading:
        table = self._table
        is_whole = all(cell.status in ("valid", "skipped") for cell in table.cells)
        surroundings = [f"{label}: {text}" for label, text in table.surroundings]
        return blocks.Heading(
            table.title,
            blocks.status_mark("valid" if is_whole else "degraded"),
            [f"suite {table.suite.name} on {self._broker}", *surroundings],
        )


# -- the page --------------------------------------------------------------------------------------


def _audit(table: SuiteTable) -> Iterator[blocks.Block]:
    statuses = Counter(cell.status for cell in table.cells)
    counts = ", ".join(f"{number} {status}" for status, number in statuses.most_common())
    yield blocks.Paragraph(f"{plural(len(table.cells), 'combination')} of the axes: {counts}.")
    doubtful: list[list[blocks.Cell]] = [
        [blocks.Mark(cell.status, cell.status), cell_name(cell), one_line("; ".join(cell.notes))]
        for cell in table.cells
        if cell.status != "valid" or cell.notes
    ]
    if doubtful:
        headings = ["status", "where", "why"]
        yield blocks.Table("What to know about some of them", headings, doubtful, words=3)
    warnings = [
        [
            words(warned.check),
            f"{warned.trials} of {warned.of_trials}",
            cell_name(warned.first),
            warned.text,
        ]
        for warned in table.warnings
    ]
    if warnings:
        headings = ["check", "trials", "first", "what it says there"]
        yield blocks.Table("What the audits of the trials warn of", headings, warnings, words=4)


def _figures(table: SuiteTable, drawn: Charts) -> Iterator[blocks.PageSection]:
    figures = [
        drawn.figure(
            figure.caption, figure.spec, blocks.Table(figure.caption, figure.headings, figure.rows)
        )
        for figure in suite_figures(table)
    ]
    if figures:
        note = "Points are medians of the repetitions, bars reach from the least to the greatest."
        about = [blocks.Paragraph(note, "faint")] if table.is_repeated else []
        yield blocks.PageSection("figures", "Figures", [*about, blocks.Grid(figures)])


def _table(table: SuiteTable) -> Iterator[blocks.Block]:
    laid = laid_out(table)
    caption = "One row per combination of the axes"
    yield blocks.Table(caption, laid.headings, laid.rows, words=len(table.report.rows))
    yield blocks.Bullets([f"[{number}] {text}" for number, text in enumerate(laid.notes, start=1)])


def _description(suite: Suite) -> Iterator[blocks.Block]:
    if suite.description:
        yield blocks.Paragraph(suite.description)
    axes = [(axis.name, ", ".join(map(value_text, axis.values))) for axis in suite.axes]
    yield blocks.Table("Axes", ["axis", "values"], axes, words=2)
    yield blocks.keys_block("Base scenario", suite.base.dump())


# -- the table for people --------------------------------------------------------------------------


@dataclass(frozen=True)
class LaidOut:
    """The table as people read it: the same in Markdown and in a page."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str]
    """Cells refer to them by number, from 1: `12.3 ms [1]`."""


def laid_out(table: SuiteTable) -> LaidOut:
    notes: dict[str, int] = {}
    rows = []
    for cells in _rows(table):
        texts = [text for cell in cells for text in _cell_texts(cell, table.columns, notes)]
        rows.append([_label(name, cells) for name in table.report.rows] + texts)
    headings = [table.headings[name] for name in table.report.rows] + _column_headings(table)
    return LaidOut(headings, rows, list(notes))


def write_markdown(table: SuiteTable, writer: TextIO) -> None:
    laid = laid_out(table)
    writer.write(
        f"### {markdown_text(table.title)}\n\n{markdown_table(laid.headings, laid.rows)}\n"
    )
    for text in _remarks(table):
        writer.write(f"\n{text}\n")
    for number, text in enumerate(laid.notes, start=1):
        writer.write(f"\n[{number}] {markdown_text(text)}\n")
    lines = [f"{label}: {text}" for label, text in table.surroundings]
    lines += [f"warning: {warning_text(warned)}" for warned in table.warnings]
    if lines:
        writer.write("\n" + "\n".join(f"- {markdown_text(line)}" for line in lines) + "\n")


def write_terminal(table: SuiteTable, writer: TextIO) -> None:
    laid = laid_out(table)
    console = console_for(writer)
    writer.write(f"{one_line(table.title)}\n\n")
    print_block(console, plain_table(laid.headings, laid.rows, gap=2))
    notes: list[tuple[str | Text, str]]
    notes = [(Text(f"[{number}]"), text) for number, text in enumerate(laid.notes, start=1)]
    notes += [("note", text) for text in _remarks(table)]
    notes += table.surroundings
    notes += [(Text("warn", "yellow"), warning_text(warned)) for warned in table.warnings]
    if notes:
        writer.write("\n")
        print_block(console, labelled(notes))


def _remarks(table: SuiteTable) -> Iterator[str]:
    if table.is_repeated:
        yield "Median of the repetitions, with the least and the greatest."
    if (overhead := table.mean_overhead_seconds) is not None:
        yield f"A trial took {seconds(overhead)} on average beside warm-up, load and drain."


def warning_text(warned: Warned) -> str:
    where = f"{warned.trials} of {plural(warned.of_trials, 'trial')}"
    return f"{words(warned.check)}: {where}, first {cell_name(warned.first)}: {warned.text}"


def cell_name(cell: TableCell) -> str:
    return ", ".join(f"{name} {value_text(value)}" for name, value in cell.parameters.items())


def _rows(table: SuiteTable) -> Iterator[list[TableCell]]:
    """The cells of each row, in the order of its columns."""
    # By their texts: to Python, 1 and true are one key.
    rows: dict[tuple[str, ...], list[TableCell]] = {}
    for cell in table.cells:
        texts = tuple(value_text(cell.parameters[name]) for name in table.report.rows)
        rows.setdefault(texts, []).append(cell)
    columns = [value_text(value) for value in table.across_values]
    for cells in rows.values():
        if table.report.across is not None:
            across = table.report.across
            cells.sort(key=lambda cell: columns.index(value_text(cell.parameters[across])))
        yield cells


def _column_headings(table: SuiteTable) -> list[str]:
    headings = [column.heading for column in table.columns]
    if table.report.across is None:
        return headings
    name = table.headings[table.report.across]
    return [
        f"{name} {_shown(value)}: {heading}"
        for value in table.across_values
        for heading in headings
    ]


def _label(name: str, cells: Sequence[TableCell]) -> str:
    """The row's value; a rate that the load found stands with it, where the row has but one."""
    text = _shown(cells[0].parameters[name])
    found = cells[0].rate_found if len(cells) == 1 else None
    return f"{text} ({rate(found.median)})" if name == RATE and found else text


def _cell_texts(
    cell: TableCell, columns: Sequence[TableColumn], notes: dict[str, int]
) -> Iterator[str]:
    marks = "".join(f" [{notes.setdefault(text, len(notes) + 1)}]" for text in cell.notes)
    # The figures of further columns, which are not for people, come behind these.
    for column, figure in zip(columns, cell.figures, strict=False):
        if not cell.measured:
            yield f"{cell.status}{marks}"
        elif figure is None:
            yield f"{UNKNOWN_STATE if column.is_about_broker else UNKNOWN}{marks}"
        elif isinstance(figure, Words):
            yield f"{_words_text(figure)}{marks}"
        else:
            yield f"{figure_text(figure, column.unit, cell.measured > 1)}{marks}"


def _words_text(found: Words) -> str:
    return "; ".join(map(one_line, found.texts))


def _shown(value: Value) -> str:
    return one_line(value) if isinstance(value, str) else value_text(value)


# -- for programs ----------------------------------------------------------------------------------


def document_of(table: SuiteTable) -> Document:
    return {
        "suite": table.suite.name,
        "title": table.report.title or table.suite.name,
        "is_quick": table.suite.is_quick,
        "mean_overhead_seconds": table.mean_overhead_seconds,
        "brokers": [text for label, text in table.surroundings if label == "broker"],
        "machines": [text for label, text in table.surroundings if label == "machine"],
        "rows": list(table.report.rows),
        "across": table.report.across,
        "columns": [
            {"name": column.name, "heading": column.heading, "unit": column.unit}
            for column in table.all_columns
        ],
        "cells": list(_entries(table)),
    }


def sheet_of(table: SuiteTable) -> Sheet:
    texts = {column.name for column in table.all_columns if column.unit == "text"}
    rows = [_flat(entry, texts) for entry in _entries(table)]
    types = {"rate_found_per_second": pa.float64(), "is_settled": pa.bool_()}
    types |= {"overhead_seconds": pa.float64()}
    for name in ("rate_found_per_second", *(column.name for column in table.all_columns)):
        if name not in texts:
            types |= dict.fromkeys((name, f"{name}_min", f"{name}_max"), pa.float64())
            types[f"{name}_is_lower_bound"] = pa.bool_()
    return Sheet(list(rows[0]), rows, types)


def _entries(table: SuiteTable) -> Iterator[dict[str, Any]]:
    for cell in table.cells:
        yield {
            "parameters": {name: cell.parameters.get(name) for name in table.headings},
            "status": cell.status,
            "repetitions": len(cell.trials),
            "measured": cell.measured,
            "overhead_seconds": cell.overheads_seconds,
            "rate_found_per_second": _figure_entry(cell.rate_found),
            "is_settled": cell.is_settled,
            "values": {
                column.name: _entry(column, figure, cell)
                for column, figure in zip(table.all_columns, cell.figures, strict=True)
            },
            "notes": list(cell.notes),
            "warnings": list(dict.fromkeys(f"{name}: {text}" for name, text in cell.warnings)),
        }


def _entry(
    column: TableColumn, figure: Spread | Words | None, cell: TableCell
) -> dict[str, Any] | str | None:
    """Of a trial that was measured, what its broker did not report is the word `unknown`."""
    if figure is None and column.is_about_broker and cell.measured:
        return UNKNOWN_STATE
    return _words_text(figure) if isinstance(figure, Words) else _figure_entry(figure)


def _figure_entry(figure: Spread | None) -> dict[str, Any] | None:
    if figure is None:
        return None
    return {
        "median": figure.median,
        "min": figure.lowest,
        "max": figure.highest,
        "is_lower_bound": figure.is_lower_bound,
    }


def _flat(entry: dict[str, Any], texts: Set[str]) -> dict[str, Any]:
    """`texts`: names of columns that hold words and so have no extremes."""
    row = dict(entry["parameters"])
    row |= {name: entry[name] for name in ("status", "repetitions", "measured")}
    rate_found = {"rate_found_per_second": entry["rate_found_per_second"]}
    for name, shown in (rate_found | entry["values"]).items():
        numbers = shown if isinstance(shown, dict) else {}
        row[name] = shown if isinstance(shown, str) else numbers.get("median")
        if name not in texts:
            fields = ("min", "max", "is_lower_bound")
            row |= {f"{name}_{field}": numbers.get(field) for field in fields}
    overheads = entry["overhead_seconds"]
    row["overhead_seconds"] = statistics.fmean(overheads) if overheads else None
    row["is_settled"] = entry["is_settled"]
    row |= {name: "; ".join(entry[name]) for name in ("notes", "warnings")}
    return row
