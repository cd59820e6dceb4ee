"""How late rolling windows were for those who watched, and the audit's check of it."""

from __future__ import annotations

from dataclasses import dataclass

from bench_spark.core.clock import NANOSECONDS
from bench_spark.summary.checks import Check

USUAL_DELAY_SECONDS = 5.0
"""A second for its rows to be committed, up to a trigger to be noticed, a batch, and as much again
on a busy machine. What takes longer is late."""
WINDOW_EVERY_SECONDS = 1.0
"""A rolling window ends with every tick."""


def late_after(trigger_seconds: float) -> float:
    """After so many seconds a window is late, where batches are so far apart."""
    return max(USUAL_DELAY_SECONDS, 2.5 * trigger_seconds)


@dataclass
class LiveDelay:
    """Of the rolling windows of one run, each counted when it was first written."""

    late_after_seconds: float = USUAL_DELAY_SECONDS
    windows: int = 0
    late: int = 0
    first_written_ns: int | None = None
    newest_end_ns: int = 0
    newest_delay_seconds: float = 0.0
    longest_delay_seconds: float = 0.0

    def written(self, window_end_ns: int, now_ns: int) -> None:
        if window_end_ns <= self.newest_end_ns:
            return  # another measure of the same window, or one that has changed since
        # The last tick of a run may end before its second does.
        delay = max(0.0, (now_ns - window_end_ns) / NANOSECONDS)
        self.windows += 1
        self.late += delay > self.late_after_seconds
        self.first_written_ns = self.first_written_ns or now_ns
        self.newest_end_ns = window_end_ns
        self.newest_delay_seconds = delay
        self.longest_delay_seconds = max(self.longest_delay_seconds, delay)


def live_check(delay: LiveDelay, start_ns: int, measured_until_ns: int, now_ns: int) -> Check:
    """Whether a run could be watched: `start_ns` is when its load began."""
    limit = delay.late_after_seconds
    first_ns = delay.first_written_ns
    if first_ns is None or first_ns > measured_until_ns:
        load_seconds = (measured_until_ns - start_ns) / NANOSECONDS
        text = "no live metrics before the measured phase ended"
        if load_seconds < WINDOW_EVERY_SECONDS + limit:
            short = f"{load_seconds:.1f} s of load are too few to be watched"
            return Check("live", "pass", f"{text}: {short}")
        return Check("live", "warn", f"{text}, {load_seconds:.0f} s after the load began")
    unwritten_ns = min(measured_until_ns, now_ns - round(limit * NANOSECONDS)) - delay.newest_end_ns
    missing = max(0, int(unwritten_ns / NANOSECONDS / WINDOW_EVERY_SECONDS))
    late = delay.late + missing
    text = f"the newest live metrics came {delay.newest_delay_seconds:.1f} s after their window"
    if not late:
        return Check("live", "pass", text)
    counted = f"{late} of {delay.windows + missing} windows were late (more than {limit:g} s)"
    longest = f"the longest by {delay.longest_delay_seconds:.1f} s"
    absent = f", {missing} of them not written at all" if missing else ""
    return Check("live", "warn", f"{text}; {counted}, {longest}{absent}")
