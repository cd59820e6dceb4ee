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

from bench_spark.agent.connections import ConnectionEvents, FlowControl
from bench_spark.agent.flow import Flow, Paced, Pacer, RequestFlow, RoundRobinFlow, Unpaced
from bench_spark.agent.job import Instruments, Job, Lanes
from bench_spark.agent.link import Link
from bench_spark.agent.pacing import NO_END
from bench_spark.agent.recorder import Recorder
from bench_spark.agent.timeline import WARMUP
from bench_spark.core.clock import NANOSECONDS, NowNs
from bench_spark.core.envelope import Envelopes, empty_envelopes
from bench_spark.plan import Assignment
from bench_spark.transports.batches import Batch, OutcomeKind

REFUSED_WAIT_NS = 5_000_000
"""How long to wait, at most, for a full socket or a full backlog: both wake the loop when they have
room again, and trying in vain takes CPU from the broker."""
BATCH_BYTES = 256 * 1024
BATCH_MESSAGES = 1024


class Requests:
    """Tells senders that wait for their own messages, here and in other agents, of arrivals."""

    are_awaited = True

    def __init__(
        self, flow: RequestFlow, recorder: Recorder, link: Link, now_ns: NowNs, patience_ns: int
    ) -> None:
        self._flow = flow
        self._recorder = recorder
        self._link = link
        self._now_ns = now_ns
        self._patience_ns = patience_ns
        self.on_release: Callable[[], None] = lambda: None
        """Called when somebody is free for whom something is due already."""

    def arrived(self, head: Envelopes) -> None:
        """Messages that this agent has received."""
        producer, sequence = head["producer"], head["sequence"]
        self.released(producer, sequence)
        is_elsewhere = ~self._flow.are_here(producer)
        if is_elsewhere.any():
            numbers = {
                "producers": producer[is_elsewhere].tolist(),
                "sequences": sequence[is_elsewhere].tolist(),
            }
            self._link.send({"type": "arrived", **numbers})

    def released(self, producer: npt.ArrayLike, sequence: npt.ArrayLike) -> None:
        """Messages that were received, here or elsewhere."""
        lane, head = self._flow.arrived(producer, sequence)
        if not len(lane):
            return
        self._recorder.answered(self._now_ns(), lane, head)
        if self._flow.are_all_waiting:
            self.on_release()

    def give_up(self, now_ns: int) -> None:
        """Nobody waits for longer than that."""
        given_up = self._flow.give_up(now_ns - self._patience_ns)
        if len(given_up):
            self._recorder.given_up(now_ns, given_up)
            self.on_release()


class NoRequests:
    """In the other modes nobody waits for a single message."""

    are_awaited = False
    on_release: Callable[[], None]

    def arrived(self, head: Envelopes) -> None: ...

    def released(self, producer: npt.ArrayLike, sequence: npt.ArrayLike) -> None: ...

    def give_up(self, now_ns: int) -> None: ...


def pacer_for(job: Job, flow: Flow) -> Pacer:
    schedule = job.assignment.schedule
    if schedule is None:
        return Unpaced()
    assert isinstance(flow, RoundRobinFlow | RequestFlow), "windows have no schedule"
    warmup = schedule.messages_before(job.timeline.warmup_ns)
    total = warmup + (job.assignment.expected_messages or 0)
    return Paced(schedule, job.timeline.start_ns, total, flow)


