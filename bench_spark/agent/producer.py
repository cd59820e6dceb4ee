"""Sends messages: when and how many, by the schedule or as fast as quota, backlog and broker allow;
numbered and stamped in batches; recorded as far as they were accepted, with what became of them.

The flow chooses which messages are next. In mode `request` a sender waits for the arrival of its
last message. Arrivals of the agent's own messages release its senders at once; those of other
agents' messages are reported to the driver, all of one call together, which forwards them to the
senders' agents.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from bench_spark.agent.connections import ConnectionEvents
from bench_spark.agent.flow import Flow, Paced, Pacer, RequestFlow, RoundRobinFlow, Unpaced
from bench_spark.agent.load import AgentLoad, Backlog
from bench_spark.agent.records import body_sizes
from bench_spark.agent.timeline import WARMUP, Timeline
from bench_spark.core.clock import NANOSECONDS
from bench_spark.core.envelope import Envelopes, empty_envelopes, word_rows_of
from bench_spark.plan import Assignment
from bench_spark.transports.batches import Batch, OutcomeKind, Outcomes

REFUSED_WAIT_NS = 5_000_000
"""How long to wait, at most, for a full socket or a full backlog: both wake the loop when they have
room again, and trying in vain takes CPU from the broker."""
BATCH_BYTES = 256 * 1024
BATCH_MESSAGES = 1024


def pacer_for(assignment: Assignment, timeline: Timeline, flow: Flow) -> Pacer:
    schedule = assignment.schedule
    if schedule is None:
        return Unpaced()
    assert isinstance(flow, RoundRobinFlow | RequestFlow), "windows have no schedule"
    warmup = schedule.messages_before(timeline.warmup_ns)
    total = warmup + (assignment.expected_messages or 0)
    return Paced(schedule, timeline.start_ns, total, flow)


class LoadProducer:
    def __init__(
        self, load: AgentLoad, flow: Flow, backlog: Backlog, events: ConnectionEvents
    ) -> None:
        assignment, timeline = load.assignment, load.timeline
        self._timeline = timeline
        self._link = load.link
        self._now_ns = load.link.clock.now_ns
        self._producers = load.producers
        self._bodies = load.bodies
        self._flow = flow
        self._requests = flow if isinstance(flow, RequestFlow) else RequestFlow(())
        self.awaits_arrivals = flow is self._requests
        """Whether senders wait for their own messages, here or in other agents."""
        self._patience_ns = round(assignment.scenario.load.request_timeout_seconds * NANOSECONDS)
        self._backlog = backlog
        self._events = events
        self._recorder = load.recorder
        self._codecs = load.codecs
        self._tracers = load.tracers
        self.pacer = pacer_for(assignment, timeline, flow)
        # How many may be sent in the measured phase of a load without a schedule.
        self.has_quota = assignment.messages is not None and assignment.schedule is None
        self._quota = assignment.messages or 0
        self._limits = self._find_limits()
        self._sent_before_measure: int | None = None
        self._sizes = body_sizes(assignment.scenario.message, timeline)
        most = _batch_messages(self._sizes.smallest_bytes)
        self._envelopes = empty_envelopes(most)
        self._envelopes["run_tag"] = assignment.run_tag
        self._envelope_words = word_rows_of(self._envelopes)
        self._lanes = np.zeros(most, np.uint32)
        # The only destination of every producer.
        self._routes = np.zeros(most, np.uint16)
        self._batches: dict[int, Batch] = {}
        """By the number of their messages: every batch has the same memory."""
        self._batch_complete_ns = self.pacer.batch_complete_ns(0, 0)
        self.next_ns = self._batch_complete_ns
        """Before that there is nothing to send. After a refusal it is not worth while to try again
        until then, unless the producers' descriptor is readable, or somebody is free."""
        self._set_size(0)

    def _set_size(self, at_ns: int) -> None:
        """Bodies as they are sent from this moment on."""
        self._body_bytes, self._next_size_ns = self._sizes.at(at_ns)
        self._batch_messages = _batch_messages(self._body_bytes)
        """As many as are sent at once."""
        self._batches.clear()
        self._bodies.set_size(self._body_bytes, self._batch_messages)

    def measured_phase_moved(self) -> None:
        """Sizes that change with the measured phase change at other moments now."""
        self._set_size(self._now_ns())

    # -- when and how many -----------------------------------------------------------------------

    def _find_limits(self) -> tuple[Callable[[int], int], ...]:
        """What may allow fewer messages than are ready and fit into a batch, at a moment."""
        limits: list[Callable[[int], int]] = []
        if self._backlog.is_bounded:
            limits.append(lambda now: self._backlog.room(self._body_bytes))
        if self.has_quota:
            limits.append(self.quota_left)
        return tuple(limits)

    def produce(self, now: int) -> int:
        """Send what may go now, which is not before `next_ns`; when to come back.

        On a schedule nothing is sent before the last message of the next batch is due. Without
        that, every arrival that wakes the loop would send what fell due since the last, one message
        at a time.
        """
        due = self.pacer.due(now)
        ready = self._flow.ready(due)
        if ready > 0:
            wanted = min(ready, self._batch_messages)
            for limit in self._limits:
                wanted = min(wanted, limit(now))
            if wanted <= 0:
                return now + REFUSED_WAIT_NS
            accepted = self._send(wanted)
            if not accepted:
                # A lane is full, or down, and then the others go on without it.
                self._events.handle_refusal(now)
                return now + REFUSED_WAIT_NS
            if accepted < ready:
                return now
        self.next_ns = self._batch_complete_ns = self.pacer.batch_complete_ns(due, now)
        return self.next_ns

    def quota_left(self, now: int) -> int:
        """What `load.messages` still allows in the measured phase, where it bounds the load."""
        if now < self._timeline.measure_start_ns:
            # No more than that at once: the phase may change before the batch is stamped.
            return self._quota
        if self._sent_before_measure is None:
            self._sent_before_measure = int(self._recorder.sent_by_lane[WARMUP].sum())
        return self._quota - (self._backlog.sent - self._sent_before_measure)

    # -- one batch -------------------------------------------------------------------------------

    def _send(self, wanted: int) -> int:
        """How many were accepted. What full lanes held back is tried without them."""
        while True:
            messages = self._flow.next_batch(self._envelope_words, self._lanes, wanted)
            if not messages:
                return 0
            batch = self._batches.get(messages)
            if batch is None:
                batch = self._new_batch(messages)
            for codec in self._codecs:
                codec.prepare(batch)
            sent_ns = self._now_ns()
            if sent_ns >= self._next_size_ns:
                self._set_size(sent_ns)
                wanted = min(wanted, self._batch_messages)
                continue
            self.pacer.stamp(batch.envelope_words, batch.lane, sent_ns)
            accepted = self._producers.send(batch)
            makes_way = accepted < messages and self._events.backpressure.put(
                batch.lane[accepted:], sent_ns
            )
            if accepted:
                self._note_accepted(batch, accepted, sent_ns)
                return accepted
            if not makes_way:
                # Arrivals go on waking the loop; only the producers' own descriptor is worth a new
                # try.
                self.next_ns = sent_ns + REFUSED_WAIT_NS
                return 0

    def _new_batch(self, messages: int) -> Batch:
        batch = self._batches[messages] = Batch(
            lane=self._lanes[:messages],
            envelope=self._envelopes[:messages],
            payload=self._bodies.payloads(messages),
            route=self._routes[:messages],
            envelope_bytes=self._bodies.envelope_bytes,
        )
        return batch

    def _note_accepted(self, batch: Batch, accepted: int, sent_ns: int) -> None:
        insert_ns = self._now_ns() - sent_ns
        lane, envelope, envelope_words = batch.lane, batch.envelope, batch.envelope_words
        if accepted < len(lane):
            lane, envelope, envelope_words = (
                lane[:accepted],
                envelope[:accepted],
                envelope_words[:accepted],
            )
        self._recorder.sent(lane, envelope_words, insert_ns, batch.sizes)
        for tracer in self._tracers:
            tracer.sent(batch, accepted, self._body_bytes, insert_ns)
        self._bodies.accepted(batch, accepted)
        self._flow.accepted(lane, envelope)
        self._backlog.sent += accepted

    # -- what became of them ---------------------------------------------------------------------

    def collect_outcomes(self) -> None:
        """Record outcomes; producers that refused messages may have room again."""
        self.next_ns = self._batch_complete_ns
        outcomes = self._producers.outcomes()
        if not len(outcomes.rows):
            return
        failures = self._recorder.outcomes(outcomes)
        for codec in self._codecs:
            codec.answered(outcomes)
        for tracer in self._tracers:
            tracer.outcomes(outcomes)
        if failures:
            self._free(outcomes, failures)

    def _free(self, outcomes: Outcomes, failures: int) -> None:
        """A message that came back frees its place in the backlog and in the window."""
        self._backlog.freed += failures
        envelope = outcomes.envelope[
            np.isin(outcomes.kind, (OutcomeKind.REFUSED, OutcomeKind.RETURNED))
        ]
        self._flow.consumed(envelope["producer"])
        if self.awaits_arrivals:
            self.arrived(envelope)

    # -- senders that wait for their own messages ------------------------------------------------

    def arrived(self, envelope: Envelopes) -> None:
        """Messages that this agent has received, in mode `request`."""
        producer, sequence = envelope["producer"], envelope["sequence"]
        self.released(producer, sequence)
        is_elsewhere = ~self._requests.are_here(producer)
        if is_elsewhere.any():
            numbers = {
                "producers": producer[is_elsewhere].tolist(),
                "sequences": sequence[is_elsewhere].tolist(),
            }
            self._link.send({"type": "arrived", **numbers})

    def released(self, producer: npt.ArrayLike, sequence: npt.ArrayLike) -> None:
        """Messages that were received, here or elsewhere."""
        lane, envelope = self._requests.arrived(producer, sequence)
        if not len(lane):
            return
        self._recorder.answered(self._now_ns(), lane, envelope)
        if self._requests.are_all_waiting:
            self._send_at_once()

    def give_up(self, now: int) -> None:
        """Senders whose message has not arrived for too long go on without it."""
        if not self.awaits_arrivals:
            return
        given_up = self._requests.give_up(now - self._patience_ns)
        if len(given_up):
            self._recorder.given_up(now, given_up)
            self._send_at_once()

    def _send_at_once(self) -> None:
        """Somebody is free for whom something is due: it does not wait for the next batch."""
        self.next_ns = self._batch_complete_ns = 0


def _batch_messages(body_bytes: int) -> int:
    return max(1, min(BATCH_MESSAGES, BATCH_BYTES // body_bytes))
