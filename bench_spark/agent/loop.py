"""The one loop that sends, receives, records and waits while a load runs.

Everything happens in one thread, and the loop waits in a single place: for lanes, link and the
schedule at once.

`LoadLoop.run` goes through the parts of a run in order; each part calls `_turn` until its end
condition is met. `producer.py` sends messages and records their outcomes, `consumer.py` receives
them, `connections.py` follows lanes that are lost, blocked or full, and `reports.py` sends progress
and event rows to the driver.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace

from bench_spark.agent.connections import ConnectionEvents
from bench_spark.agent.consumer import NEVER_NS, LoadConsumer, SlowConsumer
from bench_spark.agent.flow import STALL_NS as WINDOW_STALL_NS
from bench_spark.agent.host import LONGEST_WAIT_NS, Waiting
from bench_spark.agent.link import report
from bench_spark.agent.load import AgentLoad, backlog_for, flow_for
from bench_spark.agent.producer import LoadProducer
from bench_spark.agent.reports import LoadReports
from bench_spark.agent.timeline import CONSUMER, MEASURE
from bench_spark.core.clock import NANOSECONDS
from bench_spark.errors import BenchError, RunError
from bench_spark.plan import has_open_end

HOUSEKEEPING_NS = 50_000_000
LATE_GRACE_NS = NANOSECONDS
"""Messages due at the very end may still be sent this much later; after that they are unsent."""
SHORTEST_SILENCE_NS = NANOSECONDS
"""A run that only consumes waits at least this long for a message that does not come."""
STALL_NS = NANOSECONDS
"""A turn waits for work, 20 ms at most. An agent whose turns are this far apart was stopped, lacked
CPU, or was held up by a call."""
DRAIN_MARGIN_NS = 2 * NANOSECONDS
"""How much longer than its own drain an agent waits for the driver's command `drained`."""


