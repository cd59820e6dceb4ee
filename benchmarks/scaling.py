"""The line about scaling out: k workers offer k times the load of one.

Every turn is a run on a standalone cluster of this machine, submitted by spark-submit, with one
agent for each slot that `agents: auto` takes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import mkdtemp

import yaml

from bench_spark import brokers
from bench_spark.config.broker import Broker
from bench_spark.errors import EXIT_DEGRADED, EXIT_VALID
from benchmarks import ours
from benchmarks.figures import P99, Bar, Figures, Measure
from benchmarks.lines import Comparison, Effort, Line, Opened, Turn
from benchmarks.progress import NoFigures
from benchmarks.standalone import HERE, Job, standalone

WORKERS = (1, 2, 4)
CORES_OF_A_WORKER = 2
RATE_OF_AN_AGENT = 1000
TOLERANCE = 0.02

OFFERED = Measure("offered, messages per second", 1)
RECEIVED = Measure("received, messages per second", 1)
AGENTS = Measure("agents")
START_SPREAD = Measure("start spread, us")
LAG_P99 = Measure("send_lag p99, us")
MEASURES = (OFFERED, RECEIVED, AGENTS, START_SPREAD, LAG_P99, P99)


def _named(workers: int) -> str:
    return "1 worker" if workers == 1 else f"{workers} workers"


def _turn(workers: int, broker: Broker, effort: Effort, directory: Path) -> Figures:
    place = Path(mkdtemp(dir=directory))
    broker_file, result = place / f"{broker.name}.yaml", place / "result.json"
    broker_file.write_text(yaml.safe_dump(broker.model_dump(exclude_none=True)))
    overrides: ours.Settings = {
        "agents": "auto",
        "load.scope": "per_agent",
        "load.rate_per_second": RATE_OF_AN_AGENT,
        "phases.warmup_seconds": effort.warmup_seconds,
        "phases.measure_seconds": effort.measure_seconds,
    }
    job = Job(
        "run_scenario.py",
        [
            *("steady", "--broker", str(broker_file), "--store", str(place / "store")),
            *("--format", f"json={result}"),
            *(f"--set={key}={ours.as_setting(value)}" for key, value in overrides.items()),
        ],
    )
    with standalone([HERE] * workers, CORES_OF_A_WORKER, place) as cluster:
        ended = cluster.submit(job)
    if ended.returncode not in (EXIT_VALID, EXIT_DEGRADED) or not result.exists():
        last_words = "\n".join((ended.stdout + ended.stderr).splitlines()[-15:])
        raise NoFigures(f"the job ended with {ended.returncode}:\n{last_words}")
    return figures_of(json.loads(result.read_text()))


def figures_of(document: ours.Document) -> Figures:
    measures = document["measures"]
    return {
        OFFERED: document["rates"]["send_rate"],
        RECEIVED: document["rates"]["receive_rate"],
        AGENTS: len(document["agents"]),
        START_SPREAD: document["start_spread_us"],
        LAG_P99: measures["send_lag"]["p99_us"],
        P99: measures["latency"]["p99_us"],
    }


def bars() -> Sequence[Bar]:
    """k times one worker's load, within the tolerance."""
    return [
        Bar(
            OFFERED,
            _named(workers),
            _named(1),
            at_least=workers * (1 - TOLERANCE),
            at_most=workers * (1 + TOLERANCE),
        )
        for workers in WORKERS
        if workers > 1
    ]


def _comparison(broker: Broker, effort: Effort, directory: Path) -> Comparison:
    turns: dict[str, Turn] = {
        _named(workers): partial(_turn, workers, broker, effort, directory) for workers in WORKERS
    }
    return Comparison(broker.name, turns, MEASURES, _named(1), bars())


@contextmanager
def _open(effort: Effort, directory: Path) -> Iterator[Opened]:
    with brokers.embedded("kafka") as running:
        targets = (Broker(name="loopback", kind="loopback"), running["kafka"].broker)
        comparisons = [_comparison(broker, effort, directory) for broker in targets]
        yield Opened(comparisons, [effort.length_text])


LINES = (
    Line(
        "scaling",
        "Scaling out",
        f"A standalone cluster of so many workers with {CORES_OF_A_WORKER} slots each, all on this "
        f"machine; `agents: auto` with `load.scope: per_agent`, {RATE_OF_AN_AGENT:,} messages of "
        "1000 B per second and agent. `start spread` is how far apart the first and the last agent "
        "began.",
        _open,
    ),
)
