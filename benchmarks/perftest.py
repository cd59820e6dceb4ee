"""RabbitMQ PerfTest, the load generator of RabbitMQ's authors: the jar from Maven Central."""

from __future__ import annotations

import os
import re
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from bench_spark.config.broker import Broker
from bench_spark.jars import jar_set, known_sets
from bench_spark.java import require_java
from benchmarks.figures import P50, P99, Figures
from benchmarks.lines import Effort
from benchmarks.processes import START_SECONDS_AT_MOST, Printed, printed, started
from benchmarks.progress import NoFigures, Progress, steady

PERFTEST = "PerfTest"

_SECOND = re.compile(
    r"id: .*?, time (?P<time>[\d.]+) s.*? received: (?P<rate>[\d.]+) msg/s.*?"
    r"min/median/75th/95th/99th (?:consumer )?latency: "
    r"\d+/(?P<p50>\d+)/\d+/\d+/(?P<p99>\d+) (?P<unit>\S+)"
)


def version() -> str:
    return known_sets()["perftest"].title


def run(options: Sequence[str], broker: Broker, effort: Effort) -> Figures:
    """One pair with these options for warm-up and measured phase."""
    class_path = os.pathsep.join(map(str, jar_set("perftest")))
    seconds = effort.warmup_seconds + effort.measure_seconds
    # To the Java client a URI that ends in a slash names the virtual host "".
    uri = str(broker.uri).rstrip("/")
    command: list[str | Path] = [
        *(require_java(), "-cp", class_path, "com.rabbitmq.perf.PerfTest", "-h", uri),
        *("-x", "1", "-y", "1", "-z", str(seconds + 1), *options),
    ]
    with started(command, seconds + START_SECONDS_AT_MOST) as process:
        lines = list(printed(process))
    try:
        return figures_of(lines, effort.warmup_seconds)
    except NoFigures as error:
        last_words = "\n".join(line.text for line in lines[-10:])
        raise NoFigures(f"PerfTest {' '.join(options)}: {error}\n{last_words}") from error


def figures_of(lines: Iterable[Printed], warmup_seconds: float) -> Figures:
    """Steady rate and CPU, and the medians of the percentiles of each second.

    PerfTest tells percentiles by the second only; those of a whole run would include its warm-up.
    """
    progress: list[Progress] = []
    percentiles: list[tuple[float, float]] = []
    messages, before_seconds = 0.0, 0.0
    for line in lines:
        found = _SECOND.search(line.text)
        if found is None:
            continue
        time_seconds = float(found["time"])
        messages += float(found["rate"]) * (time_seconds - before_seconds)
        before_seconds = time_seconds
        progress.append(Progress(line.at_seconds, round(messages), line.cpu_seconds))
        if line.at_seconds - progress[0].at_seconds > warmup_seconds:
            # The other unit is a microsecond, spelt as well as the locale allows.
            unit_us = 1000 if found["unit"] == "ms" else 1
            percentiles.append((float(found["p50"]) * unit_us, float(found["p99"]) * unit_us))
    if not percentiles:
        raise NoFigures("no second after the warm-up")
    medians = map(statistics.median, zip(*percentiles, strict=True))
    return {**steady(progress, warmup_seconds), **dict(zip((P50, P99), medians, strict=True))}
