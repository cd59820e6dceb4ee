"""Nothing gets into a page unescaped unless it is markup already."""

from __future__ import annotations

import json
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_spark.report.html_page import Markup, data_element, joined, table, tag

HOSTILE = "<script>alert('x')</script>&\""


class Texts(HTMLParser):
    """What a browser would take for elements, and for text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def parsed(text: str) -> Texts:
    parser = Texts()
    parser.feed(text)
    parser.close()
    return parser


@given(st.text(st.characters(exclude_characters="\r\0", exclude_categories=["Cs"])))
def test_any_text_is_text_to_a_browser(text: str) -> None:
    found = parsed(tag("p", text))
    assert (found.tags, found.text) == (["p"], text)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (tag("p", "a < b", Markup("<b>c</b>")), "<p>a &lt; b<b>c</b></p>"),
        (tag("p", ["a", None, [1, 2.5]]), "<p>a12.5</p>"),
        (tag("a", "x", href='"><i>'), '<a href="&quot;&gt;&lt;i&gt;">x</a>'),
        (tag("td", class_="words", scope=None), '<td class="words"></td>'),
        (tag("button", hidden=True, data_copies="q"), '<button hidden data-copies="q"></button>'),
        (tag("meta", charset="utf-8"), '<meta charset="utf-8">'),
        (joined(None), ""),
    ],
)
def test_elements_are_written_as_html_has_them(made: Markup, expected: str) -> None:
    assert made == expected


@given(
    st.recursive(st.text() | st.integers(), lambda x: st.lists(x) | st.dictionaries(st.text(), x))
)
def test_data_stays_what_it_is_and_never_ends_its_element(data: object) -> None:
    made = data_element("d", [data])
    body = made.removeprefix('<script type="application/json" id="d">').removesuffix("</script>")
    assert "<" not in body
    assert json.loads(body) == [data]


def test_a_hostile_cell_or_caption_is_harmless() -> None:
    made = table(HOSTILE, [HOSTILE, "n"], [[HOSTILE, HOSTILE]])
    assert "script" not in parsed(made).tags


def test_a_table_says_what_its_cells_belong_to() -> None:
    made = table("Counts", ["name", "count"], [["sent", "5"]])
    assert '<th scope="col" class="words">name</th><th scope="col">count</th>' in made
    assert '<th scope="row" class="words">sent</th><td>5</td>' in made
    assert 'aria-label="Counts"' in made
