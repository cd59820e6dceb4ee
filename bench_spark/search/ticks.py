"""A run second by second: what was sent and received in each tick of its measured phase."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from bench_spark.agent.timeline import CONSUMER, MEASURE, PRODUCER
from bench_spark.summary.totals import Tick


@dataclass(frozen=True)
class Second:
    """What happened in one tick, all agents together."""

    seconds: float
    sent: int
    received: int


def measured_ticks(ticks: Iterable[Tick]) -> list[Second]:
    """The ticks of the measured phase in order of time, whatever phase their messages belong to.

    They are told by what was sent: messages of the measured phase are received, and confirmed, in
    the drain as well.
    """
    lengths: dict[float, float] = {}
    sent: Counter[float] = Counter()
    received: Counter[float] = Counter()
    for tick in ticks:
        start = tick.start_seconds
        if tick.role == CONSUMER:
            received[start] += tick.counter("received")
        elif tick.role == PRODUCER:
            sent[start] += tick.counter("sent")
            if tick.phase == MEASURE and tick.counter("sent"):
                lengths[start] = tick.tick_seconds
    return [
        Second(seconds, sent[start], received[start]) for start, seconds in sorted(lengths.items())
    ]
