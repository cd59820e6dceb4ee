"""The loopback line: what the agent's own code can do at most, with no broker and no socket."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bench_spark.config.broker import Broker
from benchmarks import ours
from benchmarks.figures import CLIENT_CPU, RATE, SPARK_CORES, Bar, Figures
from benchmarks.lines import Comparison, Effort, Line, Opened, Turn
from benchmarks.ours import LIVE, NO_LIVE

LEAST_PER_SECOND = 2_500_000


def _turn(live: bool, effort: Effort, directory: Path) -> Figures:
    settings: ours.Settings = {"load.mode": "maximum"}
    document = ours.run(settings, Broker(kind="loopback"), effort, directory, live=live)
    return ours.figures_of(document)


@contextmanager
def _open(effort: Effort, directory: Path) -> Iterator[Opened]:
    turns: dict[str, Turn] = {
        LIVE: partial(_turn, True, effort, directory),
        NO_LIVE: partial(_turn, False, effort, directory),
    }
    bars = (Bar(RATE, LIVE, at_least=LEAST_PER_SECOND),)
    comparison = Comparison("1000 B", turns, (RATE, CLIENT_CPU, SPARK_CORES), bars=bars)
    yield Opened([comparison], (effort.length_text,))


LINES = (
    Line(
        "loopback-maximum",
        "Loopback, as fast as possible",
        "One pair in one agent, which is one thread on one core. Pacing, numbering, stamping, "
        "recording and accounting of every message, and nothing else.",
        _open,
    ),
)
