"""The HTML report of a suite: what became of its trials, figures, the table, how to ask."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TextIO

from bench_spark.config.suite import Suite, value_text
from bench_spark.report.formatting import one_line, plural, words
from bench_spark.report.html_page import (
    Charts,
    Child,
    Markup,
    Section,
    page,
    query_list,
    status_badge,
    table,
    tag,
)
from bench_spark.report.html_run import flat_rows
from bench_spark.report.queries import queries_of_suite
from bench_spark.report.suite_figures import suite_figures
from bench_spark.report.suite_formats import cell_name, laid_out, surroundings_of, title_of
from bench_spark.report.suite_table import SuiteTable


def write_suite_html(
    found: SuiteTable, suite: Suite, stored_name: str, broker: str, store: str, writer: TextIO
) -> None:
    drawn = Charts()
    sections = [
        Section("audit", "Can it be trusted?", _audit(found)),
        *_figures(found, drawn),
        Section("table", "Table", list(_table(found))),
        Section("suite", "Suite", list(_description(suite))),
        Section(
            "sql",
            "The numbers by SQL",
            query_list(list(queries_of_suite(stored_name, broker)), store),
        ),
    ]
    title = title_of(found)
    writer.write(page(title, _head(title, found, broker), sections, drawn.specs))


def _head(title: str, found: SuiteTable, broker: str) -> Markup:
    is_whole = all(cell.status in ("valid", "skipped") for cell in found.cells)
    return tag(
        "div",
        tag(
            "div",
            tag("h1", title),
            status_badge("valid" if is_whole else "degraded"),
            class_="head",
        ),
        tag("p", f"suite {found.suite} on {broker}", class_="facts"),
        [tag("p", f"{label}: {text}", class_="facts") for label, text in surroundings_of(found)],
    )


def _audit(found: SuiteTable) -> Child:
    statuses = Counter(cell.status for cell in found.cells)
    told = ", ".join(f"{number} {status}" for status, number in statuses.most_common())
    doubtful = [cell for cell in found.cells if cell.status != "valid" or cell.notes]
    rows = [
        [
            tag("span", cell.status, class_=cell.status),
            cell_name(cell),
            one_line("; ".join(cell.notes)),
        ]
        for cell in doubtful
    ]
    warnings = [
        [
            words(warned.check),
            f"{warned.trials} of {warned.of_trials}",
            cell_name(warned.first),
            warned.text,
        ]
        for warned in found.warnings
    ]
    return [
        tag("p", f"{plural(len(found.cells), 'combination')} of the axes: {told}."),
        table("What to know about some of them", ["status", "where", "why"], rows, words=3)
        if rows
        else None,
        table(
            "What the audits of the trials warn of",
            ["check", "trials", "first", "what it says there"],
            warnings,
            words=4,
        )
        if warnings
        else None,
    ]


def _figures(found: SuiteTable, drawn: Charts) -> Iterator[Section]:
    figures = [
        drawn.figure(figure.caption, figure.spec, figure.headings, figure.rows)
        for figure in suite_figures(found)
    ]
    if figures:
        note = "Points are medians of the repetitions, bars reach from the least to the greatest."
        is_repeated = any(cell.measured > 1 for cell in found.cells)
        yield Section(
            "figures",
            "Figures",
            [
                tag("p", note, class_="faint") if is_repeated else None,
                tag("div", figures, class_="figures"),
            ],
        )


def _table(found: SuiteTable) -> Iterator[Child]:
    laid = laid_out(found)
    yield table(
        "One row per combination of the axes",
        laid.headings,
        laid.rows,
        words=len(found.rows),
    )
    if laid.notes:
        yield tag(
            "ul",
            [tag("li", f"[{number}] {text}") for number, text in enumerate(laid.notes, start=1)],
        )


def _description(suite: Suite) -> Iterator[Child]:
    if suite.description:
        yield tag("p", suite.description)
    axes: Sequence[tuple[str, str]] = [
        (axis.name, ", ".join(map(value_text, axis.values))) for axis in suite.axes
    ]
    yield table("Axes", ["axis", "values"], axes, words=2)
    yield tag(
        "details",
        tag("summary", "Base scenario, all keys"),
        table(
            "Base scenario, defaults filled in",
            ["key", "value"],
            list(flat_rows(suite.base.dump())),
            words=2,
        ),
    )