class LoadLoop:
    """Runs the load of one agent, from the common start to the end of the drain."""

    def __init__(self, load: AgentLoad, waiting: Waiting) -> None:
        scenario = load.assignment.scenario
        self._load = load
        self._assignment = load.assignment
        self._timeline = load.timeline
        self._recorder = load.recorder
        self._link = load.link
        self._now_ns = load.link.clock.now_ns
        self._waiting = waiting
        self._link_descriptor = load.link.descriptor
        self._producers_descriptor = load.producers.descriptor
        self._consumers_descriptor = load.consumers.descriptor
        waiting.add(self._link_descriptor, self._producers_descriptor, self._consumers_descriptor)
        self._flow = flow_for(load.assignment)
        self._backlog = backlog_for(load)
        self._events = ConnectionEvents(load, self._flow, self._backlog, self._fail)
        self._backpressure = self._events.backpressure
        self.outages = self._events.outages
        self._producer = LoadProducer(load, self._flow, self._backlog, self._events)
        consumer = SlowConsumer if scenario.consumer.is_slow else LoadConsumer
        self._consumer = consumer(load, self._flow, self._backlog, self._producer)
        self._is_attached = not load.fills_first
        self._reports = LoadReports(load, self._backlog, self.outages, self._producer.pacer.total)
        self._publishes_a_number = scenario.only_publishes and has_open_end(scenario)
        self._next_housekeeping_ns = 0
        self._began_ns = load.timeline.start_ns
        self._first_measured_ns: int | None = None
        self._late_ns = 0
        """How long after the announced moment the measured phase of this agent began."""
        self._has_enough = False
        """Whether the driver has said that every pair of every agent has its samples."""
        self._stopping = False
        self._is_draining = False
        self._drained = False
        self._may_end_ns = 0
        """Production cannot end before this time."""
        self._last_turn_ns = load.timeline.start_ns
        self._turns = 0
        self._measured_turns: list[tuple[int, int]] = []
        """First and latest housekeeping in the measured phase: when, and the turns until then."""
        self.stalls: list[tuple[int, int]] = []
        """Start and end of each time in which this loop did not run."""
        self.failure: BenchError | None = None

    @property
    def has_detached(self) -> bool:
        """Whether consumers, if any were attached, got all that was on its way to them."""
        return not self._is_attached or self._consumer.has_detached

    @property
    def turns_per_second(self) -> float | None:
        """In the measured phase. The CPU use of a paced load grows with it."""
        if len(self._measured_turns) < 2:
            return None
        (began_ns, before), (ended_ns, after) = self._measured_turns
        return (after - before) * NANOSECONDS / (ended_ns - began_ns)

    # -- the course of a run ---------------------------------------------------------------------

    def run(self) -> None:
        """Send until the measured phase is over, then wait for what is still on its way."""
        self._wait_for_start()
        self._began_ns = self._now_ns()
        for role, signal in self._load.early_signals:
            # It happened before the load, and event rows begin with the load.
            self._events.handle(replace(signal, at_ns=self._began_ns), role)
        if self._assignment.producers:
            with self._keeping_what_was_measured():
                if not self._is_attached:
                    self._fill()
                    self._attach()
                self._send()
            with self._keeping_what_was_measured():
                self._load.producers.commit()
                self._load.producers.flush(timeout_seconds=1.0)
                self._await_confirmations()
        elif self._assignment.scenario.only_consumes:
            with self._keeping_what_was_measured():
                self._receive_only()
        self._report_production()
        with self._keeping_what_was_measured():
            self._drain()
        self._close_ticks(self._now_ns())
        self._reports.send_last_rows()

    @contextlib.contextmanager
    def _keeping_what_was_measured(self) -> Iterator[None]:
        """Make a transport's error the failure of the run: this part ends, the result stays."""
        try:
            yield
        except BenchError as error:
            self._fail(error)

    def _fail(self, error: BenchError) -> None:
        """Keep the first error, report it, and stop sending. What was measured stays."""
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

    def _send(self, until_filled: bool = False) -> None:
        """Send and receive until production is over or, if so asked, until every window is full."""
        producer, now = self._producer, self._now_ns()
        self._look_when_it_may_end()
        while not (self._stopping or (until_filled and self._flow.is_filled)):
            if now >= self._may_end_ns and self._is_production_over(now):
                return
            if self._publishes_a_number and self._first_measured_ns is None:
                self._settle_warmup(now)
                now = self._now_ns()
            wake_ns = producer.next_ns
            if now >= wake_ns:
                wake_ns = producer.produce(now)
                now = self._now_ns()
            now = self._turn(wake_ns, now)

    def _look_when_it_may_end(self) -> None:
        """Set when production may end: at any time if a count ends it, else with the phase."""
        is_counted = self._has_enough or self._producer.has_quota
        self._may_end_ns = 0 if is_counted else self._timeline.measure_end_ns

    def _is_production_over(self, now: int) -> bool:
        producer, end = self._producer, self._timeline.measure_end_ns
        if self._has_enough or (producer.has_quota and producer.quota_left(now) <= 0):
            return True
        if now >= end and self._backlog.sent < producer.pacer.total:
            # With a slow schedule the last of `load.messages` may be due after the others' end.
            end = max(end, producer.pacer.last_due_ns) + LATE_GRACE_NS
        return now >= end

    def _fill(self) -> None:
        """Send until every window is full, before consumers are attached. The last transaction may
        stay open: a window holds at least one whole transaction, and once that is consumed there is
        room for the rest of the open one."""
        self._send(until_filled=True)
        self._load.producers.flush(timeout_seconds=1.0)

    def _attach(self) -> None:
        self._load.consumers.attach()
        self._is_attached = True
        self._last_turn_ns = self._now_ns()

    def _settle_warmup(self, now: int) -> None:
        """Once the measured phase has begun, wait until the broker has confirmed the warm-up.
        Otherwise measured messages would queue behind those of the warm-up in a client's buffer."""
        if now >= self._timeline.measure_start_ns:
            self._load.producers.commit()
            self._await_confirmations()
            self._first_measured_ns = self._now_ns()

    def _await_confirmations(self) -> None:
        """In a run that only publishes a given number of messages, wait until the broker has
        confirmed them all: a client's buffer is filled faster than it is sent."""
        if not (self._load.confirms and self._publishes_a_number):
            return
        producers, deadline = self._load.producers, self._now_ns() + self._timeline.drain_ns
        now = self._now_ns()
        while not self._stopping and producers.in_flight() and now < deadline:
            now = self._turn(NEVER_NS, now)

    def _receive_only(self) -> None:
        """Receive until the measured phase is over, in a run that only consumes."""
        now = self._now_ns()
        while not self._stopping and not self._is_reception_over(now):
            now = self._turn(NEVER_NS, now)

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
        self._reports.production_ended(ended_ns)
        self._consumer.end_sampling()
        # Progress goes first: the driver takes the last progress before this report as final.
        self._reports.send_progress()
        report(
            self._link,
            "produced",
            sent=self._backlog.sent,
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
        now = self._now_ns()
        last_sent = max(now, still_sending)
        deadline = last_sent + self._timeline.drain_ns + DRAIN_MARGIN_NS
        while not self._drained and not self._link.is_lost and now < deadline:
            now = self._turn(NEVER_NS, now)
        if self._is_attached:
            self._consumer.finish()

    # -- one turn --------------------------------------------------------------------------------

    def _turn(self, wake_ns: int, now: int) -> int:
        """Wait for work, until `wake_ns` at most; then receive, collect outcomes and obey the
        driver. Takes the current time and returns it as it is afterwards, so that callers need not
        read the clock after a turn that did nothing."""
        consumer = self._consumer
        wait_ns = min(wake_ns, consumer.wake_ns) - now
        wait_seconds = min(wait_ns, LONGEST_WAIT_NS) / NANOSECONDS if wait_ns > 0 else 0
        ready = self._waiting.wait(wait_seconds)
        now = self._now_ns()
        self._turns += 1
        if now - self._last_turn_ns > STALL_NS:
            self.stalls.append((self._last_turn_ns, now))
        self._last_turn_ns = now
        if self._backpressure.lanes:
            self._backpressure.take_back(now)
        is_housekeeping_due = now >= self._next_housekeeping_ns
        is_consumption_due = is_housekeeping_due or now >= consumer.wake_ns
        if not (ready or is_consumption_due):
            return now
        if (is_consumption_due or self._consumers_descriptor in ready) and self._is_attached:
            consumer.consume()
        if is_housekeeping_due or self._producers_descriptor in ready:
            self._producer.collect_outcomes()
        if is_housekeeping_due or self._link_descriptor in ready:
            self._obey_commands()
        if is_housekeeping_due:
            self._next_housekeeping_ns = now + HOUSEKEEPING_NS
            self._keep_house(now)
        return self._now_ns()

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
                self._look_when_it_may_end()
            elif command["type"] == "measure":
                self._measure_from(int(command["measure_at_ns"]))
            elif command["type"] == "backlog":
                self._backlog.told(int(command["messages"]))
            elif command["type"] == "released":
                self._producer.released(command["producers"], command["sequences"])

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
        self._reports.look_at_time(now)
        self._load.sampler.sample_from(begins_ns)
        self._producer.measured_phase_moved()
        self._look_when_it_may_end()

    # -- house-keeping ---------------------------------------------------------------------------

    def _keep_house(self, now: int) -> None:
        """Periodic work, twenty times a second."""
        self._events.handle_all()
        if self._reports.send_what_is_due(now):
            self._close_ticks(now)
        self._load.tracer.flush_if_due(now)
        if self._load.tracer.failure is not None:
            self._fail(self._load.tracer.failure)
        if not self.outages.count_down():
            self._backlog.look(now)
        if not self._is_draining:
            self._look_for_stall(now)
        self._producer.give_up(now)
        if self._timeline.measure_start_ns <= now <= self._timeline.measure_end_ns:
            self._measured_turns[1:] = [(now, self._turns)]

    def _look_for_stall(self, now: int) -> None:
        """Fail when windows have not moved for so long that they never will."""
        down, consumers_down = self.outages.count_down(), self.outages.count_down(CONSUMER)
        # Attaching counts as progress, too: it may take long.
        moved = self._backlog.sent + self._is_attached
        if self._flow.has_stalled(now, moved, down, consumers_down) and not self._stopping:
            what = "the window is stalled: no message of this agent arrived"
            if not self._is_attached:
                what = "the window cannot be filled: the broker took no message of this agent"
            self._fail(RunError(f"{what} for {WINDOW_STALL_NS // NANOSECONDS} s"))

    def _close_ticks(self, now: int) -> None:
        self._events.book_ongoing(now)
        self._reports.close_ticks(now, self._is_attached)
