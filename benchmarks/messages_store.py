"""The line about rows of single messages: written beside the load, joined after it.

Runs of the whole product on the loopback transport, so that what is measured is our own writing and
joining, and not a broker.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from bench_spark.config.broker import Broker
from benchmarks import ours
from benchmarks.figures import CLIENT_CPU, P99, RATE, Bar, Figures, Measure
from benchmarks.lines import Comparison, Effort, Line, Opened, Turn
from benchmarks.progress import NoFigures

RATE_PER_SECOND = 50_000
MEASURE_SECONDS = 20

JOIN_SECONDS = Measure("joined after the end, s", 1)
ROWS = Measure("rows written")
WAITING_ROWS = Measure("rows waiting for the writer, at most")
MEMORY_GROWTH = Measure("memory of the agent grew by, MB", 1)
MISSING = Measure("missing, duplicates, out of order")

TRACED, UNTRACED = "trace: all", "trace: off"


def _turn(trace: str, effort: Effort, directory: Path) -> Figures:
    settings: ours.Settings = {"load.rate_per_second": RATE_PER_SECOND, "trace": trace}
    document = ours.run(settings, Broker(kind="loopback"), effort, directory)
    whole = ours.figures_of(document)
    figures = {measure: whole[measure] for measure in (RATE, CLIENT_CPU, P99)}
    if trace == "off":
        return figures
    joined, written = document["trace"], [agent["trace"] for agent in document["agents"]]
    if not joined["joined"]:
        raise NoFigures(f"the messages were not joined: {document['audit']}")
    troubles = sum(joined[name] for name in ("missing", "duplicates", "out_of_order"))
    return figures | {
        JOIN_SECONDS: joined["join_seconds"],
        ROWS: sum(one["rows"] for one in written),
        WAITING_ROWS: max(one["most_waiting_rows"] for one in written),
        MEMORY_GROWTH: max(one["memory_growth_bytes"] for one in written) / 1e6,
        MISSING: troubles,
    }


@contextmanager
def _open(effort: Effort, directory: Path) -> Iterator[Opened]:
    effort = replace(effort, measure_seconds=MEASURE_SECONDS)
    turns: dict[str, Turn] = {
        TRACED: partial(_turn, "all", effort, directory),
        UNTRACED: partial(_turn, "off", effort, directory),
    }
    bars = [
        Bar(RATE, TRACED, at_least=RATE_PER_SECOND * 0.99),
        Bar(JOIN_SECONDS, TRACED, at_most=20),
        Bar(WAITING_ROWS, TRACED, at_most=4 * RATE_PER_SECOND),
        Bar(MISSING, TRACED, at_most=0),
    ]
    measures = (RATE, CLIENT_CPU, P99, ROWS, WAITING_ROWS, MEMORY_GROWTH, JOIN_SECONDS, MISSING)
    yield Opened(
        [Comparison("50,000 messages per second", turns, measures, bars=bars)],
        [f"{MEASURE_SECONDS} s each after {effort.warmup_seconds} s of warm-up"],
    )


LINES = (
    Line(
        "messages",
        "Every message in a table",
        "1 pair, 1000 B, loopback transport. With `trace: all` agents write two rows for each "
        "message beside the load, and Spark joins them by ID when it is over. Four rows per "
        "message and second may wait: two seconds' worth.",
        _open,
    ),
)
