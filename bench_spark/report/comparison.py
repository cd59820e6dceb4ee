"""The reports of comparisons, of runs and of suites: gates, metrics, notes.

As CSV and Parquet they have one row per comparison and metric; `unit` says what its numbers are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TextIO

import pyarrow as pa
from rich.text import Text

from bench_spark.report import blocks, charts
from bench_spark.report.formats import Report, Sheet
from bench_spark.report.formatting import (
    SHOWN_AS,
    STATISTIC_LABELS,
    UNKNOWN,
    Document,
    one_line,
    words,
)
from bench_spark.report.page import Charts, Page
from bench_spark.report.terminal import console_for, labelled, plain_table, print_block

VERDICT_STYLES = {
    "better": "green",
    "worse": "bold red",
    "cannot tell": "yellow",
    "not comparable": "bold red",
}
_CLASSES = {"cannot tell": "warn", "not comparable": "fail"}
HEADINGS = ("", "baseline", "candidate", "ratio", "95 % interval", "")
MOST_GATES_LISTED = 6
_LEFT_OUT = ("send_lag", "insert_duration")
"""Measures of the generator more than of the broker: not on a terminal."""

_ESTIMATES = [
    f"{side}{end}" for side in ("baseline", "candidate", "ratio") for end in ("", "_low", "_high")
]
COLUMNS = ("baseline_label", "candidate_label", "metric", "unit", *_ESTIMATES, "verdict", "reason")
_TYPES = {name: pa.float64() if name in _ESTIMATES else pa.string() for name in COLUMNS}


class _Comparison(Report):
    @property
    def sheet(self) -> Sheet:
        rows = [
            _row(comparison, entry)
            for comparison in self.document["comparisons"]
            for entry in comparison["metrics"]
        ]
        return Sheet(COLUMNS, rows, _TYPES)

    def _page(self, sections: Sequence[blocks.PageSection], drawn: Charts) -> Page:
        document, status, gates = self.document, None, []
        if document["gates"]:
            is_good = document["passed"]
            text = "gates passed" if is_good else "gate missed"
            status = blocks.Mark(text, f"status {'valid' if is_good else 'failed'}")
            gates = [blocks.PageSection("gates", "Gates", [_gates(document)])]
        return Page(blocks.Heading(document["title"], status), [*gates, *sections], drawn)


class ComparisonReport(_Comparison):
    """Of runs."""

    def write_terminal(self, writer: TextIO) -> None:
        write_comparison(self.document, writer)

    def page(self) -> Page:
        drawn = Charts()
        sections = [
            blocks.PageSection(f"comparison-{number}", title_of(one), list(_comparison(one, drawn)))
            for number, one in enumerate(self.document["comparisons"], start=1)
        ]
        return self._page(sections, drawn)


class SuiteComparisonReport(_Comparison):
    """Of suites, combination by combination."""

    def write_terminal(self, writer: TextIO) -> None:
        write_suite_comparison(self.document, writer)

    def page(self) -> Page:
        document = self.document
        headings, rows = ratios_of(document)
        folded = [
            blocks.Details(title_of(one), [_metrics(one), blocks.Bullets(list(notes_of(one)))])
            for one in document["comparisons"]
        ]
        parts: list[blocks.Block] = [
            blocks.Bullets(list(incomparable(document))),
            blocks.Table(LEGEND.capitalize(), headings, rows),
            blocks.Bullets(list(notes_of_suite(document))),
            *folded,
            blocks.Bullets(document["unmatched"]),
        ]
        return self._page(
            [blocks.PageSection("cells", "Combination by combination", parts)], Charts()
        )


def _row(comparison: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    estimates = {
        f"{side}{end}": (entry[side] or {}).get(end.removeprefix("_") or "value")
        for side in ("baseline", "candidate", "ratio")
        for end in ("", "_low", "_high")
    }
    labels = {f"{side}_label": comparison[side]["label"] for side in ("baseline", "candidate")}
    texts = {name: entry[name] for name in ("metric", "unit", "verdict", "reason")}
    return labels | texts | estimates


# -- the pages -------------------------------------------------------------------------------------


def _gates(document: Document) -> blocks.Table:
    rows = [(_gate_verdict(gate), gate_text(gate)) for gate in document["gates"]]
    return blocks.Table("Conditions that were given with --fail-if", ["", ""], rows, words=2)


def _gate_verdict(gate: Mapping[str, Any]) -> blocks.Mark:
    if gate["reason"] is not None and not gate["missed"]:
        return blocks.Mark("not judged", "warn")
    return _verdict("missed" if gate["missed"] else "pass")


def _comparison(comparison: Mapping[str, Any], drawn: Charts) -> Iterator[blocks.Block]:
    if not comparison["is_comparable"]:
        label = blocks.Mark("Not comparable: ", "fail")
        yield blocks.Paragraph(why_not_comparable(comparison), label=label)
    for side in ("baseline", "candidate"):
        found = comparison[side]
        on = "; ".join([*found["brokers"], *found["machines"]])
        yield blocks.Paragraph(f"{side}: {', '.join(found['runs'])} on {on}", "facts")
    yield _metrics(comparison)
    known = [entry for entry in comparison["metrics"] if entry["ratio"]]
    if known:
        spec = charts.changes("Changes with their confidence intervals", _change_rows(known))
        rows = [
            (
                metric_text(entry["metric"]),
                times(entry["ratio"]["value"]),
                interval(entry["ratio"]["low"], entry["ratio"]["high"]),
            )
            for entry in known
        ]
        caption = "Change against the baseline"
        yield drawn.figure(
            caption, spec, blocks.Table(caption, ["", "ratio", "95 % interval"], rows)
        )
    yield blocks.Bullets(list(notes_of(comparison)))


def _metrics(comparison: Mapping[str, Any]) -> blocks.Table:
    # The verdict comes first: on a narrow page the last columns are out of sight.
    rows: list[list[blocks.Cell]] = [
        [cells[0], _verdict(cells[-1]), *cells[1:-1]]
        for cells in map(metric_cells, comparison["metrics"])
    ]
    return blocks.Table(
        "Metric by metric", [HEADINGS[0], "verdict", *HEADINGS[1:-1]], rows, words=2
    )


def _change_rows(entries: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "name": metric_text(entry["metric"]),
            "verdict": entry["verdict"],
            "text": times(entry["ratio"]["value"]),
            **entry["ratio"],
        }
        for entry in entries
    ]


def _verdict(verdict: str) -> blocks.Mark:
    return blocks.Mark(verdict, _CLASSES.get(verdict, verdict.split()[0]))


# -- the terminal ----------------------------------------------------------------------------------


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
        print_block(console, labelled([("note", note) for note in notes_of(comparison)]))
    write_gates(document, writer)


def write_gates(document: Document, writer: TextIO) -> None:
    gates = document["gates"]
    # Of many, those that hold no news are only counted.
    listed = [gate for gate in gates if not _is_passed(gate) or len(gates) <= MOST_GATES_LISTED]
    lines = [(_gate_label(gate), gate_text(gate)) for gate in listed]
    if len(listed) < len(gates):
        others = f"{len(gates) - len(listed)} of {len(gates)} conditions"
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
    shown = SHOWN_AS[entry["unit"]]
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
    return " ".join(filter(None, (words(measure), STATISTIC_LABELS.get(statistic, statistic))))


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
    undecided: dict[str, list[str]] = {}
    for entry in comparison["metrics"]:
        if entry["reason"] is not None:
            undecided.setdefault(entry["reason"], []).append(metric_text(entry["metric"]))
    for reason, names in undecided.items():
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
    shown = times if gate["is_ratio"] else SHOWN_AS[gate["unit"]]
    value, low, high = (shown(gate[name]) for name in ("value", "low", "high"))
    ends = f" ({low} to {high})" if gate["low"] is not None else ""
    doubt = f"; cannot tell: {gate['doubt']}" if gate["doubt"] else ""
    found = f"{value}{ends}, judged by its {gate['judged_by']}{doubt}"
    return one_line(f"{gate['candidate']}: {gate['gate']}: {gate['metric']} is {found}")


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


def ratios_of(document: Document) -> tuple[list[str], list[list[str]]]:
    """A table: the ratio of each metric that some combination has, and a mark for what it means."""
    by_cell = [
        (comparison["candidate"]["label"], {one["metric"]: one for one in comparison["metrics"]})
        for comparison in document["comparisons"]
    ]
    names = [name for name in _SHOWN if any(name in metrics for _, metrics in by_cell)]
    headings = ["", *map(metric_text, names)]
    return headings, [
        [label, *(_cell(metrics.get(name)) for name in names)] for label, metrics in by_cell
    ]


def _cell(entry: Mapping[str, Any] | None) -> str:
    if entry is None:
        return UNKNOWN
    return f"{times((entry['ratio'] or {}).get('value'))} {MARKS[entry['verdict']]}"


def write_suite_comparison(document: Document, writer: TextIO) -> None:
    headings, rows = ratios_of(document)
    console = console_for(writer)
    writer.write(f"{one_line(document['title'])}\n\n")
    if warnings := list(incomparable(document)):
        print_block(console, labelled([(Text("note", "bold"), one) for one in warnings]))
        writer.write("\n")
    print_block(console, plain_table(headings, rows, gap=2))
    writer.write(f"\n{LEGEND}\n")
    writer.writelines(f"{one_line(text)}\n" for text in document["unmatched"])
    print_block(console, labelled([("note", note) for note in notes_of_suite(document)]))
    write_gates(document, writer)


def notes_of_suite(document: Document) -> Iterator[str]:
    """Why a difference is undecided; brokers and machines of each side."""
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
