"""The table of a suite as Markdown for people, and as CSV and JSON for programs.

Markdown has the shape that the suite's `report` asks for. CSV and JSON have one entry per
combination of the axes, with plain numbers whose units end their names; an unknown value is empty
or null, and `unknown` where it is the broker that did not tell it.
"""

from __future__ import annotations

import csv
import json
import statistics
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any, TextIO

from bench_spark.config.suite import RATE, Value, value_text
from bench_spark.report.formatting import (
    UNKNOWN,
    byte_size,
    duration,
    one_line,
    per_cent,
    plural,
    rate,
    seconds,
    share,
    words,
)
from bench_spark.report.suite_table import (
    UNKNOWN_STATE,
    Figure,
    SuiteTable,
    TableCell,
    TableColumn,
    Unit,
    Warned,
    Words,
)


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
        texts = [text for cell in cells for text in _texts(cell, table.columns, notes)]
        rows.append([_label(name, cells) for name in table.rows] + texts)
    headings = [table.headings[name] for name in table.rows] + _column_headings(table)
    return LaidOut(headings, rows, list(notes))


def title_of(table: SuiteTable) -> str:
    return f"{table.title} (quick)" if table.is_quick else table.title


def write_markdown(table: SuiteTable, writer: TextIO) -> None:
    laid = laid_out(table)
    lines = [_line(laid.headings), _line(["-:"] * len(laid.headings)), *map(_line, laid.rows)]
    writer.write(f"### {title_of(table)}\n\n" + "\n".join(lines) + "\n")
    if any(cell.measured > 1 for cell in table.cells):
        writer.write("\nMedian of the repetitions, with the least and the greatest.\n")
    if (overhead := table.mean_overhead_seconds) is not None:
        writer.write(
            f"\nA trial took {seconds(overhead)} on average beside warm-up, load and drain.\n"
        )
    for number, text in enumerate(laid.notes, start=1):
        writer.write(f"\n[{number}] {text}\n")
    lines = [f"{label}: {text}" for label, text in surroundings_of(table)]
    lines += [f"warning: {warning_text(warned)}" for warned in table.warnings]
    if lines:
        writer.write("\n" + "\n".join(f"- {line}" for line in lines) + "\n")


def surroundings_of(table: SuiteTable) -> list[tuple[str, str]]:
    """Broker and machine, each as often as they have changed between trials."""
    return [
        *(("broker", text) for text in table.brokers),
        *(("machine", text) for text in table.machines),
    ]


def warning_text(warned: Warned) -> str:
    where = f"{warned.trials} of {plural(warned.of_trials, 'trial')}"
    return f"{words(warned.check)}: {where}, first {cell_name(warned.first)}: {warned.text}"


def cell_name(cell: TableCell) -> str:
    return ", ".join(f"{name} {value_text(value)}" for name, value in cell.parameters.items())


def write_csv(table: SuiteTable, writer: TextIO) -> None:
    texts = {column.name for column in table.all_columns if column.unit == "text"}
    rows = [_flat(entry, texts) for entry in _entries(table)]
    sheet = csv.DictWriter(writer, list(rows[0]), lineterminator="\n")
    sheet.writeheader()
    sheet.writerows(rows)


def write_json(table: SuiteTable, writer: TextIO) -> None:
    document = {
        "suite": table.suite,
        "title": table.title,
        "is_quick": table.is_quick,
        "mean_overhead_seconds": table.mean_overhead_seconds,
        "brokers": list(table.brokers),
        "machines": list(table.machines),
        "rows": list(table.rows),
        "across": table.across,
        "columns": [
            {"name": column.name, "heading": column.heading, "unit": column.unit}
            for column in table.all_columns
        ],
        "cells": list(_entries(table)),
    }
    writer.write(json.dumps(document, indent=2, allow_nan=False) + "\n")


def _rows(table: SuiteTable) -> Iterator[list[TableCell]]:
    """The cells of each row, in the order of its columns."""
    # By their texts: to Python, 1 and true are one key.
    rows: dict[tuple[str, ...], list[TableCell]] = {}
    for cell in table.cells:
        texts = tuple(value_text(cell.parameters[name]) for name in table.rows)
        rows.setdefault(texts, []).append(cell)
    columns = [value_text(value) for value in table.across_values]
    for cells in rows.values():
        if table.across is not None:
            across = table.across
            cells.sort(key=lambda cell: columns.index(value_text(cell.parameters[across])))
        yield cells


def _column_headings(table: SuiteTable) -> list[str]:
    headings = [column.heading for column in table.columns]
    if table.across is None:
        return headings
    name = table.headings[table.across]
    return [
        f"{name} {_shown(value)}: {heading}"
        for value in table.across_values
        for heading in headings
    ]


def _label(name: str, cells: Sequence[TableCell]) -> str:
    """The row's value; a rate that the load found is told with it, where the row has but one."""
    text = _shown(cells[0].parameters[name])
    found = cells[0].rate_found if len(cells) == 1 else None
    return f"{text} ({rate(found.median)})" if name == RATE and found else text


def _texts(cell: TableCell, columns: Sequence[TableColumn], notes: dict[str, int]) -> Iterator[str]:
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


def _shown(value: Value) -> str:
    return one_line(value) if isinstance(value, str) else value_text(value)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _entries(table: SuiteTable) -> Iterator[dict[str, Any]]:
    for cell in table.cells:
        yield {
            "parameters": {name: cell.parameters.get(name) for name in table.headings},
            "status": cell.status,
            "repetitions": cell.asked,
            "measured": cell.measured,
            "overhead_seconds": list(cell.overheads_seconds),
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
    column: TableColumn, figure: Figure | Words | None, cell: TableCell
) -> dict[str, Any] | str | None:
    """Of a trial that was measured, what its broker did not tell is unknown by that word."""
    if figure is None and column.is_about_broker and cell.measured:
        return UNKNOWN_STATE
    return _words_text(figure) if isinstance(figure, Words) else _figure_entry(figure)


def _figure_entry(figure: Figure | None) -> dict[str, Any] | None:
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
    for name, told in (rate_found | entry["values"]).items():
        numbers = told if isinstance(told, dict) else {}
        row[name] = told if isinstance(told, str) else numbers.get("median")
        if name not in texts:
            fields = ("min", "max", "is_lower_bound")
            row |= {f"{name}_{field}": numbers.get(field) for field in fields}
    overheads = entry["overhead_seconds"]
    row["overhead_seconds"] = statistics.fmean(overheads) if overheads else None
    row["is_settled"] = entry["is_settled"]
    row |= {name: "; ".join(entry[name]) for name in ("notes", "warnings")}
    return {name: _csv_value(value) for name, value in row.items()}


def _csv_value(value: Any) -> Any:
    return value_text(value) if isinstance(value, bool) else value
