"""bench-spark as its users run it: the command line in a process of its own, Spark and all."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from bench_spark.config.broker import Broker
from bench_spark.errors import EXIT_DATA_LOST, EXIT_DEGRADED, EXIT_VALID
from benchmarks.figures import (
    CLIENT_CPU,
    LAG_P99,
    P50,
    P99,
    RATE,
    SPARK_CORES,
    TURNS,
    WHOLE_CPU,
    Figures,
    Measure,
)
from benchmarks.lines import Effort
from benchmarks.progress import NoFigures

LIVE, NO_LIVE = "bench-spark", "bench-spark --no-live"
"""Contenders: with rolling metrics while the load runs, and with those made afterwards."""

AROUND_SECONDS_AT_MOST = 240
"""For Spark's start, the drain and the result; on a quiet machine a tenth of it is enough."""

Settings = Mapping[str, object]
Document = Mapping[str, Any]


def run(
    settings: Settings, broker: Broker, effort: Effort, directory: Path, live: bool = True
) -> Document:
    """One run of scenario `steady` with these keys changed; its result as the tool gives it."""
    broker_file, result = directory / f"{broker.name}.yaml", directory / "result.json"
    broker_file.write_text(yaml.safe_dump(broker.model_dump(exclude_none=True)))
    result.unlink(missing_ok=True)
    keys = {
        "phases.warmup_seconds": effort.warmup_seconds,
        "phases.measure_seconds": effort.measure_seconds,
        **settings,
    }
    command = [
        *(sys.executable, "-m", "bench_spark.cli", "run", "steady"),
        *("--broker", str(broker_file), "--store", str(directory / "store")),
        *("--format", f"json={result}", "--live" if live else "--no-live"),
        *(word for key, value in keys.items() for word in ("--set", f"{key}={as_setting(value)}")),
    ]
    at_most_seconds = effort.warmup_seconds + effort.measure_seconds + AROUND_SECONDS_AT_MOST
    try:
        ended = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=at_most_seconds
        )
    except subprocess.TimeoutExpired as late:
        raise NoFigures(f"bench-spark has not ended after {at_most_seconds} s") from late
    if ended.returncode not in (EXIT_VALID, EXIT_DEGRADED, EXIT_DATA_LOST) or not result.exists():
        last_words = "\n".join(ended.stderr.splitlines()[-15:])
        raise NoFigures(f"bench-spark ended with {ended.returncode}:\n{last_words}")
    document: Document = json.loads(result.read_text())
    if ended.returncode != EXIT_VALID:
        print(f"{document['status']}: {document['reasons']}", file=sys.stderr, flush=True)
    return document


def figures_of(document: Document) -> Figures:
    """Rate, CPU and latency of a result.

    The client's CPU is that of the agents' processes, both ends, over every message of the run,
    warm-up included; turns are those of the loops of all agents. What Spark and the driver used in
    the measured phase is added for the whole.
    """
    rates = document["rates"]
    rate = rates["receive_rate"] or rates["send_rate"]
    agents = document["agents"]
    # A run may have one end only, and each agent one end only.
    messages = max(
        sum(agent["sent"] or 0 for agent in agents),
        sum(agent["received_once"] or 0 for agent in agents),
    )
    if not rate or not messages:
        raise NoFigures(f"no messages in run {document['run_id']}")
    cpu_us = sum(agent["cpu_seconds"] for agent in agents) * 1e6 / messages
    figures: dict[Measure, float] = {RATE: rate, CLIENT_CPU: cpu_us}
    turns = [agent["turns_per_second"] for agent in agents if agent["turns_per_second"] is not None]
    if turns:
        figures[TURNS] = sum(turns)
    spark_cores = document["resources"]["spark_cores"]
    if spark_cores is not None:
        figures |= {WHOLE_CPU: cpu_us + spark_cores * 1e6 / rate, SPARK_CORES: spark_cores}
    latency = document["measures"].get("latency")
    if latency is not None:
        figures |= {P50: latency["p50_us"], P99: latency["p99_us"]}
    lag = document["measures"].get("send_lag")
    if lag is not None:
        figures[LAG_P99] = lag["p99_us"]
    return figures


def as_setting(value: object) -> str:
    """A value as `--set` reads it: text is taken as it is, the rest as YAML."""
    return value if isinstance(value, str) else json.dumps(value)


def below(key: str, properties: Mapping[str, object]) -> Settings:
    """A map's entries as keys of their own."""
    return {f"{key}.{name}": value for name, value in properties.items()}
