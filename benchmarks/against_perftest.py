"""bench-spark beside RabbitMQ PerfTest: the same broker, the same messages, turn by turn.

    python benchmarks/against_perftest.py [LINE...] [--repetitions N] [--write FILE]

Lines: maximum, confirms, paced (all by default). Ours is the whole product, started by its command
line, Spark and all, with its live metrics and without them; PerfTest is the jar from Maven Central.
All run on this machine beside one embedded RabbitMQ, alternating, so that what disturbs one
disturbs the others as well. Figures are medians over the repetitions; a ratio above 1 means more
messages, a ratio of CPU or latency below 1 means less of it. JVM and Spark start are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import jgo
import psutil
import yaml

from bench_spark import brokers
from bench_spark.scenario.broker import Broker

PERFTEST = "com.rabbitmq:perf-test:2.22.1"
WARMUP_SECONDS, MEASURE_SECONDS = 5, 10
BODY_BYTES = 1000


@dataclass(frozen=True)
class Figures:
    """One repetition of one tool."""

    per_second: float
    cpu_us: float
    p50_us: float
    p99_us: float


@dataclass(frozen=True)
class Line:
    """One comparison: the same load in the words of each tool."""

    name: str
    title: str
    ours: tuple[str, ...]
    theirs: tuple[str, ...]


LINES = (
    Line(
        "maximum",
        "As fast as possible: 1 pair, 1000 B, transient, auto-ack",
        ("load.mode=maximum",),
        ("-a",),
    ),
    Line(
        "confirms",
        "As fast as possible: 1 pair, 1000 B, 100 unconfirmed at most, acks by the hundred",
        (
            "load.mode=maximum",
            "amqp.confirms=100",
            "amqp.ack=manual",
            "amqp.ack_every=100",
            "amqp.prefetch=200",
        ),
        ("-c", "100", "-A", "100", "-q", "200"),
    ),
    Line(
        "paced",
        "10 000 msg/s: 1 pair, 1000 B, transient, auto-ack",
        ("load.rate_per_second=10000",),
        ("-a", "-r", "10000"),
    ),
)


def our_turn(line: Line, broker: Broker, directory: Path, live: str) -> Figures:
    broker_file = directory / "broker.yaml"
    broker_file.write_text(yaml.safe_dump(broker.model_dump(exclude_none=True)))
    result = directory / "result.json"
    settings = (
        *line.ours,
        f"message.bytes={BODY_BYTES}",
        f"phases.warmup_seconds={WARMUP_SECONDS}",
        f"phases.measure_seconds={MEASURE_SECONDS}",
    )
    command = [
        *(sys.executable, "-m", "bench_spark.cli", "run", "steady"),
        *("--broker", str(broker_file), "--store", str(directory / "store")),
        *("--format", f"json={result}", live),
        *(word for setting in settings for word in ("--set", setting)),
    ]
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    document = json.loads(result.read_text())
    result.unlink()
    agent = document["agents"][0]
    # The agent's whole process, both ends, over every message of the run, warm-up included.
    cpu_us = agent["cpu_seconds"] * 1e6 / agent["received_once"]
    latency = document["measures"]["latency"]
    return Figures(document["rates"]["receive_rate"], cpu_us, latency["p50_us"], latency["p99_us"])


_INTERVAL = re.compile(
    r"id: .*?, time ([\d.]+) s.*?received: ([\d.]+) msg/s.*?min/median/75th/95th/99th "
    r"(?:consumer )?latency: (\d+)/(\d+)/(\d+)/(\d+)/(\d+) (µs|ms|us)"
)


def their_turn(line: Line, broker: Broker, jars: Sequence[Path]) -> Figures:
    command = [
        *("java", "-cp", os.pathsep.join(map(str, jars)), "com.rabbitmq.perf.PerfTest"),
        # To the Java client a URI that ends in a slash names the virtual host "".
        *("-h", str(broker.uri).rstrip("/"), "-x", "1", "-y", "1", "-s", str(BODY_BYTES)),
        *("-z", str(WARMUP_SECONDS + MEASURE_SECONDS), *line.theirs),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    tool = psutil.Process(process.pid)
    rates: list[float] = []
    medians: list[float] = []
    tails: list[float] = []
    cpu: list[tuple[float, float]] = []
    for text in process.stdout:
        found = _INTERVAL.search(text)
        if found is None or float(found[1]) < WARMUP_SECONDS:
            continue
        times = tool.cpu_times()
        cpu.append((time.monotonic(), times.user + times.system))
        rates.append(float(found[2]))
        unit = 1000 if found[8] == "ms" else 1
        medians.append(float(found[4]) * unit)
        tails.append(float(found[7]) * unit)
    process.wait()
    if len(rates) < 3:
        raise SystemExit(f"PerfTest gave no figures: {' '.join(command[3:])}")
    seconds = cpu[-1][0] - cpu[0][0]
    received = statistics.mean(rates[1:]) * seconds
    cpu_us = (cpu[-1][1] - cpu[0][1]) * 1e6 / received
    # PerfTest prints percentiles per second only, so these are the medians of its seconds.
    return Figures(
        statistics.mean(rates), cpu_us, statistics.median(medians), statistics.median(tails)
    )


TOOLS = ("bench-spark", "bench-spark --no-live", "PerfTest")


@dataclass
class Comparison:
    line: Line
    figures: dict[str, list[Figures]] = field(default_factory=lambda: {tool: [] for tool in TOOLS})

    def rows(self) -> list[str]:
        columns: tuple[tuple[str, Callable[[Figures], float]], ...] = (
            ("messages per second", lambda figures: figures.per_second),
            ("client CPU, us per message", lambda figures: figures.cpu_us),
            ("latency p50, us", lambda figures: figures.p50_us),
            ("latency p99, us", lambda figures: figures.p99_us),
        )
        rows = []
        for name, value in columns:
            medians = [statistics.median(map(value, self.figures[tool])) for tool in TOOLS]
            shown = " | ".join(f"{median:,.1f}" for median in medians)
            ratios = " | ".join(f"{median / medians[-1]:.2f}" for median in medians[:-1])
            rows.append(f"| {name} | {shown} | {ratios} |")
        return rows


def report(comparisons: Sequence[Comparison], product: str, repetitions: int) -> str:
    lines = " ".join(comparison.line.name for comparison in comparisons)
    parts = [
        "# Results",
        "",
        f"Made by `python benchmarks/against_perftest.py {lines} --repetitions {repetitions}` on "
        f"{datetime.now(UTC):%Y-%m-%d}: {os.cpu_count()} cores shared by broker and clients, "
        f"Python {platform.python_version()}, {product}, PerfTest {PERFTEST.rpartition(':')[2]}. "
        f"Medians of {repetitions} alternating repetitions of {MEASURE_SECONDS} s each.",
        "",
        "bench-spark's CPU is that of the agent, both ends; Spark and the driver run beside it,",
        "for which PerfTest has no counterpart. PerfTest's percentiles are medians over its",
        "seconds, bench-spark's are over the whole measured phase, which is the stricter.",
    ]
    for comparison in comparisons:
        parts += ["", f"## {comparison.line.title}", ""]
        heads = [*TOOLS, *(f"{tool} : PerfTest" for tool in TOOLS[:-1])]
        parts += [f"| | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
        parts += comparison.rows()
    return "\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [line.name for line in LINES]
    parser.add_argument("lines", nargs="*", metavar="LINE", help=f"of {', '.join(names)}")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--write", type=Path)
    asked = parser.parse_args()
    if unknown := set(asked.lines) - set(names):
        parser.error(f"unknown line {sorted(unknown)}; there are {names}")
    environment = jgo.build(PERFTEST)
    jars = [*environment.class_path_jars, *environment.module_path_jars]
    comparisons = [
        Comparison(line) for line in LINES if not asked.lines or line.name in asked.lines
    ]
    with (
        tempfile.TemporaryDirectory() as directory,
        brokers.embedded("rabbitmq") as running,
    ):
        broker = running["rabbitmq"].broker
        for repetition in range(asked.repetitions):
            for comparison in comparisons:
                line = comparison.line
                turns = {
                    "bench-spark": our_turn(line, broker, Path(directory), "--live"),
                    "bench-spark --no-live": our_turn(line, broker, Path(directory), "--no-live"),
                    "PerfTest": their_turn(line, broker, jars),
                }
                for tool, figures in turns.items():
                    comparison.figures[tool].append(figures)
                label = f"{line.name} {repetition + 1}/{asked.repetitions}"
                print(f"{label}: {turns}", file=sys.stderr, flush=True)
    text = report(comparisons, "RabbitMQ 3.10", asked.repetitions)
    if asked.write:
        asked.write.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
