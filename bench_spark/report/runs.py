"""The runs of a store, newest first, as a list for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from bench_spark.report.formatting import one_line, rate, share
from bench_spark.report.rows import RowFormat, Rows, write_rows


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
