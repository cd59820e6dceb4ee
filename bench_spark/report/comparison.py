"""A comparison for people: a table per candidate, what to know about it, and the gates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TextIO

from rich.text import Text

from bench_spark.report.formatting import (
    UNKNOWN,
    byte_size,
    count,
    duration,
    one_line,
    per_cent,
    rate,
    share,
    words,
)
from bench_spark.report.measures import Document
from bench_spark.report.terminal import console_for, labelled, plain_table, print_block

VERDICT_STYLES = {"better": "green", "worse": "bold red", "unknown": "yellow"}
HEADINGS = ("", "baseline", "candidate", "ratio", "95 % interval", "")
_LEFT_OUT = ("send_lag", "insert_duration")
"""Measures of the generator more than of the broker: in JSON and HTML only."""

_SHOWN: Mapping[str, Any] = {
    "us": duration,
    "per_second": rate,
    "share": share,
    "cpu_share": per_cent,
    "count": count,
    "bytes_per_second": lambda value: f"{byte_size(value)}/s",
}


def write_comparison(document: Document, writer: TextIO) -> None:
    console = console_for(writer)
    for number, comparison in enumerate(document["comparisons"]):
        if number:
            writer.write("\n")
        writer.write(f"{title_of(comparison)}\n")
        rows: list[list[str | Text]] = [
            [*cells[:-1], Text(cells[-1], VERDICT_STYLES.get(cells[-1], ""))]
            for entry in comparison["metrics"]
            if not entry["metric"].startswith(_LEFT_OUT)
            for cells in [metric_cells(entry)]
        ]
        print_block(console, plain_table(HEADINGS, rows))
        notes = [(Text("note", "dim"), note) for note in notes_of(comparison)]
        print_block(console, labelled(notes))
    write_gates(document, writer)


def write_gates(document: Document, writer: TextIO) -> None:
    if document["gates"]:
        writer.write("\n")
        gates = [
            (Text("MISSED", "bold red") if gate["missed"] else Text("passed", "green"), text)
            for gate in document["gates"]
            for text in [gate_text(gate)]
        ]
        print_block(console_for(writer), labelled(gates))


def title_of(comparison: Mapping[str, Any]) -> str:
    return f"{comparison['candidate']['label']} against {comparison['baseline']['label']}"


def metric_cells(entry: Mapping[str, Any]) -> list[str]:
    """A row under `HEADINGS`."""
    shown = _SHOWN[entry["unit"]]
    ratio = entry["ratio"] or {}
    return [
        metric_text(entry["metric"]),
        shown(entry["baseline"]["value"]),
        shown(entry["candidate"]["value"]),
        times(ratio.get("value")),
        interval(ratio.get("low"), ratio.get("high")),
        entry["verdict"],
    ]


def metric_text(name: str) -> str:
    measure, _, statistic = name.partition(".")
    return " ".join(filter(None, (words(measure), statistic.replace("p999", "p99.9"))))


def times(ratio: float | None) -> str:
    return UNKNOWN if ratio is None else f"{_three_digits(ratio)}x"


def interval(low: float | None, high: float | None) -> str:
    known = low is not None and high is not None
    return f"{_three_digits(low)}..{_three_digits(high)}" if known else UNKNOWN


def _three_digits(ratio: float | None) -> str:
    """Around 1, where most ratios are, to a thousandth."""
    assert ratio is not None
    return f"{ratio:.3f}" if 0.1 <= ratio < 10 else f"{ratio:.3g}"


def notes_of(comparison: Mapping[str, Any]) -> Iterator[str]:
    yield f"intervals: {comparison['method']}"
    yield from map(one_line, comparison["remarks"])
    for key, (before, after) in comparison["scenario_differences"].items():
        yield one_line(f"scenario differs: {key} {before} -> {after}")


def gate_text(gate: Mapping[str, Any]) -> str:
    """What was asked, and what was found."""
    if gate["reason"] is not None:
        return one_line(f"{gate['candidate']}: {gate['gate']}: not judged: {gate['reason']}")
    numbers: Sequence[float | None] = [gate["value"], gate["low"], gate["high"]]
    suffix = "x" if gate["is_ratio"] else ""
    value, low, high = (UNKNOWN if number is None else f"{number:.4g}" for number in numbers)
    found = f"{value}{suffix} ({low}..{high}), judged by its {gate['judged_by']}"
    return one_line(f"{gate['candidate']}: {gate['gate']}: {gate['metric']} is {found}")
