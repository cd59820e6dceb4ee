"""How the agents themselves fared: their CPU, their machines, their clocks.

Gathered from the rows they send, because a result is worth only as much as its generator.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bench_spark.agent.protocol import EventRow
from bench_spark.agent.timeline import MEASURE

SHORTEST_TICK_SECONDS = 0.5
"""Ticks cut shorter than this say little about CPU use."""


@dataclass
class ClockError:
    """How wrong an agent's clock may be: its tightest bound, and the drift that is proved."""

    bound_ns: int
    drift_ns: int = 0

    def add(self, offset_ns: int, bound_ns: int) -> None:
        self.bound_ns = min(self.bound_ns, bound_ns)
        self.drift_ns = max(self.drift_ns, abs(offset_ns) - bound_ns)


@dataclass
class AgentHealth:
    """What the agents' rows say of the agents themselves."""

    busiest_share: float | None = None
    cpu_seconds: dict[int, float] = field(default_factory=dict)
    _clocks: dict[int, ClockError] = field(default_factory=dict)
    _hosts: dict[int, list[float]] = field(default_factory=dict)

    def add(self, agent: int, rows: list[EventRow]) -> None:
        for row in rows:
            if row.cpu_seconds is None:
                continue
            self.cpu_seconds[agent] = self.cpu_seconds.get(agent, 0.0) + row.cpu_seconds
            bound_ns = row.clock_bound_ns or 0
            clock = self._clocks.setdefault(agent, ClockError(bound_ns))
            clock.add(row.clock_offset_ns or 0, bound_ns)
            if row.phase == MEASURE and row.tick_seconds >= SHORTEST_TICK_SECONDS:
                share = row.cpu_seconds / row.tick_seconds
                self.busiest_share = max(self.busiest_share or 0.0, share)
                if row.host_busy_share is not None:
                    self._hosts.setdefault(agent, []).append(row.host_busy_share)

    @property
    def busiest_host_share(self) -> float | None:
        """How busy the busiest agent's host was, on average over the measured phase."""
        return max((sum(found) / len(found) for found in self._hosts.values()), default=None)

    def clock_error_ns(self, agent: int) -> int:
        clock = self._clocks.get(agent)
        return clock.bound_ns + clock.drift_ns if clock is not None else 0

    @property
    def clock_bound_ns(self) -> int:
        return max((self.clock_error_ns(agent) for agent in self._clocks), default=0)
