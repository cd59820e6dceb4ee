"""What the driver sees of a run beside its events: agents' health, clocks, machines, the broker."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import SparkSession

from bench_spark import __version__
from bench_spark.agent.rows import EventRow
from bench_spark.agent.timeline import Timeline
from bench_spark.collector.control import RunControl
from bench_spark.collector.evidence import (
    accounts_of,
    agent_entry,
    counted_while_measured,
    measured_span,
    samples_of,
    uses_confirms,
)
from bench_spark.collector.health import AgentHealth
from bench_spark.measure.clock import NANOSECONDS, Clock, WallClockWatch, WallStep
from bench_spark.monitor.monitor import Monitor
from bench_spark.spark.environment import driver_environment
from bench_spark.spark.overhead import SparkOverhead
from bench_spark.spark.request import RunRequest
from bench_spark.store import Store
from bench_spark.summary.checks import Check
from bench_spark.summary.facts import RunFacts
from bench_spark.summary.objectives import MissedWhileRunning


class RunObserver:
    """Of one run, from before its agents start until its facts are told."""

    def __init__(
        self, spark: SparkSession, store: Store, request: RunRequest, clock: Clock
    ) -> None:
        self._spark = spark
        self._request = request
        self._plan = request.plan
        self._clock = clock
        self._wall_clock = WallClockWatch(clock.now_ns)
        self._health = AgentHealth()
        self._overhead = SparkOverhead()
        self._monitor = Monitor(request.ends, request.plan.run_id, store, clock.now_ns)

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
        measured_from, measured_until = measured_span(self._plan, control)
        return RunFacts(
            plan=self._plan,
            broker=self._request.ends.shown,
            brokers=self._request.ends.all_shown,
            measured_from=measured_from,
            measured_until=measured_until,
            accounts=accounts_of(self._plan, control),
            confirms=uses_confirms(control),
            failures=tuple(control.failures),
            interrupted_by=interrupted_by,
            stopped_by=stopped_by,
            busiest_agent_share=self._health.busiest_share,
            busiest_host_share=self._health.busiest_host_share,
            spark_cores=self._overhead.cores,
            clock_bound_ns=self._health.clock_bound_ns,
            environment=self._environment(control),
            counted=counted_while_measured(self._plan, control),
            samples=samples_of(self._plan, control),
            notes=(
                *notes,
                *(Check("resources", "warn", it) for it in self._monitor.problems()),
                *(_told_step(step, measured_from) for step in self._wall_clock.steps),
            ),
            broker_resources=self._monitor.document(),
            agents=[
                agent_entry(control, agent, self._health) for agent in range(len(control.agents))
            ],
        )

    def _environment(self, control: RunControl) -> dict[str, Any]:
        probed = [state.reports["probed"] for state in control.agents if "probed" in state.reports]
        hosts = {json.dumps(report["host"], sort_keys=True): report["host"] for report in probed}
        return driver_environment(self._spark) | {
            "bench_spark": __version__,
            "broker": probed[0]["brokers"][0] if probed else None,
            "brokers": probed[0]["brokers"] if probed else [],
            "hosts": list(hosts.values()),
        }


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
