"""Rows of Parquet files as plain columns: what is in them, when rows are due, what is refused."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from agents import run_load

from bench_spark.agent.pacing import recording_at
from bench_spark.config.broker import Broker
from bench_spark.config.models import Scenario
from bench_spark.config.sections import Columns, Dataset, Replay
from bench_spark.data.carriers import carrier_named
from bench_spark.data.checking import found_in, with_found
from bench_spark.data.records import ColumnRecords
from bench_spark.errors import ConfigurationError
from bench_spark.plan import make_plan, with_rows
from bench_spark.spark import datasets
from bench_spark.spark.datasets import write_columns
from bench_spark.transports.base import SizeLimit

BINARY = pa.binary()
HEADERS = pa.map_(pa.string(), BINARY)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "_BATCH_ROWS", 3)


def written(tmp_path: Path, *parts: dict[str, pa.Array], **dataset: Any) -> Path:
    parquet = tmp_path / "parquet"
    parquet.mkdir()
    for number, part in enumerate(parts):
        pq.write_table(pa.table(part), parquet / f"part-{number:05}.snappy.parquet")
    (parquet / "_SUCCESS").touch()
    write_columns(parquet, tmp_path, Dataset(table="requests", **dataset))
    return tmp_path


def bodies(*values: bytes | None) -> pa.Array:
    return pa.array(values, BINARY)


def intervals(*values_ns: int | None) -> dict[str, pa.Array]:
    return {
        "body": bodies(*[b"x"] * len(values_ns)),
        datasets.INTERVAL: pa.array(values_ns, pa.int64()),
    }


def test_rows_of_all_files_are_read_back_in_any_order(tmp_path: Path) -> None:
    numbers = [b"%d" % number for number in range(8)]
    first = {
        "body": bodies(*numbers[:5]),
        "key": bodies(b"a", None, b"c", b"", b"\xff"),
        "headers": pa.array(
            [[("n", b"\xff\x00")], None, [], [("n", b"1"), ("m", b"2")], []], HEADERS
        ),
    }
    second = {
        "body": bodies(*numbers[5:]),
        "key": bodies(b"f", b"g", b"h"),
        "headers": pa.array([[], [], []], HEADERS),
    }
    source = ColumnRecords(written(tmp_path, first, second))
    assert source.count == 8
    everything = source.read(np.arange(8))
    assert list(everything.bodies) == numbers
    assert list(everything.keys or ()) == [b"a", b"", b"c", b"", b"\xff", b"f", b"g", b"h"]
    assert list(everything.headers or ())[:4] == [
        {"n": b"\xff\x00"},
        {},
        {},
        {"n": b"1", "m": b"2"},
    ]
    assert list(source.read(np.array([7, 0, 0])).bodies) == [b"7", b"0", b"0"]
    assert source.sizes() == (1.0, 1, 0, 1)
    assert source.place(4) == "dataset.table: requests: row 5"
    source.close()


@pytest.mark.parametrize(
    ("gaps_ns", "speed", "due_ns", "lap_ns"),
    [
        ((None, 10, 20, 30, 0), 1, [0, 10, 30, 60, 60], 75),
        ((100, 10, 20, 30, 0), 1, [0, 10, 30, 60, 60], 160),
        ((None, 10, 20, 30, 0), 2, [0, 5, 15, 30, 30], 38),
    ],
)
def test_rows_are_due_as_far_apart_as_they_were_recorded(
    tmp_path: Path, gaps_ns: tuple[int | None, ...], speed: float, due_ns: list[int], lap_ns: int
) -> None:
    directory = written(
        tmp_path,
        intervals(*gaps_ns),
        columns=Columns(interval="gap"),
        replay=Replay(speed=speed),
    )
    recording = recording_at(str(directory), repeats=True)
    assert recording.due_ns.tolist() == due_ns
    assert recording.lap_ns == lap_ns
    assert recording.last_ns == due_ns[-1]


@pytest.mark.parametrize(
    ("part", "told"),
    [
        ({"body": bodies()}, "dataset.table: requests: has no rows"),
        ({"body": bodies(b"a", b"b", b"c", b"d", None)}, "columns.body: is null in row 5"),
        (intervals(1, 1, 1, -1), "columns.interval: is below 0 in row 4"),
        (intervals(7, 0, 0), "all are 0"),
    ],
)
def test_rows_that_will_not_do_are_refused(
    tmp_path: Path, part: dict[str, pa.Array], told: str
) -> None:
    columns = Columns(interval="gap") if len(part) > 1 else Columns()
    with pytest.raises(ConfigurationError, match=told):
        written(tmp_path, part, columns=columns)


def test_recorded_rows_are_sent_at_their_own_pace_and_again_a_lap_later(tmp_path: Path) -> None:
    """Pairs of rows at the same moment, 20 ms between pairs, for three laps and a half."""
    gaps_ns = [None, *([0, 20_000_000] * 5)[:9]]
    directory = written(tmp_path, intervals(*gaps_ns), columns=Columns(interval="gap"))
    scenario = Scenario.model_validate(
        {
            "producers": 3,
            "consumers": 3,
            "destinations": 3,
            "dataset": {"table": "requests", "columns": {"interval": "gap"}},
            "phases": {"warmup_seconds": 0.1, "measure_seconds": 0.25, "drain_seconds": 5},
        }
    )
    with closing(ColumnRecords(directory)) as source:
        carrier = carrier_named(scenario.carrier, scenario.identity)
        found = found_in(source, carrier, SizeLimit(1000, "this test"))
    asked = make_plan(scenario, "at-their-own-pace")
    plan = with_rows(asked, with_found(scenario, found), str(directory))
    expected = plan.expected_messages
    assert expected is not None
    assert plan.scenario.load.rate_per_second == pytest.approx(expected / 0.25)
    load = run_load(plan, Broker(kind="loopback"))
    assert load.control.failures == []
    assert load.total("producer", "due") == load.total("producer", "sent") == expected
    assert load.total("consumer", "received") == load.accounts().received_once == expected
    assert 25 <= expected <= 28
