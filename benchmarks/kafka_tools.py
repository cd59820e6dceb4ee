"""Kafka's own performance tools, kafka-producer-perf-test and kafka-consumer-perf-test; and where
Go is installed a program that sends or reads with franz-go (`franz_go/`)."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench_spark.cache import cache_directory
from bench_spark.jars import jar_set
from bench_spark.java import require_java
from benchmarks.figures import CLIENT_CPU, RATE, Figures
from benchmarks.lines import Effort
from benchmarks.processes import START_SECONDS_AT_MOST, Printed, printed, started
from benchmarks.progress import NoFigures, Progress, steady

PRODUCER_TOOL, CONSUMER_TOOL = "kafka-producer-perf-test", "kafka-consumer-perf-test"
JAVA_PAIR = "both Java tools"
FRANZ_GO = "franz-go"
FRANZ_GO_SOURCES = Path(__file__).parent / "franz_go"
BUILD_SECONDS_AT_MOST = 900

REPORT_MILLISECONDS = 250
MORE_THAN_EVER_SENT = 10**12
AS_FAST_AS_POSSIBLE = -1
CONSUME_SECONDS_AT_MOST = 300

Command = list[str | Path]
Reading = Callable[[list[Printed]], list[Progress]]

# The last line, about the whole run, goes on behind "max latency".
_PRODUCED = re.compile(r"^(?P<messages>\d+) records sent, .* max latency\.$")
# Time, thread, MB, MB/s, messages, ...; the sixth figure and those behind it are not needed.
_CONSUMED = re.compile(r"^\d{4}-[^,]+, \d+, [\d.]+, [\d.]+, (?P<messages>\d+), ")

_COUNTED = re.compile(r"^(?P<messages>\d+)$")


def produce(
    servers: str, topic: str, body_bytes: int, properties: Mapping[str, object], effort: Effort
) -> Figures:
    """Send as fast as possible for warm-up and measured phase; the tool is ended after that."""
    command = _producer(servers, topic, body_bytes, properties, AS_FAST_AS_POSSIBLE)
    return _ended(PRODUCER_TOOL, command, produced, effort)


def paced_pair(
    servers: str,
    topic: str,
    body_bytes: int,
    properties: Mapping[str, object],
    rate_per_second: int,
    effort: Effort,
) -> Figures:
    """Send at this rate and read what was sent meanwhile, each in a JVM of its own."""
    seconds = effort.warmup_seconds + effort.measure_seconds
    at_most_seconds = seconds + START_SECONDS_AT_MOST
    producer = _producer(servers, topic, body_bytes, properties, rate_per_second)
    consumer = _consumer(servers, topic, MORE_THAN_EVER_SENT)
    with (
        started(producer, at_most_seconds) as sending,
        started(consumer, at_most_seconds) as receiving,
        ThreadPoolExecutor(1) as reader,
    ):
        sent = reader.submit(lambda: list(_for_seconds(printed(sending), 2 * seconds)))
        received = list(_for_seconds(printed(receiving), seconds))
        # Its output ends with it, and so does the thread that reads that.
        sending.terminate()
        sent_lines = sent.result()
    warmup_seconds = effort.warmup_seconds
    produced_at = _steady(PRODUCER_TOOL, sent_lines, produced(sent_lines), warmup_seconds)
    consumed_at = _steady(CONSUMER_TOOL, received, consumed(received), warmup_seconds)
    cpu_us = produced_at[CLIENT_CPU] + consumed_at[CLIENT_CPU]
    return {RATE: consumed_at[RATE], CLIENT_CPU: cpu_us}


def consume(servers: str, topic: str, messages: int, warmup_seconds: float) -> Figures:
    """Read that many messages from the beginning of the topic, in a group of its own."""
    command = _consumer(servers, topic, messages)
    return _finished(CONSUMER_TOOL, command, consumed, warmup_seconds)


def franz_go() -> Path | str:
    """The program, built once for its sources; or why there is none."""
    go = shutil.which("go")
    if go is None:
        return "franz-go is left out: no Go is installed"
    sources = [FRANZ_GO_SOURCES / name for name in ("main.go", "go.mod", "go.sum")]
    digest = hashlib.sha256(b"".join(one.read_bytes() for one in sources)).hexdigest()[:16]
    program = cache_directory() / "bin" / f"franz-go-{digest}"
    if not program.exists():
        build = [go, "build", "-trimpath", "-o", str(program), "."]
        built = subprocess.run(
            build,
            cwd=FRANZ_GO_SOURCES,
            capture_output=True,
            text=True,
            timeout=BUILD_SECONDS_AT_MOST,
            check=False,
        )
        if built.returncode:
            return f"franz-go is left out: {built.stderr.strip().splitlines()[-1]}"
    return program


def franz_go_produce(
    program: Path,
    servers: str,
    topic: str,
    body_bytes: int,
    properties: Mapping[str, object],
    effort: Effort,
) -> Figures:
    """As `produce` does, with as long a linger and as large batches."""
    command: Command = [
        *(program, "-brokers", servers, "-topic", topic, "-record-bytes", str(body_bytes)),
        *("-linger", f"{properties['linger.ms']}ms"),
        *("-batch-max-bytes", str(properties["batch.size"])),
    ]
    return _ended(FRANZ_GO, command, counted, effort)


def franz_go_consume(
    program: Path, servers: str, topic: str, messages: int, warmup_seconds: float
) -> Figures:
    command: Command = [*(program, "-brokers", servers, "-topic", topic, "-consume", str(messages))]
    return _finished(FRANZ_GO, command, counted, warmup_seconds)


def _producer(
    servers: str,
    topic: str,
    body_bytes: int,
    properties: Mapping[str, object],
    rate_per_second: int,
) -> Command:
    return [
        *(*_java(), "org.apache.kafka.tools.ProducerPerformance"),
        *("--bootstrap-server", servers, "--topic", topic),
        *("--num-records", str(MORE_THAN_EVER_SENT), "--record-size", str(body_bytes)),
        *("--throughput", str(rate_per_second)),
        *("--reporting-interval", str(REPORT_MILLISECONDS)),
        *("--command-property", *(f"{key}={value}" for key, value in properties.items())),
    ]


def _consumer(servers: str, topic: str, messages: int) -> Command:
    return [
        *(*_java(), "org.apache.kafka.tools.ConsumerPerformance"),
        *("--bootstrap-server", servers, "--topic", topic, "--num-records", str(messages)),
        *("--show-detailed-stats", "--reporting-interval", str(REPORT_MILLISECONDS)),
    ]


def produced(lines: Iterable[Printed]) -> list[Progress]:
    """The producer tool says how many it sent since the last line."""
    progress: list[Progress] = []
    messages = 0
    for line in lines:
        if found := _PRODUCED.match(line.text):
            messages += int(found["messages"])
            progress.append(Progress(line.at_seconds, messages, line.cpu_seconds))
    return progress


def consumed(lines: Iterable[Printed]) -> list[Progress]:
    """The consumer tool says how many it has received in all."""
    return [
        Progress(line.at_seconds, int(found["messages"]), line.cpu_seconds)
        for line in lines
        if (found := _CONSUMED.match(line.text))
    ]


def counted(lines: Iterable[Printed]) -> list[Progress]:
    """The program with franz-go says how many there were so far, none while it connects."""
    return [
        Progress(line.at_seconds, int(found["messages"]), line.cpu_seconds)
        for line in lines
        if (found := _COUNTED.match(line.text)) and int(found["messages"])
    ]


def _java() -> tuple[str | Path, ...]:
    class_path = os.pathsep.join(map(str, (*jar_set("kafka"), *jar_set("kafka-tools"))))
    return require_java(), "-cp", class_path


def _ended(tool: str, command: Command, read: Reading, effort: Effort) -> Figures:
    """Of a tool that goes on until it is ended, after warm-up and measured phase."""
    seconds = effort.warmup_seconds + effort.measure_seconds
    with started(command, seconds + START_SECONDS_AT_MOST) as process:
        lines = list(_for_seconds(printed(process), seconds))
    return _steady(tool, lines, read(lines), effort.warmup_seconds)


def _finished(tool: str, command: Command, read: Reading, warmup_seconds: float) -> Figures:
    """Of a tool that ends by itself, once it has its messages."""
    with started(command, CONSUME_SECONDS_AT_MOST) as process:
        lines = list(printed(process))
    return _steady(tool, lines, read(lines), warmup_seconds)


def _for_seconds(lines: Iterable[Printed], seconds: float) -> Iterator[Printed]:
    """The lines of the first `seconds` after the first progress."""
    first_seconds: float | None = None
    for line in lines:
        yield line
        is_progress = any(one.match(line.text) for one in (_PRODUCED, _CONSUMED, _COUNTED))
        if first_seconds is None and is_progress:
            first_seconds = line.at_seconds
        if first_seconds is not None and line.at_seconds - first_seconds > seconds:
            return


def _steady(
    tool: str, lines: list[Printed], progress: list[Progress], warmup_seconds: float
) -> Figures:
    try:
        return steady(progress, warmup_seconds)
    except NoFigures as error:
        last_words = "\n".join(line.text for line in lines[-10:])
        raise NoFigures(f"{tool}: {error}\n{last_words}") from error
