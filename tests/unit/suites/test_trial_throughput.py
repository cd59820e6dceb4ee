"""From a run's result or its ticks to the throughput of a trial."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from bench_spark.core.hdr import SparseHistogram
from bench_spark.suites.window import (
    ENDS,
    MeasuredTick,
    WindowLimits,
    WindowRun,
    WindowThroughput,
    find_window,
    measured_ticks,
    rates_of_ticks,
    throughput_of,
    window_document,
)


@dataclass
class Row:
    role: str
    phase: str
    start_seconds: float
    tick_seconds: float = 1.0
    counters: dict[str, int] = field(default_factory=dict)
    measures: tuple[str, ...] = ()

    def counter(self, name: str) -> int:
        return self.counters.get(name, 0)

    def histogram(self, measure: str) -> SparseHistogram:
        raise AssertionError("nobody asks for latencies here")


def rows() -> list[Row]:
    """A warm-up of one tick, a measured phase of one and a half, and what came in the drain."""
    return [
        Row("producer", "warmup", 0.0, counters={"sent": 100}),
        Row("consumer", "warmup", 0.0, counters={"received": 90}),
        Row("producer", "measure", 1.0, counters={"sent": 200}),
        Row("consumer", "warmup", 1.0, counters={"received": 10}),
        Row("consumer", "measure", 1.0, counters={"received": 180}),
        Row("producer", "measure", 2.0, 0.5, counters={"sent": 60}),
        Row("consumer", "measure", 2.0, 0.5, counters={"received": 70}),
        Row("producer", "measure", 2.5, counters={"confirmed": 50}),
        Row("consumer", "measure", 2.5, counters={"received": 10}),
    ]


def test_measured_ticks_are_those_in_which_measured_messages_were_sent() -> None:
    assert measured_ticks(rows()) == [MeasuredTick(1.0, 200, 190), MeasuredTick(0.5, 60, 70)]


def test_measured_ticks_come_in_order_of_time() -> None:
    assert measured_ticks(reversed(rows())) == measured_ticks(rows())


def test_without_samples_each_second_is_one() -> None:
    found = throughput_of(
        7, [rates_of_ticks([MeasuredTick(1.0, 0, 100), MeasuredTick(2.0, 0, 240)])]
    )
    scatter = pytest.approx(200**0.5)
    ends = pytest.approx(110 - 200**0.5), pytest.approx(110 + 200**0.5)
    assert found == WindowThroughput(7, 110, 110, scatter, 2, *ends, pairs=())


def test_a_tick_that_was_cut_short_is_no_sample() -> None:
    ticks = [MeasuredTick(1.0, 0, 100), MeasuredTick(0.01, 0, 9)]
    assert rates_of_ticks(ticks).tolist() == [100]
    assert rates_of_ticks(ticks[1:]).tolist() == [pytest.approx(900)]


def test_a_run_that_measured_nothing_has_no_throughput() -> None:
    assert throughput_of(7, [rates_of_ticks([])]) == WindowThroughput(7, 0, 0, 0, 0, 0, 0, pairs=())


def test_a_pair_without_samples_leaves_the_sum_unknown() -> None:
    assert throughput_of(7, [np.array([5.0, 6.0]), np.zeros(0)]).median_per_second == 0


def test_the_document_has_the_fields_that_programs_rely_on() -> None:
    found = find_window(lambda f: throughput_of(f, [np.arange(1.0, 10.0)]), WindowLimits())
    runs = [WindowRun(f"r-{number}", "valid") for number in range(len(found.trials))]
    document = window_document(found, runs, {"name": "s"}, {"name": "b"}, 12.5)
    assert (document["in_flight"], document["smallest_in_flight"]) == (1, 1)
    assert document["trials"][1] == {
        "trial": 2,
        "run_id": "r-1",
        "status": "valid",
        "in_flight": 10,
        "median_per_second": 5,
        "mean_per_second": 5,
        "stddev_per_second": pytest.approx(7.5**0.5),
        "samples": 9,
        "low_per_second": 2,
        "high_per_second": 8,
    }
    assert document["end_text"] == ENDS["plateau"]
