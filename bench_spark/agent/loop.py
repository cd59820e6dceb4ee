"""The one loop that sends, receives, records and waits while a load runs.

Everything happens in one thread: in the lab one thread for both ends beat two processes. The loop
waits in a single place for lanes, link and the schedule at once.

`LoadLoop.run` has the parts of a run in their order; each part calls `_turn` until its condition to
end is met. `producer.py` sends and settles messages, `consumer.py` receives them, and
`connections.py` follows lanes that are lost, blocked or full. Every second the driver gets the rows
of the ticks that are over (`TickRows`), with what fell due in them (`DueBook`), and what was
confirmed and received (`Deliveries`).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from bench_spark.agent.connections import ConnectionEvents, flow_control_for, window_watch_for
from bench_spark.agent.consumer import LoadConsumer, SlowConsumer
from bench_spark.agent.host import LONGEST_WAIT_NS, HostLoad, Waiting
from bench_spark.agent.job import Instruments, Job, Lanes
from bench_spark.agent.link import Link, report
from bench_spark.agent.pacing import Pacing
from bench_spark.agent.producer import LoadProducer, requests_for
from bench_spark.agent.protocol import Delivered, EventRow
from bench_spark.agent.recorder import Recorder
from bench_spark.agent.timeline import MEASURE, WARMUP, Timeline
from bench_spark.core.clock import NANOSECONDS
from bench_spark.errors import BenchError
from bench_spark.plan import Assignment, has_open_end

HOUSEKEEPING_NS = 50_000_000
PROGRESS_NS = 100_000_000
"""Time between two progress reports of an agent, unless there are many agents."""
MOST_REPORTS_PER_SECOND = 2_000
"""Progress reports of all agents together: each costs the driver some 20 us."""
LATE_GRACE_NS = NANOSECONDS
"""Messages due at the very end may still be sent this much later; after that they are unsent."""
SHORTEST_SILENCE_NS = NANOSECONDS
"""A run that only consumes waits at least this long for a message that does not come."""
STALL_NS = NANOSECONDS
"""A turn waits for 20 ms at most, then works. An agent whose turns are this far apart was stopped,
lacked CPU, or was held up by a call."""
DRAIN_MARGIN_NS = 2 * NANOSECONDS
"""How much longer than the drain an agent waits for the driver's `drained`."""


# -- what is reported every second -----------------------------------------------------------------


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


class Deliveries:
    """Of one agent of a run with both ends."""

    def __init__(
        self, assignment: Assignment, recorder: Recorder, link: Link, confirms: bool
    ) -> None:
        wiring = assignment.scenario.wiring
        self._recorder = recorder
        self._link = link
        self._confirms = confirms
        groups = np.array([*map(wiring.group_of_producer, assignment.producer_numbers)], np.int64)
        self._groups, self._group_of_lane = np.unique(groups, return_inverse=True)
        self._subscriptions = np.array(assignment.subscriptions, np.int64)
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


# -- the loop --------------------------------------------------------------------------------------


