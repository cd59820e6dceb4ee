"""The page for people: what comes first, what is coloured, what is never repeated."""

from __future__ import annotations

import io

import pytest
import result_documents as documents

from bench_spark.report.formatting import Document
from bench_spark.report.terminal import write_terminal


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def page(document: Document, writer: io.StringIO | None = None) -> str:
    writer = writer or io.StringIO()
    write_terminal(document, writer)
    return writer.getvalue()


@pytest.fixture
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def test_whether_to_trust_it_comes_before_any_number() -> None:
    text = page(documents.degraded())
    assert text.startswith("DEGRADED  steady on qpid\n")
    assert text.index("the rate was not kept") < text.index("delivered")


def test_a_reason_that_is_a_failed_check_is_said_once() -> None:
    assert page(documents.degraded()).count("the rate was not kept") == 1


def test_square_brackets_of_a_broker_are_text_and_not_markup() -> None:
    assert "closed the connection [320]" in page(documents.degraded())


def test_losses_show_where_there_are_some() -> None:
    text = page(documents.degraded())
    assert "lost 3" in text
    assert "indeterminate 17" in text


def test_passwords_are_masked_or_absent() -> None:
    assert "guest" not in page(documents.VALID)


@pytest.mark.usefixtures("_plain_environment")
def test_terminals_get_colours_and_files_do_not() -> None:
    assert "\x1b[" in page(documents.VALID, Terminal())
    assert "\x1b[" not in page(documents.VALID)


@pytest.mark.usefixtures("_plain_environment")
def test_no_color_is_respected_on_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    text = page(documents.VALID, Terminal())
    colours = ("\x1b[31", "\x1b[32", "\x1b[33", "\x1b[1;31", "\x1b[1;32", "\x1b[1;33")
    assert not any(colour in text for colour in colours)


def test_a_result_without_latency_still_has_a_page() -> None:
    text = page(documents.changed(measures={}, percentiles={}))
    assert "VALID" in text
    assert "latency by" not in text


def test_it_says_how_to_show_it_again() -> None:
    assert "bench-spark show steady-qpid-20260102-030405-0a1b" in page(documents.VALID)
