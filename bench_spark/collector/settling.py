"""Whether a load without a schedule has settled: as much is received as is sent. Pure.

In mode `maximum` producers first fill the broker. A measured phase that began then would count a
backlog that nobody sent in it, or find that producers are held back until it has gone.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from bench_spark.core.clock import NANOSECONDS
from bench_spark.load_course import longest_warmup_seconds
from bench_spark.scenario.models import Scenario

LOOKED_BACK_SECONDS = 2.0
MOST_APART = 0.1
"""Share of what was sent, every copy counted, by which what was received may differ from it."""
ANNOUNCED_NS = 500_000_000
"""Time for the announcement to reach every agent before the moment it names. An agent that learns
of it later still begins to measure then, and says how late it was."""
_STEP_NS = 1_000_000
"""Warm-ups last whole milliseconds: times in tables are whole microseconds."""


@dataclass(frozen=True)
class Settled:
    """How a load stood when its measured phase began."""

    is_settled: bool
    after_seconds: float
    sent_per_second: float
    """Over the last two seconds, every copy counted."""
    received_per_second: float


class Settling:
    """Of one run, from its start until its measured phase has begun."""

    def __init__(self, scenario: Scenario, start_ns: int) -> None:
        warmup_seconds = scenario.phases.warmup_seconds
        self._start_ns = start_ns
        self._earliest_ns = start_ns + _rounded_up(round(warmup_seconds * NANOSECONDS))
        self._latest_ns = start_ns + round(longest_warmup_seconds(scenario) * NANOSECONDS)
        self._looked_back_ns = round(min(LOOKED_BACK_SECONDS, warmup_seconds) * NANOSECONDS)
        self._totals: deque[tuple[int, int, int]] = deque()
        """Moments that are looked back at, with what was sent and received until then."""
        self.outcome: Settled | None = None
        """None as long as nothing is decided."""

    def look(self, now: int, sent: int, received: int) -> int | None:
        """Take note of what was sent (every copy counted) and received so far. When the measured
        phase begins, once it turns out that the load has settled."""
        if self.outcome is not None or now < self._start_ns:
            return None
        self._totals.append((now, sent, received))
        while len(self._totals) > 1 and self._totals[1][0] <= now - self._looked_back_ns:
            self._totals.popleft()
        begins_ns = max(
            self._earliest_ns, self._start_ns + _rounded_up(now - self._start_ns + ANNOUNCED_NS)
        )
        if begins_ns >= self._latest_ns:
            # Everyone begins at the latest moment, without being told.
            if now >= self._latest_ns:
                self._decide(is_settled=self._are_alike(), begins_ns=self._latest_ns)
            return None
        if now < self._earliest_ns - ANNOUNCED_NS or not self._are_alike():
            return None
        self._decide(is_settled=True, begins_ns=begins_ns)
        return begins_ns

    def _gained(self) -> tuple[int, int, int]:
        """Over the time that is looked back at: its length, what was sent, what was received."""
        first, last = self._totals[0], self._totals[-1]
        return last[0] - first[0], last[1] - first[1], last[2] - first[2]

    def _are_alike(self) -> bool:
        length_ns, sent, received = self._gained()
        return length_ns >= self._looked_back_ns and abs(sent - received) < MOST_APART * sent

    def _decide(self, is_settled: bool, begins_ns: int) -> None:
        length_ns, sent, received = self._gained()
        seconds = max(length_ns, 1) / NANOSECONDS
        self.outcome = Settled(
            is_settled,
            (begins_ns - self._start_ns) / NANOSECONDS,
            sent / seconds,
            received / seconds,
        )


def _rounded_up(length_ns: int) -> int:
    return -(-length_ns // _STEP_NS) * _STEP_NS
