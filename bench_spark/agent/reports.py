"""What an agent reports to the driver while its load runs: its progress ten times a second, and
every second the event rows of the ticks that are over, with what fell due in them (`DueBook`), and
what was confirmed and received since.
"""

from __future__ import annotations

import time

import numpy as np

from bench_spark.agent.connections import Outages
from bench_spark.agent.host import HostLoad
from bench_spark.agent.load import AgentLoad, Backlog
from bench_spark.agent.pacing import Pacing
from bench_spark.agent.protocol import Delivered, EventRow
from bench_spark.agent.timeline import MEASURE, WARMUP
from bench_spark.core.clock import NANOSECONDS

PROGRESS_NS = 100_000_000
"""Time between two progress reports of an agent, unless there are many agents."""
MOST_REPORTS_PER_SECOND = 2_000
"""Progress reports of all agents together: each costs the driver some 20 us."""


class LoadReports:
    def __init__(self, load: AgentLoad, backlog: Backlog, outages: Outages, total: int) -> None:
        """`total`: messages of the whole schedule, where there is one."""
        assignment = load.assignment
        self._load = load
        self._timeline = load.timeline
        self._recorder = load.recorder
        self._link = load.link
        self._backlog = backlog
        self._outages = outages
        self._due_book = DueBook(load, total)
        self._has_ended_production = not assignment.producers
        together_ns = assignment.agents * NANOSECONDS // MOST_REPORTS_PER_SECOND
        self._progress_ns = max(PROGRESS_NS, together_ns)
        self._next_progress_ns = 0
        self._tick_end_ns = load.timeline.tick_end_ns(0)
        """Of the tick that is going on."""
        self._cpu_seconds = time.process_time()
        self._host_load = HostLoad()
        wiring = assignment.scenario.wiring
        groups = np.array([*map(wiring.group_of_producer, assignment.producer_numbers)], np.int64)
        self._groups, self._group_of_lane = np.unique(groups, return_inverse=True)
        self._subscriptions = np.array(assignment.subscriptions, np.int64)
        self._confirmed = np.zeros(len(self._groups), np.int64)
        self._received = np.zeros(len(self._subscriptions), np.int64)

    def send_what_is_due(self, now: int) -> bool:
        """Progress, where it is time for that; whether a tick is over, which the caller closes."""
        if now >= self._next_progress_ns:
            self._next_progress_ns = now + self._progress_ns
            self.send_progress()
        return now >= self._tick_end_ns

    def send_progress(self) -> None:
        backlog = self._backlog
        self._link.send(
            {
                "type": "progress",
                "sent": backlog.sent,
                "received_once": self._recorder.received_once,
                "freed": backlog.freed,
                "reopened": backlog.reopened,
                "down": self._outages.count_down(),
                "unsettled": self._load.producers.in_flight(),
            }
        )

    def production_ended(self, now: int) -> None:
        """Nothing more falls due, for whatever reason."""
        self._book_due(now)
        self._has_ended_production = True

    def _book_due(self, now: int) -> None:
        if not self._has_ended_production:
            self._due_book.book_until(now)

    # -- every second ----------------------------------------------------------------------------

    def close_ticks(self, now: int, is_attached: bool) -> None:
        """Send rows of the ticks that are over. What is received is told once consumers are."""
        self._book_due(now)
        rows = self._recorder.rows_until(now)
        if rows:
            rows[-1].host_busy_share = self._host_load.busy_share()
        self._send_rows(rows)
        self.look_at_time(now)
        # Where nobody receives what is sent, or nobody sends, there is nothing to wait for.
        if is_attached and self._load.assignment.scenario.has_both_ends:
            self._send_deliveries(now)

    def look_at_time(self, now: int) -> None:
        """Note which tick is going on; again when the measured phase, and so its ticks, moved."""
        self._tick_end_ns = self._timeline.tick_end_ns(self._timeline.tick_at(now))

    def send_last_rows(self) -> None:
        """Also of the tick that is not over."""
        self._send_rows(self._recorder.all_rows())

    def _send_rows(self, rows: list[EventRow]) -> None:
        """The last of these rows carries the CPU used since the last row that did."""
        if rows:
            cpu_seconds = time.process_time()
            rows[-1].cpu_seconds = cpu_seconds - self._cpu_seconds
            self._cpu_seconds = cpu_seconds
            rows[-1].clock_offset_ns = self._link.clock_offset.offset_ns
            rows[-1].clock_bound_ns = self._link.clock_offset.bound_ns
        self._link.send_rows(rows)

    def _send_deliveries(self, now: int) -> None:
        recorder = self._recorder
        confirmed = np.zeros_like(self._confirmed)
        by_lane = recorder.confirmed_by_lane if self._load.confirms else recorder.under_way
        np.add.at(confirmed, self._group_of_lane, by_lane[: len(self._group_of_lane)])
        received = recorder.received_by_subscription[: len(self._received)].copy()
        more_confirmed, more_received = confirmed - self._confirmed, received - self._received
        sent_by, got = np.flatnonzero(more_confirmed), np.flatnonzero(more_received)
        self._confirmed, self._received = confirmed, received
        delivered = Delivered(
            groups=self._groups[sent_by],
            confirmed=more_confirmed[sent_by],
            subscriptions=self._subscriptions[got],
            received=more_received[got],
        )
        self._link.send(
            {"type": "deliveries", "at_ns": now, "groups": len(sent_by)}, delivered.to_bytes()
        )


