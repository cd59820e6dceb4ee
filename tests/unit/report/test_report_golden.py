"""What people read, character by character, as it looks in a file or a pipe.

`REFRESH_GOLDEN=1 pytest tests/unit/report` writes the files anew; read the difference.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import html_pages
import pytest
import result_documents as documents

from bench_spark.config.models import Scenario
from bench_spark.config.sections import Load, Sampling
from bench_spark.plan import make_plan
from bench_spark.report.comparison import write_comparison as write_comparison_table
from bench_spark.report.comparison import write_suite_comparison
from bench_spark.report.plan_text import write_plan
from bench_spark.report.terminal import write_side_by_side, write_terminal

GOLDEN = Path(__file__).parent / "golden"


def write_split_plan(writer: TextIO) -> None:
    scenario = Scenario(
        name="split", agents=3, producers=4, consumers=4, destinations=2, placement="split"
    )
    write_plan(make_plan(scenario, "r1"), documents.BROKER.masked(), writer)


def write_open_plan(writer: TextIO) -> None:
    load = Load(mode="window", in_flight=50, messages=1_000_000)
    scenario = Scenario(name="loop", agents=2, producers=2, consumers=2, destinations=2, load=load)
    write_plan(make_plan(scenario, "r1"), documents.BROKER.masked(), writer)


def write_sampled_plan(writer: TextIO) -> None:
    scenario = Scenario(name="loop", load=Load(mode="window"), sampling=Sampling(samples=100))
    write_plan(make_plan(scenario, "r1"), documents.BROKER.masked(), writer)


def write_consuming_plan(writer: TextIO) -> None:
    load = Load(messages=1_000_000)
    scenario = Scenario(name="take", agents=2, producers=0, consumers=3, destinations=2, load=load)
    write_plan(make_plan(scenario, "r1"), documents.BROKER.masked(), writer)


def write_publishing_plan(writer: TextIO) -> None:
    load = Load(mode="maximum", messages=1_000_000)
    scenario = Scenario(name="fill", producers=2, consumers=0, destinations=2, load=load)
    write_plan(make_plan(scenario, "r1"), documents.BROKER.masked(), writer)


def write_comparison(writer: TextIO) -> None:
    results = [documents.VALID, documents.degraded(), documents.never_started()]
    write_side_by_side(results, ["qpid rate", "qpid maximum", "kafka rate"], writer)


def write_compared(writer: TextIO) -> None:
    write_comparison_table(html_pages.comparison("new-1", is_comparable=False), writer)


def write_compared_suites(writer: TextIO) -> None:
    write_suite_comparison(html_pages.comparison("message.bytes 1000"), writer)


PAGES: dict[str, Callable[[TextIO], None]] = {
    "valid.txt": lambda writer: write_terminal(documents.VALID, writer),
    "degraded.txt": lambda writer: write_terminal(documents.degraded(), writer),
    "only_published.txt": lambda writer: write_terminal(documents.only_published(), writer),
    "only_consumed.txt": lambda writer: write_terminal(documents.only_consumed(), writer),
    "sampled.txt": lambda writer: write_terminal(documents.sampled(pairs=1), writer),
    "sampled_pairs.txt": lambda writer: write_terminal(documents.sampled(pairs=12), writer),
    "never_started.txt": lambda writer: write_terminal(documents.never_started(), writer),
    "side_by_side.txt": write_comparison,
    "comparison.txt": write_compared,
    "suite_comparison.txt": write_compared_suites,
    "degraded.csv": lambda writer: html_pages.run_report(documents.degraded()).write_csv(writer),
    "plan_split.txt": write_split_plan,
    "plan_until_all_are_sent.txt": write_open_plan,
    "plan_until_sampled.txt": write_sampled_plan,
    "plan_only_consumes.txt": write_consuming_plan,
    "plan_only_publishes.txt": write_publishing_plan,
}


@pytest.mark.parametrize("name", PAGES)
def test_pages_look_as_they_did(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # a file has no width: the terminal's must not matter
    writer = io.StringIO()
    PAGES[name](writer)
    golden = GOLDEN / name
    if os.environ.get("REFRESH_GOLDEN"):
        golden.write_text(writer.getvalue())
    assert writer.getvalue() == golden.read_text()


@pytest.mark.parametrize("name", [name for name in PAGES if name.endswith(".txt")])
def test_pages_fit_80_columns_and_end_no_line_with_spaces(name: str) -> None:
    writer = io.StringIO()
    PAGES[name](writer)
    for line in writer.getvalue().splitlines():
        assert len(line) <= 80, line
        assert line == line.rstrip()


def test_what_is_not_comparable_is_said_before_the_table_of_a_suite() -> None:
    writer = io.StringIO()
    write_suite_comparison(html_pages.comparison("bytes 1000", is_comparable=False), writer)
    said = writer.getvalue()
    assert 0 < said.index("not comparable: ") < said.index("receive rate")
    assert said.count("not comparable: ") == 1
