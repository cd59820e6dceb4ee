"""Specifications of charts, and that the library draws each of them."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_spark.config.objectives import Unit
from bench_spark.report import charts as charts
from bench_spark.report.charts import (
    PAGE,
    PAPER,
    Line,
    SeriesColours,
    Spec,
    browser_library,
    drawn,
    log_ticks,
    themed,
    y_axis,
)

LINES = (Line("p50_us", "p50"), Line("p999_us", "p99.9"))
ROWS = [{"second": second, "p50_us": 90 + second, "p999_us": 5000} for second in range(-2, 9)]
HOSTILE = "it's </script> \\\" + 1 \\ \n a [test].x"

POINTS = [
    {"x": x, "y": x * 10.0, "low": x * 9.0, "high": x * 12.0, "series": series, "text": "t"}
    for x in (1, 10, 100)
    for series in ("plain", HOSTILE)
]

SPECS: dict[str, Spec] = {
    "over time": charts.over_time("T", ROWS, LINES, "us", (-2, 9), (0, 8)),
    "a hostile label": charts.over_time(
        HOSTILE, ROWS, [Line("p50_us", HOSTILE)], "per_second", (0, 8), (0, 8)
    ),
    "distribution": charts.distribution(
        "T",
        [{"decades": d, "percentile": 90.0, "p50_us": 10 * 2**d} for d in range(5)],
        LINES[:1],
    ),
    "hostile titles": charts.against(HOSTILE, POINTS, HOSTILE, [1, 10, 100], HOSTILE, "per_second"),
    "against numbers": charts.against("T", POINTS, "x", [1, 10, 100], "y", "bytes"),
    "against words": charts.against(
        "T",
        [{**POINTS[0], "x": True}, {**POINTS[2], "x": "lazy"}],
        "x",
        [True, "lazy"],
        "y",
        "share",
    ),
    "one unnamed line": charts.against("T", [{**POINTS[0], "series": "y"}], "x", [1], "y", "us"),
    "changes": charts.changes(
        "T",
        [
            {"name": "p99", "value": 1.2, "low": 1.1, "high": 1.4, "text": "", "verdict": "worse"},
            {"name": "lost", "value": 2.0, "low": None, "high": None, "text": "", "verdict": "?"},
        ],
    ),
}


@pytest.mark.parametrize("name", SPECS)
def test_every_kind_of_chart_is_drawn_into_a_file(name: str) -> None:
    root = ElementTree.fromstring(drawn(SPECS[name], ".svg"))
    marks = [
        element
        for element in root.iter()
        if re.search(r"mark-(line|symbol|rule)\b.*role-mark", element.get("class", ""))
    ]
    assert any(len(mark) for mark in marks), "no mark of the data"
    assert "NaN" not in ElementTree.tostring(root, "unicode")


def test_a_picture_is_a_png() -> None:
    assert drawn(SPECS["over time"], ".png").startswith(b"\x89PNG\r\n")


@pytest.mark.parametrize("name", SPECS)
def test_a_chart_names_its_colours_and_fetches_nothing(name: str) -> None:
    page = json.dumps(themed(SPECS[name], PAGE, SeriesColours()))
    assert re.findall(r"#[0-9a-f]{6}", page) == []
    assert "url" not in page
    assert "var(--series-1)" in page
    assert "var(" not in json.dumps(themed(SPECS[name], PAPER, SeriesColours()))


def test_lines_keep_labels_that_look_like_paths() -> None:
    """To Vega `p99.9` would be a field of a field."""
    texts = ElementTree.fromstring(drawn(SPECS["over time"], ".svg")).itertext()
    assert {"p50", "p99.9"} <= {text.strip() for text in texts}


def test_what_is_outside_the_measured_phase_is_shaded() -> None:
    shade = SPECS["over time"]["layer"][0]
    assert shade["data"]["values"] == [{"from": -2, "to": 0}, {"from": 8, "to": 9}]


def test_percentiles_are_at_the_same_distance_for_every_nine() -> None:
    axis = SPECS["distribution"]["layer"][0]["encoding"]["x"]["axis"]
    assert axis["values"] == [0.0, 0.30103, 1.0, 2.0, 3.0, 4.0]
    texts = set(ElementTree.fromstring(drawn(SPECS["distribution"], ".svg")).itertext())
    assert {"0 %", "50 %", "90 %", "99 %", "99.9 %", "99.99 %"} <= texts


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([], [1, 2, 5, 10]),
        ([0], [1, 2]),
        ([100, 100], [100, 200]),
        ([130, 900], [100, 200, 500, 1000]),
        ([0.3, 7], [1, 2, 5, 10]),
    ],
)
def test_ticks_of_a_logarithmic_axis_hold_the_values(
    values: list[float], ticks: list[float]
) -> None:
    assert log_ticks(values) == pytest.approx(ticks)


@given(st.lists(st.floats(0, 1e10), min_size=1))
def test_no_value_lies_beyond_the_ticks(values: list[float]) -> None:
    ticks = log_ticks(values)
    assert ticks == sorted(set(ticks))
    assert ticks[0] <= max(1, min(values)) * (1 + 1e-9)
    assert ticks[-1] >= max(values) * (1 - 1e-9)


@given(st.floats(0, 1e9), st.sampled_from(["us", "per_second", "share"]))
def test_a_constant_line_does_not_lie_on_the_frame(value: float, unit: Unit) -> None:
    drawn_at = charts.scaled(value, unit)
    assert drawn_at is not None
    (low, high), ticks = y_axis([drawn_at, None], unit)
    assert low < drawn_at < high
    assert len([tick for tick in ticks if low <= tick <= high]) >= 2


def test_a_series_keeps_its_colour_on_a_page() -> None:
    colours = SeriesColours()
    assert colours.of(["sent", "received"]) == [0, 1]
    assert colours.of(["p50", "p99", "max"]) == [0, 1, 2]
    assert colours.of(["p99", "max"]) == [1, 2], "though p50 is missing"
    assert colours.of(["p95", "p99"]) == [0, 1]
    assert colours.of(["new", "p50", "sent"])[1:] == [0, 0]
    many = [f"line {number}" for number in range(charts.SERIES_COLOURS - 1)]
    assert len(set(colours.of(["max", *many]))) == charts.SERIES_COLOURS


def test_the_library_is_put_together_once(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCH_SPARK_CACHE", str(tmp_path))
    first = browser_library()
    assert "vegaEmbed" in first
    assert "</script" not in first
    monkeypatch.setattr("vl_convert.javascript_bundle", None)
    assert browser_library() == first
