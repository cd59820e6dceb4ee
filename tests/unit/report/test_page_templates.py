"""Nothing gets into a page unescaped: neither as text, nor in an attribute, nor as data."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_spark.report.blocks import (
    Block,
    Bullets,
    Details,
    Figure,
    Grid,
    Heading,
    Mark,
    PageSection,
    Paragraph,
    ProgressBar,
    Queries,
    Table,
    Tiles,
)
from bench_spark.report.page import Charts, Page, fragment
from bench_spark.report.queries import Query

HOSTILE = "<script>alert('x')</script>&\" onclick='x'"


class Texts(HTMLParser):
    """What a browser would take for elements, and for text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def parsed(text: str) -> Texts:
    parser = Texts()
    parser.feed(text)
    parser.close()
    return parser


def whole_table(text: str) -> Table:
    return Table(text, [text, text], [[text, Mark(text, text)]])


EVERY_KIND: list[Block] = [
    whole_table(HOSTILE),
    Paragraph(HOSTILE, HOSTILE, Mark(HOSTILE, HOSTILE), HOSTILE),
    Bullets([HOSTILE]),
    Tiles([(HOSTILE, HOSTILE)]),
    Figure(HOSTILE, HOSTILE, HOSTILE, whole_table(HOSTILE)),
    Grid([Figure(HOSTILE, HOSTILE, HOSTILE, whole_table(HOSTILE))]),
    Details(HOSTILE, [Bullets([HOSTILE])]),
    Queries(HOSTILE, [Query(HOSTILE, HOSTILE, {HOSTILE: HOSTILE}, HOSTILE)]),
    Heading(HOSTILE, Mark(HOSTILE, HOSTILE), [HOSTILE], HOSTILE),
    ProgressBar(HOSTILE, 0.5),
]


@given(st.text(st.characters(exclude_characters="\r\0", exclude_categories=["Cs"])))
def test_any_text_is_text_to_a_browser(text: str) -> None:
    found = parsed(fragment([Paragraph(text)]))
    assert found.tags == ["p"]
    assert found.text.removesuffix("\n") == text or found.text == text


@pytest.mark.parametrize("block", EVERY_KIND, ids=lambda block: block.kind)
def test_a_hostile_text_is_harmless_in_every_block(block: Block) -> None:
    found = parsed(fragment([block]))
    assert found.tags
    assert "script" not in found.tags
    assert "onclick" not in found.attributes


@given(
    st.recursive(
        st.text(st.characters(exclude_categories=["Cs"])) | st.integers(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text("ab<>/!-"), inner),
    )
)
def test_data_stays_what_it_is_and_never_ends_its_element(data: Any) -> None:
    charts = Charts({"chart-1": {"data": data}})
    page = Page(Heading("t"), [PageSection("s", "S", [])], charts).html
    begin = page.index('id="charts">') + len('id="charts">')
    body = page[begin : page.index("</script>", begin)]
    assert "<" not in body
    assert json.loads(body) == {"chart-1": {"data": data}}


def test_a_table_says_what_its_cells_belong_to() -> None:
    made = fragment([Table("Counts", ["name", "count"], [["sent", "5"]])])
    assert '<th scope="col" class="words">name</th><th scope="col">count</th>' in made
    assert '<th scope="row" class="words">sent</th><td>5</td>' in made
    assert 'aria-label="Counts"' in made


def test_a_cell_may_have_a_style_and_progress_no_end() -> None:
    made = fragment([Table("c", ["a"], [[Mark("fail", "fail")]]), ProgressBar("warm-up", None)])
    assert '<span class="fail">fail</span>' in made
    assert re.search(r'<progress max="1" aria-label="warm-up">', made)
