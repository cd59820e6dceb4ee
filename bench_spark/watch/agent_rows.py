"""Agents of a run that goes on: what each has done, and how far they are apart. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

CONSUMER, PRODUCER = "consumer", "producer"

OPEN_TICKS = 10
"""Rows of a tick may come late; older ticks are taken for complete."""


@dataclass
class AgentTotals:
    """Of one agent, since the start."""

    sent: int = 0
    received: int = 0
    """Without the duplicates that it saw itself."""
    errors: int = 0
    reconnects: int = 0
    cpu_seconds: float = 0.0
    host_busy_share: float | None = None
    """In the last second that it told of."""
    tick: int = -1
    """The newest that it told of; the rates are of that second."""
    tick_seconds: float = 1.0
    sent_in_tick: int = 0
    received_in_tick: int = 0

    @property
    def sent_per_second(self) -> float:
        return self.sent_in_tick / self.tick_seconds

    @property
    def received_per_second(self) -> float:
        return self.received_in_tick / self.tick_seconds

    def add(self, row: Mapping[str, Any]) -> None:
        once = row["received"] - row["duplicates"]
        self.sent += row["sent"]
        self.received += once
        self.errors += row["errors"]
        self.reconnects += row["reconnects"] or 0
        self.cpu_seconds += row["cpu_seconds"] or 0.0
        if row["host_busy_share"] is not None:
            self.host_busy_share = row["host_busy_share"]
        if row["tick"] > self.tick:
            self.tick, self.tick_seconds = row["tick"], row["tick_seconds"] or 1.0
            self.sent_in_tick = self.received_in_tick = 0
        if row["tick"] == self.tick:
            self.sent_in_tick += row["sent"]
            self.received_in_tick += once


@dataclass
class Second:
    """One tick over all agents."""

    started_at: datetime
    seconds: float
    busiest_share: float | None = None
    """How busy the busiest machine of an agent was."""
    handled: dict[int, int] = field(default_factory=dict)
    """Per agent, while rows may still come: messages received, or sent where nobody receives."""
    spread: tuple[float, float, float] | None = None
    """Slowest, middle and fastest agent, in messages per second."""

    def close(self) -> None:
        if self.handled:
            self.spread = self.spread_now
            self.handled = {}

    @property
    def spread_now(self) -> tuple[float, float, float] | None:
        if not self.handled:
            return self.spread
        rates = [messages / self.seconds for messages in self.handled.values()]
        return min(rates), statistics.median(rates), max(rates)


@dataclass
class Agents:
    counted_role: str = CONSUMER
    """Whose messages the agents are compared by."""
    by_number: dict[int, AgentTotals] = field(default_factory=dict)
    by_tick: dict[int, Second] = field(default_factory=dict)

    @property
    def totals(self) -> dict[str, int]:
        """Under the names by which the driver tells them to a display."""
        return {
            "sent": sum(agent.sent for agent in self.by_number.values()),
            "received_once": sum(agent.received for agent in self.by_number.values()),
        }

    def add(self, rows: Iterable[Mapping[str, Any]], kept_ticks: int) -> None:
        """Rows of `events`; older ticks than so many are forgotten."""
        for row in rows:
            self.by_number.setdefault(row["agent"], AgentTotals()).add(row)
            self._add_to_second(row)
        newest = max(self.by_tick, default=0)
        for tick in [tick for tick in self.by_tick if tick < newest - kept_ticks]:
            del self.by_tick[tick]
        for tick, second in self.by_tick.items():
            if tick < newest - OPEN_TICKS:
                second.close()

    def _add_to_second(self, row: Mapping[str, Any]) -> None:
        length = row["tick_seconds"] or 1.0
        second = self.by_tick.setdefault(row["tick"], Second(row["tick_start"], length))
        if row["host_busy_share"] is not None:
            second.busiest_share = max(second.busiest_share or 0.0, row["host_busy_share"])
        if row["role"] == self.counted_role and second.spread is None:
            messages = row["received" if self.counted_role == CONSUMER else "sent"]
            second.handled[row["agent"]] = second.handled.get(row["agent"], 0) + messages