class DueBook:
    """With a schedule a message is due at its intended time; without one, when it is sent.

    Where the time of sending decides which phase a message belongs to, what the warm-up has not
    sent is due in the measured phase."""

    def __init__(self, load: AgentLoad, total: int) -> None:
        """`total`: messages of the whole schedule, warm-up and measured phase together."""
        self._schedule = load.assignment.schedule
        self._total = total
        self._timeline = load.timeline
        self._recorder = load.recorder
        self._booked = 0
        self._booked_by_phase = {WARMUP: 0, MEASURE: 0}

    def book_until(self, at_ns: int) -> None:
        """Book what fell due since the last time, each message to the phase and tick it is of."""
        if self._schedule is None:
            self._book_what_was_sent(at_ns)
        elif self._recorder.goes_by_sending:
            self._book_by_sending(self._schedule, at_ns)
        else:
            self._book_by(self._schedule, at_ns - self._timeline.start_ns)

    def _book_by(self, schedule: Pacing, elapsed_ns: int) -> None:
        timeline = self._timeline
        while True:
            first_ns = timeline.start_ns + schedule.intended_ns(self._booked)
            tick_end_ns = timeline.tick_end_ns(timeline.tick_at(first_ns)) - timeline.start_ns
            due = min(schedule.messages_before(min(tick_end_ns, elapsed_ns)), self._total)
            if due <= self._booked:
                return
            phase = MEASURE if first_ns >= timeline.measure_start_ns else WARMUP
            self._recorder.due(phase, first_ns, due - self._booked)
            self._booked = due

    def _book_by_sending(self, schedule: Pacing, at_ns: int) -> None:
        of_warmup = int(self._recorder.sent_by_lane[WARMUP].sum())
        self._book_phase(WARMUP, at_ns, of_warmup)
        if at_ns >= self._timeline.measure_start_ns:
            due = min(schedule.messages_before(at_ns - self._timeline.start_ns), self._total)
            self._book_phase(MEASURE, at_ns, due - of_warmup)

    def _book_what_was_sent(self, at_ns: int) -> None:
        for phase, lanes in self._recorder.sent_by_lane.items():
            self._book_phase(phase, at_ns, int(lanes.sum()))

    def _book_phase(self, phase: str, at_ns: int, due: int) -> None:
        """`due`: messages of this phase until now."""
        if due > self._booked_by_phase[phase]:
            self._recorder.due(phase, at_ns, due - self._booked_by_phase[phase])
            self._booked_by_phase[phase] = due
