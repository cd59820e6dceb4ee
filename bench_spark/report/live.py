"""What is seen while a run goes on: a line rewritten in place, or a line per interval.

Everything goes to the stream given, which is standard error: standard output belongs to results.
The engine calls `update` several times a second; how much of it is shown is decided here.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, TextIO

from rich.console import Console
from rich.text import Text

from bench_spark.agent.timeline import Timeline
from bench_spark.core.clock import NANOSECONDS
from bench_spark.plan import Plan, has_open_end
from bench_spark.report.descriptions import end_of
from bench_spark.report.formatting import (
    UNKNOWN,
    count,
    duration,
    one_line,
    rate,
    rewrites_lines,
    seconds,
)

RATE_NS = 2 * NANOSECONDS
"""How far the throughput that is shown looks back."""
STILL_SECONDS = 3.0
"""Nothing has moved for so long: that is shown, and no throughput."""
STALE_NS = 15 * NANOSECONDS
"""Windows of 10 s that ended longer ago are not shown any more."""

FEWEST_BAR_CELLS, MOST_BAR_CELLS = 5, 20

FEWEST_OPENED_SHOWN = 100
"""Fewer connections are open at once, and not worth a line."""
OPENED_PER_LINE = 500

_ERASE_LINE = "\r\x1b[2K"


class RollingWindow(Protocol):
    """The newest rolling window of a run."""

    @property
    def sent_per_second(self) -> float: ...

    @property
    def received_per_second(self) -> float: ...

    @property
    def measures(self) -> Mapping[str, Mapping[str, int]]: ...

    @property
    def ended_ns(self) -> int: ...


class Movement:
    """How fast messages move, from what was counted so far."""

    def __init__(self) -> None:
        self._totals: deque[tuple[int, int]] = deque()
        """Moments of the last seconds, with what was counted until then."""
        self._moved_ns: int | None = None
        """When the count last rose."""

    def counted(self, now_ns: int, total: int) -> None:
        if self._moved_ns is None or (self._totals and total != self._totals[-1][1]):
            self._moved_ns = now_ns
        self._totals.append((now_ns, total))
        while len(self._totals) > 2 and self._totals[1][0] <= now_ns - RATE_NS:
            self._totals.popleft()

    @property
    def per_second(self) -> float | None:
        """Over the last seconds; None before there is a difference to be seen."""
        if len(self._totals) < 2:
            return None
        (first_ns, before), (last_ns, after) = self._totals[0], self._totals[-1]
        return (after - before) * NANOSECONDS / (last_ns - first_ns) if last_ns > first_ns else None

    def still_seconds(self, now_ns: int) -> float:
        """How long nothing has moved."""
        return 0.0 if self._moved_ns is None else max(0.0, (now_ns - self._moved_ns) / NANOSECONDS)


@dataclass(frozen=True)
class Progress:
    """Where a run is."""

    phase: str
    elapsed_seconds: float
    total_seconds: float | None
    """Until the last message is sent, or in the drain until its end at the latest; None where a
    number of messages decides."""
    messages_per_second: float | None
    """Received; without consumers, sent."""
    p99_us: int | None
    """Of the measure that a percentile without one is of."""
    still_seconds: float = 0.0
    """How long no message has moved."""
    measure: str = "latency"
    """What `p99_us` is of."""

    @property
    def share(self) -> float:
        if not self.total_seconds:
            return 0.0
        return min(1.0, self.elapsed_seconds / self.total_seconds)

    @property
    def text(self) -> str:
        total = UNKNOWN if self.total_seconds is None else f"{round(self.total_seconds, 1):g}"
        where = f"{self.phase:<7}  {self.elapsed_seconds:.0f}/{total} s"
        if self.still_seconds >= STILL_SECONDS:
            return f"{where}  no messages for {self.still_seconds:.0f} s"
        p99 = f"{p99_label(self.measure)} {duration(self.p99_us)}"
        return f"{where}  {rate(self.messages_per_second)} msg/s  {p99}"


def p99_label(measure: str) -> str:
    """What a line calls the 99th percentile of a measure: `delivery P99`."""
    return f"{measure.removesuffix('_latency')} P99"


def progress_of(
    plan: Plan,
    timeline: Timeline,
    now_ns: int,
    window: RollingWindow | None,
    is_draining: bool,
    movement: Movement | None = None,
) -> Progress:
    """`movement`: as the agents report it, which is known long before a window is; without it the
    throughput is the window's. A window that is over for long says nothing of now."""
    if window is not None and now_ns - window.ended_ns > STALE_NS:
        window = None
    total_ns = timeline.measure_end_ns - timeline.start_ns
    if is_draining or now_ns >= timeline.measure_end_ns:
        phase = "drain"
        total_ns += timeline.drain_ns
    else:
        phase = "warm-up" if now_ns < timeline.measure_start_ns else "measure"
    measure = plan.scenario.headline_measure
    per_second: float | None = None
    p99_us: int | None = None
    if window is not None:
        is_sent = plan.scenario.only_publishes
        per_second = window.sent_per_second if is_sent else window.received_per_second
        p99_us = window.measures.get(measure, {}).get("p99_us")
    if movement is not None and movement.per_second is not None:
        per_second = movement.per_second
    return Progress(
        phase=phase,
        elapsed_seconds=max(0.0, (now_ns - timeline.start_ns) / NANOSECONDS),
        total_seconds=None if has_open_end(plan.scenario) else total_ns / NANOSECONDS,
        messages_per_second=per_second,
        p99_us=p99_us,
        still_seconds=0.0 if movement is None else movement.still_seconds(now_ns),
        measure=measure,
    )


