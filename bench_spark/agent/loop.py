"""The one loop that sends, receives, records and waits while a load runs.

Everything happens in one thread: in the lab one thread for both ends beat two processes. The loop
waits in a single place for lanes, link and the schedule at once.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from bench_spark.agent.carrying import Carrying
from bench_spark.agent.dealing import Dealer, RoundRobin, Stream, Windows
from bench_spark.agent.due import DueBook
from bench_spark.agent.due_times import DueTimes
from bench_spark.agent.host import HostLoad
from bench_spark.agent.link import Link, report
from bench_spark.agent.outages import QUIET_NS, Outages, Quiet, WriteOff
from bench_spark.agent.pacer import Pacing
from bench_spark.agent.payload import head_bytes, padding
from bench_spark.agent.recorder import CONSUMER, PRODUCER, Recorder
from bench_spark.agent.releasing import Releasing
from bench_spark.agent.requests import Requests
from bench_spark.agent.rows import EventRow
from bench_spark.agent.sampling import Sampler
from bench_spark.agent.setting_aside import SetAside
from bench_spark.agent.sizes import BodySizes
from bench_spark.agent.stamping import HeadBuffer
from bench_spark.agent.taking import NEVER_NS, Taking
from bench_spark.agent.timeline import MEASURE, WARMUP, Timeline
from bench_spark.agent.tracing import Tracer
from bench_spark.agent.waiting import Waiting
from bench_spark.errors import BenchError, LaneLost, RunError
from bench_spark.load_course import has_open_end
from bench_spark.measure.clock import NANOSECONDS, NowNs
from bench_spark.measure.envelope import ENVELOPE_BYTES
from bench_spark.plan import Assignment
from bench_spark.transports.base import (
    Batch,
    Consumers,
    Holdable,
    OutcomeKind,
    Producers,
    Received,
    Signal,
    SignalKind,
    Skippable,
)

LONGEST_WAIT_NS = 20_000_000
REFUSED_WAIT_NS = 5_000_000
"""How long to wait, at most, for a full socket or a full backlog: both wake the loop when they have
room again, and trying in vain takes CPU from the broker."""
SPARE_TIME_NS = 250_000
"""With so much time before the next batch is due, some of what was recorded can be folded."""
HOUSEKEEPING_NS = 50_000_000
HEED_NS = 5_000_000
"""How often to ask for signals while nothing is accepted: a full socket is the usual reason."""
SHORTEST_TAKING_NS = 200_000
"""How often to look whether slow consumers may take another message."""
PROGRESS_NS = 100_000_000
"""How often the driver is told of the progress, unless many tell it."""
MOST_REPORTS_PER_SECOND = 2_000
"""Of all agents together: each costs the driver some 20 us."""
STALL_NS = 5 * NANOSECONDS
LATE_GRACE_NS = NANOSECONDS
"""Messages due at the very end may still go out this much later; after that they are unsent."""
BATCH_BYTES = 256 * 1024
BATCH_MESSAGES = 1024
SHORTEST_SILENCE_NS = NANOSECONDS
"""A run that only consumes waits at least this long for a message that does not come."""
DRAIN_MARGIN_NS = 2 * NANOSECONDS
"""The driver says when the drain is over; an agent that hears nothing waits this much longer."""


@dataclass
class Lanes:
    """The open connections of one agent; a role without members has None."""

    producers: Producers | None
    consumers: Consumers | None
    subscription_of: np.ndarray[tuple[int, int], np.dtype[np.int64]]
    """[consumer lane, route] -> subscription number."""
    addresses: Mapping[str, str]
    """By role the broker's host and port, for messages to people."""
    confirms: bool = False
    """Whether every message sent will have an outcome."""
    fills_first: bool = False
    """Whether the consumers are still to be attached, once the windows are full."""
    are_self_limiting: bool = False
    """Whether the destinations drop what is too much, so that nothing else need bound a backlog."""
    early_signals: Sequence[tuple[str, Signal]] = ()
    """Role and what happened to its lanes before the load began."""
    carrying: Carrying | None = None
    """What makes bodies of real records and finds their IDs; None where bodies have envelopes."""


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
    ) -> None:
        """`sampler`: what ends the measured phase once it is complete. `tracer`: what writes single
        messages down."""
        self._assignment = assignment
        self._timeline = timeline
        self._lanes = lanes
        self._recorder = recorder
        self._link = link
        self._now_ns = now_ns
        self._waiting = waiting
        self._sampler = sampler
        self._tracer = tracer
        self._has_told_samples = False
        self._has_enough = False
        """Samples, in all agents."""
        self._is_attached = not lanes.fills_first
        self._carrying = lanes.carrying
        self._due_times = (
            DueTimes(assignment.streams, assignment.run_tag, timeline.start_ns)
            if assignment.streams
            else None
        )
        ends = [end for end in (lanes.producers, lanes.consumers) if end is not None]
        waiting.add(link.descriptor, *(end.descriptor for end in ends))
        scenario = assignment.scenario
        self._mode = scenario.load.mode
        self._schedule = assignment.schedule
        self._scheduled_total = self._messages_scheduled()
        self._due_book = DueBook(self._schedule, self._scheduled_total, timeline, recorder)
        self._dealer = self._make_dealer()
        self._releasing = self._make_releasing()
        self._sizes = sizes
        self._head_bytes = head_bytes(scenario.message)
        self._is_numbered = self._carrying is not None or self._head_bytes == ENVELOPE_BYTES
        self._padding = padding(scenario.message, seed=assignment.run_tag + assignment.agent)
        self._copies = scenario.wiring.copies
        self._set_size(0)
        self._heads = HeadBuffer(
            assignment.run_tag,
            tuple(member.index for member in assignment.producers),
            _batch_messages(sizes.smallest_bytes),
        )
        # Without consumers there is no backlog to watch: the scenario bounds the load otherwise.
        self._is_self_limiting = lanes.are_self_limiting or scenario.only_publishes
        self._aside = self._make_aside()
        self._hold: Callable[[Collection[int]], None] = lambda lanes: None
        self._taking = self._make_taking()
        self._sent = 0
        schedule = self._schedule
        self._batch_complete_ns = (
            0 if schedule is None else self._next_batch_complete_ns(schedule, 0)
        )
        self._refused_until_ns = 0
        self._began_ns = timeline.start_ns
        self._has_ended_production = False
        self._sent_before_measure: int | None = None
        self._publishes_a_number = scenario.only_publishes and has_open_end(scenario)
        self._first_measured_ns: int | None = None
        self._received = 0
        self._freed = 0
        self._write_off = WriteOff()
        self._reopened = 0
        self._stall = Quiet()
        self._settling = Quiet()
        self._others_backlog = 0
        self._sent_at_backlog_news = 0
        self._next_housekeeping_ns = 0
        self._next_heed_ns = 0
        self._next_taking_ns = NEVER_NS
        self._next_progress_ns = 0
        together_ns = assignment.agents * NANOSECONDS // MOST_REPORTS_PER_SECOND
        self._progress_ns = max(PROGRESS_NS, together_ns)
        self._next_tick_ns = timeline.tick_end_ns(0)
        self._blocked_since: dict[int, int] = {}
        self.outages = Outages()
        self.has_detached = lanes.consumers is None or not self._is_attached
        """Whether all that was on its way to the consumers has arrived in the end."""
        self._stopping = False
        self._is_draining = False
        self._drained = False
        self._cpu_seconds = time.process_time()
        self._host_load = HostLoad()
        self.failure: BenchError | None = None

    def _set_size(self, at_ns: int) -> None:
        """Bodies as they are sent from this moment on."""
        body_bytes, self._next_size_ns = self._sizes.at(at_ns)
        self._tail = self._padding[: body_bytes - self._head_bytes]
        self._batch_messages = _batch_messages(body_bytes)
        limit_bytes = self._assignment.scenario.load.backlog_limit_bytes
        self._backlog_limit = max(self._copies, limit_bytes // body_bytes)
        """In deliveries: every copy of a message counts, and one message is always let out."""

    def _messages_scheduled(self) -> int:
        """Messages of warm-up and measured phase together, in mode `rate`."""
        if self._schedule is None:
            return 0
        warmup = self._schedule.messages_before(self._timeline.warmup_ns)
        return warmup + (self._assignment.expected_messages or 0)

    @property
    def _stream(self) -> Stream:
        """The dealer of a load with a schedule."""
        assert isinstance(self._dealer, RoundRobin | Requests)
        return self._dealer

    def _make_dealer(self) -> Dealer:
        members = tuple(member.index for member in self._assignment.producers)
        if self._mode == "request" and members:
            return Requests(members)
        if self._mode == "window":
            return Windows(members, self._assignment.scenario.load.in_flight)
        return RoundRobin(max(1, len(members)), owes=self._schedule is not None)

    def _make_aside(self) -> SetAside | None:
        """On a schedule, a lane that is full must not make the others late."""
        producers, dealer = self._lanes.producers, self._dealer
        is_needed = self._schedule is not None and len(self._assignment.producers) > 1
        if not is_needed or not isinstance(producers, Skippable):
            return None
        # With one message on its way at most, no lane of a request/response load is ever full.
        return SetAside(producers, dealer) if isinstance(dealer, RoundRobin) else None

    def _make_releasing(self) -> Releasing | None:
        if self._mode != "request":
            return None
        return Releasing(
            self._dealer if isinstance(self._dealer, Requests) else None,
            self._recorder,
            self._link,
            self._now_ns,
            round(self._assignment.scenario.load.patience_seconds * NANOSECONDS),
            self._send_at_once,
        )

    def _send_at_once(self) -> None:
        """What is late does not wait for the next batch to be complete."""
        self._batch_complete_ns = 0

    def _make_taking(self) -> Taking | None:
        consumer = self._assignment.scenario.consumer
        if not consumer.is_slow or self._lanes.consumers is None:
            return None
        if not isinstance(self._lanes.consumers, Holdable):
            raise RunError("consumer: consumers of this kind of broker cannot be slowed down")
        self._hold = self._lanes.consumers.hold
        return Taking(consumer, len(self._assignment.consumers))

    # -- the two halves of a run -----------------------------------------------------------------

    def run(self) -> None:
        """Send until the measured phase is over, then wait for what is still on its way."""
        self._wait_for_start()
        self._began_ns = self._now_ns()
        for role, signal in self._lanes.early_signals:
            # For the load it happened as it began.
            self._heed(replace(signal, at_ns=self._began_ns), role)
        if self._lanes.producers is not None:
            with self._keeping_what_was_measured():
                self._load(self._lanes.producers)
            with self._keeping_what_was_measured():
                self._push_out(self._lanes.producers)
                self._await_confirmations(self._lanes.producers)
        elif self._assignment.scenario.only_consumes:
            with self._keeping_what_was_measured():
                self._take_in()
        self._report_production()
        with self._keeping_what_was_measured():
            self._drain()
        self._close_ticks(self._now_ns())
        last = self._recorder.all_rows()
        self._note_cpu_and_clock(last)
        self._link.send_rows(last)

    @contextlib.contextmanager
    def _keeping_what_was_measured(self) -> Iterator[None]:
        """A transport that breaks ends this part of the run, not its result."""
        try:
            yield
        except BenchError as error:
            self._fail(error)

    def _wait_for_start(self) -> None:
        while not self._stopping:
            wait_ns = self._timeline.start_ns - self._now_ns()
            if wait_ns <= 0:
                return
            # Sleep the bulk, then spin the last stretch: agents start within a millisecond.
            if wait_ns > 2_000_000:
                time.sleep((wait_ns - 1_000_000) / NANOSECONDS)
            self._obey_commands()

    def _load(self, producers: Producers) -> None:
        if not self._is_attached and self._lanes.consumers is not None:
            self._fill(producers)
            self._attach(self._lanes.consumers)
        while not self._stopping:
            now = self._now_ns()
            if self._is_production_over(now):
                return
            if self._publishes_a_number and self._first_measured_ns is None:
                self._settle_warmup(producers, now)
            self._turn(self._produce(producers, self._now_ns()))

    def _fill(self, producers: Producers) -> None:
        """Send every window in full. A transaction that is left open needs no commit: the window
        holds at least one whole transaction, and what is consumed of it goes on with the next."""
        assert isinstance(self._dealer, Windows)
        while not self._stopping and self._dealer.credit > 0:
            now = self._now_ns()
            if self._is_production_over(now):
                return
            self._turn(self._produce(producers, now))
        producers.flush(timeout_seconds=1.0)

    def _attach(self, consumers: Consumers) -> None:
        consumers.attach()
        self._is_attached = True
        self.has_detached = False
        # It may have taken its time, and nobody was watching.
        self._stall.start_again()

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
        slowness_ns = 0 if self._taking is None else 2 * self._taking.interval_ns
        return now - last > max(self._timeline.drain_ns, SHORTEST_SILENCE_NS, slowness_ns)

    def _is_production_over(self, now: int) -> bool:
        if self._has_enough or self._quota_left(now) <= 0:
            return True
        end = self._timeline.measure_end_ns
        if self._schedule is not None and self._sent < self._scheduled_total:
            # With a slow schedule the last of `load.messages` may be due after the others' end.
            last = self._schedule.intended_ns(self._scheduled_total - 1)
            end = max(end, self._timeline.start_ns + last) + LATE_GRACE_NS
        return now >= end

    @staticmethod
    def _push_out(producers: Producers) -> None:
        producers.commit()
        producers.flush(timeout_seconds=1.0)

    def _report_production(self) -> None:
        ended_ns = self._now_ns()
        self._book_due(ended_ns)
        self._has_ended_production = True
        # The progress goes first: from the report on, the driver takes it for the final one.
        self._send_progress()
        report(
            self._link,
            "produced",
            sent=self._sent,
            began_ns=self._began_ns,
            ended_ns=ended_ns,
            first_measured_ns=self._first_measured_ns,
            sent_measured=int(self._recorder.sent_by_lane[MEASURE].sum()),
            received_measured=self._recorder.received_measured,
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
        if self._lanes.consumers is not None and self._is_attached:
            # Whatever the time: what the broker has pushed and forgotten would else count as lost.
            self.has_detached = self._lanes.consumers.detach()
            self._consume(self._lanes.consumers)
            self._take_the_rest(self._lanes.consumers)

    # -- one turn --------------------------------------------------------------------------------

    def _turn(self, wake_ns: int) -> None:
        consumers = self._lanes.consumers if self._is_attached else None
        producers = self._lanes.producers
        wake_ns = min(wake_ns, self._next_taking_ns)
        wait_ns = max(0, wake_ns - self._now_ns())
        if wait_ns > SPARE_TIME_NS and self._schedule is not None:
            self._recorder.fold_some()
            wait_ns = max(0, wake_ns - self._now_ns())
        ready = self._waiting.wait(min(wait_ns, LONGEST_WAIT_NS) / NANOSECONDS)
        now = self._now_ns()
        is_housekeeping_due = now >= self._next_housekeeping_ns
        if consumers is not None and (
            is_housekeeping_due or consumers.descriptor in ready or now >= self._next_taking_ns
        ):
            self._consume(consumers)
        if self._aside is not None:
            self._aside.take_back(now)
        if producers is not None and (is_housekeeping_due or producers.descriptor in ready):
            self._refused_until_ns = 0
            self._collect_outcomes(producers)
        if self._link.descriptor in ready or is_housekeeping_due:
            self._obey_commands()
        if is_housekeeping_due:
            self._next_housekeeping_ns = now + HOUSEKEEPING_NS
            self._keep_house(now)

    def _keep_house(self, now: int) -> None:
        self._heed_signals()
        if now >= self._next_progress_ns:
            self._next_progress_ns = now + self._progress_ns
            self._send_progress()
        if now >= self._next_tick_ns:
            self._close_ticks(now)
        if self._tracer is not None:
            self._tracer.flush_if_due(now)
            if self._tracer.failure is not None:
                self._fail(self._tracer.failure)
        if not self.outages.count_down():
            out = (self._sent - self._freed) * self._copies - self._received
            self._write_off.look(out, self._received, now)
        if isinstance(self._dealer, Windows) and not self._is_draining:
            self._reclaim_what_was_lost(self._dealer, now)
            self._watch_for_stall(self._dealer, now)
        if self._releasing is not None:
            self._releasing.give_up(now)

    # -- producing -------------------------------------------------------------------------------

    def _produce(self, producers: Producers, now: int) -> int:
        """Send what may go now; when to come back."""
        if now < self._refused_until_ns:
            return self._refused_until_ns
        if self._schedule is not None:
            return self._produce_on_schedule(self._schedule, producers, now)
        wanted = min(self._batch_messages, self._quota_left(now), self._room())
        if wanted <= 0:
            return now + REFUSED_WAIT_NS
        return now if self._send(producers, wanted, None) else self._refused(now)

    def _produce_on_schedule(self, schedule: Pacing, producers: Producers, now: int) -> int:
        if now >= self._batch_complete_ns:
            due = min(schedule.messages_due(now - self._timeline.start_ns), self._scheduled_total)
            behind = self._stream.ready(due)
            if behind > 0:
                accepted = self._send(producers, min(behind, self._batch_messages), schedule)
                if not accepted:
                    return self._refused(now)
                if accepted < behind:
                    return now
            self._batch_complete_ns = self._next_batch_complete_ns(schedule, due)
        return self._batch_complete_ns

    def _next_batch_complete_ns(self, schedule: Pacing, due: int) -> int:
        """When the last message of the next batch is due: until then none of it is sent.

        Without that, every arrival that wakes the loop would send what fell due since the last, one
        message at a time.
        """
        if due >= self._scheduled_total:
            # What is still unsent is owed by lanes that are down.
            is_all_sent = self._sent >= self._scheduled_total
            return (
                self._timeline.measure_end_ns if is_all_sent else self._now_ns() + LONGEST_WAIT_NS
            )
        last = min(due + schedule.batch_from(due), self._scheduled_total) - 1
        return self._timeline.start_ns + schedule.intended_ns(last)

    def _refused(self, now: int) -> int:
        """Nothing was accepted: a lane is full, or down, and then the others go on without it."""
        if now >= self._next_heed_ns:
            self._next_heed_ns = now + HEED_NS
            self._heed_signals()
        return now + REFUSED_WAIT_NS

    def _quota_left(self, now: int) -> int:
        """What `load.messages` still allows in the measured phase."""
        messages = self._assignment.messages
        if messages is None or self._schedule is not None:
            return self._batch_messages
        if now < self._timeline.measure_start_ns:
            # No more than that at once: the phase may change before the batch is stamped.
            return min(self._batch_messages, messages)
        if self._sent_before_measure is None:
            self._recorder.fold()
            self._sent_before_measure = int(self._recorder.sent_by_lane[WARMUP].sum())
        return messages - (self._sent - self._sent_before_measure)

    def _room(self) -> int:
        """How many more messages the backlog limit allows."""
        if self._mode != "maximum" or self._is_self_limiting:
            return self._batch_messages
        if self._assignment.shares_destinations:
            sent_since = self._sent - self._sent_at_backlog_news
            backlog = self._others_backlog + sent_since * self._copies
        else:
            under_way = (self._sent - self._freed) * self._copies
            backlog = under_way - self._received - self._write_off.messages
            if self._write_off.is_due and backlog > self._backlog_limit // 2:
                # Sending on would hide that of all these nothing arrives any more.
                return 0
        return (self._backlog_limit - backlog) // self._copies

    def _send(self, producers: Producers, messages: int, schedule: Pacing | None) -> int:
        """How many were accepted. What full lanes held back is tried without them."""
        while True:
            accepted, makes_way = self._stamp_and_send(producers, messages, schedule)
            if accepted or not makes_way:
                return accepted

    def _stamp_and_send(
        self, producers: Producers, messages: int, schedule: Pacing | None
    ) -> tuple[int, bool]:
        """How many were accepted, and whether others may be if it is tried again at once. Without a
        schedule, intended is when sent."""
        lane, sequence = self._dealer.deal(messages)
        if not len(lane):
            return 0, False
        head = self._heads.numbered(lane, sequence)
        batch = Batch(
            lane=lane,
            head=head,
            tail=self._tail,
            route=self._heads.routes(len(lane)),
            head_bytes=self._head_bytes,
        )
        if self._carrying is not None:
            self._carrying.prepare(batch)
        if schedule is not None:
            offsets = schedule.intended_of_ns(self._stream.numbers(lane, sequence))
            head["intended_ns"] = offsets + self._timeline.start_ns
        sent_ns = self._now_ns()
        if sent_ns >= self._next_size_ns:
            self._set_size(sent_ns)
            batch.tail = self._tail
        head["sent_ns"] = sent_ns
        if schedule is None:
            head["intended_ns"] = sent_ns
        accepted = producers.send(batch)
        makes_way = False
        if accepted < len(batch) and self._aside is not None:
            makes_way = self._aside.put(lane[accepted:], sent_ns)
        if not accepted and not makes_way:
            # Arrivals go on waking the loop; only the producers' own descriptor is worth a new try.
            self._refused_until_ns = sent_ns + REFUSED_WAIT_NS
        if accepted:
            insert_ns = self._now_ns() - sent_ns
            self._recorder.insert_duration(sent_ns, insert_ns, accepted)
            self._recorder.sent(lane[:accepted], head[:accepted], batch.sizes)
            if self._carrying is not None:
                self._carrying.accepted(batch, accepted)
            if self._tracer is not None:
                self._trace_sent(self._tracer, batch, accepted, insert_ns)
            self._dealer.accepted(lane[:accepted])
            if isinstance(self._dealer, Requests):
                self._dealer.sent(lane[:accepted], head[:accepted])
            self._sent += accepted
        return accepted, makes_way

    def _trace_sent(self, tracer: Tracer, batch: Batch, accepted: int, insert_ns: int) -> None:
        tracer.sent(
            batch.lane[:accepted],
            batch.head[:accepted],
            self._head_bytes + len(self._tail) if batch.sizes is None else batch.sizes[:accepted],
            insert_ns,
            None if batch.hashes is None else batch.hashes[:accepted],
        )

    # -- consuming -------------------------------------------------------------------------------

    def _consume(self, consumers: Consumers) -> None:
        received = consumers.receive(0.0)
        if self._carrying is not None:
            received = self._carrying.identify(received)
            if self._due_times is not None:
                self._due_times.fill(received.head)
        if self._taking is not None:
            self._consume_slowly(consumers, self._taking, received)
            return
        self._record(received)
        # An empty turn lets the transport acknowledge what was left over from the last one.
        self._recorder.acknowledged(self._now_ns(), consumers.acknowledge(received))

    def _consume_slowly(self, consumers: Consumers, taking: Taking, received: Received) -> None:
        taking.arrived(received)
        now = self._now_ns()
        self._record(taking.taken(now))
        processed = taking.processed(now)
        self._recorder.acknowledged(self._now_ns(), consumers.acknowledge(processed))
        self._hold(taking.busy_lanes)
        self._next_taking_ns = max(taking.wake_ns, now + SHORTEST_TAKING_NS)

    def _take_the_rest(self, consumers: Consumers) -> None:
        """What has reached slow consumers by the end is received then: it is here, and not in the
        broker."""
        if self._taking is not None:
            self._record(self._taking.all_at_once(self._now_ns()))
            rest = self._taking.processed(NEVER_NS)
            self._recorder.acknowledged(self._now_ns(), consumers.acknowledge(rest))

    def _record(self, received: Received) -> None:
        if not len(received):
            return
        subscription = self._lanes.subscription_of[received.lane, received.route]
        self._recorder.received(received, subscription)
        if self._tracer is not None:
            self._tracer.received(received, subscription)
        head, received_ns = received.head, received.received_ns
        if self._is_numbered and not self._assignment.scenario.only_consumes:
            # What another run left behind gives back no credit.
            is_ours = head["run_tag"] == self._assignment.run_tag
            if not is_ours.all():
                head, received_ns = head[is_ours], received_ns[is_ours]
                subscription = subscription[is_ours]
        self._received += len(head)
        self._dealer.consumed(head["producer"])
        if self._releasing is not None:
            self._releasing.arrived(head["producer"], head["sequence"])
        if self._sampler is not None and not self._has_ended_production:
            self._sample(self._sampler, subscription, received_ns)

    def _sample(
        self,
        sampler: Sampler,
        subscription: npt.NDArray[np.int64],
        received_ns: npt.NDArray[np.int64],
    ) -> None:
        """The load goes on until all agents have their samples: each would else lighten the load
        of the others."""
        sampler.add(subscription, received_ns)
        if sampler.is_complete and not self._has_told_samples:
            self._has_told_samples = True
            report(self._link, "sampled")

    def _collect_outcomes(self, producers: Producers) -> None:
        outcomes = producers.outcomes()
        if not len(outcomes):
            return
        self._recorder.outcomes(outcomes)
        if self._carrying is not None:
            self._carrying.answered(outcomes)
        if self._tracer is not None:
            self._tracer.outcomes(outcomes)
        failed = (outcomes.kind == OutcomeKind.REFUSED) | (outcomes.kind == OutcomeKind.RETURNED)
        if failed.any():
            # A message that came back frees its place in the backlog and in the window.
            self._freed += int(np.count_nonzero(failed))
            self._dealer.consumed(outcomes.head["producer"][failed])
            if self._releasing is not None:
                head = outcomes.head[failed]
                self._releasing.arrived(head["producer"], head["sequence"])

    # -- signals, commands, ticks ----------------------------------------------------------------

    def _heed_signals(self) -> None:
        if self._lanes.producers is not None:
            for signal in self._lanes.producers.signals():
                self._heed(signal, PRODUCER)
        if self._lanes.consumers is not None:
            for signal in self._lanes.consumers.signals():
                self._heed(signal, CONSUMER)

    def _heed(self, signal: Signal, role: str) -> None:
        if signal.kind is SignalKind.BLOCKED:
            self._blocked_since.setdefault(signal.lane, signal.at_ns)
        elif signal.kind is SignalKind.UNBLOCKED:
            since = self._blocked_since.pop(signal.lane, signal.at_ns)
            self._recorder.blocked(signal.at_ns, signal.at_ns - since)
        elif signal.kind is SignalKind.LOST:
            self._lose(signal, role)
        elif signal.kind is SignalKind.REOPENED:
            self._reopen(signal, role)

    def _lose(self, signal: Signal, role: str) -> None:
        lane, at_ns = signal.lane, signal.at_ns
        if role == PRODUCER and lane in self._blocked_since:
            self._recorder.blocked(at_ns, at_ns - self._blocked_since.pop(lane))
        if self.outages.is_down(role, lane):
            self._book_outage(role, lane, at_ns)
        else:
            self._recorder.error(role, at_ns)
        if not signal.is_reopening:
            self._fail(self._lost(signal, role))
            return
        members = self._assignment.producers if role == PRODUCER else self._assignment.consumers
        self.outages.lost(role, lane, members[lane].index, at_ns, signal.reason)
        if role == PRODUCER:
            if self._aside is not None:
                self._aside.forget(lane)
            self._dealer.suspend(lane)

    def _reopen(self, signal: Signal, role: str) -> None:
        lane, at_ns = signal.lane, signal.at_ns
        self._recorder.reconnected(role, at_ns)
        self._book_outage(role, lane, at_ns)
        self.outages.reopened(role, lane)
        self._reopened += 1
        self._write_off.reopened()
        if role == PRODUCER:
            self._dealer.resume(lane)
        elif isinstance(self._dealer, Windows):
            self._dealer.settle_all()

    def _lost(self, signal: Signal, role: str) -> LaneLost:
        address = self._lanes.addresses[role]
        named = signal.reason if address in signal.reason else f"{address}: {signal.reason}"
        return LaneLost(named)

    def _fail(self, error: BenchError) -> None:
        """Keep the first reason, tell the driver, stop sending; what was measured stays."""
        if self.failure is None:
            self.failure = error
            self._link.send({"type": "failed", "kind": error.kind, "text": str(error)})
        self._stopping = True

    def _reclaim_what_was_lost(self, windows: Windows, now: int) -> None:
        if not windows.is_settling or self.outages.count_down(CONSUMER):
            self._settling.start_again()
        elif self._settling.lasts_ns(windows.settling_credit, now) >= QUIET_NS:
            windows.reclaim()

    def _watch_for_stall(self, windows: Windows, now: int) -> None:
        if self.outages.count_down() or windows.is_settling:
            self._stall.start_again()
        stalled_ns = self._stall.lasts_ns(windows.progress + self._sent, now)
        if not self._stopping and stalled_ns > STALL_NS:
            what = "the window is stalled: no message of this agent arrived"
            if not self._is_attached:
                what = "the window cannot be filled: the broker took no message of this agent"
            self._fail(RunError(f"{what} for {STALL_NS // NANOSECONDS} s"))

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
            elif command["type"] == "backlog":
                self._others_backlog = int(command["messages"])
                self._sent_at_backlog_news = self._sent
            elif command["type"] == "released" and self._releasing is not None:
                self._releasing.released(command["producers"], command["sequences"])

    def _send_progress(self) -> None:
        # On a schedule the last rows may wait for a quiet moment: nobody's backlog depends on them,
        # and the driver needs to know of them only when all has been sent.
        if self._schedule is None or self._has_ended_production:
            self._recorder.fold()
        producers = self._lanes.producers
        self._link.send(
            {
                "type": "progress",
                "sent": self._sent,
                "received_once": self._recorder.received_once,
                "freed": self._freed,
                "reopened": self._reopened,
                "down": self.outages.count_down(),
                "unsettled": producers.in_flight() if producers is not None else 0,
            }
        )

    def _close_ticks(self, now: int) -> None:
        self._book_due(now)
        self._note_ongoing_blocks(now)
        self._note_ongoing_outages(now)
        rows = self._recorder.rows_until(now)
        self._note_cpu_and_clock(rows)
        if rows:
            rows[-1].host_busy_share = self._host_load.busy_share()
        self._link.send_rows(rows)
        self._next_tick_ns = self._timeline.tick_end_ns(self._timeline.tick_at(now))

    def _note_cpu_and_clock(self, rows: list[EventRow]) -> None:
        """The last of these rows carries the CPU used since the last row that did."""
        if not rows:
            return
        cpu_seconds = time.process_time()
        rows[-1].cpu_seconds = cpu_seconds - self._cpu_seconds
        self._cpu_seconds = cpu_seconds
        rows[-1].clock_offset_ns = self._link.clock_offset.offset_ns
        rows[-1].clock_bound_ns = self._link.clock_offset.bound_ns

    def _book_due(self, now: int) -> None:
        # Once production has ended, for whatever reason, nothing more falls due.
        if self._assignment.producers and not self._has_ended_production:
            self._due_book.book_until(now)

    def _note_ongoing_blocks(self, now: int) -> None:
        for lane, since in self._blocked_since.items():
            self._recorder.blocked(now, now - since)
            self._blocked_since[lane] = now

    def _note_ongoing_outages(self, now: int) -> None:
        for role, lane in self.outages.down():
            self._book_outage(role, lane, now)

    def _book_outage(self, role: str, lane: int, until_ns: int) -> None:
        timeline = self._timeline
        for at_ns, down_ns in self.outages.book(
            role, lane, until_ns, lambda at_ns: timeline.tick_end_ns(timeline.tick_at(at_ns))
        ):
            self._recorder.disconnected(role, at_ns, down_ns)


def _batch_messages(body_bytes: int) -> int:
    return max(1, min(BATCH_MESSAGES, BATCH_BYTES // body_bytes))
