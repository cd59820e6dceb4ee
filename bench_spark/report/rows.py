"""Rows of any kind (the answer to a query, the runs of a store) as a table, CSV or JSON."""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any, TextIO

import pyarrow as pa

from bench_spark.errors import ConfigurationError
from bench_spark.report.formatting import one_line, rate, share

WIDEST_CELL = 60


class RowFormat(StrEnum):
    TABLE = "table"
    CSV = "csv"
    JSON = "json"


@dataclass(frozen=True)
class Rows:
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]

    @classmethod
    def of_table(cls, table: pa.Table) -> Rows:
        """By columns and not by row: two columns may have the same name."""
        columns = [column.to_pylist(maps_as_pydicts="strict") for column in table.columns]
        return cls(table.column_names, list(zip(*columns, strict=True)))


def write_rows(answer: Rows, row_format: RowFormat, writer: TextIO) -> None:
    match row_format:
        case RowFormat.TABLE:
            _write_table(answer, writer)
        case RowFormat.CSV:
            _write_csv(answer, writer)
        case RowFormat.JSON:
            _write_json(answer, writer)


def _write_table(answer: Rows, writer: TextIO) -> None:
    """As wide as it needs to be: half a number would be worse than a wrapped line."""
    cells = [[_shown(value) for value in row] for row in answer.rows]
    widths = [
        max(len(text) for text in column) for column in zip(answer.columns, *cells, strict=True)
    ]
    are_numbers = [
        all(isinstance(value, int | float | Decimal | None) for value in column)
        for column in zip(*answer.rows, strict=True)
    ] or [False] * len(widths)
    for line in (answer.columns, ["-" * width for width in widths], *cells):
        placed = (
            text.rjust(width) if is_number else text.ljust(width)
            for text, width, is_number in zip(line, widths, are_numbers, strict=True)
        )
        writer.write("  ".join(placed).rstrip() + "\n")


def _write_csv(answer: Rows, writer: TextIO) -> None:
    table = csv.writer(writer, lineterminator="\n")
    table.writerow(answer.columns)
    for row in answer.rows:
        table.writerow(
            [
                json.dumps(_plain(value)) if isinstance(value, dict | list) else _plain(value)
                for value in row
            ]
        )


def _write_json(answer: Rows, writer: TextIO) -> None:
    """One list of objects, a row to a line."""
    twice = [name for name, times in Counter(answer.columns).items() if times > 1]
    if twice:
        raise ConfigurationError(
            f"SQL: two columns are called {twice[0]}, which JSON cannot hold; name them with AS"
        )
    lines = (
        json.dumps(dict(zip(answer.columns, map(_plain, row), strict=True)), allow_nan=False)
        for row in answer.rows
    )
    writer.write("[" + ",\n ".join(lines) + "]\n")


def _plain(value: Any) -> Any:
    """A value that JSON knows; numbers that it does not know become text."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, str | int | float):
        return value
    return value.hex() if isinstance(value, bytes) else str(value)


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and math.isfinite(value) and abs(value) >= 0.001:
        return f"{value:.3f}".rstrip("0").rstrip(".")
    text = (
        str(value) if isinstance(value, int | float | str | datetime) else json.dumps(_plain(value))
    )
    line = " ".join(text.split())
    return line if len(line) <= WIDEST_CELL else line[: WIDEST_CELL - 3] + "..."


def write_runs(runs: Sequence[Mapping[str, Any]], writer: TextIO) -> None:
    columns = ("run", "status", "started (UTC)", "received msg/s", "delivered", "why")
    write_rows(Rows(columns, [_row(run) for run in runs]), RowFormat.TABLE, writer)


def _row(run: Mapping[str, Any]) -> list[str]:
    started = run["started_at"]
    return [
        run["run_id"],
        run["status"],
        started.strftime("%Y-%m-%d %H:%M:%S") if started else "",
        rate(dict(run["rates"] or ()).get("receive_rate")),
        share(run["delivery_rate"]),
        one_line(next(iter(run["reasons"] or ()), "")),
    ]