class LoadLoop:
    """Runs the load of one agent, from the common start to the end of the drain."""

    def __init__(
        self, job: Job, lanes: Lanes, instruments: Instruments, link: Link, waiting: Waiting
    ) -> None:
        self._assignment = job.assignment
        self._timeline = job.timeline
        self._now_ns = job.now_ns
        self._lanes = lanes
        self._producers = lanes.producers
        self._recorder = instruments.recorder
        self._sampler = instruments.sampler
        self._tracer = instruments.tracer
        self._link = link
        self._waiting = waiting
        waiting.add(link.descriptor, lanes.producers.descriptor, lanes.consumers.descriptor)
        control = flow_control_for(job, lanes)
        self._flow = control.flow
        self._backlog = control.backlog
        self._backpressure = control.backpressure
        self._tally = control.tally
        self._events = ConnectionEvents(job, lanes, control, self._recorder, self._fail)
        self.outages = self._events.outages
        self._requests = requests_for(job, control, self._recorder, link)
        self._producer = LoadProducer(
            job, lanes, control, instruments, self._events, self._requests
        )
        scenario = job.assignment.scenario
        consumer = SlowConsumer if scenario.consumer.is_slow else LoadConsumer
        self._consumer = consumer(job, lanes, control, instruments, link, self._requests)
        self._is_attached = not lanes.fills_first
        self._window_watch = window_watch_for(control, self.outages)
        self._due_book = DueBook(job, self._producer.pacer.total, self._recorder)
        self._tick_rows = TickRows(job.timeline, self._recorder, link)
        self._deliveries: Deliveries | NoDeliveries = NoDeliveries()
        if scenario.has_both_ends:
            self._deliveries = Deliveries(job.assignment, self._recorder, link, lanes.confirms)
        self._publishes_a_number = scenario.only_publishes and has_open_end(scenario)
        together_ns = job.assignment.agents * NANOSECONDS // MOST_REPORTS_PER_SECOND
        self._progress_ns = max(PROGRESS_NS, together_ns)
        self._next_progress_ns = 0
        self._next_housekeeping_ns = 0
        self._began_ns = job.timeline.start_ns
        self._first_measured_ns: int | None = None
        self._late_ns = 0
        """How long after the announced moment the measured phase of this agent began."""
        self._has_ended_production = False
        self._has_enough = False
        """Whether all agents have their samples."""
        self._stopping = False
        self._is_draining = False
        self._drained = False
        self._last_turn_ns = job.timeline.start_ns
        self.stalls: list[tuple[int, int]] = []
        """Beginning and end of each time in which this loop did not run."""
        self.failure: BenchError | None = None

    @property
    def has_detached(self) -> bool:
        """Whether all that was on its way to the consumers has arrived in the end."""
        return not self._is_attached or self._consumer.has_detached

    # -- the course of a run ---------------------------------------------------------------------

    def run(self) -> None:
        """Send until the measured phase is over, then wait for what is still on its way."""
        self._wait_for_start()
        self._began_ns = self._now_ns()
        for role, signal in self._lanes.early_signals:
            # It happened before the load, whose records begin now.
            self._events.handle(replace(signal, at_ns=self._began_ns), role)
        if self._assignment.producers:
            with self._keeping_what_was_measured():
                self._load()
            with self._keeping_what_was_measured():
                self._producers.commit()
                self._producers.flush(timeout_seconds=1.0)
                self._await_confirmations()
        elif self._assignment.scenario.only_consumes:
            with self._keeping_what_was_measured():
                self._receive_only()
        self._report_production()
        with self._keeping_what_was_measured():
            self._drain()
        self._close_ticks(self._now_ns())
        self._tick_rows.send_last()

    @contextlib.contextmanager
    def _keeping_what_was_measured(self) -> Iterator[None]:
        """Make a transport's error the failure of the run: this part ends, the result stays."""
        try:
            yield
        except BenchError as error:
            self._fail(error)

    def _fail(self, error: BenchError) -> None:
        """Keep the first reason, report it, stop sending; what was measured stays."""
        if self.failure is None:
            self.failure = error
            self._link.send({"type": "failed", "kind": error.kind, "text": str(error)})
        self._stopping = True

    def _wait_for_start(self) -> None:
        while not self._stopping:
            wait_ns = self._timeline.start_ns - self._now_ns()
            if wait_ns <= 0:
                return
            # Sleep the bulk, then spin the last stretch: agents start within a millisecond.
            if wait_ns > 2_000_000:
                time.sleep((wait_ns - 1_000_000) / NANOSECONDS)
            self._obey_commands()

    def _load(self) -> None:
        if not self._is_attached:
            self._fill()
            self._attach()
        while not self._stopping:
            now = self._now_ns()
            if self._is_production_over(now):
                return
            if self._publishes_a_number and self._first_measured_ns is None:
                self._settle_warmup(now)
                now = self._now_ns()
            self._turn(self._producer.produce(now))

    def _is_production_over(self, now: int) -> bool:
        if self._has_enough or self._producer.quota_left(now) <= 0:
            return True
        end, pacer = self._timeline.measure_end_ns, self._producer.pacer
        if now < end:
            return False
        if self._tally.sent < pacer.total:
            # With a slow schedule the last of `load.messages` may be due after the others' end.
            end = max(end, pacer.last_due_ns) + LATE_GRACE_NS
        return now >= end

    def _fill(self) -> None:
        """Send until every window is full, before consumers are attached. The last transaction may
        stay open: a window holds one whole one at least, and its consumption makes room for the
        rest."""
        while not self._stopping and not self._flow.is_filled:
            now = self._now_ns()
            if self._is_production_over(now):
                return
            self._turn(self._producer.produce(now))
        self._producers.flush(timeout_seconds=1.0)

    def _attach(self) -> None:
        self._consumer.attach()
        self._is_attached = True
        self._last_turn_ns = self._now_ns()
        self._window_watch.start_again()

    def _settle_warmup(self, now: int) -> None:
        """Once the measured phase has begun, wait until the broker has confirmed the warm-up.
        Otherwise measured messages would queue behind those that a client has buffered."""
        if now >= self._timeline.measure_start_ns:
            self._producers.commit()
            self._await_confirmations()
            self._first_measured_ns = self._now_ns()

    def _await_confirmations(self) -> None:
        """Where a number of messages is only published, wait until the broker has confirmed them
        all: until then some may be in a client's buffer, which is filled faster than sent."""
        if not (self._lanes.confirms and self._publishes_a_number):
            return
        deadline = self._now_ns() + self._timeline.drain_ns
        while not self._stopping and self._producers.in_flight() and self._now_ns() < deadline:
            self._turn(self._now_ns() + LONGEST_WAIT_NS)

    def _receive_only(self) -> None:
        """Receive until the measured phase is over, in a run that only consumes."""
        while not self._stopping and not self._is_reception_over(self._now_ns()):
            self._turn(self._now_ns() + LONGEST_WAIT_NS)

    def _is_reception_over(self, now: int) -> bool:
        wanted, start = self._assignment.messages, self._timeline.measure_start_ns
        if wanted is None or now < start or now >= self._timeline.measure_end_ns:
            return now >= self._timeline.measure_end_ns
        if self._recorder.received_measured >= wanted:
            return True
        _, last = self._recorder.received_span_ns or (start, start)
        slowness_ns = 2 * self._consumer.interval_ns
        return now - last > max(self._timeline.drain_ns, SHORTEST_SILENCE_NS, slowness_ns)

    def _report_production(self) -> None:
        ended_ns = self._now_ns()
        self._book_due(ended_ns)
        self._has_ended_production = True
        self._consumer.end_sampling()
        # Progress is sent first: with the report the driver takes the last progress as final.
        self._send_progress()
        report(
            self._link,
            "produced",
            sent=self._tally.sent,
            began_ns=self._began_ns,
            ended_ns=ended_ns,
            first_measured_ns=self._first_measured_ns,
            sent_measured=int(self._recorder.sent_by_lane[MEASURE].sum()),
            received_measured=self._recorder.received_measured,
            measured_late_ns=self._late_ns,
        )

    def _drain(self) -> None:
        """Receive until the driver says `drained`: only it has the counts of all agents.

        An agent without producers spends the whole run here, except in a run that only consumes.
        """
        self._is_draining = True
        still_sending = 0 if self._assignment.producers else self._timeline.measure_end_ns
        last_sent = max(self._now_ns(), still_sending)
        deadline = last_sent + self._timeline.drain_ns + DRAIN_MARGIN_NS
        while not self._drained and not self._link.is_lost and self._now_ns() < deadline:
            self._turn(self._now_ns() + LONGEST_WAIT_NS)
        if self._is_attached:
            self._consumer.finish()

    # -- one turn --------------------------------------------------------------------------------

    def _turn(self, wake_ns: int) -> None:
        """Wait for work, until `wake_ns` at most; then receive, settle and obey the driver."""
        consumer, producer = self._consumer, self._producer
        wait_ns = min(wake_ns, consumer.wake_ns) - self._now_ns()
        wait_seconds = min(wait_ns, LONGEST_WAIT_NS) / NANOSECONDS if wait_ns > 0 else 0
        ready = self._waiting.wait(wait_seconds)
        now = self._now_ns()
        if now - self._last_turn_ns > STALL_NS:
            self.stalls.append((self._last_turn_ns, now))
        self._last_turn_ns = now
        is_housekeeping_due = now >= self._next_housekeeping_ns
        has_arrivals = consumer.descriptor in ready or now >= consumer.wake_ns
        if (has_arrivals or is_housekeeping_due) and self._is_attached:
            consumer.consume()
        self._backpressure.take_back(now)
        if is_housekeeping_due or producer.descriptor in ready:
            producer.collect_outcomes()
        if is_housekeeping_due or self._link.descriptor in ready:
            self._obey_commands()
        if is_housekeeping_due:
            self._next_housekeeping_ns = now + HOUSEKEEPING_NS
            self._keep_house(now)

    def _obey_commands(self) -> None:
        if self._link.is_lost:
            self._stopping = True
        for command in self._link.commands():
            if command["type"] == "stop":
                self._stopping = True
            elif command["type"] == "drained":
                self._drained = True
            elif command["type"] == "enough":
                self._has_enough = True
            elif command["type"] == "measure":
                self._measure_from(int(command["measure_at_ns"]))
            elif command["type"] == "backlog":
                self._backlog.told(int(command["messages"]))
            elif command["type"] == "released":
                self._requests.released(command["producers"], command["sequences"])

    def _measure_from(self, at_ns: int) -> None:
        """The load has settled, and the measured phase of all agents begins at this moment.

        If the moment has passed already (the agent was stopped, or lacked CPU), messages since then
        are counted in the warm-up and stay there: its phase begins now, and the delay is reported.
        """
        now, timeline = self._now_ns(), self._timeline
        begins_ns = max(at_ns, min(now, timeline.measure_start_ns))
        self._late_ns = begins_ns - at_ns
        timeline.measure_from(begins_ns)
        self._recorder.measured_phase_moved()
        self._tick_rows.look_at_time(now)
        self._sampler.sample_from(begins_ns)
        self._producer.measured_phase_moved()

    # -- house-keeping ---------------------------------------------------------------------------

    def _keep_house(self, now: int) -> None:
        self._events.handle_all()
        if now >= self._next_progress_ns:
            self._next_progress_ns = now + self._progress_ns
            self._send_progress()
        if now >= self._tick_rows.due_ns:
            self._close_ticks(now)
        self._tracer.flush_if_due(now)
        if self._tracer.failure is not None:
            self._fail(self._tracer.failure)
        if not self.outages.count_down():
            self._backlog.look(now)
        if not self._is_draining:
            self._window_watch.reclaim_what_was_lost(now)
            stalled = self._window_watch.stalled(now, not self._is_attached)
            if stalled is not None and not self._stopping:
                self._fail(stalled)
        self._requests.give_up(now)

    def _send_progress(self) -> None:
        self._link.send(
            {
                "type": "progress",
                "sent": self._tally.sent,
                "received_once": self._recorder.received_once,
                "freed": self._tally.freed,
                "reopened": self._tally.reopened,
                "down": self.outages.count_down(),
                "unsettled": self._producers.in_flight(),
            }
        )

    def _close_ticks(self, now: int) -> None:
        self._book_due(now)
        self._events.book_ongoing(now)
        self._tick_rows.send_until(now)
        if self._is_attached:
            self._deliveries.report(now)

    def _book_due(self, now: int) -> None:
        # Once production has ended, for whatever reason, nothing more falls due.
        if self._assignment.producers and not self._has_ended_production:
            self._due_book.book_until(now)
