"""The one writer of events: every row once, as it was sent."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from patience import eventually

from bench_spark.agent.protocol import EventRow
from bench_spark.agent.sampler import SAMPLE_DTYPE
from bench_spark.core.hdr import SparseHistogram
from bench_spark.driver import committer as committer_module
from bench_spark.driver.accounts import AgentSamples
from bench_spark.driver.committer import (
    Committer,
    commit_samples,
    events_table,
    timestamp,
)
from bench_spark.errors import StoreError
from bench_spark.store.arrow import EVENTS
from bench_spark.store.delta import Store
from bench_spark.store.schema import COUNTERS

LATENCY = SparseHistogram(
    10, 5000, 5120, 1, 2, np.array([10, 2000, 4001], np.int32), np.array([3, 1, 2**40], np.int64)
)
ONLY_OVERFLOW = SparseHistogram(9, 9, 9, 0, 1, np.zeros(0, np.int32), np.zeros(0, np.int64))


def row(number: int, **changes: Any) -> EventRow:
    return EventRow(
        **{
            "row_number": number,
            "role": "consumer",
            "phase": "measure",
            "tick": 3,
            "tick_start_ns": 1_700_000_000_123_456_789,
            "tick_seconds": 1.0,
            "counters": {"received": 7, "bytes": 7000},
        }
        | changes
    )


ROWS = [
    row(0, histograms={"latency": LATENCY, "delivery_latency": ONLY_OVERFLOW}),
    row(1, role="producer", counters={}, destination="red", cpu_seconds=0.25, host_busy_share=0.5),
    row(2, histograms={"latency": LATENCY}, clock_offset_ns=-5, clock_bound_ns=900),
]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store").open()


def as_plain(histogram: SparseHistogram, measure: str) -> dict[str, Any]:
    return {
        "measure": measure,
        "min_us": histogram.min_us,
        "max_us": histogram.max_us,
        "sum_us": histogram.sum_us,
        "negative": histogram.negative,
        "overflow": histogram.overflow,
        "values_us": histogram.values_us.tolist(),
        "counts": histogram.counts.tolist(),
    }


def expected(run_id: str, agent: int, attempt: int, one: EventRow) -> dict[str, Any]:
    start_us = one.tick_start_ns // 1000
    return {
        "run_id": run_id,
        "agent": agent,
        "attempt": attempt,
        "row_number": one.row_number,
        "role": one.role,
        "phase": one.phase,
        "tick": one.tick,
        "tick_start": datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=start_us),
        "tick_seconds": one.tick_seconds,
        "destination": one.destination,
        **{name: one.counters.get(name, 0) for name in COUNTERS},
        "histograms": [as_plain(found, measure) for measure, found in one.histograms.items()],
        "cpu_seconds": one.cpu_seconds,
        "host_busy_share": one.host_busy_share,
        "clock_offset_ns": one.clock_offset_ns,
        "clock_bound_ns": one.clock_bound_ns,
    }


def numbers(store: Store) -> list[tuple[int, int, int]]:
    found = store.read("events", run_id="run-1")
    columns = (found[name].to_pylist() for name in ("agent", "attempt", "row_number"))
    return sorted(zip(*columns, strict=True))


def test_rows_become_rows_of_the_table() -> None:
    table = events_table("run-1", [(agent, 2, one) for agent, one in enumerate(ROWS)])
    assert table.schema == EVENTS
    assert table.to_pylist() == [expected("run-1", agent, 2, one) for agent, one in enumerate(ROWS)]


def test_no_rows_are_an_empty_table() -> None:
    table = events_table("run-1", [])
    assert (table.schema, table.num_rows) == (EVENTS, 0)


@given(st.integers(0, 4_000_000_000 * 10**9))
def test_a_timestamp_is_exact_to_the_microsecond(ns: int) -> None:
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    assert timestamp(ns) == epoch + timedelta(microseconds=ns // 1000)


def test_rows_survive_the_store(store: Store) -> None:
    committer = Committer(store, "run-1", live=False)
    committer.add(0, 0, ROWS)
    committer.close()
    found = store.read("events", run_id="run-1").sort_by("row_number")
    assert found.to_pylist() == [expected("run-1", 0, 0, one) for one in ROWS]


@pytest.mark.fault(case=14)
def test_a_row_that_comes_twice_is_kept_once(store: Store) -> None:
    committer = Committer(store, "run-1", live=False)
    committer.add(0, 0, [row(0), row(1)])
    committer.add(0, 0, [row(1), row(2)])
    committer.add(1, 0, [row(1)])
    committer.add(0, 1, [row(1)])
    committer.close()
    assert numbers(store) == [(0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 1, 1), (1, 0, 1)]


def test_rows_are_committed_while_the_run_goes_on(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer_module, "COMMIT_SECONDS", 0.02)
    committer = Committer(store, "run-1")
    committer.add(0, 0, [row(0)])
    assert eventually(lambda: len(numbers(store)) == 1)
    committer.add(0, 0, [row(0), row(1)])
    assert eventually(lambda: len(numbers(store)) == 2)
    committer.add(0, 0, [row(2)])
    committer.close()
    assert numbers(store) == [(0, 0, 0), (0, 0, 1), (0, 0, 2)]


class FullStore(Store):
    """One whose disk is full for a while."""

    is_full = True

    def append(
        self, name: str, rows: pa.Table, app_id: str | None = None, version: int | None = None
    ) -> bool:
        if self.is_full:
            raise StoreError("no space left")
        return super().append(name, rows, app_id, version)


def test_a_commit_that_fails_is_not_silent(tmp_path: Path) -> None:
    committer = Committer(FullStore(tmp_path / "store").open(), "run-1", live=False)
    committer.add(0, 0, [row(0)])
    committer.close()
    assert "no space left" in str(committer.error)
    assert committer.unwritten == [(0, 0, row(0))]
    assert committer.failing_seconds > 0


@pytest.mark.fault(case=14)
def test_rows_of_a_commit_that_failed_are_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer_module, "COMMIT_SECONDS", 0.02)
    store = FullStore(tmp_path / "store")
    store.open()
    committer = Committer(store, "run-1")
    committer.add(0, 0, [row(0)])
    assert eventually(lambda: committer.error)
    store.is_full = False
    committer.add(0, 0, [row(1)])
    committer.close()
    assert (committer.error, committer.unwritten, committer.failing_seconds) == (None, [], 0.0)
    assert numbers(store) == [(0, 0, 0), (0, 0, 1)]


# -- samples -------------------------------------------------------------------------------------


def test_samples_are_kept_once_however_often_they_are_committed(store: Store) -> None:
    began_ns = 1_700_000_000_123_456_789
    samples = np.array(
        [(3, 0, 500, began_ns, began_ns + 10_000_000), (3, 1, 7, began_ns, began_ns + 20_000_000)],
        dtype=SAMPLE_DTYPE,
    )
    found = [AgentSamples(0, 0, np.zeros(0, SAMPLE_DTYPE)), AgentSamples(1, 2, samples)]
    for _ in range(2):
        commit_samples(store, "run-1", found)
    assert store.read("samples").sort_by("number").to_pylist() == [
        {
            "run_id": "run-1",
            "agent": 1,
            "attempt": 2,
            "pair": 3,
            "number": number,
            "messages": messages,
            "seconds": seconds,
            "started_at": timestamp(began_ns),
        }
        for number, messages, seconds in ((0, 500, 0.01), (1, 7, 0.02))
    ]


@pytest.mark.parametrize("found", [None, [], [AgentSamples(0, 0, np.zeros(0, SAMPLE_DTYPE))]])
def test_without_samples_nothing_is_committed(
    store: Store, found: list[AgentSamples] | None
) -> None:
    before = store.version("samples")
    commit_samples(store, "run-1", found)
    assert store.version("samples") == before
