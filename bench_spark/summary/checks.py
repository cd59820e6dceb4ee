"""What a check of a run is, what is known of the run when it is checked, and the verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from bench_spark.collector.accounts import Accounts

Verdict = Literal["pass", "warn", "fail"]
Ends = Literal["both", "producers", "consumers"]
"""Which ends of the broker the run is at."""
LimitedBy = Literal["broker", "generator", "host"]
"""Who was too slow; `host`: broker and generator share one that had no CPU left, so either."""


@dataclass(frozen=True)
class Check:
    name: str
    verdict: Verdict
    text: str
    limited_by: LimitedBy | None = None
    """Whose limit it was, if the run did not keep what was asked; None where that is not said."""

    def as_dict(self) -> dict[str, str]:
        found = {"name": self.name, "verdict": self.verdict, "text": self.text}
        return found if self.limited_by is None else {**found, "limited_by": self.limited_by}


@dataclass(frozen=True)
class TraceFindings:
    """What came of joining all messages by their IDs."""

    messages: int
    disagreements: Mapping[str, tuple[int, int]]
    """Counts that differ: by the join, and by the agents' own sets and counters."""
    corrupted: int
    unexpected: int


@dataclass(frozen=True)
class Throughput:
    """What was received in the measured seconds, against what was sent."""

    send_rate: float
    """Deliveries per second that the messages sent ask for: every copy counts."""
    receive_rate: float
    seconds: float
    left_of_warmup: int
    """Messages of the warm-up that arrived in the measured seconds."""
    after_the_end: int
    """Messages of the measured phase that arrived after it."""


@dataclass(frozen=True)
class AuditInput:
    mode: str
    due: int
    sent: int
    wanted_rate_per_second: float | None
    send_rate_per_second: float
    blocked_seconds: float
    """How long the broker blocked a producer in the measured phase, on average over all of them."""
    busiest_agent_share: float | None
    """Highest share of one core that any agent used in a measured second."""
    busiest_host_share: float | None
    """How busy the busiest agent's machine was in the measured phase, all cores and programs."""
    spark_cores: float | None
    """What Spark and the driver used in the measured phase, in cores."""
    accounts: Accounts | None
    received: int
    ends: Ends
    asked_for: int | None
    """Messages of the measured phase, where their number was known beforehand."""
    unconfirmed: int | None
    """None where confirms are not used."""
    lost_is_explained_by: str | None
    confirms: bool
    clock_bound_ns: int
    negative: int
    latency_p50_us: int | None
    warmup_seconds: float
    shares_host: bool
    bytes_per_second: float
    link_speed_mbit: int | None
    lower_bounds: dict[str, list[str]]
    trace: TraceFindings | None = None
    corrupted: int | None = None
    """As the agents counted it; None where contents were not compared."""
    samples_wanted: int = 0
    """Per pair; 0 where the throughput is not sampled."""
    samples_by_pair: tuple[int, ...] = ()
    outages: tuple[Mapping[str, Any], ...] = ()
    """Connections that were lost and opened again, as `agents` in the document lists them, each
    with its `agent`."""
    expected: int | None = None
    """Deliveries that the load asked for; None: as many as were sent, every copy counted."""
    undelivered_share: float = 0.001
    """Share of the expected deliveries that may stay undelivered, and of the messages sent that the
    broker may refuse or not confirm."""
    refused: int = 0
    is_cut_short: bool = False
    """Whether a failure, a signal or an objective ended the run before its time: what was under way
    then had no whole drain."""
    measured_seconds: float = 0.0
    stalled_seconds: Mapping[int, float] = field(default_factory=dict)
    """By agent: how much of the measured phase its loop did not run, where it was too long."""
    silences: tuple[Mapping[str, Any], ...] = ()
    """As `RunFacts` has them."""
    throughput: Throughput | None = None
    """None where one end is missing, or the run was cut short."""
    copies: int = 1
    """How often each message is to be received."""
    malformed: int = 0
    uncompiled_hosts: tuple[str, ...] = ()
    """Hosts whose agents ran their kernels as plain Python."""
    unexpected: int = 0


def verdict_of(checks: Sequence[Check]) -> dict[str, Any]:
    return {
        "passed": all(check.verdict != "fail" for check in checks),
        "checks": [check.as_dict() for check in checks],
    }
