"""Reports to the driver every second: rows of the ticks that are over, what fell due in
them, and what was confirmed and received."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from bench_spark.agent.host import HostLoad
from bench_spark.agent.job import Job, Lanes, Serving
from bench_spark.agent.link import Link
from bench_spark.agent.pacing import Pacing
from bench_spark.agent.protocol import EventRow
from bench_spark.agent.recorder import Recorder
from bench_spark.agent.timeline import MEASURE, WARMUP, Timeline
from bench_spark.transports.batches import I64


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


@dataclass(frozen=True, eq=False)
class Delivered:
    """Since the last report; what has not changed is left out."""

    groups: I64
    confirmed: I64
    """By group. Where confirms are not used: sent, and not returned."""
    subscriptions: I64
    received: I64

    def to_bytes(self) -> bytes:
        columns = (self.groups, self.confirmed, self.subscriptions, self.received)
        return b"".join(column.astype("<i8", copy=False).tobytes() for column in columns)

    @staticmethod
    def from_bytes(data: bytes, groups: int) -> Delivered:
        """Raises ValueError when the bytes are not what an agent sends."""
        columns = np.frombuffer(data, "<i8")
        subscriptions = (len(columns) - 2 * groups) // 2
        if groups < 0 or subscriptions < 0 or 2 * (groups + subscriptions) != len(columns):
            raise ValueError("this is no report of deliveries")
        ends = np.cumsum([groups, groups, subscriptions])
        return Delivered(*np.split(columns, ends))


class Deliveries:
    """Of one agent of a run with both ends."""

    def __init__(self, serving: Serving, recorder: Recorder, link: Link, confirms: bool) -> None:
        wiring = serving.assignment.scenario.wiring
        self._recorder = recorder
        self._link = link
        self._confirms = confirms
        members = [wiring.group_of_producer(one.index) for one in serving.assignment.producers]
        self._groups, self._group_of_lane = np.unique(
            np.array(members, np.int64), return_inverse=True
        )
        self._subscriptions = np.array(serving.subscriptions, np.int64)
        self._confirmed = np.zeros(len(self._groups), np.int64)
        self._received = np.zeros(len(self._subscriptions), np.int64)

    def report(self, now_ns: int) -> None:
        confirmed = np.zeros_like(self._confirmed)
        by_lane = self._recorder.confirmed_by_lane if self._confirms else self._recorder.under_way
        np.add.at(confirmed, self._group_of_lane, by_lane[: len(self._group_of_lane)])
        received = self._recorder.received_by_subscription[: len(self._received)].copy()
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
            {"type": "deliveries", "at_ns": now_ns, "groups": len(sent_by)}, delivered.to_bytes()
        )


class NoDeliveries:
    """Where nobody receives what is sent, or nobody sends, there is nothing to wait for."""

    def report(self, now_ns: int) -> None: ...


def deliveries_for(
    serving: Serving, recorder: Recorder, link: Link, lanes: Lanes
) -> Deliveries | NoDeliveries:
    if not serving.assignment.scenario.has_both_ends:
        return NoDeliveries()
    return Deliveries(serving, recorder, link, lanes.confirms)


class DueBook:
    """With a schedule a message is due at its intended time; without one, when it is sent.

    Where the time of sending decides which phase a message belongs to, what the warm-up has not
    sent is due in the measured phase."""

    def __init__(self, job: Job, total: int, recorder: Recorder) -> None:
        """`total`: messages of the whole schedule, warm-up and measured phase together."""
        self._schedule = job.assignment.schedule
        self._total = total
        self._timeline = job.timeline
        self._recorder = recorder
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