@dataclass
class ShownRun:
    """The run that is on now."""

    name: str
    plan: Plan
    timeline: Timeline | None = None
    """None before the load starts."""
    now_ns: Callable[[], int] = lambda: 0
    window: RollingWindow | None = None
    """The newest rolling window; None before the first and without live metrics."""
    is_draining: bool = False
    totals: Mapping[str, int] = field(default_factory=dict)
    """What was sent and received so far."""
    movement: Movement = field(default_factory=Movement)

    def counted(self, totals: Mapping[str, int]) -> None:
        self.totals = totals
        counted = "sent" if self.plan.scenario.only_publishes else "received_once"
        self.movement.counted(self.now_ns(), totals.get(counted, 0))

    @property
    def progress(self) -> Progress | None:
        """None before the load starts."""
        if self.timeline is None:
            return None
        now_ns, window, is_draining = self.now_ns(), self.window, self.is_draining
        return progress_of(self.plan, self.timeline, now_ns, window, is_draining, self.movement)


class Verbosity(Enum):
    """How much is said while something is done."""

    QUIET = "quiet"
    NORMAL = "normal"
    VERBOSE = "verbose"


class Steps:
    """Says what is being done and no more; the other displays add the progress of the load.

    Quiet, it leaves out the steps; verbose, it says when each was taken, and what was decided.
    """

    def __init__(self, stream: TextIO, verbosity: Verbosity = Verbosity.NORMAL) -> None:
        self.shows_details = verbosity is Verbosity.VERBOSE
        self._stream = stream
        self._shows_steps = verbosity is not Verbosity.QUIET
        self._began = time.monotonic()
        self._name = ""
        self.shown: ShownRun | None = None
        """From the first connection that it opens to its end; read by other threads too."""

    def name_next(self, name: str) -> None:
        """What the next run is called (the engine knows its plan, but not what sets it apart)."""
        self._name = name

    def step(self, text: str) -> None:
        if self._shows_steps:
            stamp = f"{time.monotonic() - self._began:7.2f} s  " if self.shows_details else ""
            self._say(f"{stamp}{one_line(text)}")

    def detail(self, text: str) -> None:
        """Something that was decided, for those who want to know everything."""
        if self.shows_details:
            self._write("".join(f"           {line}\n" for line in text.splitlines()))

    def opening(self, plan: Plan, opened: int) -> None:
        """So many connections are open; called again and again before the load starts."""
        if self.shown is None:
            self.shown = ShownRun(self._name or plan.scenario.name, plan)
        self._show_opening(self.shown, opened)

    def started(
        self,
        plan: Plan,
        timeline: Timeline,
        now_ns: Callable[[], int],
        window: RollingWindow | None = None,
    ) -> None:
        """`window`: who comes when the load has been running may know one already."""
        name = self._name or plan.scenario.name
        self.shown = ShownRun(name, plan, timeline, now_ns, window)
        self._show_start(self.shown)

    def update(self, window: RollingWindow | None, is_draining: bool) -> None:
        if self.shown is not None and self.shown.timeline is not None:
            self.shown.window, self.shown.is_draining = window, is_draining
            self._show_progress(self.shown)

    def counted(self, totals: Mapping[str, int]) -> None:
        """What was sent and received so far; called together with `update`."""
        if self.shown is not None:
            self.shown.counted(dict(totals))

    def ended(self) -> None:
        self.shown = None

    def _show_opening(self, shown: ShownRun, opened: int) -> None:
        pass

    def _show_start(self, shown: ShownRun) -> None:
        end = end_of(shown.plan) or f"{seconds(shown.plan.longest_seconds)} at most"
        self.step(f"{shown.name}: the load runs, {end}")

    def _show_progress(self, shown: ShownRun) -> None:
        pass

    def _say(self, line: str) -> None:
        self._write(f"{line}\n")

    def _write(self, text: str) -> None:
        # A run matters more than its display: a terminal that was closed must not end it.
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
            self._stream.flush()


