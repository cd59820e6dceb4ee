"""What a page is told that has seen some of the charts already."""

from __future__ import annotations

from typing import Any

from bench_spark.report.charts import Line
from bench_spark.report.timeline import TimeChart
from bench_spark.watch.dashboard import ChangingCharts

SPAN, MEASURED = (-2.0, 20.0), (0.0, 20.0)


def chart(values: dict[float, float], *labels: str) -> TimeChart:
    rows = [{"second": second, "a": value, "b": 1.0} for second, value in values.items()]
    lines = [Line(label, label) for label in labels or ("a",)]
    return TimeChart("Throughput", "messages", "per_second", rows, lines)


def updated(charts: ChangingCharts, values: dict[float, float], *labels: str) -> None:
    charts.update([chart(values, *labels)], SPAN, MEASURED)


def rows_told(news: dict[str, Any]) -> dict[float, float]:
    return {row["second"]: row["y0"] for row in news["charts"]["chart-1"]["rows"]}


def test_a_new_page_is_told_everything_and_later_what_has_changed() -> None:
    charts = ChangingCharts()
    updated(charts, {0: 5, 1: 6})
    first = charts.since("", 0)
    assert rows_told(first) == {0: 5, 1: 6}
    assert "layer" in first["charts"]["chart-1"]["spec"]
    updated(charts, {0: 5, 1: 7, 2: 8})
    second = charts.since(first["layout"], first["version"])
    assert rows_told(second) == {1: 7, 2: 8}
    assert "spec" not in second["charts"]["chart-1"]
    assert rows_told(charts.since(second["layout"], second["version"])) == {}


def test_a_page_that_has_drawn_other_lines_begins_anew() -> None:
    charts = ChangingCharts()
    updated(charts, {0: 5})
    layout, version = charts.layout, charts.version
    updated(charts, {0: 5, 1: 6}, "a", "b")
    news = charts.since(layout, version)
    assert news["layout"] != layout
    assert rows_told(news) == {0: 5, 1: 6}
    assert news["charts"]["chart-1"]["spec"]["usermeta"]["legend"] == ["a", "b"]


def test_rows_outside_the_time_axis_are_not_told() -> None:
    charts = ChangingCharts()
    updated(charts, {-5: 1, 3: 2, 25: 3})
    assert rows_told(charts.since("", 0)) == {3: 2}


def test_axes_and_shade_come_with_every_answer() -> None:
    charts = ChangingCharts()
    updated(charts, {0: 5})
    told = charts.since(charts.layout, charts.version)["charts"]["chart-1"]
    x_axis = {"span_from": -2.0, "span_to": 20.0, "points": 1}
    assert told["signals"] == x_axis | {"y_from": 0, "y_to": 5.1, "y_ticks": [0, 1, 2, 3, 4, 5]}
    assert told["outside"] == ({"from": -2.0, "to": 0.0},)


def test_every_parameter_of_a_chart_is_fed() -> None:
    charts = ChangingCharts()
    latency = TimeChart("Latency", "l", "us", [{"second": 1.0, "p50": 90}], [Line("p50", "")])
    charts.update([chart({0: 5}), latency], SPAN, MEASURED)
    for told in charts.since("", 0)["charts"].values():
        assert {param["name"] for param in told["spec"]["params"]} == set(told["signals"])
