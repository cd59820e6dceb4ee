"""What a check of a run is, what is known of the run when it is checked, and the verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from bench_spark.collector.accounts import Accounts

Verdict = Literal["pass", "warn", "fail"]
Ends = Literal["both", "producers", "consumers"]
"""Which ends of the broker the run is at."""


@dataclass(frozen=True)
class Check:
    name: str
    verdict: Verdict
    text: str

    def as_dict(self) -> dict[str, str]:
        return {"name": self.name, "verdict": self.verdict, "text": self.text}


@dataclass(frozen=True)
class TraceFindings:
    """What came of joining all messages by their IDs."""

    messages: int
    disagreements: Mapping[str, tuple[int, int]]
    """Counts that differ: by the join, and by the agents' own sets and counters."""
    corrupted: int
    unexpected: int


@dataclass(frozen=True)
class AuditInput:
    mode: str
    due: int
    sent: int
    wanted_rate_per_second: float | None
    send_rate_per_second: float
    blocked_seconds: float
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


def verdict_of(checks: Sequence[Check]) -> dict[str, Any]:
    return {
        "passed": all(check.verdict != "fail" for check in checks),
        "checks": [check.as_dict() for check in checks],
    }
