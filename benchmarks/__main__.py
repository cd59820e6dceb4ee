"""`python -m benchmarks [--line NAME]...`: run lines and write their sections of RESULTS.md."""

from __future__ import annotations

import argparse
import importlib.metadata
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from bench_spark.agent.host import host_facts
from bench_spark.errors import BenchError
from bench_spark.java import java_version_text, require_java
from benchmarks import (
    amqp,
    hot_paths,
    kafka,
    loopback,
    many_agents,
    messages_store,
    mqtt,
    pacing,
    scaling,
)
from benchmarks.lines import Effort, Line, run_line
from benchmarks.progress import NoFigures
from benchmarks.results import with_sections

LINES: Sequence[Line] = (
    *amqp.LINES,
    *kafka.LINES,
    *mqtt.LINES,
    *loopback.LINES,
    *pacing.LINES,
    *hot_paths.LINES,
    *scaling.LINES,
    *many_agents.LINES,
    *messages_store.LINES,
)
HERE = Path(__file__).parent
RESULTS = HERE / "RESULTS.md"
REMARKS = HERE / "remarks"
"""What people have to say of a line (LINE.md), such as why a bar is missed; joins its section."""

DISTRIBUTIONS = ("pyspark", "pika", "confluent-kafka", "numpy")


def main(arguments: Sequence[str] | None = None) -> int:
    asked = _parser().parse_args(arguments)
    effort = Effort(asked.warmup_seconds, asked.measure_seconds, asked.repetitions)
    began = time.monotonic()
    failures = 0
    for line in LINES:
        if asked.line and line.name not in asked.line:
            continue
        try:
            with tempfile.TemporaryDirectory(prefix="bench-spark-benchmarks-") as directory:
                taken = run_line(line, effort, Path(directory), _remark_on(line))
        except (NoFigures, BenchError) as error:
            # What all turns need could not be had; the other lines have brokers of their own.
            failures += 1
            print(f"{line.name}: {error}", file=sys.stderr, flush=True)
            continue
        failures += taken.failed_turns
        # Written line by line: what was measured stays if a later one is interrupted.
        before = asked.write.read_text() if asked.write.exists() else ""
        order = [known.name for known in LINES]
        asked.write.write_text(with_sections(before, _head(), {line.name: taken.section}, order))
        print(taken.section, flush=True)
    print(f"{(time.monotonic() - began) / 60:.1f} minutes", file=sys.stderr)
    return 1 if failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    names = [line.name for line in LINES]
    parser.add_argument(
        "--line", action="append", choices=names, help="run this one; may be repeated"
    )
    parser.add_argument("--repetitions", type=_positive, default=3, metavar="N")
    parser.add_argument("--warmup-seconds", type=_positive, default=4, metavar="N")
    parser.add_argument("--measure-seconds", type=_positive, default=6, metavar="N")
    parser.add_argument("--write", type=Path, default=RESULTS, metavar="FILE")
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"allowed: a whole number from 1 on, not {text}")
    return int(text)


def _remark_on(line: Line) -> str:
    remark = REMARKS / f"{line.name}.md"
    return remark.read_text() if remark.exists() else ""


def _head() -> str:
    host = host_facts()
    java = java_version_text(require_java()).partition("\n")[0].strip()
    versions = [f"{name} {importlib.metadata.version(name)}" for name in DISTRIBUTIONS]
    command = " ".join(["python -m benchmarks", *sys.argv[1:]])
    return f"""\
# Results

`{command}`, {datetime.now(UTC):%Y-%m-%d}. {host["cores"]} cores ({host["cpu"]}), \
{host["memory_bytes"] / 1e9:.0f} GB of memory, Linux {host["kernel"]}; Python {host["python"]}, \
{java}, {", ".join(versions)}.

Brokers, clients and Spark share the machine, and the contenders of a comparison take turns on one \
broker. bench-spark is the whole product, started by its command line; starting (Spark, a JVM, \
joining a group) is left out of all figures. Below a measure stands its ratio to the contender \
named: of messages more is better, of CPU and latency less. Every section says when it was made: a \
line run alone (`python -m benchmarks --line NAME`) replaces its own."""


if __name__ == "__main__":
    sys.exit(main())
