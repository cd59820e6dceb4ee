"""What the driver sees of a run beside its events: agents' health, clocks, machines, the broker.

What Spark itself costs while a load runs: the JVM and this driver, in cores. On one machine it
competes with the broker and the agents, so the audit says how much it was.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pyspark
from pyspark.sql import SparkSession

from bench_spark import __version__
from bench_spark.agent.protocol import EventRow
from bench_spark.agent.timeline import Timeline
from bench_spark.core.clock import NANOSECONDS, Clock, WallClockWatch, WallStep
from bench_spark.driver.accounts import (
    AgentHealth,
    accounts_of,
    agent_entry,
    counted_while_measured,
    measured_span,
    samples_of,
    silences_of,
    uses_confirms,
)
from bench_spark.driver.control import RunControl
from bench_spark.monitor.monitor import Monitor
from bench_spark.plan import measured_seconds
from bench_spark.results.checks import Check
from bench_spark.results.facts import (
    GeneratorFacts,
    MessageFacts,
    MissedWhileRunning,
    RunEnd,
    RunFacts,
)
from bench_spark.runs import RunConfig
from bench_spark.store.delta import Store

_LIBRARIES = (
    *("pyspark", "delta-spark", "deltalake", "pika", "confluent-kafka", "numpy", "numba"),
    "hdrhistogram",
)


def driver_environment(spark: SparkSession) -> dict[str, Any]:
    context = spark.sparkContext
    jvm = context._jvm
    assert jvm is not None
    return {
        "python": platform.python_version(),
        "java": str(jvm.java.lang.System.getProperty("java.version")),
        "master": context.master,
        "application": context.applicationId,
        "libraries": library_versions(),
        "commit": git_commit(),
    }


def git_commit(package: Path = Path(__file__).parents[1]) -> str | None:
    """The commit of the checkout that bench-spark runs from, `-dirty` behind it where tracked files
    are changed; None where it is installed."""
    if not (package.parent / ".git").exists():
        return None
    command = ["git", "-C", str(package.parent), "describe", "--always", "--abbrev=40", "--dirty"]
    try:
        found = subprocess.run(
            [*command, "--exclude=*"], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() or None


def library_versions() -> dict[str, str]:
    """A cluster's own Spark brings pyspark as files of SPARK_HOME, and Delta without its wheel."""
    versions = {}
    for name in _LIBRARIES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions | {"pyspark": pyspark.__version__}


class SparkOverhead:
    """CPU of this process and the session's JVM, between `begin` and `end`.

    Agents and other Python workers are not counted, nor other Java programs that this process has
    started, such as embedded brokers: their CPU is theirs.
    """

    def __init__(self, jvm_pid: int) -> None:
        self._pids = (os.getpid(), jvm_pid)
        self._began: tuple[float, float] | None = None
        self.cores: float | None = None

    def begin(self) -> None:
        """The first call counts; later ones change nothing."""
        if self._began is None:
            self._began = (time.monotonic(), _cpu_seconds(self._pids))

    def end(self) -> None:
        """The first call after `begin` counts; later ones change nothing."""
        if self._began is None or self.cores is not None:
            return
        passed = time.monotonic() - self._began[0]
        if passed > 0:
            self.cores = max(0.0, _cpu_seconds(self._pids) - self._began[1]) / passed


def jvm_pid(spark: SparkSession) -> int:
    """The process of the session's JVM: a child of this one, or with spark-submit its parent."""
    jvm: Any = spark._jvm
    return int(jvm.java.lang.ProcessHandle.current().pid())


def _cpu_seconds(pids: Sequence[int]) -> float:
    total = 0.0
    for pid in pids:
        try:
            times = psutil.Process(pid).cpu_times()
        except psutil.Error:
            continue  # It has ended meanwhile.
        total += times.user + times.system
    return total


MOST_LATE_SHARE = 0.05
"""Of the measured phase, that an agent may miss at its beginning."""


