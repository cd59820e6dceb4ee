"""The result of a search for the highest rate: as a table, as an image and as CSV."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest

from bench_spark.report.charts import drawn
from bench_spark.report.formats import FORMATS
from bench_spark.report.searches import RateSearchReport
from bench_spark.results.checks import LimitedBy
from bench_spark.suites.rate import Bounds, Kept, find_sustained, rate_document

CAPACITY = 40_000.0
P99 = "delivery_latency.p99 < 20ms"


def result(run_id: str, rate: float, measure: str = "delivery_latency") -> dict[str, Any]:
    is_kept = rate < CAPACITY
    p50_us = 500 / (1 - rate / CAPACITY) if is_kept else 2_500_000
    statistics = {"p50_us": p50_us, "p99_us": 4 * p50_us}
    moved = min(rate, CAPACITY)
    return {
        "run_id": run_id,
        "status": "valid" if is_kept else "degraded",
        "rates": {"send_rate": moved, "receive_rate": moved},
        "measures": {measure: statistics | {"lower_bounds": [] if is_kept else ["p99_us"]}},
    }


def document(
    objective: bool = False,
    most_trials: int = 15,
    capacity: float = CAPACITY,
    limited_by: LimitedBy = "broker",
    limit: str = "",
) -> Any:
    numbers = itertools.count(2)

    def run(rate: float) -> Kept:
        found = result(f"search-{next(numbers):02}", rate)
        p99_us = found["measures"]["delivery_latency"]["p99_us"]
        verdict = Kept(rate < capacity, None if rate < capacity else "broker")
        if not verdict.kept:
            verdict = Kept(False, limited_by, "backlog grew by 4.2 %", None, limit)
        elif objective and p99_us >= 20_000:
            verdict = Kept(False, "broker", f"{P99}: {p99_us / 1000:.1f} ms", P99)
        return replace(verdict, document=found)

    found = find_sustained(CAPACITY, run, Bounds(is_open=True, most_trials=most_trials))
    unthrottled = result("search-01", CAPACITY, "latency")
    scenario, broker = {"name": "steady"}, {"name": "<rabbit & co>"}
    return rate_document(found, unthrottled, scenario, broker, 181.0)


def written(found: dict[str, Any], format_name: str = "terminal") -> str:
    return FORMATS[format_name].encode(RateSearchReport(found)).decode()


def test_the_answer_comes_first() -> None:
    found = document()
    head, highest, limit, latency, start, search, end, run, *_ = written(found).splitlines()
    assert head == "steady on <rabbit & co>"
    kept, above = found["rate_per_second"], found["above_per_second"]
    assert highest == f"  highest   {kept:,.0f} msg/s kept, {above:,.0f} not"
    assert limit == "  limit     the broker: backlog grew by 4.2 %"
    assert latency.startswith("  latency   p50 ")
    assert latency.endswith(" (delivery latency)")
    assert start == "  start     40,000 msg/s received, unthrottled"
    assert search == f"  search    {len(found['trials'])} trials in 3 min 1 s"
    assert end == f"  ended as  {found['end_text']}"
    assert run == f"  run       bench-spark show {found['run_id']}"


def test_an_objective_that_was_missed_is_the_limit() -> None:
    found = document(objective=True)
    assert found["objective"] == P99
    assert found["rate_per_second"] <= 0.9 * CAPACITY <= found["above_per_second"]
    assert f"  limit     the broker: {P99}: " in written(found)


def test_the_table_has_a_line_for_each_trial_in_order_of_rates() -> None:
    found = document()
    lines = written(found).splitlines()
    begin = next(place for place, line in enumerate(lines) if line.endswith("p99  kept")) + 1
    rows = lines[begin : lines.index("", begin)]
    paced = found["trials"][1:]
    rates = sorted(f"{trial['rate_per_second']:,.0f}" for trial in paced)
    assert [row.split()[0] for row in rows] == rates
    assert sum(row.endswith(" yes") for row in rows) == sum(trial["kept"] for trial in paced)
    assert all(row.endswith((" yes", " no: backlog grew by 4.2 %")) for row in rows)
    assert any(">=10.0s" in row for row in rows), "lower bounds are written as such"


@pytest.mark.parametrize("objective", [False, True])
def test_everything_fits_into_80_columns(objective: bool) -> None:
    lines = written(document(objective)).splitlines()
    assert max(map(len, lines)) <= 80


def test_nothing_higher_and_nothing_lower_are_told() -> None:
    never = written(document(capacity=0.0))
    assert "  highest   none: 1 msg/s was not kept\n" in never
    assert "  latency" not in never
    always = written(document(most_trials=2, capacity=math.inf))
    assert "  highest   >= 47,990 msg/s kept, and nothing higher was tried\n" in always
    assert "  limit     none was met\n" in always
    assert "  settled   NO: all trials allowed were used\n" in always
    assert "  range     47,990 msg/s or more\n" in always


def test_a_search_that_is_not_settled_shows_its_range_and_both_trials() -> None:
    found = document(most_trials=3)
    assert (found["status"], found["is_settled"], found["end"]) == ("degraded", False, "trials")
    kept, refused = (found["trials"][number - 1] for number in found["edge_trials"])
    assert (kept["kept"], refused["kept"]) == (True, False)
    assert found["range_low_per_second"] == kept["rate_per_second"]
    assert found["range_high_per_second"] == refused["rate_per_second"]
    text = written(found)
    lines = text.splitlines()
    assert lines[1] == "  settled   NO: all trials allowed were used"
    low, high = found["range_low_per_second"], found["range_high_per_second"]
    assert lines[3] == f"  range     {low:,.0f} to {high:,.0f} msg/s"
    folded = " ".join(text.split())
    for trial, word in ((kept, "kept"), (refused, "not kept")):
        moved = f"{trial['rate_per_second']:,.0f} msg/s, {trial['received_per_second']:,.0f}"
        assert f" {word} {moved} received, p50 " in folded
        assert f"bench-spark show {trial['run_id']}" in folded


def test_the_limit_is_told_in_the_words_of_the_trials_audit() -> None:
    found = document(limit="an agent used a whole core", limited_by="generator")
    assert (found["limited_by"], found["limit"]) == ("generator", "an agent used a whole core")
    text = " ".join(written(found).split())
    assert "limit the generator: backlog grew by 4.2 %; an agent used a whole core" in text
    assert "highest >= " in text


def test_trials_that_are_not_valid_are_named() -> None:
    text = written(document())
    assert "  degraded: unthrottled; bench-spark show search-01\n" in text
    assert "  degraded: 47,990 msg/s, not kept; bench-spark show search-03\n" in text


def test_what_was_tried_twice_is_one_point_with_its_spread() -> None:
    found = document()
    rates = [point["rate_per_second"] for point in found["curve"]]
    assert rates == sorted({trial["rate_per_second"] for trial in found["trials"][1:]})
    assert sum(point["trials"] for point in found["curve"]) == len(found["trials"]) - 1
    for point in found["curve"]:
        assert point["p99_low_us"] <= point["p99_us"] <= point["p99_high_us"]
        assert point["kept"] is (point["trials_kept"] == point["trials"])


def test_the_image_is_wellformed_and_names_the_rate_that_was_found() -> None:
    found = document()
    root = ElementTree.fromstring(drawn(RateSearchReport(found).chart, ".svg"))
    texts = ["".join(element.itertext()) for element in root.iter() if element.tag.endswith("text")]
    assert f"highest kept: {found['rate_per_second']:,.0f}" in texts
    assert {"p50", "p99"} <= set(texts)
    assert any("<rabbit & co>: delivery latency by rate" in text for text in texts)


def test_csv_has_a_row_for_each_trial_the_unthrottled_one_first() -> None:
    found = document()
    rows = list(csv.DictReader(io.StringIO(written(found, "csv"))))
    assert tuple(rows[0]) == RateSearchReport.columns
    assert (rows[0]["rate_per_second"], rows[0]["kept"]) == ("", "")
    assert len(rows) == len(found["trials"])


def test_json_holds_the_document_as_it_is() -> None:
    assert json.loads(written(document(), "json")) == document()
