"""What the driver saw of a run beside its events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench_spark.collector.accounts import Accounts, AgentSamples, Counted
from bench_spark.collector.control import Failure
from bench_spark.plan import Plan
from bench_spark.summary.checks import Check
from bench_spark.summary.objectives import MissedWhileRunning
from bench_spark.summary.trace import TraceFacts

CENSORED_MEASURES = ("latency", "delivery_latency")
"""Measures of messages that may have arrived too late, or nowhere, to have a value."""


@dataclass(frozen=True)
class RunFacts:
    """Of one run, once its agents have ended."""

    plan: Plan
    broker: dict[str, Any]
    """Masked, as `brokers`."""
    measured_from: float | None
    """Seconds since the epoch; None when the load never started."""
    measured_until: float | None
    accounts: Accounts | None
    confirms: bool
    failures: tuple[Failure, ...]
    interrupted_by: int | None
    """Exit code of the signal that ended the run early."""
    busiest_agent_share: float | None
    busiest_host_share: float | None
    spark_cores: float | None
    """What Spark and the driver used in the measured phase, in cores."""
    clock_bound_ns: int
    environment: dict[str, Any]
    brokers: Sequence[Mapping[str, Any]] = ()
    """All of them with their roles, where there are several."""
    agents: list[dict[str, Any]] = field(default_factory=list)
    counted: Counted | None = None
    """Messages of a measured phase that had an open end."""
    samples: tuple[AgentSamples, ...] | None = None
    """Of the throughput at the consumers; None where none were to be taken."""
    notes: tuple[Check, ...] = ()
    """What else the reader should know."""
    broker_resources: Mapping[str, Any] = field(default_factory=dict)
    """The broker's own use of its machine and whether it held producers back."""
    trace: TraceFacts | None = None
    """All messages joined by their IDs, where every one was traced."""
    stopped_by: MissedWhileRunning | None = None
    """The objective whose miss ended the run early, if one did."""
    is_partial: bool = False
    """The run goes on, or nobody knows how it ended."""
    silences: tuple[Mapping[str, Any], ...] = ()
    """Consumers that got nothing for too long while their producers were confirmed: `consumers`,
    `after_seconds` of the measured phase, `seconds`."""

    @property
    def measured_seconds(self) -> float:
        if self.measured_from is None or self.measured_until is None:
            return 0.0
        # Seconds since the epoch are exact to a quarter of a microsecond: without rounding, 1000
        # messages in 2 s could be 500.0001 a second, which is more than was asked for.
        return max(0.0, round(self.measured_until - self.measured_from, 6))

    @property
    def ended_early(self) -> bool:
        """Whether fewer messages were due than planned, for a reason that is no failure."""
        return self.interrupted_by is not None or self.stopped_by is not None or self.is_partial

    @property
    def supplied_by_join(self) -> tuple[str, ...]:
        """Measures that the receiving agents could not take of every message, but the join can."""
        if self.trace is None or not self.trace.joined.total("untimed"):
            return ()
        return tuple(name for name in CENSORED_MEASURES if name in self.trace.joined.ticks)
