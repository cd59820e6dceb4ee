"""JSON and CSV: what programs read."""

from __future__ import annotations

import csv
import io
import json
import math
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import html_pages
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import result_documents as documents

from bench_spark.errors import ConfigurationError
from bench_spark.report import run as run_module
from bench_spark.report.formats import FORMATS, Rows


def csv_rows(document: dict[str, Any]) -> list[dict[str, str]]:
    writer = io.StringIO()
    html_pages.run_report(document).write_csv(writer)
    return list(csv.DictReader(io.StringIO(writer.getvalue())))


def test_json_is_the_document_and_nothing_else() -> None:
    writer = io.StringIO()
    html_pages.run_report().write_json(writer)
    assert json.loads(writer.getvalue()) == documents.VALID


def test_json_refuses_what_json_cannot_hold() -> None:
    changed = documents.changed(delivery_rate=math.nan)
    with pytest.raises(ValueError, match="not JSON compliant"):
        html_pages.run_report(changed).write_json(io.StringIO())


def test_csv_has_a_row_per_aggregation_and_measure() -> None:
    rows = csv_rows(documents.VALID)
    assert [(row["aggregation"], row["measure"]) for row in rows[:5]] == [
        ("run", "latency"),
        ("run", "delivery_latency"),
        ("run", "send_lag"),
        ("run", "insert_duration"),
        ("interval_max", "latency"),
    ]
    assert len(rows) == 3 * 4


def test_csv_rows_hold_the_numbers_of_their_own_aggregation() -> None:
    p50 = {row["aggregation"]: row["p50_us"] for row in csv_rows(documents.VALID)[::4]}
    assert p50 == {"run": "450", "interval_max": "700", "interval_mean": "460"}


def test_csv_repeats_the_counts_of_the_run_and_leaves_unknown_ones_empty() -> None:
    for row in csv_rows(documents.VALID):
        assert (row["run_id"], row["sent"]) == ("steady-qpid-20260102-030405-0a1b", "100000")
        assert row["confirmed"] == ""


def test_csv_of_a_run_that_measured_nothing_keeps_its_status() -> None:
    assert [row["status"] for row in csv_rows(documents.never_started())] == ["failed"]


def test_every_csv_column_is_documented() -> None:
    described = (run_module.__doc__ or "").split()
    assert [name for name in run_module.COLUMNS if name not in described] == []


def test_every_count_of_a_document_is_in_the_csv() -> None:
    assert set(documents.COUNTS) <= set(run_module.COLUMNS)


ANSWER = Rows.of_table(
    "Answer",
    pa.table(
        {
            "name": ["a", None],
            "rate": pa.array([1234.5, math.nan]),
            "count": [7, 12],
            "at": pa.array([datetime(2026, 1, 2, tzinfo=UTC), None]),
            "tags": pa.array([[("k", "v")], []], pa.map_(pa.string(), pa.string())),
            "exact": pa.array([Decimal("1.10"), None]),
        }
    ),
)


def written(answer: Rows, format_name: str) -> str:
    return FORMATS[format_name].encode(answer).decode()


def test_rows_as_json_are_a_list_of_objects_with_plain_values() -> None:
    assert json.loads(written(ANSWER, "json")) == [
        {
            "name": "a",
            "rate": 1234.5,
            "count": 7,
            "at": "2026-01-02T00:00:00+00:00",
            "tags": {"k": "v"},
            "exact": "1.10",
        },
        {"name": None, "rate": "nan", "count": 12, "at": None, "tags": {}, "exact": None},
    ]


def test_rows_as_csv_can_be_read_back() -> None:
    header, first, second = csv.reader(io.StringIO(written(ANSWER, "csv")))
    assert header == ["name", "rate", "count", "at", "tags", "exact"]
    assert first == ["a", "1234.5", "7", "2026-01-02T00:00:00+00:00", '{"k": "v"}', "1.10"]
    assert second[0] == ""


def test_rows_as_a_table_put_numbers_to_the_right() -> None:
    lines = written(Rows("Answer", ["name", "count"], [["a", 7], ["bb", 12_345]]), "terminal")
    assert lines == "name  count\n----  -----\na         7\nbb    12345\n"


def test_no_rows_are_still_a_table_with_its_columns() -> None:
    assert written(Rows("Answer", ["name"], []), "terminal") == "name\n----\n"
    assert json.loads(written(Rows("Answer", ["name"], []), "json")) == []


def test_two_columns_of_one_name_are_refused_where_one_would_be_lost() -> None:
    twice = Rows.of_table("Answer", pa.table([[1], [2]], names=["n", "n"]))
    assert "n" in written(twice, "csv")
    with pytest.raises(ConfigurationError, match="two columns are called n"):
        written(twice, "json")


def test_rows_as_parquet_keep_their_types() -> None:
    stored = pq.read_table(io.BytesIO(FORMATS["parquet"].encode(ANSWER)))
    assert [str(field.type) for field in stored.schema][:4] == [
        *("string", "double", "int64", "timestamp[us, tz=UTC]"),
    ]
    assert stored["exact"].to_pylist() == [Decimal("1.10"), None]
    assert not len(pq.read_table(io.BytesIO(FORMATS["parquet"].encode(Rows("", ["n"], [])))))


def test_rows_as_pages_have_them_all() -> None:
    for page in (written(ANSWER, "markdown"), written(ANSWER, "html")):
        assert all(text in page for text in ("exact", "1.10", "1234.5"))


TRACE = {
    **{"sent": 10, "confirmed": 10, "received": 9, "received_once": 9},
    **{"missing": 1, "duplicates": 0, "out_of_order": 0, "corrupted": None, "unexpected": 0},
    "measures": {"latency": documents.statistics(100)},
    "producers": [
        {
            **{"producer": 3, "missing": 1, "duplicates": 0},
            **{"out_of_order": 0, "corrupted": None, "unexpected": 0},
        }
    ],
}


def test_a_look_at_every_message_comes_in_all_formats() -> None:
    report = run_module.TraceReport("traced-1", TRACE)
    texts = {name: found.encode(report) for name, found in FORMATS.items()}
    assert json.loads(texts["json"]) == {"run_id": "traced-1", "trace": TRACE}
    [row] = csv.DictReader(io.StringIO(texts["csv"].decode()))
    assert (row["producer"], row["missing"], row["corrupted"]) == ("3", "1", "")
    for name in ("terminal", "markdown", "html"):
        assert all(word in texts[name] for word in (b"received once", b"100 us", b"missing"))
