"""Sends messages: when and how many, by the schedule or as fast as quota, backlog and broker allow;
numbered and stamped in batches; recorded as far as they were accepted, with what became of them.

Which messages are next is the flow's business. Senders of requests are told of arrivals in
whichever agent they happen: of an agent's own messages it knows by itself; of others' it tells the
driver, all that came in at once, which tells their senders' agents.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from bench_spark.agent.connections import Backlog, Backpressure, ConnectionEvents, Tally
from bench_spark.agent.flow import Flow, RequestFlow, ScheduledFlow, stamp_in_stretch, stamp_sent
from bench_spark.agent.host import LONGEST_WAIT_NS
from bench_spark.agent.link import Link
from bench_spark.agent.pacing import Pacing, Stretch
from bench_spark.agent.payload import BodySizes, Padding, head_bytes
from bench_spark.agent.recorder import Recorder
from bench_spark.agent.records import RecordCodec
from bench_spark.agent.timeline import WARMUP, Timeline
from bench_spark.agent.tracer import Tracer
from bench_spark.core.clock import NowNs
from bench_spark.core.envelope import empty_envelopes
from bench_spark.plan import Assignment
from bench_spark.transports.base import Batch, OutcomeKind, Producers

REFUSED_WAIT_NS = 5_000_000
"""How long to wait, at most, for a full socket or a full backlog: both wake the loop when they have
room again, and trying in vain takes CPU from the broker."""
BATCH_BYTES = 256 * 1024
BATCH_MESSAGES = 1024

Paced = tuple[Pacing, ScheduledFlow]
"""A schedule, and the flow of the messages that it is for."""


class Sending:
    def __init__(
        self,
        assignment: Assignment,
        timeline: Timeline,
        producers: Producers,
        flow: Flow,
        paced: Paced | None,
        backpressure: Backpressure | None,
        sizes: BodySizes,
        recorder: Recorder,
        tally: Tally,
        now_ns: NowNs,
        codec: RecordCodec | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        """`paced`: with a schedule, that and the same flow."""
        self._start_ns = timeline.start_ns
        self._producers = producers
        self._flow = flow
        self._paced = paced
        self._backpressure = backpressure
        self._sizes = sizes
        self._recorder = recorder
        self._tally = tally
        self._now_ns = now_ns
        self._codec = codec
        self._tracer = tracer
        message = assignment.scenario.message
        self._head_bytes = head_bytes(message)
        self._padding = Padding(message, seed=assignment.run_tag + assignment.agent)
        most = _batch_messages(sizes.smallest_bytes)
        self._heads = empty_envelopes(most)
        self._heads["run_tag"] = assignment.run_tag
        self._lanes = np.zeros(most, np.uint32)
        # The only destination of every producer.
        self._routes = np.zeros(most, np.uint16)
        self._batches: dict[int, Batch] = {}
        """By the number of their messages: every batch has the same memory."""
        self._stretch = Stretch(0, 0, 0.0, 0.0)
        """The part of the schedule that is looked at."""
        self.refused_until_ns = 0
        """Until then it is not worth while to try again, unless the producers' descriptor is
        readable: whoever sees that sets it to 0."""
        self.set_size(0)

    def set_size(self, at_ns: int) -> None:
        """Bodies as they are sent from this moment on."""
        self.body_bytes, self._next_size_ns = self._sizes.at(at_ns)
        self.batch_messages = _batch_messages(self.body_bytes)
        """As many as are sent at once."""
        self._batches.clear()
        if self._codec is None:
            self._padding.set_size(self.body_bytes - self._head_bytes, self.batch_messages)

    def send(self, messages: int) -> int:
        """How many were accepted. What full lanes held back is tried without them."""
        while True:
            accepted, makes_way = self._stamp_and_send(messages)
            if accepted or not makes_way:
                return accepted

    def _stamp_and_send(self, messages: int) -> tuple[int, bool]:
        """How many were accepted, and whether others may be if it is tried again at once. Without a
        schedule, intended is when sent."""
        messages = self._flow.next_batch(self._heads, self._lanes, messages)
        if not messages:
            return 0, False
        batch = self._batches.get(messages)
        if batch is None:
            batch = self._new_batch(messages)
        if self._codec is not None:
            self._codec.prepare(batch)
        sent_ns = self._now_ns()
        if sent_ns >= self._next_size_ns:
            self.set_size(sent_ns)
            return self._stamp_and_send(min(messages, self.batch_messages))
        if self._paced is None:
            stamp_sent(batch.head, sent_ns, True)
        else:
            self._stamp(*self._paced, batch, sent_ns)
        accepted = self._producers.send(batch)
        makes_way = False
        if accepted < messages and self._backpressure is not None:
            makes_way = self._backpressure.put(batch.lane[accepted:], sent_ns)
        if not accepted and not makes_way:
            # Arrivals go on waking the loop; only the producers' own descriptor is worth a new try.
            self.refused_until_ns = sent_ns + REFUSED_WAIT_NS
        if accepted:
            self._note_accepted(batch, accepted, sent_ns, self._now_ns() - sent_ns)
        return accepted, makes_way

    def _new_batch(self, messages: int) -> Batch:
        batch = self._batches[messages] = Batch(
            lane=self._lanes[:messages],
            head=self._heads[:messages],
            tail=b"" if self._codec is not None else self._padding.of(messages),
            route=self._routes[:messages],
            head_bytes=self._head_bytes,
        )
        return batch

    def _stamp(self, schedule: Pacing, flow: ScheduledFlow, batch: Batch, sent_ns: int) -> None:
        first, head = flow.next_number, batch.head
        if first is not None:
            if not self._stretch.first <= first < self._stretch.end:
                self._stretch = schedule.stretch_of(first)
            since, end, first_ns, period_ns = self._stretch
            if first + len(head) <= end:
                stamp_in_stretch(head, sent_ns, first - since, first_ns, period_ns, self._start_ns)
                return
        # Lanes out of step, a change of rate within the batch, or a recorded schedule.
        numbers = flow.numbers(batch.lane, head["sequence"])
        head["intended_ns"] = schedule.intended_of_ns(numbers) + self._start_ns
        stamp_sent(head, sent_ns, False)

    def _note_accepted(self, batch: Batch, accepted: int, sent_ns: int, insert_ns: int) -> None:
        lane, head = batch.lane, batch.head
        if accepted < len(head):
            lane, head = lane[:accepted], head[:accepted]
        self._recorder.insert_duration(sent_ns, insert_ns, accepted)
        self._recorder.sent(lane, head, batch.sizes)
        if self._tracer is not None:
            self._trace(self._tracer, batch, accepted, insert_ns)
        if self._codec is not None:
            self._codec.accepted(batch, accepted)
        else:
            self._padding.sent(accepted)
        self._flow.accepted(lane, head)
        self._tally.sent += accepted

    def _trace(self, tracer: Tracer, batch: Batch, accepted: int, insert_ns: int) -> None:
        tracer.sent(
            batch.lane[:accepted],
            batch.head[:accepted],
            self.body_bytes if batch.sizes is None else batch.sizes[:accepted],
            insert_ns,
            None if batch.hashes is None else batch.hashes[:accepted],
        )


def _batch_messages(body_bytes: int) -> int:
    return max(1, min(BATCH_MESSAGES, BATCH_BYTES // body_bytes))


class Producing:
    def __init__(
        self,
        timeline: Timeline,
        sending: Sending,
        paced: Paced | None,
        scheduled_total: int,
        messages: int | None,
        backlog: Backlog | None,
        events: ConnectionEvents,
        recorder: Recorder,
        tally: Tally,
        now_ns: NowNs,
    ) -> None:
        """`scheduled_total`: messages of the whole schedule. Without a schedule, `messages` may be
        sent in the measured phase, and no more than the `backlog` has room for; None: any number.
        """
        self._timeline = timeline
        self._sending = sending
        self._paced = paced
        self.scheduled_total = scheduled_total
        self._messages = messages
        self._backlog = backlog
        self._events = events
        self._recorder = recorder
        self._tally = tally
        self._now_ns = now_ns
        self._sent_before_measure: int | None = None
        self.last_due_ns = (
            timeline.start_ns + paced[0].intended_ns(scheduled_total - 1)
            if paced is not None and scheduled_total
            else None
        )
        """When the last message of the schedule is due."""
        self._batch_complete_ns = (
            0 if paced is None else self._next_batch_complete_ns(paced[0], due=0)
        )

    def produce(self, now: int) -> int:
        """Send what may go now; when to come back."""
        sending = self._sending
        if now < sending.refused_until_ns:
            return sending.refused_until_ns
        if self._paced is not None:
            return self._produce_on_schedule(*self._paced, now)
        wanted = min(sending.batch_messages, self.quota_left(now), self._room())
        if wanted <= 0:
            return now + REFUSED_WAIT_NS
        return now if sending.send(wanted) else self._refused(now)

    def _produce_on_schedule(self, schedule: Pacing, stream: ScheduledFlow, now: int) -> int:
        if now >= self._batch_complete_ns:
            due = min(schedule.messages_due(now - self._timeline.start_ns), self.scheduled_total)
            behind = stream.ready(due)
            if behind > 0:
                accepted = self._sending.send(min(behind, self._sending.batch_messages))
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
        if due >= self.scheduled_total:
            # What is still unsent is owed by lanes that are down.
            is_all_sent = self._tally.sent >= self.scheduled_total
            return (
                self._timeline.measure_end_ns if is_all_sent else self._now_ns() + LONGEST_WAIT_NS
            )
        last = min(due + schedule.batch_from(due), self.scheduled_total) - 1
        return self._timeline.start_ns + schedule.intended_ns(last)

    def send_at_once(self) -> None:
        """What is late does not wait for the next batch to be complete."""
        self._batch_complete_ns = 0

    def measured_phase_moved(self) -> None:
        """Sizes that change with the measured phase change at other moments now."""
        self._sending.set_size(self._now_ns())

    def may_send_again(self) -> None:
        """The producers say that there may be room."""
        self._sending.refused_until_ns = 0

    def _refused(self, now: int) -> int:
        """Nothing was accepted: a lane is full, or down, and then the others go on without it."""
        self._events.handle_refusal(now)
        return now + REFUSED_WAIT_NS

    def _room(self) -> int:
        if self._backlog is None:
            return self._sending.batch_messages
        return self._backlog.room(self._sending.body_bytes)

    def quota_left(self, now: int) -> int:
        """What `load.messages` still allows in the measured phase."""
        messages = self._messages
        if messages is None or self._paced is not None:
            return self._sending.batch_messages
        if now < self._timeline.measure_start_ns:
            # No more than that at once: the phase may change before the batch is stamped.
            return min(self._sending.batch_messages, messages)
        if self._sent_before_measure is None:
            self._sent_before_measure = int(self._recorder.sent_by_lane[WARMUP].sum())
        return messages - (self._tally.sent - self._sent_before_measure)


class Releasing:
    def __init__(
        self,
        requests: RequestFlow | None,
        recorder: Recorder,
        link: Link,
        now_ns: NowNs,
        patience_ns: int,
        on_release: Callable[[], None],
    ) -> None:
        """`requests`: the senders of this agent, if it has any. `on_release`: called when somebody
        is free for whom something is due already."""
        self._requests = requests
        self._recorder = recorder
        self._link = link
        self._now_ns = now_ns
        self._patience_ns = patience_ns
        self._on_release = on_release

    def arrived(self, producer: npt.NDArray[np.uint32], sequence: npt.NDArray[np.uint64]) -> None:
        """Messages that this agent has received."""
        if self._requests is not None:
            self.released(producer, sequence)
            is_elsewhere = ~self._requests.are_here(producer)
            producer, sequence = producer[is_elsewhere], sequence[is_elsewhere]
        if len(producer):
            numbers = {"producers": producer.tolist(), "sequences": sequence.tolist()}
            self._link.send({"type": "arrived", **numbers})

    def released(self, producer: npt.ArrayLike, sequence: npt.ArrayLike) -> None:
        """Messages that were received, here or elsewhere."""
        if self._requests is None:
            return
        lane, head = self._requests.arrived(producer, sequence)
        if not len(lane):
            return
        self._recorder.answered(self._now_ns(), lane, head)
        if self._requests.are_all_waiting:
            self._on_release()

    def give_up(self, now_ns: int) -> None:
        """Nobody waits for longer than that."""
        if self._requests is None:
            return
        given_up = self._requests.give_up(now_ns - self._patience_ns)
        if len(given_up):
            self._recorder.given_up(now_ns, given_up)
            self._on_release()


class Answers:
    def __init__(
        self,
        producers: Producers,
        flow: Flow,
        recorder: Recorder,
        tally: Tally,
        releasing: Releasing | None = None,
        codec: RecordCodec | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self._producers = producers
        self.descriptor = producers.descriptor
        self._flow = flow
        self._recorder = recorder
        self._tally = tally
        self._releasing = releasing
        self._codec = codec
        self._tracer = tracer

    def collect(self) -> None:
        outcomes = self._producers.outcomes()
        if not len(outcomes):
            return
        self._recorder.outcomes(outcomes)
        if self._codec is not None:
            self._codec.answered(outcomes)
        if self._tracer is not None:
            self._tracer.outcomes(outcomes)
        failed = (outcomes.kind == OutcomeKind.REFUSED) | (outcomes.kind == OutcomeKind.RETURNED)
        if failed.any():
            # A message that came back frees its place in the backlog and in the window.
            self._tally.freed += int(np.count_nonzero(failed))
            self._flow.consumed(outcomes.head["producer"][failed])
            if self._releasing is not None:
                head = outcomes.head[failed]
                self._releasing.arrived(head["producer"], head["sequence"])
