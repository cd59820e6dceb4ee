"""From a run's result or its ticks to the throughput of a trial."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from bench_spark.measure.hdr import SparseHistogram
from bench_spark.search.throughput import throughput_of
from bench_spark.search.ticks import Second, measured_ticks
from bench_spark.search.trial_run import TrialRun
from bench_spark.search.window import Limits, Throughput, find_window
from bench_spark.search.window_document import ENDS, window_document


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
    assert measured_ticks(rows()) == [Second(1.0, 200, 190), Second(0.5, 60, 70)]


def test_measured_ticks_come_in_order_of_time() -> None:
    assert measured_ticks(reversed(rows())) == measured_ticks(rows())


def test_without_samples_each_second_is_one() -> None:
    found = throughput_of({}, 7, lambda: [Second(1.0, 0, 100), Second(2.0, 0, 240)])
    scatter = pytest.approx(200**0.5)
    ends = pytest.approx(110 - 200**0.5), pytest.approx(110 + 200**0.5)
    assert found == Throughput(7, 110, 110, scatter, 2, *ends)


def test_a_tick_that_was_cut_short_is_no_sample() -> None:
    ticks = [Second(1.0, 0, 100), Second(0.01, 0, 9)]
    assert throughput_of({}, 7, lambda: ticks).samples == 1
    assert throughput_of({}, 7, lambda: ticks[1:]).median_per_second == pytest.approx(900)


def test_a_run_that_measured_nothing_has_no_throughput() -> None:
    assert throughput_of({}, 7, list) == Throughput(7, 0, 0, 0, 0, 0, 0)


def samples(**changes: float | None) -> dict[str, Any]:
    known = {"median": 50.0, "mean": 51.0, "stddev": 2.0, "low": 49.0, "high": 52.0}
    numbers: dict[str, Any] = {**known, **changes}
    named = {f"{name}_per_second": value for name, value in numbers.items()}
    return {"throughput": {**named, "samples": 100, "pairs": []}}


def never() -> Sequence[Second]:
    raise AssertionError("samples are better than ticks")


def test_samples_at_the_consumer_come_first() -> None:
    assert throughput_of(samples(), 7, never) == Throughput(7, 50, 51, 2, 100, 49, 52)


def test_samples_that_could_not_be_taken_are_no_throughput() -> None:
    unknown = dict.fromkeys(("median", "mean", "stddev", "low", "high"))
    assert throughput_of(samples(**unknown), 7, never).median_per_second == 0


def test_samples_too_few_for_an_interval_are_as_sure_as_they_scatter() -> None:
    found = throughput_of(samples(low=None, high=None), 7, never)
    assert (found.low_per_second, found.high_per_second) == (48, 52)


def test_the_document_has_the_fields_that_programs_rely_on() -> None:
    found = find_window(lambda f: Throughput(f, 5, 5, 1, 9, 4, 6), Limits())
    runs = [TrialRun(f"r-{number}", "valid") for number in range(len(found.trials))]
    document = window_document(found, runs, {"name": "s"}, {"name": "b"}, 12.5)
    assert (document["in_flight"], document["smallest_in_flight"]) == (1, 1)
    assert document["trials"][1] == {
        "trial": 2,
        "run_id": "r-1",
        "status": "valid",
        "in_flight": 10,
        "median_per_second": 5,
        "mean_per_second": 5,
        "stddev_per_second": 1,
        "samples": 9,
        "low_per_second": 4,
        "high_per_second": 6,
    }
    assert document["end_text"] == ENDS["plateau"]
