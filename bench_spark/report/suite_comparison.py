"""Two runs of a suite against each other for people: a row per combination of its axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from bench_spark.report.comparison import metric_text, times, write_gates
from bench_spark.report.formatting import UNKNOWN, one_line
from bench_spark.report.measures import Document
from bench_spark.report.rows import RowFormat, Rows, write_rows

MARKS = {"better": "+", "worse": "-", "no difference": "=", "unknown": "?"}
_SHOWN = (
    *("receive_rate", "send_rate", "latency.p50", "latency.p95", "latency.p99"),
    *("confirm_latency.p99", "lost", "broker_cpu", "broker_written"),
)


@dataclass(frozen=True)
class Summary:
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


def summary_of(document: Document) -> Summary:
    """The ratio of each metric that some combination has, and a mark for what it means."""
    by_cell = [
        (comparison["candidate"]["label"], {one["metric"]: one for one in comparison["metrics"]})
        for comparison in document["comparisons"]
    ]
    names = [name for name in _SHOWN if any(name in metrics for _, metrics in by_cell)]
    return Summary(
        ["", *map(metric_text, names)],
        [[label, *(_cell(metrics.get(name)) for name in names)] for label, metrics in by_cell],
    )


def _cell(entry: Mapping[str, Any] | None) -> str:
    if entry is None:
        return UNKNOWN
    return f"{times((entry['ratio'] or {}).get('value'))} {MARKS[entry['verdict']]}"


def write_suite_comparison(document: Document, writer: TextIO) -> None:
    summary = summary_of(document)
    writer.write(f"{one_line(document['title'])}\n\n")
    write_rows(Rows(summary.headings, summary.rows), RowFormat.TABLE, writer)
    writer.write("\nratios to the baseline: + better, - worse, = no difference, ? unknown\n")
    writer.writelines(f"{one_line(text)}\n" for text in document["unmatched"])
    write_gates(document, writer)
