"""The join of `messages` by Spark: every trouble a bridge can make, counted exactly."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from bench_spark.agent.timeline import Timeline
from bench_spark.core.clock import NANOSECONDS
from bench_spark.core.hdr import SparseHistogram
from bench_spark.spark import joins
from bench_spark.spark.joins import join_messages
from bench_spark.spark.sql import run_query
from bench_spark.store.arrow import MESSAGES
from bench_spark.store.delta import Store, TableFile
from bench_spark.trace.joining import JoinRule

RUN = "bridged"
TIMELINE = Timeline(NANOSECONDS, NANOSECONDS, 10 * NANOSECONDS, NANOSECONDS)
MESSAGES_PER_PRODUCER = 300


def bridged(seed: int) -> tuple[list[dict[str, Any]], Counter[str], dict[int, int]]:
    """Rows of a load through something that drops, repeats, swaps and spoils messages; what it did
    to those of the measured phase, and which of each producer came late."""
    chance = random.Random(seed)
    rows: list[dict[str, Any]] = []
    done: Counter[str] = Counter()
    on_their_way: list[tuple[int, int, int, bool]] = []

    def add(**values: Any) -> None:
        rows.append({"run_id": RUN, "agent": 0, "attempt": 0, "number": len(rows)} | values)

    for sequence in range(MESSAGES_PER_PRODUCER):
        for producer in (0, 1):
            at_ns = NANOSECONDS + sequence * 10_000_000 + producer
            is_measured = at_ns >= TIMELINE.measure_start_ns
            named = {
                "producer": producer,
                "sequence": sequence,
                "phase": "measure" if is_measured else "warmup",
                "intended_ns": at_ns - 1_000,
                "sent_ns": at_ns,
            }
            add(kind="sent", at_ns=at_ns, content_hash=sequence, insert_ns=5, **named)
            add(kind="confirmed", at_ns=at_ns + 300_000, **named)
            done["sent"] += is_measured
            arrivals = chance.choices((0, 1, 2), (1, 8, 1))[0]
            for _ in range(arrivals):
                is_spoilt = chance.random() < 0.05
                done["corrupted"] += is_spoilt and is_measured
                arrive_ns = at_ns + chance.randrange(1_000_000, 40_000_000)
                on_their_way.append((arrive_ns, producer, sequence, is_spoilt))
            done["received"] += arrivals * is_measured
            done["received_once"] += bool(arrivals) and is_measured
    highest: dict[int, int] = defaultdict(lambda: -1)
    seen: set[tuple[int, int]] = set()
    late: Counter[int] = Counter()
    for at_ns, producer, sequence, is_spoilt in sorted(on_their_way):
        is_measured = NANOSECONDS + sequence * 10_000_000 + producer >= TIMELINE.measure_start_ns
        is_late = sequence < highest[producer] and (producer, sequence) not in seen
        late[producer] += is_late and is_measured
        highest[producer] = max(highest[producer], sequence)
        seen.add((producer, sequence))
        add(
            kind="received",
            at_ns=at_ns,
            producer=producer,
            sequence=sequence,
            subscription=0,
            phase="measure" if is_measured else "warmup",
            content_hash=-1 if is_spoilt else sequence,
        )
    add(kind="received", at_ns=3 * NANOSECONDS, subscription=0, phase="measure")
    return rows, done, {producer: count for producer, count in late.items() if count}


def plain(histogram: SparseHistogram) -> dict[str, Any]:
    return {name: np.asarray(value).tolist() for name, value in asdict(histogram).items()}


@pytest.fixture
def filled(store: Store) -> Store:
    rows, _, _ = bridged(seed=5)
    random.Random(1).shuffle(rows)
    files = []
    for number in range(3):
        path = f"{RUN}/0-0-{number}.parquet"
        part = pa.Table.from_pylist(rows[number::3], schema=MESSAGES)
        store.files("messages").create_dir(RUN)
        with store.files("messages").open_output_stream(path) as stream:
            pq.write_table(part, stream)
            size_bytes = stream.tell()
        files.append(TableFile(path, size_bytes, len(part), {"run_id": RUN}))
    store.add_files("messages", files, RUN, 0)
    return store


def test_every_message_is_accounted_for_whatever_happened_to_it(
    spark: SparkSession, filled: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joins, "PARTITION_ROWS", 500)
    _, done, late = bridged(seed=5)
    rule = JoinRule(TIMELINE, 10_000_000, has_schedule=True)
    found = join_messages(spark, filled, RUN, rule)
    with monkeypatch.context() as by_spark:
        by_spark.setattr(joins, "MOST_SHARES", 0)
        again = join_messages(spark, filled, RUN, rule)
    assert (again.by_producer, again.out_of_order) == (found.by_producer, late)
    assert {measure: plain(again.histogram(measure)) for measure in again.ticks} == {
        measure: plain(found.histogram(measure)) for measure in found.ticks
    }
    for name in ("sent", "received", "received_once", "corrupted"):
        assert found.total(name) == done[name] > 0, name
    assert found.total("confirmed") == done["sent"]
    assert found.total("unexpected") == 1
    assert found.total("untimed") == found.histogram("latency").count == done["received_once"]
    assert found.out_of_order == late
    assert found.duplicates > 0 < found.missing(copies=1)
    confirmed = found.histogram("confirm_latency")
    assert (confirmed.count, confirmed.min_us, confirmed.max_us) == (done["sent"], 300, 300)
    assert join_messages(spark, filled, "another", rule).by_producer == {}

    times = run_query(
        spark,
        filled,
        "SELECT count(*) AS rows, count(received) AS received, sum(arrivals) AS arrivals, "
        "min(confirm_latency_us) AS confirm_us, min(latency_us) >= 1000 AS is_later "
        "FROM message_times WHERE phase = 'measure'",
    ).to_pylist()
    assert times == [
        {
            "rows": done["sent"],
            "received": done["received_once"],
            "arrivals": done["received"],
            "confirm_us": 300.0,
            "is_later": True,
        }
    ]
