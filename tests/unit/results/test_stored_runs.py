"""The list of a store's runs."""

from __future__ import annotations

import io
import re
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from bench_spark.config.models import Scenario
from bench_spark.plan import make_plan
from bench_spark.report.formats import RunList
from bench_spark.results.document import run_row
from bench_spark.results.stored import listed_runs
from bench_spark.store.arrow import SUMMARY
from bench_spark.store.delta import Store


@pytest.mark.parametrize(
    ("measures", "listed", "shown"),
    [
        ({"latency": 100.0, "delivery_latency": 2000.0}, "delivery_latency", "2.00 ms"),
        ({"latency": 100.0, "send_lag": 2000.0}, "latency", "100 us"),
        ({"confirm_latency": 100.0}, "confirm_latency", "100 us"),
        ({"send_lag": 100.0}, None, "-"),
    ],
)
def test_the_list_shows_the_p99_of_the_headline_measure_and_names_it(
    store: Store, measures: dict[str, float], listed: str | None, shown: str
) -> None:
    plan = make_plan(Scenario(name="steady"), "first")
    store.replace_run(run_row(plan, {"name": "here"}, datetime.now(UTC)))
    rows = [
        {"run_id": "first", "aggregation": aggregation, "measure": measure, "p99_us": p99 * factor}
        for measure, p99 in measures.items()
        for aggregation, factor in (("run", 1), ("interval_max", 3))
    ]
    store.append("summary", pa.Table.from_pylist(rows, schema=SUMMARY))
    [run] = listed_runs(store)
    assert (run["p99_measure"], run["p99_us"]) == (listed, measures.get(listed or ""))
    writer = io.StringIO()
    RunList([run]).write_terminal(writer)
    assert re.search(f" {shown} +{listed or '-'}", writer.getvalue())
