"""Events as real agents write them, with the raw values kept for HdrHistogram to judge.

10 000 lognormal latencies fill some 3 000 buckets; a second of an agent has several such measures.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from hdrh.histogram import HdrHistogram

from bench_spark.agent.timeline import MEASURE, WARMUP, Timeline
from bench_spark.core.clock import NANOSECONDS
from bench_spark.core.hdr import Histogram, shape_for
from bench_spark.store.arrow import EVENTS, histogram_array
from bench_spark.store.schema import COUNTERS

HIGHEST_US = 10_000_000
START_NS = 1_700_000_000_123_456_000
MEASURES = {"producer": ("send_lag",), "consumer": ("latency", "delivery_latency")}


def timeline(warmup_seconds: float = 3, measure_seconds: float = 10) -> Timeline:
    return Timeline(
        start_ns=START_NS,
        warmup_ns=int(warmup_seconds * NANOSECONDS),
        measure_ns=int(measure_seconds * NANOSECONDS),
        drain_ns=5 * NANOSECONDS,
    )


@dataclass(frozen=True)
class Row:
    """One row of `events` and the values in its histograms."""

    run_id: str
    agent: int
    row_number: int
    role: str
    phase: str
    tick: int
    messages: int
    values_us: dict[str, np.ndarray]
    attempt: int = 0


@dataclass
class Load:
    """Makes the rows of a run's agents, tick by tick."""

    run_id: str
    timeline: Timeline
    seed: int = 1
    values: int = 10_000
    _row_numbers: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)

    def row(self, agent: int, role: str, tick: int, phase: str | None = None) -> Row:
        number = self._row_numbers.get(agent, 0)
        self._row_numbers[agent] = number + 1
        at_ns = self.timeline.tick_start_ns(tick)
        usual = MEASURE if at_ns >= self.timeline.measure_start_ns else WARMUP
        count = int(self._random.integers(self.values // 2, self.values + 1))
        values_us = {
            measure: self._random.lognormal(7 + 0.05 * tick, 1.2, count).astype(np.int64)
            for measure in MEASURES[role]
        }
        return Row(self.run_id, agent, number, role, phase or usual, tick, count, values_us)

    def tick(self, agents: Iterable[int], tick: int) -> list[Row]:
        return [self.row(agent, role, tick) for agent in agents for role in MEASURES]


def events_table(rows: list[Row], timeline: Timeline) -> pa.Table:
    plain = [
        {
            "run_id": row.run_id,
            "agent": row.agent,
            "attempt": row.attempt,
            "row_number": row.row_number,
            "role": row.role,
            "phase": row.phase,
            "tick": row.tick,
            "tick_start": timeline.tick_start_ns(row.tick) // 1000,
            "tick_seconds": timeline.tick_seconds(row.tick),
            "cpu_seconds": 0.25,
        }
        | dict.fromkeys(COUNTERS, 0)
        | {"sent" if row.role == "producer" else "received": row.messages}
        for row in rows
    ]
    table = pa.Table.from_pylist(plain, schema=EVENTS)
    column = EVENTS.get_field_index("histograms")
    histograms = [
        {measure: recorded(values).sparse() for measure, values in row.values_us.items()}
        for row in rows
    ]
    return table.set_column(column, EVENTS.field("histograms"), histogram_array(histograms))


def recorded(values_us: np.ndarray) -> Histogram:
    histogram = Histogram(shape_for(HIGHEST_US))
    histogram.record_ns(values_us * 1000)
    return histogram


def judge(rows: Iterable[Row], measure: str) -> HdrHistogram:
    """HdrHistogram's own idea of all values of a measure in these rows."""
    judged = HdrHistogram(1, HIGHEST_US, 3)
    for row in rows:
        values_us, counts = np.unique(row.values_us.get(measure, []), return_counts=True)
        for value_us, count in zip(values_us.tolist(), counts.tolist(), strict=True):
            judged.record_value(value_us, count)
    return judged
