"""The line about many agents: how soon rows of a crowd are rolling metrics, and what a row costs.

Agents are simulated (`benchmarks.crowd_agents`); collector, committer, store, streaming query and
windows are the product's own, in a process of their own (`benchmarks.crowd`).
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from bench_spark.agent.protocol import EventRow, decode_rows, encode_rows
from bench_spark.driver.committer import events_table
from bench_spark.spark.merge import merge_event_batches, read_tick_rows
from bench_spark.spark.windows import ROLLING, RunWindows, WindowSum, metric_rows
from bench_spark.store.delta import Store
from bench_spark.store.schema import MERGED_COLUMNS
from benchmarks.crowd import WARM_TICKS
from benchmarks.crowd_agents import HIGHEST_US, rows_of_a_tick, timeline_of_ticks
from benchmarks.figures import Bar, Figures, Measure
from benchmarks.lines import Comparison, Effort, Line, Opened, Turn
from benchmarks.paths import processor_seconds_per_call
from benchmarks.progress import NoFigures

LIMITS_SECONDS = {200: 3.0, 1000: 10.0}
"""Agents, and how soon all that they sent should be in a window."""
MESSAGES = 1000
"""Of an agent, per second: some 830 filled buckets in each of its four histograms."""
TICKS = WARM_TICKS + 18
TURN_SECONDS_AT_MOST = 300
STEP_SECONDS = 0.5
AGENTS_AT_ONCE = 100

DELAY = Measure("delay p50, s", 2)
DELAY_P95 = Measure("delay p95, s", 2)
CORES = Measure("driver, JVM and Python workers, cores", 2)
CPU = Measure("CPU, us per agent and second", 1)
WIRE = Measure("bytes on the link per agent and second")
STORED = Measure("bytes in `events` per agent and second")
METRIC_BYTES = Measure("bytes in `metrics` per row")
STEP_CPU = Measure("CPU, us", 1)


def _crowd(agents: int) -> Figures:
    command = [
        *(sys.executable, "-m", "benchmarks.crowd", "--agents", str(agents)),
        *("--ticks", str(TICKS), "--messages", str(MESSAGES)),
    ]
    try:
        ended = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=TURN_SECONDS_AT_MOST
        )
    except subprocess.TimeoutExpired as late:
        raise NoFigures(f"the crowd has not ended after {TURN_SECONDS_AT_MOST} s") from late
    if ended.returncode != 0:
        last_words = "\n".join(ended.stderr.splitlines()[-10:])
        raise NoFigures(f"the crowd ended with {ended.returncode}:\n{last_words}")
    return figures_of(json.loads(ended.stdout.splitlines()[-1]))


def figures_of(seen: Mapping[str, Any]) -> Figures:
    seconds = seen["ticks"] - WARM_TICKS
    delays = sorted(seen["delays_seconds"])
    return {
        DELAY: statistics.median(delays),
        DELAY_P95: delays[int(0.95 * (len(delays) - 1))],
        CORES: seen["cpu_seconds"] / seconds,
        CPU: seen["cpu_seconds"] / seconds / seen["agents"] * 1e6,
        WIRE: seen["wire_bytes_per_agent_tick"],
        STORED: seen["events_bytes"] / seen["agents"] / seen["ticks"],
        METRIC_BYTES: seen["metrics_bytes"] / seen["metrics_rows"],
    }


# -- one step at a time ----------------------------------------------------------------------------


def _rows() -> list[tuple[int, int, EventRow]]:
    kinds = [rows_of_a_tick(MESSAGES, seed) for seed in range(8)]
    return [(agent, 0, row) for agent in range(AGENTS_AT_ONCE) for row in kinds[agent % 8]]


def _decoding(_: Path) -> Callable[[], object]:
    header, columns = encode_rows(rows_of_a_tick(MESSAGES, 0))
    text = json.dumps(header)
    return lambda: [decode_rows(json.loads(text), columns) for _ in range(AGENTS_AT_ONCE)]


def _committing(directory: Path) -> Callable[[], object]:
    store, rows = Store(directory / "steps").open(), _rows()
    return lambda: store.append("events", events_table("steps", rows))


def _batches() -> list[pa.RecordBatch]:
    table = events_table("steps", _rows()).select(MERGED_COLUMNS)
    batches: list[pa.RecordBatch] = table.to_batches(max_chunksize=256)
    return batches


def _merging(_: Path) -> Callable[[], object]:
    batches = _batches()
    return lambda: list(merge_event_batches(iter(batches)))


def _publishing(_: Path) -> Callable[[], object]:
    """The rolling window of ten merged seconds: a row of percentiles for each of four measures."""
    (merged,) = merge_event_batches(iter(_batches()))
    ticks = list(read_tick_rows(pa.Table.from_batches([merged])))
    windows = RunWindows("steps", timeline_of_ticks(0, 60), 10, HIGHEST_US)
    window = windows.rolling(9)

    def publish() -> object:
        total = WindowSum()
        total.add([row for row in ticks for _ in range(10)], ROLLING)
        return metric_rows(windows, window, total, 10.0)

    return publish


STEPS: Mapping[str, tuple[Callable[[Path], Callable[[], object]], int]] = {
    "decode an agent's rows (driver)": (_decoding, AGENTS_AT_ONCE),
    "commit an agent's rows (driver)": (_committing, AGENTS_AT_ONCE),
    "merge an agent's rows (executors)": (_merging, AGENTS_AT_ONCE),
    "a row of percentiles over 10 s (driver)": (_publishing, 4),
}
"""By name: how to set it up, and how many agents or rows one call is about."""


def _step(name: str, directory: Path) -> Figures:
    set_up, count = STEPS[name]
    work = set_up(directory)
    seconds = processor_seconds_per_call(work, STEP_SECONDS)
    return {STEP_CPU: seconds / count * 1e6}


@contextmanager
def _open(effort: Effort, directory: Path) -> Iterator[Opened]:
    crowds: dict[str, Turn] = {
        f"{agents:,} agents": partial(_crowd, agents) for agents in LIMITS_SECONDS
    }
    bars = [
        Bar(DELAY_P95, f"{agents:,} agents", at_most=limit)
        for agents, limit in LIMITS_SECONDS.items()
    ]
    steps: dict[str, Turn] = {name: partial(_step, name, directory) for name in STEPS}
    measures = (DELAY, DELAY_P95, CORES, CPU, WIRE, STORED, METRIC_BYTES)
    yield Opened(
        [
            Comparison("From the end of a second to its window", crowds, measures, bars=bars),
            Comparison("One step at a time, on one core", steps, (STEP_CPU,)),
        ],
        [f"{TICKS - WARM_TICKS} seconds of rows after {WARM_TICKS} of warm-up"],
    )


LINES = (
    Line(
        "many-agents",
        "Rows of many agents",
        f"Simulated agents that send the rows of {MESSAGES:,} messages each at the end of every "
        "second, all at once; the product's own collector, committer, store, streaming query (a "
        "trigger every 2 s, local Spark) and windows. The delay is from the end of a second until "
        "the rolling window with the rows of all agents is committed. Bytes are of four histograms "
        "with some 830 filled buckets each.",
        _open,
    ),
)
