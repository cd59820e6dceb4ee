"""Every result in every format."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import html_pages
import pyarrow.parquet as pq
import pytest

from bench_spark.report.formats import FORMATS, Report

KINDS = ("run", "suite", "comparison", "suite_comparison", "window_search", "rate_search")


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Report]:
    return html_pages.reports(tmp_path_factory.mktemp("reports"))


def test_the_formats_are_the_same_for_all(reports: dict[str, Report]) -> None:
    assert list(FORMATS) == ["terminal", "markdown", "json", "csv", "parquet", "html"]
    assert tuple(reports) == KINDS
    for report in reports.values():
        assert all(found.encode(report) for found in FORMATS.values())


@pytest.mark.parametrize("kind", KINDS)
def test_json_is_the_document(reports: dict[str, Report], kind: str) -> None:
    assert json.loads(html_pages.text_of(reports[kind], "json")) == reports[kind].document


@pytest.mark.parametrize("kind", KINDS)
def test_parquet_has_the_rows_of_the_csv_with_types(reports: dict[str, Report], kind: str) -> None:
    rows = list(csv.DictReader(io.StringIO(html_pages.text_of(reports[kind], "csv"))))
    table = pq.read_table(io.BytesIO(FORMATS["parquet"].encode(reports[kind])))
    assert table.column_names == list(rows[0])
    for row, stored in zip(rows, table.to_pylist(), strict=True):
        for name, value in stored.items():
            if isinstance(value, bool):
                assert row[name] == str(value).lower()
            elif isinstance(value, int | float):
                assert float(row[name]) == pytest.approx(value)
            elif value is not None:
                assert row[name] == value
    typed = {str(field.type) for field in table.schema if field.name.endswith(("_us", "_rate"))}
    assert typed <= {"double"}


@pytest.mark.parametrize("kind", KINDS)
def test_markdown_has_a_heading_and_whole_tables(reports: dict[str, Report], kind: str) -> None:
    lines = html_pages.text_of(reports[kind], "markdown").splitlines()
    assert lines[0].startswith("#")
    tables = [line for line in lines if line.startswith("|")]
    assert tables
    assert all(line.endswith("|") for line in tables)


def test_markdown_of_a_run_says_first_whether_to_trust_it() -> None:
    text = html_pages.text_of(html_pages.run_report(), "markdown")
    assert text.startswith("# steady on qpid: valid\n")
    assert text.index("## Can it be trusted?") < text.index("## Result") < text.index("## Latency")
    assert "| received, msg/s | " in text
    assert "Over time" not in text, "charts cannot be shown"


def test_a_hostile_name_is_no_element_in_markdown(tmp_path: Path) -> None:
    for report in (html_pages.run_report(hurt=True), html_pages.suite_report(tmp_path, hurt=True)):
        text = html_pages.text_of(report, "markdown")
        assert "<script" not in text
        assert "<img" not in text


def test_a_suite_on_a_terminal_has_its_table_and_its_notes(tmp_path: Path) -> None:
    text = html_pages.text_of(html_pages.suite_report(tmp_path), "terminal")
    assert "| " not in text
    assert "producers" in text
    assert "machine" in text