class LoadProducer:
    def __init__(
        self,
        job: Job,
        lanes: Lanes,
        control: FlowControl,
        instruments: Instruments,
        events: ConnectionEvents,
        requests: Requests | NoRequests,
    ) -> None:
        self._timeline = job.timeline
        self._sizes = job.sizes
        self._now_ns = job.now_ns
        self._producers = lanes.producers
        self.descriptor = lanes.producers.descriptor
        self._bodies = lanes.bodies
        self._flow = control.flow
        self._backlog = control.backlog
        self._backpressure = control.backpressure
        self._tally = control.tally
        self._recorder = instruments.recorder
        self._tracer = instruments.tracer
        self._events = events
        self._requests = requests
        requests.on_release = self.send_at_once
        self.pacer = pacer_for(job, control.flow)
        self._messages = _quota_of(job.assignment)
        self._sent_before_measure: int | None = None
        most = _batch_messages(job.sizes.smallest_bytes)
        self._heads = empty_envelopes(most)
        self._heads["run_tag"] = job.assignment.run_tag
        self._lanes = np.zeros(most, np.uint32)
        # The only destination of every producer.
        self._routes = np.zeros(most, np.uint16)
        self._batches: dict[int, Batch] = {}
        """By the number of their messages: every batch has the same memory."""
        self._batch_complete_ns = self.pacer.batch_complete_ns(0, 0)
        self._refused_until_ns = 0
        """Until then it is not worth while to try again, unless the producers' descriptor is
        readable: whoever sees that sets it to 0."""
        self._set_size(0)

    def _set_size(self, at_ns: int) -> None:
        """Bodies as they are sent from this moment on."""
        self._body_bytes, self._next_size_ns = self._sizes.at(at_ns)
        self._batch_messages = _batch_messages(self._body_bytes)
        """As many as are sent at once."""
        self._batches.clear()
        self._bodies.set_size(self._body_bytes, self._batch_messages)

    # -- when and how many -----------------------------------------------------------------------

    def produce(self, now: int) -> int:
        """Send what may go now; when to come back.

        On a schedule nothing is sent before the last message of the next batch is due. Without
        that, every arrival that wakes the loop would send what fell due since the last, one message
        at a time.
        """
        wake_ns = max(self._batch_complete_ns, self._refused_until_ns)
        if now < wake_ns:
            return wake_ns
        due = self.pacer.due(now)
        ready = self._flow.ready(due)
        if ready > 0:
            room = min(self.quota_left(now), self._backlog.room(self._body_bytes))
            wanted = min(ready, room, self._batch_messages)
            if wanted <= 0:
                return now + REFUSED_WAIT_NS
            accepted = self._send(wanted)
            if not accepted:
                # A lane is full, or down, and then the others go on without it.
                self._events.handle_refusal(now)
                return now + REFUSED_WAIT_NS
            if accepted < ready:
                return now
        self._batch_complete_ns = self.pacer.batch_complete_ns(due, now)
        return self._batch_complete_ns

    def quota_left(self, now: int) -> int:
        """What `load.messages` still allows in the measured phase."""
        messages = self._messages
        if messages == NO_END:
            return NO_END
        if now < self._timeline.measure_start_ns:
            # No more than that at once: the phase may change before the batch is stamped.
            return messages
        if self._sent_before_measure is None:
            self._sent_before_measure = int(self._recorder.sent_by_lane[WARMUP].sum())
        return messages - (self._tally.sent - self._sent_before_measure)

    def send_at_once(self) -> None:
        """What is late does not wait for the next batch to be complete."""
        self._batch_complete_ns = 0

    def measured_phase_moved(self) -> None:
        """Sizes that change with the measured phase change at other moments now."""
        self._set_size(self._now_ns())

    # -- one batch -------------------------------------------------------------------------------

    def _send(self, messages: int) -> int:
        """How many were accepted. What full lanes held back is tried without them."""
        while True:
            accepted, makes_way = self._send_batch(messages)
            if accepted or not makes_way:
                return accepted

    def _send_batch(self, messages: int) -> tuple[int, bool]:
        """How many were accepted, and whether others may be if it is tried again at once."""
        messages = self._flow.next_batch(self._heads, self._lanes, messages)
        if not messages:
            return 0, False
        batch = self._batches.get(messages)
        if batch is None:
            batch = self._new_batch(messages)
        self._bodies.prepare(batch)
        sent_ns = self._now_ns()
        if sent_ns >= self._next_size_ns:
            self._set_size(sent_ns)
            return self._send_batch(min(messages, self._batch_messages))
        self.pacer.stamp(batch.head, batch.lane, sent_ns)
        accepted = self._producers.send(batch)
        makes_way = False
        if accepted < messages:
            makes_way = self._backpressure.put(batch.lane[accepted:], sent_ns)
        if accepted:
            self._note_accepted(batch, accepted, sent_ns)
        elif not makes_way:
            # Arrivals go on waking the loop; only the producers' own descriptor is worth a new try.
            self._refused_until_ns = sent_ns + REFUSED_WAIT_NS
        return accepted, makes_way

    def _new_batch(self, messages: int) -> Batch:
        batch = self._batches[messages] = Batch(
            lane=self._lanes[:messages],
            head=self._heads[:messages],
            tail=self._bodies.tails(messages),
            route=self._routes[:messages],
            head_bytes=self._bodies.head_bytes,
        )
        return batch

    def _note_accepted(self, batch: Batch, accepted: int, sent_ns: int) -> None:
        insert_ns = self._now_ns() - sent_ns
        lane, head = batch.lane, batch.head
        if accepted < len(head):
            lane, head = lane[:accepted], head[:accepted]
        self._recorder.insert_duration(sent_ns, insert_ns, accepted)
        self._recorder.sent(lane, head, batch.sizes)
        self._tracer.sent(batch, accepted, self._body_bytes, insert_ns)
        self._bodies.accepted(batch, accepted)
        self._flow.accepted(lane, head)
        self._tally.sent += accepted

    # -- what became of them ---------------------------------------------------------------------

    def collect_outcomes(self) -> None:
        """Record outcomes; producers that refused messages may have room again."""
        self._refused_until_ns = 0
        outcomes = self._producers.outcomes()
        if not len(outcomes):
            return
        self._recorder.outcomes(outcomes)
        self._bodies.answered(outcomes)
        self._tracer.outcomes(outcomes)
        failed = (outcomes.kind == OutcomeKind.REFUSED) | (outcomes.kind == OutcomeKind.RETURNED)
        if failed.any():
            # A message that came back frees its place in the backlog and in the window.
            self._tally.freed += int(np.count_nonzero(failed))
            head = outcomes.head[failed]
            self._flow.consumed(head["producer"])
            self._requests.arrived(head)


def _batch_messages(body_bytes: int) -> int:
    return max(1, min(BATCH_MESSAGES, BATCH_BYTES // body_bytes))


def _quota_of(assignment: Assignment) -> int:
    """How many messages may be sent in the measured phase of a load without a schedule."""
    if assignment.messages is None or assignment.schedule is not None:
        return NO_END
    return assignment.messages


def requests_for(
    job: Job, control: FlowControl, recorder: Recorder, link: Link
) -> Requests | NoRequests:
    if not isinstance(control.flow, RequestFlow):
        return NoRequests()
    patience_ns = round(job.assignment.scenario.load.request_timeout_seconds * NANOSECONDS)
    return Requests(control.flow, recorder, link, job.now_ns, patience_ns)
