"""One self-contained page: escaped markup, style, charts and the library that draws them.

Opens from a disk or a mail without any network, and asks for none: its Content-Security-Policy
allows only what is written in it, and no code made from text.

Only `Markup` goes into a page as it is; every other text is escaped, wherever it comes from: a
scenario's name or a broker's answer may hold `<script>`.
"""

from __future__ import annotations

import html
import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from bench_spark import __version__
from bench_spark.report.chart_files import browser_library
from bench_spark.report.charts import PAGE, Spec, themed
from bench_spark.report.queries import Query

_EMPTY = frozenset({"meta", "br", "hr", "col"})


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Child = str | int | float | None | Iterable["Child"]
"""What an element may hold: None is nothing, and lists are flattened."""


def tag(name: str, /, *children: Child, **attributes: str | bool | None) -> Markup:
    """An element. Names of attributes: `class_` for class, `_` for `-`; True is a bare one."""
    head = name + "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _EMPTY:
        return Markup(f"<{head}>")
    return Markup(f"<{head}>{joined(children)}</{name}>")


def joined(children: Child) -> Markup:
    """Children one after the other, each escaped unless it is markup."""
    if children is None:
        return Markup("")
    if isinstance(children, Markup):
        return children
    if isinstance(children, str | int | float):
        return Markup(html.escape(str(children)))
    return Markup("".join(joined(child) for child in children))


def _attribute(name: str, value: str | bool | None) -> str:
    if value is None or value is False:
        return ""
    shown = name.rstrip("_").replace("_", "-")
    return f" {shown}" if value is True else f' {shown}="{html.escape(value)}"'


def data_element(identifier: str, data: Mapping[str, Any] | Sequence[Any]) -> Markup:
    """JSON for the page's own script, in an element that no browser runs.

    Inside it only `</script` and `<!--` would mean something to the parser, and JSON can write the
    `<` of both in another way.
    """
    text = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return tag("script", Markup(text), type="application/json", id=identifier)


def table(
    caption: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[Child]],
    words: int = 1,
    class_: str | None = None,
) -> Markup:
    """A table for people and screen readers; the first `words` columns are text, not numbers.

    The first cell of a row is its heading. The table scrolls by itself where the page is narrow.
    """
    kinds = ["words" if place < words else None for place in range(len(headings))]
    head = tag(
        "tr",
        [
            tag("th", heading, scope="col", class_=kind)
            for heading, kind in zip(headings, kinds, strict=True)
        ],
    )
    body = [
        tag(
            "tr",
            [
                tag("td" if place else "th", cell, scope=None if place else "row", class_=kind)
                for place, (cell, kind) in enumerate(zip(row, kinds, strict=True))
            ],
        )
        for row in rows
    ]
    drawn = tag(
        "table", tag("caption", caption), tag("thead", head), tag("tbody", body), class_=class_
    )
    return tag("div", drawn, class_="scroll", tabindex="0", role="region", aria_label=caption)


POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)


@dataclass
class Charts:
    """The charts of one page, by the id of the element that each is drawn into."""

    specs: dict[str, Spec] = field(default_factory=dict)

    def figure(
        self,
        caption: str,
        spec: Spec,
        headings: Sequence[str],
        rows: Sequence[Sequence[Child]],
        table_caption: str | None = None,
    ) -> Markup:
        """A chart, and its numbers as a table for those who cannot or do not want to see it."""
        identifier = f"chart-{len(self.specs) + 1}"
        self.specs[identifier] = themed(spec, PAGE)
        label = f"{spec['description']}; the table below has its numbers"
        chart = tag("div", id=identifier, class_="chart", role="figure", aria_label=label)
        numbers = tag(
            "details",
            tag("summary", "Table"),
            table(table_caption or caption, headings, rows),
        )
        return tag("div", tag("figure", tag("figcaption", caption), chart), numbers)


@dataclass(frozen=True)
class Section:
    identifier: str
    title: str
    content: Child


def page(
    title: str, head: Child, sections: Sequence[Section], charts: Mapping[str, Spec]
) -> Markup:
    links = [
        tag("li", tag("a", section.title, href=f"#{section.identifier}")) for section in sections
    ]
    body = [
        tag("a", "Skip to the result", href="#result", class_="skip"),
        tag("header", head, tag("nav", tag("ul", links), aria_label="Sections")),
        tag("main", [section_of(section) for section in sections], id="result"),
        tag("footer", tag("p", f"Written by bench-spark {__version__}.", class_="faint")),
        data_element("charts", charts),
    ]
    library = [browser_library()] if charts else []
    return whole(title, body, [*library, asset("drawing.js"), asset("report.js")])


def whole(
    title: str, body: Child, scripts: Sequence[str], policy: str = POLICY, style: str = ""
) -> Markup:
    """A document with everything that it needs inside."""
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", title),
        tag("style", Markup(asset("report.css") + style)),
    ]
    run = [tag("script", Markup(text)) for text in scripts]
    return Markup(
        "<!DOCTYPE html>\n"
        + tag("html", tag("head", head), tag("body", body, run), lang="en")
        + "\n"
    )


def section_of(section: Section) -> Markup:
    heading = tag("h2", section.title, id=f"{section.identifier}-title")
    return tag(
        "section",
        heading,
        section.content,
        id=section.identifier,
        aria_labelledby=f"{section.identifier}-title",
    )


def asset(name: str) -> str:
    return resources.files("bench_spark.report").joinpath("assets", name).read_text()


def tiles(numbers: Sequence[tuple[str, str]]) -> Markup:
    """Headline numbers, each under its name."""
    return tag(
        "dl",
        [tag("div", tag("dt", name), tag("dd", value)) for name, value in numbers],
        class_="tiles",
    )


def status_badge(status: str) -> Markup:
    return tag("span", status, class_=f"status {status}")


def query_list(queries: Sequence[Query], store: str) -> Markup:
    """Queries to be copied, each with the numbers that it answers."""
    shown = [_query(number, query) for number, query in enumerate(queries, start=1)]
    how = tag(
        "p",
        "Each answers the numbers of this page from the store's tables: ",
        tag("code", f'bench-spark sql "$(cat query.sql)" --store {shlex.quote(store)}'),
        ", or any Spark session that has the tables under their names.",
    )
    return tag("div", how, shown)


def _query(number: int, query: Query) -> Markup:
    identifier = f"query-{number}"
    answer = None
    if query.answer:
        told = ", ".join(
            f"{name} {'NULL' if value is None else value}" for name, value in query.answer.items()
        )
        answer = tag("p", "Answers: ", told, class_="faint")
    return tag(
        "details",
        tag("summary", query.title),
        tag("p", query.remark) if query.remark else None,
        tag("pre", tag("code", query.sql, id=identifier), tabindex="0"),
        tag("button", "copy", type="button", class_="copy", hidden=True, data_copies=identifier),
        answer,
    )
