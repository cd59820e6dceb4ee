"""Windows that do not move: given back what was lost with a connection, or reported as stalled."""

from __future__ import annotations

from bench_spark.agent.flow import WindowFlow
from bench_spark.agent.outages import QUIET_NS, Outages, Quiet
from bench_spark.agent.tally import Tally
from bench_spark.agent.timeline import CONSUMER
from bench_spark.core.clock import NANOSECONDS
from bench_spark.errors import RunError

STALL_NS = 5 * NANOSECONDS


class WindowWatch:
    """Pure: the caller owns the clock."""

    def __init__(self, windows: WindowFlow, outages: Outages, tally: Tally) -> None:
        self._windows = windows
        self._outages = outages
        self._tally = tally
        self._stall = Quiet()
        self._settling = Quiet()

    def start_again(self) -> None:
        """Something took its time, and nobody was watching."""
        self._stall.start_again()

    def reclaim_what_was_lost(self, now: int) -> None:
        if not self._windows.is_settling or self._outages.count_down(CONSUMER):
            self._settling.start_again()
        elif self._settling.lasts_ns(self._windows.settling_credit, now) >= QUIET_NS:
            self._windows.reclaim()

    def stalled(self, now: int, is_filling: bool) -> RunError | None:
        """Why the run cannot go on, if nothing has moved for too long."""
        if self._outages.count_down() or self._windows.is_settling:
            self._stall.start_again()
        stalled_ns = self._stall.lasts_ns(self._windows.progress + self._tally.sent, now)
        if stalled_ns <= STALL_NS:
            return None
        what = "the window is stalled: no message of this agent arrived"
        if is_filling:
            what = "the window cannot be filled: the broker took no message of this agent"
        return RunError(f"{what} for {STALL_NS // NANOSECONDS} s")
