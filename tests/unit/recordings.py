"""Known columns for a recorder, and what its rows say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bench_spark.agent.protocol import EventRow
from bench_spark.agent.recorder import Recorder, RecorderSetup
from bench_spark.agent.records import BodySizes
from bench_spark.agent.timeline import Timeline
from bench_spark.core.clock import NANOSECONDS
from bench_spark.core.envelope import Envelopes, empty_envelopes, word_rows_of
from bench_spark.core.hdr import Histogram, SparseHistogram, merge_sparse, shape_for
from bench_spark.transports.batches import OutcomeKind, Outcomes, Received

RUN_TAG = 77
START_NS = 1_700_000_000 * NANOSECONDS
SHAPE = shape_for(10_000_000)
TIMELINE = Timeline(START_NS, NANOSECONDS, 2 * NANOSECONDS, NANOSECONDS)
"""Tick 0 is warm-up, 1 and 2 are measured, 3 is the drain."""

SETUP = RecorderSetup(
    shape=SHAPE,
    run_tag=RUN_TAG,
    producers=4,
    stream_of_producer=np.array([0, 0, 1, 1]),
    streams_per_subscription=2,
    subscriptions=("red", "blue"),
    destinations_by_producer=("red", "blue", "red", "blue"),
    sizes=BodySizes(100),
    has_schedule=True,
)


def at(seconds: float) -> int:
    return START_NS + round(seconds * NANOSECONDS)


def recorder(**changes: Any) -> Recorder:
    return Recorder(replace(SETUP, **changes), TIMELINE)


def envelopes(
    intended: Sequence[float],
    sent: Sequence[float] | None = None,
    sequence: Sequence[int] | None = None,
    producer: int | Sequence[int] = 0,
    run_tag: int = RUN_TAG,
) -> Envelopes:
    """Envelopes of messages; times are seconds after the start."""
    envelope = empty_envelopes(len(intended))
    envelope["intended_ns"] = [at(moment) for moment in intended]
    envelope["sent_ns"] = [at(moment) for moment in (intended if sent is None else sent)]
    envelope["sequence"] = np.arange(len(intended)) if sequence is None else sequence
    envelope["producer"] = producer
    envelope["run_tag"] = run_tag
    return envelope


def receive(
    into: Recorder,
    envelope: Envelopes,
    received: Sequence[float] | float,
    *,
    size: int | Sequence[int] = 100,
    subscription: int | Sequence[int] = 0,
    redelivered: Sequence[bool] | bool = False,
) -> None:
    count = len(envelope)

    def column(value: Any, dtype: Any) -> Any:
        return np.broadcast_to(np.asarray(value, dtype=dtype), count).copy()

    moments = np.broadcast_to(np.asarray(received, dtype=np.float64), count).tolist()
    rows = Received.of_columns(
        received_ns=np.array([at(moment) for moment in moments], dtype=np.int64),
        lane=np.zeros(count, np.uint32),
        route=np.zeros(count, np.uint16),
        envelope=envelope,
        size=column(size, np.uint32),
        redelivered=column(redelivered, np.bool_),
    ).rows
    rows["subscription"] = column(subscription, np.int64)
    into.received(rows)


def sent(
    into: Recorder, envelope: Envelopes, lane: int | Sequence[int] = 0, insert_ns: int = 0
) -> None:
    lanes = np.broadcast_to(np.asarray(lane, dtype=np.uint32), len(envelope)).copy()
    into.sent(lanes, word_rows_of(envelope), insert_ns)


def settle(
    into: Recorder, envelope: Envelopes, kinds: Sequence[OutcomeKind], moment: float, lane: int = 0
) -> None:
    into.outcomes(
        Outcomes.of_columns(
            at_ns=np.full(len(envelope), at(moment)),
            lane=np.full(len(envelope), lane, np.uint32),
            kind=np.array(kinds, np.uint8),
            envelope=envelope,
        )
    )


def total(rows: Sequence[EventRow], counter: str, **where: Any) -> int:
    return sum(
        row.counters.get(counter, 0)
        for row in rows
        if all(getattr(row, name) == value for name, value in where.items())
    )


def merged(rows: Sequence[EventRow], measure: str) -> SparseHistogram:
    return merge_sparse([row.histograms[measure] for row in rows if measure in row.histograms])


def recorded(values_us: Sequence[float]) -> SparseHistogram:
    """What a histogram of these values looks like."""
    histogram = Histogram(SHAPE)
    histogram.record_ns(np.array([round(value * 1000) for value in values_us], dtype=np.int64))
    return histogram.sparse()


def keys(rows: Sequence[EventRow]) -> list[tuple[int, str, str]]:
    return [(row.tick, row.role, row.phase) for row in rows]
