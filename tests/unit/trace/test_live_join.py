"""Latencies of messages that their receiver could not time, joined as the rows come."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import fs

from bench_spark.agent.timeline import Timeline
from bench_spark.core.clock import NANOSECONDS
from bench_spark.core.hdr import Histogram, SparseHistogram, merge_sparse, shape_for
from bench_spark.store.arrow import MESSAGES
from bench_spark.trace import live
from bench_spark.trace.joining import JoinRule
from bench_spark.trace.live import LiveFiles, LiveJoin

HIGHEST_US = 10_000_000
RULE = JoinRule(Timeline(NANOSECONDS, 0, 5 * NANOSECONDS, NANOSECONDS), HIGHEST_US, True)


def sent(producer: int, sequence: int, at_ns: int) -> dict[str, Any]:
    times = {"intended_ns": at_ns - 1_000, "sent_ns": at_ns, "at_ns": at_ns}
    return {"kind": "sent", "producer": producer, "sequence": sequence} | times


def received(producer: int | None, sequence: int | None, at_ns: int, **more: Any) -> dict[str, Any]:
    named = {"producer": producer, "sequence": sequence}
    return {"kind": "received", "subscription": 0, "at_ns": at_ns} | named | more


def table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=MESSAGES)


def found(join: LiveJoin, measure: str) -> SparseHistogram:
    return merge_sparse([row.histograms[measure] for row in join.rows()])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 1), st.integers(0, 10_000), st.integers(1, 3)),
        max_size=15,
        unique_by=lambda one: one[:2],
    ),
    st.lists(st.integers(0, 40), max_size=4),
    st.randoms(use_true_random=False),
)
def test_every_message_is_timed_once_in_whatever_order_the_rows_come(
    messages: list[tuple[int, int, int]], cuts: list[int], random: Any
) -> None:
    rows, expected = [], Histogram(shape_for(HIGHEST_US))
    for number, (producer, sequence, arrivals) in enumerate(messages):
        at_ns = 2 * NANOSECONDS + number * 1_000_000
        rows.append(sent(producer, sequence, at_ns))
        rows += [received(producer, sequence, at_ns + 7_000_000)] * arrivals
        expected.record_ns(np.array([7_000_000]))
    random.shuffle(rows)
    join = LiveJoin(RULE)
    edges = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    for first, last in itertools.pairwise(edges):
        join.add(table(rows[first:last]))
    assert found(join, "latency") == expected.sparse()
    assert join.rows() == []


def test_time_since_due_phase_and_tick_come_from_the_row_of_sending() -> None:
    join = LiveJoin(RULE)
    join.add(table([sent(0, 1, 2 * NANOSECONDS), received(0, 1, 4 * NANOSECONDS)]))
    [row] = join.rows()
    assert (row.tick, row.phase, row.role) == (3, "measure", "consumer")
    assert row.histograms["delivery_latency"].max_us == 2_000_001
    assert row.counters == {}


def test_what_the_agent_has_timed_or_nobody_sent_is_left_alone() -> None:
    join = LiveJoin(RULE)
    timed = received(0, 1, 3 * NANOSECONDS, sent_ns=2 * NANOSECONDS)
    join.add(
        table([sent(0, 1, 2 * NANOSECONDS), timed, received(0, 2, 5), received(None, None, 5)])
    )
    assert join.rows() == []


def test_memory_is_bounded_however_many_messages_get_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MOST_PAGES", 2)
    monkeypatch.setattr(live, "MOST_WAITING", 3)
    join = LiveJoin(RULE)
    for first in range(0, 10 << live.PAGE_BITS, 1 << live.PAGE_BITS):
        join.add(table([sent(0, first, 2 * NANOSECONDS), received(1, first, 3 * NANOSECONDS)]))
    assert len(join._pages) == 2
    assert sum(map(len, join._waiting)) == 3


def test_files_are_read_only_once_a_message_needs_it(tmp_path: Path) -> None:
    rows = {
        "0": [sent(0, 1, 2 * NANOSECONDS)],
        "1": [received(None, None, 5), received(0, 0, 6, sent_ns=1)],
        "2": [received(0, 1, 3 * NANOSECONDS)],
    }
    for name, content in rows.items():
        pq.write_table(table(content), tmp_path / name)
    files = LiveFiles(fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()), LiveJoin(RULE))
    assert files.added(["0"]) == files.added(["1"]) == []
    [row] = files.added(["2"])
    assert row.histograms["latency"].max_us == 1_000_000
