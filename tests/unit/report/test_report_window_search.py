"""The result of a window search: as a table, as an image and as CSV."""

from __future__ import annotations

import csv
import io
import json
from typing import Any
from xml.etree import ElementTree

import numpy as np

from bench_spark.report.charts import drawn
from bench_spark.report.formats import FORMATS
from bench_spark.report.searches import WindowSearchReport
from bench_spark.suites.window import (
    WindowLimits,
    WindowRun,
    WindowThroughput,
    find_window,
    throughput_of,
    window_document,
)


def throughput(in_flight: int) -> WindowThroughput:
    median = 80_000 * in_flight / (in_flight + 40) / (1 + (in_flight / 20_000) ** 2)
    return throughput_of(in_flight, [np.linspace(median - 500, median + 500, 100)])


def document(status: str = "valid") -> dict[str, Any]:
    found = find_window(throughput, WindowLimits(highest=100_000))
    runs = [WindowRun(f"search-{number:02}", status) for number in range(len(found.trials))]
    scenario, broker = {"name": "amqp-throughput"}, {"name": "<rabbit & co>"}
    return window_document(found, runs, scenario, broker, 181.0)


def written(found: dict[str, Any], format_name: str = "terminal") -> str:
    return FORMATS[format_name].encode(WindowSearchReport(found)).decode()


def test_the_answer_comes_first() -> None:
    found = document()
    head, best, smallest, search, end = written(found).splitlines()[:5]
    assert head == "amqp-throughput on <rabbit & co>"
    assert best == f"  best      {found['in_flight']:,} in flight, 77,609 msg/s"
    assert f"{found['smallest_in_flight']:,} in flight, " in smallest
    assert smallest.endswith(" msg/s, 99.7% of the best")
    assert search == f"  search    {len(found['trials'])} trials in 3 min 1 s"
    assert end == f"  ended as  {found['end_text']}"


def test_the_table_has_a_line_for_each_window() -> None:
    found = document()
    text = written(found)
    assert "in flight  median msg/s  at least  at most" in text
    for point in found["curve"]:
        assert f"\n  {point['in_flight']:,} " in text


def test_everything_fits_into_80_columns() -> None:
    assert max(map(len, written(document()).splitlines())) <= 80


def test_trials_that_are_not_valid_are_named() -> None:
    assert "bench-spark show" not in written(document())
    text = written(document("degraded"))
    assert "  degraded: 1 in flight; bench-spark show search-00\n" in text


def test_the_image_is_wellformed_and_names_the_chosen_windows() -> None:
    found = document()
    root = ElementTree.fromstring(drawn(WindowSearchReport(found).chart, ".svg"))
    texts = ["".join(element.itertext()) for element in root.iter() if element.tag.endswith("text")]
    assert any("<rabbit & co>" in text for text in texts)
    assert f"chosen: {found['in_flight']:,}" in texts
    assert f"smallest as good: {found['smallest_in_flight']:,}" in texts


def test_the_chart_has_every_point_with_its_interval() -> None:
    found = document()
    rows = WindowSearchReport(found).chart["data"]["values"]
    assert [(row["x"], row["low"] < row["y"] < row["high"]) for row in rows] == [
        (point["in_flight"], True) for point in found["curve"]
    ]


def test_csv_has_a_row_for_each_trial() -> None:
    found = document()
    rows = list(csv.DictReader(io.StringIO(written(found, "csv"))))
    assert tuple(rows[0]) == WindowSearchReport.columns
    assert [int(row["in_flight"]) for row in rows] == [t["in_flight"] for t in found["trials"]]


def test_json_holds_the_document_as_it_is() -> None:
    assert json.loads(written(document(), "json")) == document()
