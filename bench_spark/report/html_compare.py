"""The HTML report of a comparison: gates first, then each candidate against the baseline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TextIO

from bench_spark.report import charts as charts
from bench_spark.report.comparison import (
    HEADINGS,
    LEGEND,
    gate_text,
    incomparable,
    interval,
    metric_cells,
    metric_text,
    notes_of,
    notes_of_suite,
    summary_of,
    times,
    title_of,
    why_not_comparable,
)
from bench_spark.report.formatting import one_line
from bench_spark.report.html_page import Charts, Child, Markup, Section, page, table, tag
from bench_spark.report.measures import Document

_CLASSES = {"cannot tell": "warn", "not comparable": "fail"}


def write_comparison_html(document: Document, writer: TextIO) -> None:
    drawn = Charts()
    sections = [
        Section(f"comparison-{number}", title_of(comparison), list(_comparison(comparison, drawn)))
        for number, comparison in enumerate(document["comparisons"], start=1)
    ]
    _write(document, sections, drawn, writer)


def write_suite_comparison_html(document: Document, writer: TextIO) -> None:
    summary = summary_of(document)
    sections = [
        Section(
            "cells",
            "Combination by combination",
            [
                tag("ul", [tag("li", note) for note in incomparable(document)]),
                table(LEGEND.capitalize(), summary.headings, summary.rows),
                tag("ul", [tag("li", note) for note in notes_of_suite(document)]),
                [
                    tag(
                        "details",
                        tag("summary", title_of(comparison)),
                        _metrics(comparison),
                        _notes(comparison),
                    )
                    for comparison in document["comparisons"]
                ],
                tag("ul", [tag("li", text) for text in document["unmatched"]]),
            ],
        )
    ]
    _write(document, sections, Charts(), writer)


def _write(document: Document, sections: Sequence[Section], drawn: Charts, writer: TextIO) -> None:
    gates = [Section("gates", "Gates", _gates(document))] if document["gates"] else []
    writer.write(page(document["title"], _head(document), [*gates, *sections], drawn.specs))


def _head(document: Document) -> Markup:
    badge = None
    if document["gates"]:
        is_good = document["passed"]
        text = "gates passed" if is_good else "gate missed"
        badge = tag("span", text, class_=f"status {'valid' if is_good else 'failed'}")
    return tag("div", tag("h1", document["title"]), badge, class_="head")


def _gates(document: Document) -> Markup:
    rows = [
        [
            _gate_verdict(gate),
            one_line(gate_text(gate)),
        ]
        for gate in document["gates"]
    ]
    return table("Conditions that were given with --fail-if", ["", ""], rows, words=2)


def _gate_verdict(gate: Mapping[str, Any]) -> Markup:
    if gate["reason"] is not None and not gate["missed"]:
        return tag("span", "not judged", class_="warn")
    return _verdict("missed" if gate["missed"] else "pass")


def _comparison(comparison: Mapping[str, Any], drawn: Charts) -> Iterator[Child]:
    if not comparison["is_comparable"]:
        yield tag(
            "p", tag("span", "Not comparable: ", class_="fail"), why_not_comparable(comparison)
        )
    for side in ("baseline", "candidate"):
        found = comparison[side]
        on = "; ".join([*found["brokers"], *found["machines"]])
        yield tag("p", f"{side}: {', '.join(found['runs'])} on {on}", class_="facts")
    yield _metrics(comparison)
    known = [entry for entry in comparison["metrics"] if entry["ratio"]]
    if known:
        spec = charts.changes("Changes with their confidence intervals", _change_rows(known))
        yield drawn.figure(
            "Change against the baseline",
            spec,
            ["", "ratio", "95 % interval"],
            [
                [
                    metric_text(entry["metric"]),
                    times(entry["ratio"]["value"]),
                    interval(entry["ratio"]["low"], entry["ratio"]["high"]),
                ]
                for entry in known
            ],
        )
    yield _notes(comparison)


def _notes(comparison: Mapping[str, Any]) -> Markup:
    return tag("ul", [tag("li", note) for note in notes_of(comparison)])


def _metrics(comparison: Mapping[str, Any]) -> Markup:
    # The verdict comes first: on a narrow page the last columns are out of sight.
    rows = [
        [cells[0], _verdict(cells[-1]), *cells[1:-1]]
        for cells in map(metric_cells, comparison["metrics"])
    ]
    return table("Metric by metric", [HEADINGS[0], "verdict", *HEADINGS[1:-1]], rows, words=2)


def _change_rows(entries: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "name": metric_text(entry["metric"]),
            "verdict": entry["verdict"],
            "text": times(entry["ratio"]["value"]),
            **entry["ratio"],
        }
        for entry in entries
    ]


def _verdict(verdict: str) -> Markup:
    return tag("span", verdict, class_=_CLASSES.get(verdict, verdict.split()[0]))
