"""Several results as columns of one table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TextIO

from rich.text import Text

from bench_spark.report.formatting import UNKNOWN, count, rate, share
from bench_spark.report.measures import Document, shown_statistic
from bench_spark.report.terminal import STATUS_STYLES, console_for, plain_table, print_block

_Cell = Callable[[Document], str | Text]


def write_side_by_side(
    documents: Sequence[Document], headings: Sequence[str], writer: TextIO
) -> None:
    """One column per document under its heading; `headings` and `documents` go in pairs."""
    rows = [
        [label, *(cell(document) for document in documents)]
        for label, cell in _ROWS
        if any(cell(document) != UNKNOWN for document in documents)
    ]
    print_block(console_for(writer), plain_table(["", *headings], rows, gap=2))


def _status(document: Document) -> Text:
    status = document["status"]
    return Text(status, STATUS_STYLES.get(status, ""))


def _rate(name: str) -> _Cell:
    return lambda document: rate((document.get("rates") or {}).get(name))


def _count(name: str) -> _Cell:
    return lambda document: count((document.get("counts") or {}).get(name))


def _statistic(measure: str, field: str) -> _Cell:
    return lambda document: shown_statistic(
        (document.get("measures") or {}).get(measure) or {}, field
    )


def _delivered(document: Document) -> str:
    return share(document.get("delivery_rate"))


def _busiest_agent(document: Document) -> str:
    used = (document.get("resources") or {}).get("busiest_agent_share_of_core")
    return UNKNOWN if used is None else f"{used:.0%}"


_ROWS: tuple[tuple[str, _Cell], ...] = (
    ("status", _status),
    ("sent msg/s", _rate("send_rate")),
    ("received msg/s", _rate("receive_rate")),
    ("delivered", _delivered),
    ("lost", _count("lost")),
    ("duplicates", _count("duplicates")),
    ("latency p50", _statistic("latency", "p50_us")),
    ("latency p95", _statistic("latency", "p95_us")),
    ("latency p99", _statistic("latency", "p99_us")),
    ("latency p99.9", _statistic("latency", "p999_us")),
    ("latency max", _statistic("latency", "max_us")),
    ("from due time p99", _statistic("delivery_latency", "p99_us")),
    ("busiest agent's core", _busiest_agent),
)
