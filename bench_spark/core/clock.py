"""One clock for pacing and for timestamps.

`now_ns` is the monotonic clock plus an anchor fixed when the clock was made, so it reads like the
epoch but never steps: an NTP correction in mid-run moves neither the schedule nor a latency. Clocks
on one host that share an anchor agree exactly, because CLOCK_MONOTONIC is one clock per machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

NANOSECONDS = 1_000_000_000
SHORTEST_STEP_NS = 100_000_000
"""Smaller jumps of the wall clock between two looks are not told from being held up."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Clock:
    """Epoch nanoseconds = monotonic nanoseconds + `anchor_ns`."""

    anchor_ns: int

    @classmethod
    def local(cls) -> Clock:
        """Anchored at this host's wall clock: the tightest of several paired readings."""
        best = min(_paired_reading() for _ in range(16))
        return cls(anchor_ns=best[1])

    def now_ns(self) -> int:
        return time.monotonic_ns() + self.anchor_ns

    def shifted(self, offset_ns: int) -> Clock:
        """This clock corrected by an offset measured against another one."""
        return Clock(self.anchor_ns + offset_ns)


def _paired_reading() -> tuple[int, int]:
    before = time.monotonic_ns()
    wall = time.time_ns()
    after = time.monotonic_ns()
    return after - before, wall - (before + after) // 2


@dataclass(frozen=True)
class ClockOffset:
    """How far a peer's clock is ahead of ours, and by how much that estimate may be wrong."""

    offset_ns: int
    bound_ns: int


def best_offset(exchanges: list[tuple[int, int, int]]) -> ClockOffset:
    """The offset of the peer's clock, from exchanges (asked, answered by the peer, received).

    The peer answered somewhere between `asked` and `received`, so the middle is wrong by at most
    half the round trip: the exchange with the shortest round trip gives the tightest bound.
    """
    asked, answered, received = min(exchanges, key=lambda exchange: exchange[2] - exchange[0])
    offset_ns = answered - (asked + received) // 2
    return ClockOffset(offset_ns, bound_ns=(received - asked + 1) // 2)


NowNs = Callable[[], int]


@dataclass(frozen=True)
class WallStep:
    """A jump of the wall clock: when it was noticed, on the run's clock, and how far it went."""

    at_ns: int
    by_ns: int


class WallClockWatch:
    """Notices when somebody sets the host's wall clock while a run goes on.

    The run's own clock does not follow, so nothing that is measured moves; but times in the tables
    then differ from what the wall clock says, and whoever compares them with a broker's log should
    know. A clock that is corrected slowly, as NTP does it, is no step.
    """

    def __init__(self, now_ns: NowNs, wall_ns: NowNs | None = None) -> None:
        self._now_ns = now_ns
        self._wall_ns = wall_ns or _wall_ns
        self._ahead_ns: int | None = None
        self.steps: list[WallStep] = []
        self.look()

    def look(self) -> None:
        """To be called several times a second."""
        before = self._now_ns()
        wall = self._wall_ns()
        after = self._now_ns()
        if after - before > SHORTEST_STEP_NS // 10:
            return  # held up between the readings: they say nothing
        ahead_ns = wall - (before + after) // 2
        step_ns = 0 if self._ahead_ns is None else ahead_ns - self._ahead_ns
        if abs(step_ns) >= SHORTEST_STEP_NS:
            self.steps.append(WallStep(after, step_ns))
        self._ahead_ns = ahead_ns


def _wall_ns() -> int:
    return time.time_ns()


def boot_id() -> str | None:
    """Identifies the running kernel: equal on two processes means they share a monotonic clock."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return None
