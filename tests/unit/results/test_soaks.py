"""Hours of intervals in seconds: what a soak costs does not grow with its length."""

from __future__ import annotations

import tracemalloc
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from bench_spark.agent.protocol import EventRow
from bench_spark.core.hdr import Histogram, SparseHistogram, shape_for
from bench_spark.driver.committer import events_table
from bench_spark.results.totals import TickTotals, statistics
from bench_spark.spark.run import compact_overdue
from bench_spark.store import delta as store_module
from bench_spark.store.checksums import KEPT
from bench_spark.store.delta import Store
from bench_spark.store.schema import PROPERTIES

HIGHEST_US = 10_000_000


def histogram(seed: int) -> SparseHistogram:
    found = Histogram(shape_for(HIGHEST_US))
    values_us = np.random.default_rng(seed).lognormal(7, 1, 200).astype(np.int64)
    found.record_ns(values_us * 1000)
    return found.sparse()


def interval(number: int, latency: SparseHistogram) -> pa.Table:
    rows = [
        EventRow(
            row_number=2 * number + place,
            role=role,
            phase="measure",
            tick=number,
            tick_start_ns=number * 10**9,
            tick_seconds=1.0,
            counters={"sent": 100, "received": 100},
            histograms={"latency": latency},
        )
        for place, role in enumerate(("producer", "consumer"))
    ]
    return events_table("soak", [(0, 0, row) for row in rows])


def test_a_table_that_is_appended_to_for_long_stays_small_to_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As eight hours of seconds would do it, with all limits a tenth."""
    monkeypatch.setattr(store_module, "COMPACT_AFTER_APPENDS", 30)
    monkeypatch.setattr(store_module, "REOPEN_AFTER_COMMITS", 10)
    assert "delta.logRetentionDuration" in PROPERTIES["events"]
    kept_shorter = dict.fromkeys(PROPERTIES["events"], "interval 1 milliseconds")
    properties = {**kept_shorter, "delta.checkpointInterval": "10"}
    monkeypatch.setitem(PROPERTIES, "events", properties)
    store = Store(tmp_path).open()
    latency = histogram(1)
    files_in_use, since_checkpoint, files_in_log = [], [], []
    appends = 130
    for number in range(appends):
        store.append("events", interval(number, latency), app_id="soak", version=number)
        compact_overdue(store, "soak")
        if number % 10 == 9:
            table = DeltaTable(tmp_path / "events")
            files_in_use.append(len(table.file_uris()))
            log = tmp_path / "events" / "_delta_log"
            checkpoints = sorted(int(one.name[:20]) for one in log.glob("*.checkpoint.parquet"))
            since_checkpoint.append(table.version() - (checkpoints or [0])[-1])
            files_in_log.append(len(list(log.iterdir())))
    assert max(files_in_use) <= 31 + 1
    assert max(since_checkpoint) <= 11
    # Commits since the last checkpoint or the one before, as many checksums, and a few checkpoints.
    assert max(files_in_log[1:]) <= 2 * 10 + KEPT + 20
    kept = store.read("events", columns=["row_number"])["row_number"].to_pylist()
    assert sorted(kept) == list(range(2 * appends))


@dataclass(frozen=True)
class Second:
    """A tick whose histogram is a new one whenever it is asked for."""

    start_seconds: float
    latency: SparseHistogram
    role: str = "consumer"
    phase: str = "measure"
    tick_seconds: float = 1.0
    measures: tuple[str, ...] = ("latency",)

    def counter(self, name: str) -> int:
        return 200

    def histogram(self, measure: str) -> SparseHistogram:
        return replace(self.latency, counts=self.latency.counts.copy())


def peak_bytes(seconds: int) -> int:
    latency = histogram(2)
    totals = TickTotals(
        ("received",),
        is_in_window=lambda tick: True,
        interval_of=lambda start_seconds: int(start_seconds),
        intervals=seconds,
        highest_us=HIGHEST_US,
    )
    tracemalloc.start()
    for second in range(seconds):
        totals.add(Second(second, latency))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert totals.of_measured("consumer", "received") == 200 * seconds
    assert totals.histograms()["latency"].count == 200 * seconds
    of_run = statistics(totals.histograms()["latency"], HIGHEST_US)
    worst, mean = totals.interval_statistics("latency", of_run)
    assert worst["intervals"] == seconds
    assert worst["p99_us"] == pytest.approx(mean["p99_us"])
    return peak


def test_summing_up_a_long_run_takes_no_more_memory_than_a_short_one() -> None:
    assert peak_bytes(1_200) < 2 * peak_bytes(200)
