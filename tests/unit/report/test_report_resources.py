from __future__ import annotations

from typing import Any

import pytest

from bench_spark.monitor.monitor import SourceTotals
from bench_spark.monitor.reading import COLUMNS
from bench_spark.report.descriptions import resource_lines

ROW: dict[str, Any] = dict.fromkeys(COLUMNS) | {
    "host": "h",
    "interval_seconds": 1.0,
    "values": {},
    "unreadable": [],
}
CPU = {
    "cpu_user_share_of_machine": 0.25,
    "cpu_system_share_of_machine": 0.0625,
    "cpu_user_share_of_core": 1.0,
    "cpu_system_share_of_core": 0.25,
}


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        (
            CPU
            | {"rss_bytes": 210_000_000, "written_bytes": 52_000_000, "device_written_bytes": 0},
            "CPU 25.0 % user + 6.2 % system of the machine (1.25 cores), RSS 210 MB, "
            "written 52.0 MB, to disk 0 B",
        ),
        ({"rss_bytes": 1_500_000}, "RSS 1.50 MB"),
        ({"values": {"ready": 12.5, "bytes": 187676485.8}}, "ready 12.5, bytes 187,676,486"),
        (
            {"values": {f"v{number}": 1.0 for number in range(8)}},
            "v0 1, v1 1, v2 1, v3 1, v4 1, v5 1, 2 more values",
        ),
        ({}, "unknown (nothing was read in the measured phase)"),
    ],
)
def test_a_source_is_one_line_of_what_it_told(columns: dict[str, Any], text: str) -> None:
    totals = SourceTotals()
    totals.add(ROW | columns)
    assert list(resource_lines({"broker": {"pid": totals.as_document()}})) == [
        ("uses", f"pid: {text}")
    ]


def test_a_source_that_was_not_read_says_why() -> None:
    totals = SourceTotals()
    totals.problem = "there is no process 5"
    [(_, text)] = resource_lines({"broker": {"pid": totals.as_document()}})
    assert text == "pid: unknown (there is no process 5)"


def test_flow_is_told_where_it_is_known() -> None:
    flow = {"state": "intermittent", "share": 0.25, "polls": 8}
    assert list(resource_lines({"flow": flow})) == [("flow", "intermittent (25 % of 8 polls)")]
    assert list(resource_lines({"flow": {"state": "unknown", "share": None, "polls": 0}})) == []
    assert list(resource_lines({"spark_cores": 0.2})) == []
