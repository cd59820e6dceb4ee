"""The HTML report of a comparison: gates first, then each candidate against the baseline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TextIO

from bench_spark.report import charts
from bench_spark.report.comparison import (
    HEADINGS,
    gate_text,
    interval,
    metric_cells,
    metric_text,
    notes_of,
    times,
    title_of,
)
from bench_spark.report.formatting import one_line
from bench_spark.report.html_page import Charts, Section, page, status_badge
from bench_spark.report.markup import Child, Markup, table, tag
from bench_spark.report.measures import Document


def write_comparison_html(document: Document, writer: TextIO) -> None:
    drawn = Charts()
    sections = [
        Section(
            f"comparison-{number}",
            title_of(document, comparison),
            list(_comparison(comparison, drawn)),
        )
        for number, comparison in enumerate(document["comparisons"], start=1)
    ]
    if document["gates"]:
        sections.insert(0, Section("gates", "Gates", _gates(document)))
    labels = [comparison["candidate"]["label"] for comparison in document["comparisons"]]
    title = f"{', '.join(labels)} against {document['baseline']['label']}"
    writer.write(page(title, _head(title, document), sections, drawn.specs))


def _head(title: str, document: Document) -> Markup:
    badge = None
    if document["gates"]:
        badge = status_badge("valid" if document["passed"] else "failed")
    runs = ", ".join(document["baseline"]["runs"])
    return tag(
        "div",
        tag("div", tag("h1", title), badge, class_="head"),
        tag("p", f"baseline: {runs} on {document['baseline']['broker']}", class_="facts"),
    )


def _gates(document: Document) -> Markup:
    rows = [
        [
            tag("span", "missed", class_="missed") if gate["missed"] else _verdict("pass"),
            one_line(gate_text(gate)),
        ]
        for gate in document["gates"]
    ]
    return table("Conditions that were given with --fail-if", ["", ""], rows, words=2)


def _comparison(comparison: Mapping[str, Any], drawn: Charts) -> Iterator[Child]:
    candidate = comparison["candidate"]
    yield tag(
        "p",
        f"candidate: {', '.join(candidate['runs'])} on {candidate['broker']}",
        class_="facts",
    )
    rows = [
        [*cells[:-1], _verdict(cells[-1])] for cells in map(metric_cells, comparison["metrics"])
    ]
    yield table("Metric by metric", [*HEADINGS[:-1], "verdict"], rows)
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
    yield tag("ul", [tag("li", note) for note in notes_of(comparison)])


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
    return tag("span", verdict, class_=verdict.split()[0])