class LiveLog(Steps):
    """For logs and pipes: a line per interval, and one whenever a phase begins."""

    def __init__(self, stream: TextIO, verbosity: Verbosity = Verbosity.NORMAL) -> None:
        super().__init__(stream, verbosity)
        self._said: tuple[str, int] | None = None
        self._opened_said = 0

    def ended(self) -> None:
        super().ended()
        self._said = None
        self._opened_said = 0

    def _show_opening(self, shown: ShownRun, opened: int) -> None:
        if opened >= self._opened_said + OPENED_PER_LINE:
            self._opened_said = opened
            self._say(f"{shown.name}  {_opening_text(shown.plan, opened)}")

    def _show_start(self, shown: ShownRun) -> None:
        self._show_progress(shown)

    def _show_progress(self, shown: ShownRun) -> None:
        progress = shown.progress
        assert progress is not None
        interval_seconds = shown.plan.scenario.interval_seconds
        moment = (progress.phase, int(progress.elapsed_seconds // interval_seconds))
        if moment != self._said:
            self._said = moment
            self._say(f"{shown.name}  {progress.text}")


class LiveLine(Steps):
    """For terminals: one line, rewritten in place and gone when the run has ended."""

    def __init__(self, stream: TextIO, verbosity: Verbosity = Verbosity.NORMAL) -> None:
        super().__init__(stream, verbosity)
        # It renders, and never writes: rich ends a program whose terminal is closed.
        self._console = Console(
            file=io.StringIO(),
            force_terminal=True,
            color_system=None if os.environ.get("NO_COLOR") else "auto",
            highlight=False,
            emoji=False,
        )

    def ended(self) -> None:
        if self.shown is not None:
            self._write(_ERASE_LINE)
        super().ended()

    def _show_opening(self, shown: ShownRun, opened: int) -> None:
        if opened >= FEWEST_OPENED_SHOWN:
            self._rewrite(Text(_opening_text(shown.plan, opened), "dim"))

    def _show_start(self, shown: ShownRun) -> None:
        self._show_progress(shown)

    def _show_progress(self, shown: ShownRun) -> None:
        progress = shown.progress
        assert progress is not None
        text = f"  {progress.text}"
        room = self._room - len(text)
        name = shown.name[: max(0, room)]
        cells = min(MOST_BAR_CELLS, room - len(name) - 1)
        bar = f" {self._bar(progress.share, cells)}" if cells >= FEWEST_BAR_CELLS else ""
        self._rewrite(Text.assemble((name, "bold"), bar, text))

    def _say(self, line: str) -> None:
        self._write(f"{_ERASE_LINE}{self._styled(Text(line, 'dim'))}\n")

    @property
    def _room(self) -> int:
        # A line that reaches the last column would wrap, and could not be rewritten.
        return self._console.width - 1

    def _rewrite(self, line: Text) -> None:
        line.truncate(self._room)
        self._write(f"{_ERASE_LINE}{self._styled(line)}")

    def _styled(self, line: Text) -> str:
        with self._console.capture() as captured:
            self._console.print(line, end="", soft_wrap=True)
        return captured.get()

    def _bar(self, share: float, cells: int) -> str:
        encoding = (getattr(self._stream, "encoding", None) or "").lower()
        full, empty = ("█", "░") if encoding.startswith("utf") else ("#", ".")
        filled = int(share * cells)
        return full * filled + empty * (cells - filled)


def _opening_text(plan: Plan, opened: int) -> str:
    wanted = plan.scenario.producers + plan.scenario.consumers
    return f"{count(opened)} of {count(wanted)} connections are open"


def display_for(
    stream: TextIO, live: bool = True, verbosity: Verbosity = Verbosity.NORMAL
) -> Steps:
    """The display that suits the stream; without `live`, steps only."""
    if not live or verbosity is Verbosity.QUIET:
        return Steps(stream, verbosity)
    # A line that is rewritten would lose the details.
    if rewrites_lines(stream) and verbosity is not Verbosity.VERBOSE:
        return LiveLine(stream, verbosity)
    return LiveLog(stream, verbosity)


def display_for_trials(stream: TextIO) -> Steps:
    """The display of each of many runs: a terminal shows where it is, a log nothing."""
    if rewrites_lines(stream):
        return LiveLine(stream, Verbosity.QUIET)
    return silent_display()


def silent_display() -> Steps:
    """Says nothing: for runs that are parts of something which speaks for them."""
    return Steps(sys.stderr, Verbosity.QUIET)
