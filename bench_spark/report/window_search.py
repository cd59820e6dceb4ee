"""The result of a window search for people, for programs and for spreadsheets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, TextIO

from bench_spark.report.chart_theme import Spec
from bench_spark.report.charts import against
from bench_spark.report.curve_text import draw_curve
from bench_spark.report.formatting import count, plural, rate, seconds
from bench_spark.report.measures import Document
from bench_spark.report.search_parts import doubts, write_trials
from bench_spark.report.terminal import console_for, plain_table, print_block

CSV_COLUMNS = (
    *("trial", "run_id", "status", "in_flight"),
    *("median_per_second", "mean_per_second", "stddev_per_second"),
    *("low_per_second", "high_per_second", "samples"),
)

write_search_csv = partial(write_trials, columns=CSV_COLUMNS)


def write_search_terminal(document: Document, writer: TextIO) -> None:
    """The answer, the curve as a table and drawn, and which trials are not to be trusted."""
    writer.writelines(f"{line}\n" for line in [*_answer(document), ""])
    rows = [_row(point) for point in document["curve"]]
    print_block(console_for(writer), plain_table(_HEADINGS, rows, gap=2))
    points = [(point["in_flight"], point["median_per_second"]) for point in document["curve"]]
    drawn = [f"  {line}" for line in draw_curve(points, document["in_flight"])]
    writer.writelines(f"{line}\n" for line in ["", *drawn, *doubts(document, _which)])


def _answer(document: Document) -> Iterator[str]:
    best, smallest = document["median_per_second"], document["smallest_median_per_second"]
    yield f"{document['scenario']['name']} on {document['broker']['name']}"
    yield f"  best      {count(document['in_flight'])} in flight, {rate(best)} msg/s"
    yield (
        f"  smallest  {count(document['smallest_in_flight'])} in flight, {rate(smallest)} msg/s, "
        f"{smallest / best if best else 1.0:.1%} of the best"
    )
    took = seconds(round(document["took_seconds"]))
    yield f"  search    {plural(len(document['trials']), 'trial')} in {took}"
    yield f"  ended as  {document['end_text']}"


def _which(trial: Mapping[str, Any]) -> str:
    return f"{count(trial['in_flight'])} in flight"


_HEADINGS = ("in flight", "median msg/s", "at least", "at most", "mean", "stddev", "samples")


def _row(point: dict[str, Any]) -> list[str]:
    names = ("median", "low", "high", "mean", "stddev")
    rates = [rate(point[f"{name}_per_second"]) for name in names]
    return [count(point["in_flight"]), *rates, count(point["samples"])]


def curve_chart(document: Document) -> Spec:
    """Throughput over the window, with the intervals of the medians."""
    chosen, smallest = document["in_flight"], document["smallest_in_flight"]
    names = {smallest: "smallest as good", chosen: "chosen"}
    rows = [
        {
            "x": point["in_flight"],
            "y": point["median_per_second"],
            "low": point["low_per_second"],
            "high": point["high_per_second"],
            "series": "throughput",
            "text": f"{rate(point['median_per_second'])} msg/s",
        }
        for point in document["curve"]
    ]
    marked = [
        {"x": row["x"], "y": row["y"], "text": f"{names[row['x']]}: {count(row['x'])}"}
        for row in rows
        if row["x"] in names
    ]
    title = (
        f"{document['scenario']['name']} on {document['broker']['name']}: throughput by messages "
        "in flight, msg/s"
    )
    windows = [row["x"] for row in rows]
    return against(title, rows, "messages in flight", windows, "throughput", "rate", marked)
