"""Rows of the ticks that are over, on their way to the driver, with what the machine has to say."""

from __future__ import annotations

import time

from bench_spark.agent.host import HostLoad
from bench_spark.agent.link import Link
from bench_spark.agent.recorder import Recorder
from bench_spark.agent.rows import EventRow
from bench_spark.agent.timeline import Timeline


class TickRows:
    def __init__(self, timeline: Timeline, recorder: Recorder, link: Link) -> None:
        self._timeline = timeline
        self._recorder = recorder
        self._link = link
        self._cpu_seconds = time.process_time()
        self._host_load = HostLoad()
        self.due_ns = timeline.tick_end_ns(0)
        """When the tick ends that is going on."""

    def send_until(self, now: int) -> None:
        rows = self._recorder.rows_until(now)
        self._note_cpu_and_clock(rows)
        if rows:
            rows[-1].host_busy_share = self._host_load.busy_share()
        self._link.send_rows(rows)
        self.look_at_time(now)

    def look_at_time(self, now: int) -> None:
        """Note which tick is going on; again when the measured phase, and so its ticks, moved."""
        self.due_ns = self._timeline.tick_end_ns(self._timeline.tick_at(now))

    def send_last(self) -> None:
        """Also of the tick that is not over."""
        rows = self._recorder.all_rows()
        self._note_cpu_and_clock(rows)
        self._link.send_rows(rows)

    def _note_cpu_and_clock(self, rows: list[EventRow]) -> None:
        """The last of these rows carries the CPU used since the last row that did."""
        if not rows:
            return
        cpu_seconds = time.process_time()
        rows[-1].cpu_seconds = cpu_seconds - self._cpu_seconds
        self._cpu_seconds = cpu_seconds
        rows[-1].clock_offset_ns = self._link.clock_offset.offset_ns
        rows[-1].clock_bound_ns = self._link.clock_offset.bound_ns
