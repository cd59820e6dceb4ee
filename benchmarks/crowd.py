"""A driver with simulated agents: how soon their rows are rolling metrics, and what that costs.

`python -m benchmarks.crowd` is the driver of one turn, in a process of its own, so that its CPU can
be told apart: the product's collector, steps, committer, store and streaming query, with agents
that only send rows (`benchmarks.crowd_agents`). It prints what it saw as one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa

from bench_spark.agent.protocol import encode_frame, encode_rows, new_token
from bench_spark.config.models import Scenario
from bench_spark.config.sections import Phases
from bench_spark.core.clock import NANOSECONDS, Clock
from bench_spark.driver.committer import Committer
from bench_spark.driver.control import RunControl
from bench_spark.driver.server import CollectorServer
from bench_spark.plan import Plan, make_plan
from bench_spark.spark.metrics import RollingMetrics
from bench_spark.spark.session import build_session, local_session_master
from bench_spark.spark.windows import ROLLING, RunWindows, Window
from bench_spark.store.delta import Store
from benchmarks.crowd_agents import HIGHEST_US, Crowd, rows_of_a_tick, timeline_of_ticks
from benchmarks.processes import cpu_seconds

RUN_ID = "crowd"
WARM_TICKS = 6
"""Left out of the figures: the query's first batches compile what later ones find compiled."""
JOIN_SECONDS = 60
PATIENCE_SECONDS = 90
START_DELAY_NS = 500_000_000
INTERVAL_SECONDS = 10


@dataclass(frozen=True)
class Seen:
    """What came of one crowd."""

    agents: int
    ticks: int
    delays_seconds: list[float]
    """Per tick after the warm-up: from its end until its window was committed, all agents in it."""
    cpu_seconds: float
    """Of driver, JVM and Spark's Python workers, over the ticks after the warm-up."""
    wire_bytes_per_agent_tick: int
    events_bytes: int
    """Of the table, as appended."""
    metrics_bytes: int
    metrics_rows: int


class _ObservedStore(Store):
    """A store that remembers when each window was committed, and with what in it."""

    def __init__(self, uri: Path) -> None:
        super().__init__(uri)
        self.committed: dict[int, list[tuple[int, int]]] = {}
        """By the end of a rolling window, in microseconds: what it counted, and when it was in."""
        self.metrics_rows = 0

    def append(
        self, name: str, rows: pa.Table, app_id: str | None = None, version: int | None = None
    ) -> bool:
        appended = super().append(name, rows, app_id, version)
        if name == "metrics":
            now_ns = time.monotonic_ns()
            self.metrics_rows += rows.num_rows
            for row in rows.select(["window", "window_end", "received"]).to_pylist():
                if row["window"] == ROLLING:
                    end_us = round(row["window_end"].timestamp() * 1_000_000)
                    self.committed.setdefault(end_us, []).append((row["received"], now_ns))
        return appended


def watch(agents: int, ticks: int, messages_per_tick: int, directory: Path) -> Seen:
    store = _ObservedStore(directory / "store")
    store.open()
    spark = build_session(local_session_master(agents=0), "bench-spark crowd")
    metrics = RollingMetrics(spark, store)
    clock, token = Clock.local(), new_token()
    server = CollectorServer(("127.0.0.1", 0), token, agents, clock)
    committer = Committer(store, RUN_ID)
    plan = _plan(agents, ticks)
    control = RunControl(plan, clock.now_ns, server.send, committer.add, holds_start=True)
    crowd = Crowd("127.0.0.1", server.port, token, agents, ticks, messages_per_tick)
    server.start(control)
    metrics.make_ready()
    with _simulated(crowd) as process:
        if not control.all_joined.wait(JOIN_SECONDS):
            raise SystemExit(f"not all of {agents} agents joined")
        start_ns = clock.now_ns() + START_DELAY_NS
        windows = RunWindows(
            RUN_ID, timeline_of_ticks(start_ns, ticks), INTERVAL_SECONDS, HIGHEST_US
        )
        metrics.register_run(windows)
        server.call(lambda: _start(server, agents, start_ns))
        _sleep_until(clock, windows.timeline.tick_end_ns(WARM_TICKS - 1))
        before = cpu_seconds(os.getpid()) - cpu_seconds(process.pid)
        _sleep_until(clock, windows.timeline.tick_end_ns(ticks - 1))
        used = cpu_seconds(os.getpid()) - cpu_seconds(process.pid) - before
        delays = [
            _delay_seconds(store, windows.rolling(tick), agents * messages_per_tick, clock)
            for tick in range(WARM_TICKS, ticks)
        ]
        server.close()
    committer.close()
    metrics.close()
    spark.stop()
    frame = encode_frame({"type": "rows"}, encode_rows(rows_of_a_tick(messages_per_tick, 0))[1])
    return Seen(
        agents=agents,
        ticks=ticks,
        delays_seconds=delays,
        cpu_seconds=used,
        wire_bytes_per_agent_tick=len(frame),
        events_bytes=_bytes_of(store, "events"),
        metrics_bytes=_bytes_of(store, "metrics"),
        metrics_rows=store.metrics_rows,
    )


def _plan(agents: int, ticks: int) -> Plan:
    scenario = Scenario(
        name=RUN_ID,
        agents=agents,
        producers=agents,
        consumers=agents,
        destinations=agents,
        phases=Phases(warmup_seconds=0, measure_seconds=ticks),
    )
    return make_plan(scenario, RUN_ID)


@contextmanager
def _simulated(crowd: Crowd) -> Iterator[subprocess.Popen[str]]:
    """The process of the agents; it ends when the collector hangs up."""
    command = [sys.executable, "-m", "benchmarks.crowd_agents"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        json.dump(asdict(crowd), process.stdin)
        process.stdin.close()
        try:
            yield process
        finally:
            process.terminate()


def _start(server: CollectorServer, agents: int, start_ns: int) -> None:
    for agent in range(agents):
        server.send(agent, {"type": "start", "start_at_ns": start_ns})


def _sleep_until(clock: Clock, at_ns: int) -> None:
    time.sleep(max(0, at_ns - clock.now_ns()) / NANOSECONDS)


def _delay_seconds(
    store: _ObservedStore, window: Window, messages_per_tick: int, clock: Clock
) -> float:
    """From the end of a window until a commit that has every agent's rows in it; waits for that."""
    wanted = messages_per_tick * (window.last_tick - window.first_tick + 1)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        for received, at_ns in store.committed.get(window.end_ns // 1000, ()):
            if received == wanted:
                return (at_ns + clock.anchor_ns - window.end_ns) / NANOSECONDS
        time.sleep(0.05)
    raise SystemExit(f"the window of tick {window.last_tick} was not whole in time")


def _bytes_of(store: Store, name: str) -> int:
    return sum(file.stat().st_size for file in Path(store.table_uri(name)).glob("*.parquet"))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.crowd", description=__doc__)
    parser.add_argument("--agents", type=int, required=True)
    parser.add_argument("--ticks", type=int, default=24)
    parser.add_argument("--messages", type=int, default=1000, help="of an agent, per second")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-spark-crowd-") as directory:
        seen = watch(asked.agents, asked.ticks, asked.messages, Path(directory))
    print(json.dumps(asdict(seen)))


if __name__ == "__main__":
    main()
