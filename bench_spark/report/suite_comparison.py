"""Two runs of a suite against each other for people: a row per combination of its axes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from rich.text import Text

from bench_spark.report.comparison import metric_text, times, why_not_comparable, write_gates
from bench_spark.report.formatting import UNKNOWN, one_line
from bench_spark.report.measures import Document
from bench_spark.report.terminal import console_for, labelled, plain_table, print_block

MARKS = {
    "better": "+",
    "worse": "-",
    "no difference": "=",
    "cannot tell": "?",
    "not comparable": "!",
}
LEGEND = "ratios: " + ", ".join(f"{mark} {word}" for word, mark in MARKS.items())
_SHOWN = (
    *("receive_rate", "send_rate", "latency.p50", "latency.p95", "latency.p99"),
    *("delivery_latency.p50", "delivery_latency.p99", "confirm_latency.p99"),
    *("lost", "broker_cpu", "broker_written"),
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
    console = console_for(writer)
    writer.write(f"{one_line(document['title'])}\n\n")
    if warnings := list(incomparable(document)):
        print_block(console, labelled([(Text("note", "bold"), one) for one in warnings]))
        writer.write("\n")
    print_block(console, plain_table(summary.headings, summary.rows, gap=2))
    writer.write(f"\n{LEGEND}\n")
    writer.writelines(f"{one_line(text)}\n" for text in document["unmatched"])
    notes = [(Text("note", "dim"), note) for note in notes_of_suite(document)]
    print_block(console, labelled(notes))
    write_gates(document, writer)


def notes_of_suite(document: Document) -> Iterator[str]:
    """Why a difference cannot be told; brokers and machines of each side."""
    yield from _by_place(document, _doubts)
    for side in ("baseline", "candidate"):
        for what in ("broker", "machine"):
            texts = dict.fromkeys(
                text for one in document["comparisons"] for text in one[side][f"{what}s"]
            )
            yield one_line(f"{what} of the {side}: {'; '.join(texts)}")


def incomparable(document: Document) -> Iterator[str]:
    """Which combinations were not asked for the same load."""

    def why(comparison: Mapping[str, Any]) -> Iterator[str]:
        if not comparison["is_comparable"]:
            yield f"not comparable: {why_not_comparable(comparison)}"

    return _by_place(document, why)


def _by_place(
    document: Document, said_of: Callable[[Mapping[str, Any]], Iterable[str]]
) -> Iterator[str]:
    """Each text once, with the first of the combinations that it is about."""
    places: dict[str, list[str]] = {}
    for comparison in document["comparisons"]:
        for text in said_of(comparison):
            places.setdefault(text, []).append(comparison["candidate"]["label"])
    for text, labels in places.items():
        more = f" and {len(labels) - 1} more" if len(labels) > 1 else ""
        yield one_line(f"{labels[0]}{more}: {text}")


def _doubts(comparison: Mapping[str, Any]) -> Iterator[str]:
    shown = [entry for entry in comparison["metrics"] if entry["metric"] in _SHOWN]
    for reason in dict.fromkeys(entry["reason"] for entry in shown if entry["reason"]):
        yield f"cannot tell: {reason}"
