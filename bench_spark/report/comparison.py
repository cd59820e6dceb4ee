"""A comparison for people: a table per candidate, what to know about it, and the gates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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

VERDICT_STYLES = {
    "better": "green",
    "worse": "bold red",
    "cannot tell": "yellow",
    "not comparable": "bold red",
}
HEADINGS = ("", "baseline", "candidate", "ratio", "95 % interval", "")
MOST_GATES_LISTED = 6
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
        if not comparison["is_comparable"]:
            label = Text("NOT COMPARABLE", "bold red")
            print_block(console, labelled([(label, why_not_comparable(comparison))]))
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
    gates = document["gates"]
    # Of many, those that hold no news are only counted.
    told = [gate for gate in gates if not _is_passed(gate) or len(gates) <= MOST_GATES_LISTED]
    lines = [(_gate_label(gate), gate_text(gate)) for gate in told]
    if len(told) < len(gates):
        others = f"{len(gates) - len(told)} of {len(gates)} conditions"
        lines.append((Text("passed", "green"), others))
    if lines:
        writer.write("\n")
        print_block(console_for(writer), labelled(lines))


def _is_passed(gate: Mapping[str, Any]) -> bool:
    return not gate["missed"] and gate["reason"] is None


def _gate_label(gate: Mapping[str, Any]) -> Text:
    if gate["missed"]:
        return Text("MISSED", "bold red")
    return Text("passed", "green") if gate["reason"] is None else Text("unknown", "yellow")


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


def why_not_comparable(comparison: Mapping[str, Any]) -> str:
    changes = (
        f"{key} {before} -> {after}" for key, (before, after) in comparison["differs_in"].items()
    )
    return one_line(
        f"the runs differ in what was asked: {', '.join(changes)}; --across compares them all the "
        "same"
    )


def notes_of(comparison: Mapping[str, Any]) -> Iterator[str]:
    yield f"intervals: {comparison['method']}"
    untold: dict[str, list[str]] = {}
    for entry in comparison["metrics"]:
        if entry["reason"] is not None:
            untold.setdefault(entry["reason"], []).append(metric_text(entry["metric"]))
    for reason, names in untold.items():
        yield f"cannot tell {', '.join(names)}: {reason}"
    yield from map(one_line, comparison["remarks"])
    for key, (before, after) in comparison["scenario_differences"].items():
        yield one_line(f"scenario differs: {key} {before} -> {after}")
    for what in ("broker", "machine"):
        texts = ["; ".join(comparison[side][f"{what}s"]) for side in ("baseline", "candidate")]
        if texts[0] != texts[1]:
            yield one_line(f"{what} differs: {texts[0]} -> {texts[1]}")


def gate_text(gate: Mapping[str, Any]) -> str:
    """What was asked, and what was found."""
    if gate["reason"] is not None:
        return one_line(f"{gate['candidate']}: {gate['gate']}: not judged: {gate['reason']}")
    shown = times if gate["is_ratio"] else _SHOWN[gate["unit"]]
    value, low, high = (shown(gate[name]) for name in ("value", "low", "high"))
    ends = f" ({low} to {high})" if gate["low"] is not None else ""
    doubt = f"; cannot tell: {gate['doubt']}" if gate["doubt"] else ""
    found = f"{value}{ends}, judged by its {gate['judged_by']}{doubt}"
    return one_line(f"{gate['candidate']}: {gate['gate']}: {gate['metric']} is {found}")
