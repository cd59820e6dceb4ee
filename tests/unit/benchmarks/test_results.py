"""RESULTS.md: whose section is replaced, and what stays."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.results import sections_of, with_sections

ORDER = ("first", "second", "third")


def test_a_line_run_alone_replaces_only_its_own_section() -> None:
    before = with_sections("", "old envelope", {"first": "1", "second": "2"}, ORDER)
    after = with_sections(before, "new envelope", {"second": "two\n\nlines"}, ORDER)
    assert sections_of(after) == {"first": "1", "second": "two\n\nlines"}
    assert after.startswith("new envelope\n")
    assert "old envelope" not in after


def test_sections_keep_the_order_of_the_lines_whichever_ran_first() -> None:
    document = with_sections("", "envelope", {"third": "3"}, ORDER)
    document = with_sections(document, "envelope", {"first": "1"}, ORDER)
    assert list(sections_of(document)) == ["first", "third"]


def test_the_section_of_a_line_that_is_no_more_goes() -> None:
    document = with_sections("", "envelope", {"first": "1", "second": "2"}, ORDER)
    assert sections_of(with_sections(document, "envelope", {}, ("second",))) == {"second": "2"}


def test_what_stood_there_before_there_were_sections_is_replaced() -> None:
    assert with_sections("# Results\n\nby hand\n", "envelope", {}, ORDER) == "envelope\n"


_TEXTS = st.text(st.characters(exclude_characters="<\r"), min_size=1).map(str.strip)


@given(
    st.dictionaries(st.sampled_from(ORDER), _TEXTS), st.dictionaries(st.sampled_from(ORDER), _TEXTS)
)
def test_whatever_is_written_is_read_back(first: dict[str, str], second: dict[str, str]) -> None:
    document = with_sections(with_sections("", "envelope", first, ORDER), "envelope", second, ORDER)
    assert sections_of(document) == first | second
