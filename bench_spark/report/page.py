"""Pages of blocks, and how they become HTML or Markdown.

The HTML is one self-contained file: it opens from a disk or a mail without any network. Its
Content-Security-Policy allows only what is written in it, and no code made from text. The
templates escape every text: a scenario's name or a broker's answer may hold `<script>`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from bench_spark import __version__
from bench_spark.report import blocks
from bench_spark.report.charts import PAGE, SeriesColours, Spec, browser_library, themed

POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)


@dataclass
class Charts:
    """The charts of one page, by the id of the element that each is drawn into."""

    specs: dict[str, Spec] = field(default_factory=dict)
    _colours: SeriesColours = field(default_factory=SeriesColours)

    def figure(self, caption: str, spec: Spec, numbers: blocks.Table) -> blocks.Figure:
        identifier = f"chart-{len(self.specs) + 1}"
        self.specs[identifier] = themed(spec, PAGE, self._colours)
        label = f"{spec['description']}; the table below has its numbers"
        return blocks.Figure(identifier, caption, label, numbers)


@dataclass(frozen=True)
class Page:
    heading: blocks.Heading
    sections: Sequence[blocks.PageSection]
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


def fragment(shown: Iterable[blocks.Block]) -> str:
    """Blocks alone, for a page that is there already."""
    return _render("fragment.html", blocks=list(shown)).strip("\n")


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


def _is_about_figures(block: blocks.Block) -> bool:
    is_remark = isinstance(block, blocks.Paragraph) and block.style == "faint"
    return is_remark or isinstance(block, blocks.Figure | blocks.Grid)


def _markdown_of(block: blocks.Block) -> Iterator[str]:
    match block:
        case blocks.Heading():
            status = f": {block.status}" if block.status else ""
            yield f"# {markdown_text(block.title)}{markdown_text(status)}"
            yield from map(markdown_text, [*block.facts, *([block.text] if block.text else [])])
        case blocks.Table():
            if block.rows:
                yield markdown_text(block.caption)
                yield markdown_table(block.headings, block.rows, block.words)
        case blocks.Tiles():
            yield markdown_table(["", ""], block.numbers, 1)
        case blocks.Bullets():
            if block.items:
                yield "\n".join(f"- {markdown_text(item)}" for item in block.items)
        case blocks.Paragraph():
            code = f"`{block.code}`" if block.code else ""
            yield markdown_text(f"{block.label or ''}{block.text}") + code
        case _:
            pass  # Charts cannot be shown, and what is folded away would not be.


def markdown_table(
    headings: Sequence[str], rows: Iterable[Sequence[blocks.Cell]], words: int = 0
) -> str:
    """The first `words` columns to the left, numbers to the right."""
    marks = [":-" if place < words else "-:" for place in range(len(headings))]
    return "\n".join(_markdown_row(cells) for cells in (headings, marks, *rows))


def _markdown_row(cells: Sequence[blocks.Cell]) -> str:
    return "| " + " | ".join(markdown_text(str(cell)).replace("|", "\\|") for cell in cells) + " |"


def markdown_text(text: str) -> str:
    """Text on one line, of which no part is HTML."""
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", " ".join(text.split()))
