"""The line about keeping time: how near a paced load comes to what was asked for.

Runs of the whole product on the loopback transport, where nothing but our own code and Spark can be
late.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from bench_spark.config.broker import Broker
from benchmarks import ours
from benchmarks.figures import CLIENT_CPU, LAG_P99, TURNS, Bar, Figures, Measure
from benchmarks.lines import Comparison, Effort, Line, Opened, Turn

RATES = (100, 1_000, 10_000, 50_000)
MEASURE_SECONDS = 10
JUDGED_RATE = 10_000

RATE_ERROR = Measure("rate error, %", 3)
LAG_P50 = Measure("send_lag p50, us")
LAG_P99_9 = Measure("send_lag p99.9, us")


def _paced(rate: int, live: bool, effort: Effort, directory: Path) -> Figures:
    settings: ours.Settings = {"load.rate_per_second": rate}
    document = ours.run(settings, Broker(kind="loopback"), effort, directory, live=live)
    figures, lag = ours.figures_of(document), document["measures"]["send_lag"]
    return {
        RATE_ERROR: abs(document["rates"]["send_rate"] / rate - 1) * 100,
        LAG_P50: lag["p50_us"],
        LAG_P99: lag["p99_us"],
        LAG_P99_9: lag["p999_us"],
        **{measure: figures[measure] for measure in (CLIENT_CPU, TURNS)},
    }


def _named(rate: int, live: bool) -> str:
    return f"{rate:,} per second{'' if live else ', --no-live'}"


@contextmanager
def _open(effort: Effort, directory: Path) -> Iterator[Opened]:
    effort = replace(effort, measure_seconds=MEASURE_SECONDS)
    asked = [*((rate, True) for rate in RATES), (JUDGED_RATE, False)]
    turns: dict[str, Turn] = {
        _named(rate, live): partial(_paced, rate, live, effort, directory) for rate, live in asked
    }
    bars = [Bar(RATE_ERROR, _named(rate, True), at_most=0.1) for rate in RATES]
    bars += [Bar(LAG_P99, _named(JUDGED_RATE, live), at_most=1000) for live in (True, False)]
    measures = (RATE_ERROR, LAG_P50, LAG_P99, LAG_P99_9, CLIENT_CPU, TURNS)
    yield Opened(
        [Comparison("On schedule", turns, measures, bars=bars)],
        [f"{MEASURE_SECONDS} s each after {effort.warmup_seconds} s of warm-up"],
    )


LINES = (
    Line(
        "pacing",
        "Keeping time",
        "1 pair, 1000 B, loopback transport. `send_lag` is how late a message was sent; by design "
        "it contains up to 0.5 ms of waiting for its batch.",
        _open,
    ),
)
