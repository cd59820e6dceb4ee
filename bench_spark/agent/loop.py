"""The one loop that sends, receives, records and waits while a load runs.

Everything happens in one thread: in the lab one thread for both ends beat two processes. The loop
waits in a single place for lanes, link and the schedule at once.

Here is the course of a run: what comes after what, when each part is over, and what is done in
every turn. How messages are sent and settled is in `producer.py`, how they are received in
`consumer.py`, and what becomes of lanes that are lost in `connections.py`; `make_parts` puts them
together.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from bench_spark.agent.connections import (
    Backlog,
    Backpressure,
    ConnectionEvents,
    Tally,
    WindowWatch,
)
from bench_spark.agent.consumer import Consuming
from bench_spark.agent.endpoints import Lanes
from bench_spark.agent.flow import Flow, RequestFlow, RoundRobinFlow, WindowFlow
from bench_spark.agent.host import LONGEST_WAIT_NS, Waiting
from bench_spark.agent.link import Link, report
from bench_spark.agent.payload import BodySizes
from bench_spark.agent.producer import Answers, Paced, Producing, Releasing, Sending
from bench_spark.agent.recorder import Recorder
from bench_spark.agent.sampler import Sampler
from bench_spark.agent.ticks import Deliveries, DueBook, TickRows
from bench_spark.agent.timeline import MEASURE, Timeline
from bench_spark.agent.tracer import Tracer
from bench_spark.core.clock import NANOSECONDS, NowNs
from bench_spark.errors import BenchError
from bench_spark.load_course import has_open_end
from bench_spark.plan import Assignment
from bench_spark.transports.base import Producers


@dataclass(frozen=True)
class Parts:
    """None: this load has no use for it, or the agent has no lanes of that role."""

    tally: Tally
    flow: Flow
    backpressure: Backpressure | None
    backlog: Backlog | None
    events: ConnectionEvents
    releasing: Releasing | None
    producing: Producing | None
    answers: Answers | None
    consuming: Consuming | None


def make_parts(
    assignment: Assignment,
    timeline: Timeline,
    lanes: Lanes,
    recorder: Recorder,
    link: Link,
    now_ns: NowNs,
    sizes: BodySizes,
    fail: Callable[[BenchError], None],
    sampler: Sampler | None,
    tracer: Tracer | None,
) -> Parts:
    """`fail`: called with the reason why the load cannot go on."""
    tally = Tally()
    flow = _flow_for(assignment)
    backpressure = _backpressure_for(assignment, lanes.producers, flow)
    backlog = _backlog_for(assignment, lanes, tally)
    events = ConnectionEvents(
        assignment, timeline, lanes, flow, backpressure, backlog, recorder, tally, fail
    )
    producing = None
    if lanes.producers is not None:
        paced = _paced(assignment, flow)
        sending = Sending(
            assignment,
            timeline,
            lanes.producers,
            flow,
            paced=paced,
            backpressure=backpressure,
            sizes=sizes,
            recorder=recorder,
            tally=tally,
            now_ns=now_ns,
            codec=lanes.codec,
            tracer=tracer,
        )
        producing = Producing(
            timeline,
            sending,
            paced=paced,
            scheduled_total=messages_scheduled(assignment, timeline),
            messages=assignment.messages,
            backlog=backlog,
            events=events,
            recorder=recorder,
            tally=tally,
            now_ns=now_ns,
        )
    releasing = None
    if assignment.scenario.load.mode == "request":
        releasing = Releasing(
            flow if isinstance(flow, RequestFlow) else None,
            recorder,
            link,
            now_ns,
            patience_ns=round(assignment.scenario.load.request_timeout_seconds * NANOSECONDS),
            on_release=producing.send_at_once if producing is not None else _nobody_waits,
        )
    answers = None
    if lanes.producers is not None:
        answers = Answers(lanes.producers, flow, recorder, tally, releasing, lanes.codec, tracer)
    consuming = None
    if lanes.consumers is not None:
        consuming = Consuming(
            assignment,
            timeline,
            lanes.consumers,
            lanes.subscription_of,
            flow,
            recorder=recorder,
            link=link,
            tally=tally,
            now_ns=now_ns,
            releasing=releasing,
            codec=lanes.codec,
            sampler=sampler,
            tracer=tracer,
        )
    return Parts(
        tally=tally,
        flow=flow,
        backpressure=backpressure,
        backlog=backlog,
        events=events,
        releasing=releasing,
        producing=producing,
        answers=answers,
        consuming=consuming,
    )


def messages_scheduled(assignment: Assignment, timeline: Timeline) -> int:
    """Messages of warm-up and measured phase together, of a load with a schedule."""
    if assignment.schedule is None:
        return 0
    warmup = assignment.schedule.messages_before(timeline.warmup_ns)
    return warmup + (assignment.expected_messages or 0)


def _flow_for(assignment: Assignment) -> Flow:
    load = assignment.scenario.load
    members = tuple(member.index for member in assignment.producers)
    if load.mode == "request" and members:
        return RequestFlow(members)
    if load.mode == "window":
        return WindowFlow(members, load.in_flight)
    return RoundRobinFlow(members or (0,), owes=assignment.schedule is not None)


def _paced(assignment: Assignment, flow: Flow) -> Paced | None:
    if assignment.schedule is None:
        return None
    assert isinstance(flow, RoundRobinFlow | RequestFlow)
    return assignment.schedule, flow


def _backpressure_for(
    assignment: Assignment, producers: Producers | None, flow: Flow
) -> Backpressure | None:
    """On a schedule, a lane that is full must not make the others late."""
    is_needed = assignment.schedule is not None and len(assignment.producers) > 1
    if not is_needed or producers is None:
        return None
    # With one message on its way at most, no lane of a request/response load is ever full.
    return Backpressure(producers.full_among, flow) if isinstance(flow, RoundRobinFlow) else None


def _backlog_for(assignment: Assignment, lanes: Lanes, tally: Tally) -> Backlog | None:
    scenario = assignment.scenario
    # Without consumers there is no backlog to watch: the scenario bounds the load otherwise.
    is_bounded = lanes.are_self_limiting or scenario.only_publishes
    if scenario.load.mode != "maximum" or is_bounded:
        return None
    return Backlog(
        tally,
        scenario.load.backlog_limit_bytes,
        copies=scenario.wiring.copies,
        is_shared=assignment.shares_destinations,
    )


def _nobody_waits() -> None:
    """An agent that sends nothing has nothing to hurry with."""


HOUSEKEEPING_NS = 50_000_000
PROGRESS_NS = 100_000_000
"""How often the driver is told of the progress, unless many tell it."""
MOST_REPORTS_PER_SECOND = 2_000
"""Of all agents together: each costs the driver some 20 us."""
LATE_GRACE_NS = NANOSECONDS
"""Messages due at the very end may still go out this much later; after that they are unsent."""
SHORTEST_SILENCE_NS = NANOSECONDS
"""A run that only consumes waits at least this long for a message that does not come."""
STALL_NS = NANOSECONDS
"""A turn takes 20 ms and what there is to do: an agent whose turns are this far apart was stopped,
lacked CPU, or waited for a call."""
DRAIN_MARGIN_NS = 2 * NANOSECONDS
"""The driver says when the drain is over; an agent that hears nothing waits this much longer."""


class LoadLoop:
    def __init__(
        self,
        assignment: Assignment,
        timeline: Timeline,
        lanes: Lanes,
        recorder: Recorder,
        link: Link,
        now_ns: NowNs,
        waiting: Waiting,
        sizes: BodySizes,
        sampler: Sampler | None = None,
        tracer: Tracer | None = None,
        deliveries: Deliveries | None = None,
    ) -> None:
        """`sampler`: what ends the measured phase once it is complete. `tracer`: what writes single
        messages down. `deliveries`: what tells the driver whether messages arrive."""
        self._assignment = assignment
        self._timeline = timeline
        self._lanes = lanes
        self._recorder = recorder
        self._link = link
        self._now_ns = now_ns
        self._waiting = waiting
        self._sampler = sampler
        self._tracer = tracer
        self._deliveries = deliveries
        ends = [end for end in (lanes.producers, lanes.consumers) if end is not None]
        waiting.add(link.descriptor, *(end.descriptor for end in ends))
        parts = make_parts(
            assignment, timeline, lanes, recorder, link, now_ns, sizes, self._fail, sampler, tracer
        )
        self._tally = parts.tally
        self._flow = parts.flow
        self._backpressure = parts.backpressure
        self._backlog = parts.backlog
        self._events = parts.events
        self._producing = parts.producing
        self._answers = parts.answers
        self._releasing = parts.releasing
        self._consuming = parts.consuming
        self._attached = None if lanes.fills_first else parts.consuming
        self.outages = parts.events.outages
        self._window_watch = (
            WindowWatch(parts.flow, self.outages, parts.tally)
            if isinstance(parts.flow, WindowFlow)
            else None
        )
        self._is_paced = assignment.schedule is not None
        scheduled = messages_scheduled(assignment, timeline)
        self._due_book = DueBook(assignment.schedule, scheduled, timeline, recorder)
        self._tick_rows = TickRows(timeline, recorder, link)
        scenario = assignment.scenario
        self._publishes_a_number = scenario.only_publishes and has_open_end(scenario)
        together_ns = assignment.agents * NANOSECONDS // MOST_REPORTS_PER_SECOND
        self._progress_ns = max(PROGRESS_NS, together_ns)
        self._next_progress_ns = 0
        self._next_housekeeping_ns = 0
        self._began_ns = timeline.start_ns
        self._first_measured_ns: int | None = None
        self._late_ns = 0
        """How long after the measured phase had begun this agent learnt of it."""
        self._has_ended_production = False
        self._has_enough = False
        """Samples, in all agents."""
        self._stopping = False
        self._is_draining = False
        self._drained = False
        self._last_turn_ns = timeline.start_ns
        self.turns = 0
        self.stalls: list[tuple[int, int]] = []
        """From when until when this loop did not run."""
        self.failure: BenchError | None = None

    @property
    def has_detached(self) -> bool:
        """Whether all that was on its way to the consumers has arrived in the end."""
        return self._attached is None or self._attached.has_detached

    # -- the course of a run ---------------------------------------------------------------------

    def run(self) -> None:
        """Send until the measured phase is over, then wait for what is still on its way."""
        self._wait_for_start()
        self._began_ns = self._now_ns()
        for role, signal in self._lanes.early_signals:
            # For the load it happened as it began.
            self._events.handle(replace(signal, at_ns=self._began_ns), role)
        producers = self._lanes.producers
        if producers is not None and self._producing is not None:
            with self._keeping_what_was_measured():
                self._load(producers, self._producing)
            with self._keeping_what_was_measured():
                self._push_out(producers)
                self._await_confirmations(producers)
        elif self._assignment.scenario.only_consumes:
            with self._keeping_what_was_measured():
                self._take_in()
        self._report_production()
        with self._keeping_what_was_measured():
            self._drain()
        self._close_ticks(self._now_ns())
        self._tick_rows.send_last()

    @contextlib.contextmanager
    def _keeping_what_was_measured(self) -> Iterator[None]:
        """A transport that breaks ends this part of the run, not its result."""
        try:
            yield
        except BenchError as error:
            self._fail(error)

    def _fail(self, error: BenchError) -> None:
        """Keep the first reason, tell the driver, stop sending; what was measured stays."""
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

    def _load(self, producers: Producers, producing: Producing) -> None:
        if self._is_filling and self._consuming is not None:
            self._fill(producers, producing)
            self._attach(self._consuming)
        while not self._stopping:
            now = self._now_ns()
            if self._is_production_over(producing, now):
                return
            if self._publishes_a_number and self._first_measured_ns is None:
                self._settle_warmup(producers, now)
                now = self._now_ns()
            self._turn(producing.produce(now))

    def _is_production_over(self, producing: Producing, now: int) -> bool:
        if self._has_enough or producing.quota_left(now) <= 0:
            return True
        end = self._timeline.measure_end_ns
        if producing.last_due_ns is not None and self._tally.sent < producing.scheduled_total:
            # With a slow schedule the last of `load.messages` may be due after the others' end.
            end = max(end, producing.last_due_ns) + LATE_GRACE_NS
        return now >= end

    @property
    def _is_filling(self) -> bool:
        """Consumers are there, and wait until the windows are full."""
        return self._attached is not self._consuming

    def _fill(self, producers: Producers, producing: Producing) -> None:
        """Send every window in full. A transaction that is left open needs no commit: the window
        holds at least one whole transaction, and what is consumed of it goes on with the next."""
        assert isinstance(self._flow, WindowFlow)
        while not self._stopping and self._flow.credit > 0:
            now = self._now_ns()
            if self._is_production_over(producing, now):
                return
            self._turn(producing.produce(now))
        producers.flush(timeout_seconds=1.0)

    def _attach(self, consuming: Consuming) -> None:
        consuming.attach()
        self._attached = consuming
        self._last_turn_ns = self._now_ns()
        if self._window_watch is not None:
            self._window_watch.start_again()

    def _settle_warmup(self, producers: Producers, now: int) -> None:
        """Once the measured phase has begun, let the broker take what is left of the warm-up: the
        measured messages would else wait for what a client has buffered before them."""
        if now >= self._timeline.measure_start_ns:
            producers.commit()
            self._await_confirmations(producers)
            self._first_measured_ns = self._now_ns()

    def _await_confirmations(self, producers: Producers) -> None:
        """A run that only publishes so many messages is over when the broker has them: a client
        that buffers would seem as fast as its buffer is large."""
        if not (self._lanes.confirms and self._publishes_a_number):
            return
        deadline = self._now_ns() + self._timeline.drain_ns
        while not self._stopping and producers.in_flight() and self._now_ns() < deadline:
            self._turn(self._now_ns() + LONGEST_WAIT_NS)

    @staticmethod
    def _push_out(producers: Producers) -> None:
        producers.commit()
        producers.flush(timeout_seconds=1.0)

    def _take_in(self) -> None:
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
        slowness_ns = 0 if self._consuming is None else 2 * self._consuming.interval_ns
        return now - last > max(self._timeline.drain_ns, SHORTEST_SILENCE_NS, slowness_ns)

    def _report_production(self) -> None:
        ended_ns = self._now_ns()
        self._book_due(ended_ns)
        self._has_ended_production = True
        if self._consuming is not None:
            self._consuming.end_sampling()
        # The progress goes first: from the report on, the driver takes it for the final one.
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
        """Receive until the driver, who knows of all agents, says that nothing more will come.

        An agent without producers spends the whole run here, unless nobody has any.
        """
        self._is_draining = True
        still_sending = 0 if self._assignment.producers else self._timeline.measure_end_ns
        last_sent = max(self._now_ns(), still_sending)
        deadline = last_sent + self._timeline.drain_ns + DRAIN_MARGIN_NS
        while not self._drained and not self._link.is_lost and self._now_ns() < deadline:
            self._turn(self._now_ns() + LONGEST_WAIT_NS)
        if self._attached is not None:
            self._attached.finish()

    # -- one turn --------------------------------------------------------------------------------

    def _turn(self, wake_ns: int) -> None:
        """Wait until then at most, and see to whatever there is to do."""
        consuming, producing, answers = self._attached, self._producing, self._answers
        if consuming is not None:
            wake_ns = min(wake_ns, consuming.wake_ns)
        wait_ns = min(wake_ns - self._now_ns(), LONGEST_WAIT_NS)
        ready = self._waiting.wait(wait_ns / NANOSECONDS if wait_ns > 0 else 0)
        now = self._now_ns()
        if now - self._last_turn_ns > STALL_NS:
            self.stalls.append((self._last_turn_ns, now))
        self._last_turn_ns = now
        self.turns += 1
        is_housekeeping_due = now >= self._next_housekeeping_ns
        if consuming is not None and (
            is_housekeeping_due or consuming.descriptor in ready or now >= consuming.wake_ns
        ):
            consuming.consume()
        if self._backpressure is not None:
            self._backpressure.take_back(now)
        if (producing is not None and answers is not None) and (
            is_housekeeping_due or answers.descriptor in ready
        ):
            producing.may_send_again()
            answers.collect()
        if self._link.descriptor in ready or is_housekeeping_due:
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
            elif command["type"] == "backlog" and self._backlog is not None:
                self._backlog.told(int(command["messages"]))
            elif command["type"] == "released" and self._releasing is not None:
                self._releasing.released(command["producers"], command["sequences"])

    def _measure_from(self, at_ns: int) -> None:
        """The load has settled, and the measured phase begins at this moment, in all agents.

        An agent that did not run for so long that the moment has passed cannot take back what it
        has counted in the warm-up: it begins now, and says how late that was.
        """
        now, timeline = self._now_ns(), self._timeline
        begins_ns = max(at_ns, min(now, timeline.measure_start_ns))
        self._late_ns = begins_ns - at_ns
        timeline.measure_from(begins_ns)
        self._recorder.measured_phase_moved()
        self._tick_rows.look_at_time(now)
        if self._sampler is not None:
            self._sampler.sample_from(begins_ns)
        if self._producing is not None:
            self._producing.measured_phase_moved()

    # -- house-keeping ---------------------------------------------------------------------------

    def _keep_house(self, now: int) -> None:
        self._events.handle_all()
        if now >= self._next_progress_ns:
            self._next_progress_ns = now + self._progress_ns
            self._send_progress()
        if now >= self._tick_rows.due_ns:
            self._close_ticks(now)
        if self._tracer is not None:
            self._tracer.flush_if_due(now)
            if self._tracer.failure is not None:
                self._fail(self._tracer.failure)
        if self._backlog is not None and not self.outages.count_down():
            self._backlog.look(now)
        if self._window_watch is not None and not self._is_draining:
            self._window_watch.reclaim_what_was_lost(now)
            stalled = self._window_watch.stalled(now, self._is_filling)
            if stalled is not None and not self._stopping:
                self._fail(stalled)
        if self._releasing is not None:
            self._releasing.give_up(now)

    def _send_progress(self) -> None:
        producers = self._lanes.producers
        self._link.send(
            {
                "type": "progress",
                "sent": self._tally.sent,
                "received_once": self._recorder.received_once,
                "freed": self._tally.freed,
                "reopened": self._tally.reopened,
                "down": self.outages.count_down(),
                "unsettled": producers.in_flight() if producers is not None else 0,
            }
        )

    def _close_ticks(self, now: int) -> None:
        self._book_due(now)
        self._events.book_ongoing(now)
        self._tick_rows.send_until(now)
        if self._deliveries is not None and not self._is_filling:
            self._deliveries.report(now)

    def _book_due(self, now: int) -> None:
        # Once production has ended, for whatever reason, nothing more falls due.
        if self._assignment.producers and not self._has_ended_production:
            self._due_book.book_until(now)
