"""Sends messages: decides when and how many, numbers and stamps them in batches, hands the batches
to the transport, and records what it accepted and what became of it.

How many is limited by the schedule, if there is one, and by quota, backlog and broker. The flow
chooses which messages are next.

In mode `request` a sender waits for the arrival of its last message. Arrivals of this agent's own
messages release its senders at once. Arrivals of other agents' messages are reported to the driver,
once per read, and the driver forwards them to the senders' agents.
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
"""How long to wait, at most, before trying again after a socket or the backlog was full: both wake
the loop when they have room, and trying in vain takes CPU from the broker."""
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
        """Whether senders wait for their own messages to arrive, here or at other agents."""
        self._patience_ns = round(assignment.scenario.load.request_timeout_seconds * NANOSECONDS)
        self._backlog = backlog
        self._events = events
        self._recorder = load.recorder
        self._codecs = load.codecs
        self._tracers = load.tracers
        self.pacer = pacer_for(assignment, timeline, flow)
        # How many may be sent in the measured phase: `load.messages`, in a load without a schedule.
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
        # Every producer has one destination, whose index among the lane's own is 0.
        self._routes = np.zeros(most, np.uint16)
        self._batches: dict[int, Batch] = {}
        """By number of messages. All batches are views of the same arrays."""
        self._batch_complete_ns = self.pacer.batch_complete_ns(0, 0)
        self.next_ns = self._batch_complete_ns
        """Before this time there is nothing to send. After a refusal, nothing is tried again before
        it, unless the producers' descriptor is readable or, in mode `request`, a sender is free."""
        self._set_size(0)

    def _set_size(self, at_ns: int) -> None:
        """Set the size of bodies sent from this moment on."""
        self._body_bytes, self._next_size_ns = self._sizes.at(at_ns)
        self._batch_messages = _batch_messages(self._body_bytes)
        """The most messages that are sent in one batch."""
        self._batches.clear()
        self._bodies.set_size(self._body_bytes, self._batch_messages)

    def measured_phase_moved(self) -> None:
        """Sizes change at moments of the measured phase, so these have moved as well."""
        self._set_size(self._now_ns())

    # -- when and how many -----------------------------------------------------------------------

    def _find_limits(self) -> tuple[Callable[[int], int], ...]:
        """Functions of the time, each of which may allow fewer messages than a batch holds."""
        limits: list[Callable[[int], int]] = []
        if self._backlog.is_bounded:
            limits.append(lambda now: self._backlog.room(self._body_bytes))
        if self.has_quota:
            limits.append(self.quota_left)
        return tuple(limits)

    def produce(self, now: int) -> int:
        """Send what may go now; called once `next_ns` has come. Returns when to come back.

        On a schedule nothing is sent before the last message of the next batch is due. Otherwise
        every arrival that wakes the loop would send what fell due since the last one, one message
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
                # A lane is full or down. If it is down, the other lanes go on without it.
                self._events.handle_refusal(now)
                return now + REFUSED_WAIT_NS
            if accepted < ready:
                return now
        self.next_ns = self._batch_complete_ns = self.pacer.batch_complete_ns(due, now)
        return self.next_ns

    def quota_left(self, now: int) -> int:
        """What `load.messages` still allows in the measured phase, where it bounds the load."""
        if now < self._timeline.measure_start_ns:
            # No more than that in one batch: the phase may begin before the batch is stamped.
            return self._quota
        if self._sent_before_measure is None:
            self._sent_before_measure = int(self._recorder.sent_by_lane[WARMUP].sum())
        return self._quota - (self._backlog.sent - self._sent_before_measure)

    # -- one batch -------------------------------------------------------------------------------

    def _send(self, wanted: int) -> int:
        """Send a batch; returns how many messages were accepted. If full lanes refused all of them,
        tries again with the other lanes."""
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
                # Arrivals still wake the loop; only the producers' own descriptor is a reason to
                # try again.
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
        """Record outcomes. Producers that refused messages may be able to take some again."""
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
        """Messages that came back free their places in the backlog and in the windows."""
        self._backlog.freed += failures
        envelope = outcomes.envelope[
            np.isin(outcomes.kind, (OutcomeKind.REFUSED, OutcomeKind.RETURNED))
        ]
        self._flow.consumed(envelope["producer"])
        if self.awaits_arrivals:
            self.arrived(envelope)

    # -- senders that wait for their own messages ------------------------------------------------

    def arrived(self, envelope: Envelopes) -> None:
        """Handle messages that this agent has received, in mode `request`."""
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
        """Release the senders of messages that were received, here or by another agent."""
        lane, envelope = self._requests.arrived(producer, sequence)
        if not len(lane):
            return
        self._recorder.answered(self._now_ns(), lane, envelope)
        if self._requests.are_all_waiting:
            self._send_at_once()

    def give_up(self, now: int) -> None:
        """Release senders whose message has not arrived within `load.request_timeout_seconds`."""
        if not self.awaits_arrivals:
            return
        given_up = self._requests.give_up(now - self._patience_ns)
        if len(given_up):
            self._recorder.given_up(now, given_up)
            self._send_at_once()

    def _send_at_once(self) -> None:
        """A sender is free and a message is due: do not wait until the next batch is complete."""
        self.next_ns = self._batch_complete_ns = 0


def _batch_messages(body_bytes: int) -> int:
    return max(1, min(BATCH_MESSAGES, BATCH_BYTES // body_bytes))