class RunObserver:
    """Of one run, from before its agents start until its facts are read."""

    def __init__(self, spark: SparkSession, store: Store, config: RunConfig, clock: Clock) -> None:
        # Asked now: the JVM may be gone at the end.
        self._driver = driver_environment(spark)
        self._config = config
        self._plan = config.plan
        self._clock = clock
        self._wall_clock = WallClockWatch(clock.now_ns)
        self._health = AgentHealth()
        self._overhead = SparkOverhead(jvm_pid(spark))
        self._monitor = Monitor(config.ends, config.plan.run_id, store, clock.now_ns)

    def see_rows(self, agent: int, rows: list[EventRow]) -> None:
        self._health.add(agent, rows)

    def look_at_clock(self) -> None:
        """Now and then: a step of the wall clock is noticed between two calls."""
        self._wall_clock.look()

    def begin(self, timeline: Timeline) -> None:
        """The load has started."""
        self._monitor.begin(timeline)

    def weigh_spark(self, timeline: Timeline, is_produced: bool) -> None:
        """Count Spark's own CPU over the measured phase; called now and then."""
        if is_produced:
            self._overhead.end()
            self._monitor.end()
        elif self._clock.now_ns() >= timeline.measure_start_ns:
            self._overhead.begin()

    def close(self) -> None:
        self._monitor.close()

    def facts(
        self,
        control: RunControl,
        interrupted_by: int | None,
        stopped_by: MissedWhileRunning | None,
        notes: tuple[Check, ...],
    ) -> RunFacts:
        measured = measured_span(self._plan, control)
        return RunFacts(
            plan=self._plan,
            broker=self._config.ends.shown,
            brokers=self._config.ends.all_shown,
            measured=measured,
            messages=MessageFacts(
                accounts=accounts_of(self._plan, control),
                confirms=uses_confirms(control),
                counted=counted_while_measured(self._plan, control),
                samples=samples_of(self._plan, control),
                silences=silences_of(control, measured[0]),
            ),
            generator=GeneratorFacts(
                busiest_agent_share=self._health.busiest_share,
                busiest_host_share=self._health.busiest_host_share,
                spark_cores=self._overhead.cores,
                clock_bound_ns=self._health.clock_bound_ns,
                agents=[
                    agent_entry(control, agent, self._health, measured)
                    for agent in range(len(control.agents))
                ],
                environment=self._environment(control),
            ),
            end=RunEnd(tuple(control.failures), interrupted_by, stopped_by),
            broker_resources=self._monitor.document(),
            notes=(
                *notes,
                *(Check("resources", "warn", it) for it in self._monitor.problems()),
                *(_told_step(step, measured[0]) for step in self._wall_clock.steps),
                *_told_settling(control, measured_seconds(self._plan.scenario)),
            ),
        )

    def _environment(self, control: RunControl) -> dict[str, Any]:
        probed = [state.reports["probed"] for state in control.agents if "probed" in state.reports]
        hosts = {json.dumps(report["host"], sort_keys=True): report["host"] for report in probed}
        return self._driver | {
            "bench_spark": __version__,
            "broker": probed[0]["brokers"][0] if probed else None,
            "brokers": probed[0]["brokers"] if probed else [],
            "hosts": list(hosts.values()),
        }


def _told_settling(control: RunControl, measure_seconds: float) -> Iterator[Check]:
    """How the load stood when it began to be measured, where that was waited for."""
    outcome = control.settling.outcome if control.settling is not None else None
    if outcome is None:
        return
    rates = (
        f"{outcome.sent_per_second:.0f} msg/s were sent (every copy counted) and "
        f"{outcome.received_per_second:.0f} received"
    )
    if outcome.is_settled:
        text = f"measured from {outcome.after_seconds:.1f} s on, when the load had settled: {rates}"
        yield Check("settled", "pass", text)
    else:
        yield Check(
            "settled",
            "warn",
            f"the load had not settled after {outcome.after_seconds:g} s, when it began to be "
            f"measured: {rates} in the 2 s before; what was received may come from the warm-up, "
            "and what was sent may still be filling the broker",
        )
    late_seconds = {
        agent: int(state.reports["produced"].get("measured_late_ns", 0)) / NANOSECONDS
        for agent, state in enumerate(control.agents)
        if "produced" in state.reports
    }
    latest = max(late_seconds, key=lambda agent: late_seconds[agent], default=None)
    if latest is not None and late_seconds[latest] > 0:
        late = late_seconds[latest]
        yield Check(
            "settled",
            "fail" if late > MOST_LATE_SHARE * measure_seconds else "warn",
            f"agent {latest} did not run when the measured phase began, and measured from "
            f"{late:.1f} s later on: its first messages are missing",
        )


def _told_step(step: WallStep, measured_from: float | None) -> Check:
    when = "before the measured phase"
    if measured_from is not None and step.at_ns / NANOSECONDS >= measured_from:
        when = f"{step.at_ns / NANOSECONDS - measured_from:.0f} s into the measured phase"
    return Check(
        "wall_clock",
        "warn",
        f"the driver's wall clock was set {step.by_ns / NANOSECONDS:+.1f} s, {when}; the run's own "
        "clock did not follow: pacing and latencies hold, times in the tables are of before",
    )
