"""Pages as blocks (tables, figures, tiles ...), and how they become HTML or Markdown.

The HTML is one self-contained file: it opens from a disk or a mail without any network. Its
Content-Security-Policy allows only what is written in it, and no code made from text. The
templates escape every text: a scenario's name or a broker's answer may hold `<script>`.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, ClassVar

import jinja2
from markupsafe import Markup

from bench_spark import __version__
from bench_spark.report.chart_files import browser_library
from bench_spark.report.charts import PAGE, SeriesColours, Spec, themed
from bench_spark.report.formatting import dotted
from bench_spark.report.queries import Query

POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)


@dataclass(frozen=True)
class Mark:
    """Text in a style of the page: `pass`, `fail`, `warn`, `status valid` ..."""

    text: str
    style: str

    def __str__(self) -> str:
        return self.text


Cell = str | Mark


@dataclass(frozen=True)
class Table:
    """A table for people and screen readers; the first `words` columns are text, not numbers.

    The first cell of a row is its heading.
    """

    kind: ClassVar = "table"
    caption: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    words: int = 1


@dataclass(frozen=True)
class Paragraph:
    kind: ClassVar = "paragraph"
    text: str
    style: str | None = None
    label: Mark | None = None
    """In front of the text."""
    code: str | None = None
    """Behind the text: a command."""


@dataclass(frozen=True)
class Bullets:
    kind: ClassVar = "bullets"
    items: Sequence[str]


@dataclass(frozen=True)
class Tiles:
    """Headline numbers, each under its name."""

    kind: ClassVar = "tiles"
    numbers: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Figure:
    """A chart, and its numbers as a table for those who cannot or do not want to see it."""

    kind: ClassVar = "figure"
    identifier: str
    caption: str
    label: str
    numbers: Table


@dataclass(frozen=True)
class Grid:
    """Figures beside each other where there is room."""

    kind: ClassVar = "grid"
    figures: Sequence[Figure]


@dataclass(frozen=True)
class Details:
    """Blocks that are folded away under a title."""

    kind: ClassVar = "details"
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Queries:
    """Queries to be copied, each with the numbers that it answers."""

    kind: ClassVar = "queries"
    command: str
    queries: Sequence[Query]


@dataclass(frozen=True)
class Heading:
    """What a page or a run is called, its status, and lines about it."""

    kind: ClassVar = "heading"
    title: str
    status: Mark | None = None
    facts: Sequence[str] = ()
    text: str = ""
    level: int = 1


@dataclass(frozen=True)
class ProgressBar:
    kind: ClassVar = "progress"
    text: str
    share: float | None
    """From 0 to 1; None where the end is not known."""


Block = (
    Table | Paragraph | Bullets | Tiles | Figure | Grid | Details | Queries | Heading | ProgressBar
)


@dataclass(frozen=True)
class PageSection:
    identifier: str
    title: str
    blocks: Sequence[Block]


@dataclass
class Charts:
    """The charts of one page, by the id of the element that each is drawn into."""

    specs: dict[str, Spec] = field(default_factory=dict)
    _colours: SeriesColours = field(default_factory=SeriesColours)

    def figure(self, caption: str, spec: Spec, numbers: Table) -> Figure:
        identifier = f"chart-{len(self.specs) + 1}"
        self.specs[identifier] = themed(spec, PAGE, self._colours)
        label = f"{spec['description']}; the table below has its numbers"
        return Figure(identifier, caption, label, numbers)


@dataclass(frozen=True)
class Page:
    heading: Heading
    sections: Sequence[PageSection]
    charts: Charts

    @property
    def html(self) -> str:
        library = [browser_library()] if self.charts.specs else []
        return _render(
            "report.html",
            title=self.heading.title,
            page=self,
            scripts=[*library, asset("drawing.js"), asset("report.js")],
        )

    @property
    def markdown(self) -> str:
        """What the page shows unfolded, without its figures."""
        return "\n\n".join(_markdown(self)) + "\n"


def queries_block(queries: Iterable[Query], store: str) -> Queries:
    command = f'bench-spark sql "$(cat query.sql)" --store {shlex.quote(store)}'
    return Queries(command, list(queries))


def keys_block(title: str, part: Mapping[str, Any]) -> Details:
    """Nested keys, dotted, and their values."""
    rows = [
        (key, value if isinstance(value, str) else json.dumps(value)) for key, value in dotted(part)
    ]
    table = Table(f"{title}, defaults filled in", ["key", "value"], rows, words=2)
    return Details(f"{title}, all keys", [table])


def status_mark(status: str) -> Mark:
    return Mark(status, f"status {status}")


def fragment(blocks: Iterable[Block]) -> str:
    """Blocks alone, for a page that is there already."""
    return _render("fragment.html", blocks=list(blocks)).strip("\n")


def live_page(policy: str, message: str) -> str:
    """The frame of a dashboard. What is in it comes later, as fragments."""
    scripts = [browser_library(), asset("drawing.js"), asset("live.js")]
    return _render(
        "live.html", title="bench-spark", policy=policy, message=message, scripts=scripts
    )


def asset(name: str) -> str:
    return resources.files("bench_spark.report").joinpath("assets", name).read_text()


def _render(template: str, **values: Any) -> str:
    return _templates().get_template(template).render(values)


@cache
def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("bench_spark.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # What `tojson` writes holds no `<`, so that no text can end its element.
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    environment.globals |= {"policy": POLICY, "version": __version__, "asset": _trusted_asset}
    environment.filters["code"] = Markup
    return environment


def _trusted_asset(name: str) -> Markup:
    return Markup(asset(name))  # noqa: S704 - a file of ours


# -- Markdown --------------------------------------------------------------------------------------


def _markdown(page: Page) -> Iterator[str]:
    yield from _markdown_of(page.heading)
    for section in page.sections:
        texts = [text for block in section.blocks for text in _markdown_of(block)]
        if texts and not all(_is_about_figures(block) for block in section.blocks):
            yield f"## {markdown_text(section.title)}"
            yield from texts


def _is_about_figures(block: Block) -> bool:
    is_remark = isinstance(block, Paragraph) and block.style == "faint"
    return is_remark or isinstance(block, Figure | Grid)


def _markdown_of(block: Block) -> Iterator[str]:
    match block:
        case Heading():
            status = f": {block.status}" if block.status else ""
            yield f"# {markdown_text(block.title)}{markdown_text(status)}"
            yield from map(markdown_text, [*block.facts, *([block.text] if block.text else [])])
        case Table():
            if block.rows:
                yield markdown_text(block.caption)
                yield markdown_table(block.headings, block.rows, block.words)
        case Tiles():
            yield markdown_table(["", ""], block.numbers, 1)
        case Bullets():
            if block.items:
                yield "\n".join(f"- {markdown_text(item)}" for item in block.items)
        case Paragraph():
            code = f"`{block.code}`" if block.code else ""
            yield markdown_text(f"{block.label or ''}{block.text}") + code
        case _:
            pass  # Charts cannot be shown, and what is folded away would not be.


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[Cell]], words: int = 0) -> str:
    """The first `words` columns to the left, numbers to the right."""
    marks = [":-" if place < words else "-:" for place in range(len(headings))]
    return "\n".join(_markdown_row(cells) for cells in (headings, marks, *rows))


def _markdown_row(cells: Sequence[Cell]) -> str:
    return "| " + " | ".join(markdown_text(str(cell)).replace("|", "\\|") for cell in cells) + " |"


def markdown_text(text: str) -> str:
    """Text on one line, of which no part is HTML."""
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", " ".join(text.split()))
