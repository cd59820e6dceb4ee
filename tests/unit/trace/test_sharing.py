"""Shares of a run's messages: every row is in one of them, beside all others of its message."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench_spark.agent.tracer import MessageEvent
from bench_spark.store.arrow import MESSAGES
from bench_spark.trace.files import Share
from bench_spark.trace.joining import BLOCK_MESSAGES, ROWS

RUN = "shared-out"

ids = st.none() | st.tuples(st.integers(0, 5), st.integers(0, 5 * BLOCK_MESSAGES))


@st.composite
def events(draw: st.DrawFn) -> dict[str, Any]:
    producer, sequence = draw(ids) or (None, None)
    return {
        "run_id": draw(st.sampled_from([RUN, RUN, "another"])),
        "agent": draw(st.integers(0, 3)),
        "attempt": 0,
        "number": draw(st.integers(0, 2**40)),
        "kind": draw(st.sampled_from([event.name.lower() for event in MessageEvent])),
        "phase": draw(st.sampled_from(["warmup", "measure"])),
        "producer": producer,
        "sequence": sequence,
        "at_ns": draw(st.integers(1, 2**62)),
        "content_hash": draw(st.none() | st.integers(-(2**63), 2**63 - 1)),
    }


def written(rows: list[dict[str, Any]], files: int, directory: Path) -> list[str]:
    paths = [str(directory / f"{number}.parquet") for number in range(files)]
    for number, path in enumerate(paths):
        pq.write_table(pa.Table.from_pylist(rows[number::files], schema=MESSAGES), path)
    return paths


def expected(row: dict[str, Any]) -> tuple[Any, ...]:
    made = {
        "kind": int(MessageEvent[row["kind"].upper()]),
        "is_measured": row["phase"] == "measure",
    }
    return tuple(made.get(name, row.get(name)) for name in ROWS.names)


@given(st.lists(events(), max_size=40), st.integers(1, 3), st.integers(1, 7))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_shares_together_have_every_row_of_the_run_once(
    tmp_path: Path, rows: list[dict[str, Any]], files: int, shares: int
) -> None:
    paths = written(rows, files, tmp_path)
    found: Counter[tuple[Any, ...]] = Counter()
    share_of: dict[tuple[Any, Any], int] = {}
    for number in range(shares):
        for batch in Share(RUN, number, shares).rows_of(paths):
            assert batch.schema == ROWS
            for row in batch.to_pylist():
                found[tuple(row.values())] += 1
                message = row["producer"], row["sequence"]
                assert share_of.setdefault(message, number) == number
    assert found == Counter(expected(row) for row in rows if row["run_id"] == RUN)


@pytest.mark.parametrize("producers", [1, 6])
def test_shares_are_even(tmp_path: Path, producers: int) -> None:
    blocks = 12 // producers
    rows = [
        {"run_id": RUN, "kind": "sent", "phase": "measure", "producer": producer}
        | {"sequence": block * BLOCK_MESSAGES}
        for producer in range(producers)
        for block in range(blocks)
    ]
    paths = written(rows, 1, tmp_path)
    sizes = [
        sum(batch.num_rows for batch in Share(RUN, number, 3).rows_of(paths)) for number in range(3)
    ]
    assert sizes == [4, 4, 4]
