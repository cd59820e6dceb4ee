"""Pages as a browser parses them: whole, self-contained, and deaf to what names try to say."""

from __future__ import annotations

import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import html_pages
import pytest
import result_documents as documents

from bench_spark.report.page import POLICY
from bench_spark.report.queries import queries_of_run

OUR_SCRIPTS = 4
"""The data, the library, how a chart is drawn, the page's own; without charts no library."""


class Parsed(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: dict[str, str] = {}
        self._open = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self._open = dict(attrs).get("id") or tag

    def handle_data(self, data: str) -> None:
        self.texts[self._open] = self.texts.get(self._open, "") + data

    def values(self, name: str) -> list[str]:
        return [value for _, key, value in self.attributes if key == name]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Parsed]:
    found = html_pages.pages(tmp_path_factory.mktemp("pages"))
    return {name: Parsed(text) for name, text in found.items()}


def test_every_page_is_self_contained(pages: dict[str, Parsed]) -> None:
    for name, page in pages.items():
        assert page.values("src") == [], name
        assert page.tags["link"] == page.tags["img"] == page.tags["iframe"] == 0, name
        assert all(href.startswith("#") for href in page.values("href")), name
        assert POLICY in page.values("content"), name
    assert "unsafe-eval" not in POLICY
    assert "http" not in POLICY


@pytest.mark.fault(case=17)
def test_no_name_becomes_an_element(pages: dict[str, Parsed]) -> None:
    for name, page in pages.items():
        assert page.tags["script"] in (OUR_SCRIPTS, OUR_SCRIPTS - 1), name
        assert page.tags["b"] == 0, name
        assert not [key for _, key, _ in page.attributes if key.startswith("on")], name


def test_identifiers_are_unique_and_links_lead_somewhere(pages: dict[str, Parsed]) -> None:
    for name, page in pages.items():
        identifiers = page.values("id")
        assert len(identifiers) == len(set(identifiers)), name
        targets = {href.removeprefix("#") for href in page.values("href")}
        targets |= set(page.values("aria-labelledby")) | set(page.values("data-copies"))
        assert targets <= set(identifiers), name


def test_every_chart_has_an_element_a_label_and_a_table(pages: dict[str, Parsed]) -> None:
    for name, page in pages.items():
        charts = json.loads(page.texts["charts"])
        assert set(charts) <= set(page.values("id")), name
        assert page.tags["table"] >= len(charts), name
        assert all(chart["description"] for chart in charts.values())
    kinds = {name: len(json.loads(page.texts["charts"])) for name, page in pages.items()}
    assert kinds["run"] == 7
    assert kinds["run_never_started"] == 0
    assert kinds["suite"] == 3


def test_the_audit_comes_before_any_number(tmp_path: Path) -> None:
    for text in (html_pages.run_page(), html_pages.suite_page(tmp_path)):
        body = text[text.index("<main") :]
        assert re.findall(r'<section id="(\w+)"', body)[0] == "audit"


def test_a_suites_page_has_warnings_machine_and_broker_of_its_trials(tmp_path: Path) -> None:
    text = html_pages.suite_page(tmp_path)
    assert "What the audits of the trials warn of" in text
    assert "broker and generator share a host and compete for its CPU" in text
    assert "machine: 2 cores (Some CPU)" in text
    assert "qpid 10.1.0" in text


def test_runs_that_are_not_comparable_are_said_to_be_before_any_number() -> None:
    found = html_pages.comparison("candidate", is_comparable=False)
    text = html_pages.ComparisonReport(found).page().html
    assert text.index("Not comparable: ") < text.index("Metric by metric")
    assert "producers 1 -&gt; candidate" in text
    comparable = html_pages.ComparisonReport(html_pages.comparison("candidate"))
    assert "Not comparable: " not in comparable.page().html


def test_a_run_that_never_started_says_why() -> None:
    text = html_pages.run_page(documents.never_started())
    [reason] = documents.never_started()["reasons"]
    assert reason.split("'")[0][:30] in text


def test_lower_bounds_are_explained_where_there_are_any() -> None:
    assert "&gt;=" in html_pages.run_page(documents.degraded())
    assert "is a lower bound" in html_pages.run_page(documents.degraded())
    assert "is a lower bound" not in html_pages.run_page()


def test_queries_quote_what_they_ask_for() -> None:
    document = documents.changed(run_id="o'neil\\")
    for query in queries_of_run(document):
        assert "run_id = 'o\\'neil\\\\'" in query.sql, query.title
