"""Batches made and handed to the transport: the innermost part of the loop.

Which messages are next is the flow's business, how many and when is the caller's (`producing`).
Here they get their numbers and times, go out, and are recorded as far as they were accepted.
"""

from __future__ import annotations

import numpy as np

from bench_spark.agent.carrying import Carrying
from bench_spark.agent.flow import Flow, ScheduledFlow, stamp_due, stamp_sent
from bench_spark.agent.pacer import Pacing, Stretch
from bench_spark.agent.payload import Padding, head_bytes
from bench_spark.agent.recorder import Recorder
from bench_spark.agent.setting_aside import SetAside
from bench_spark.agent.sizes import BodySizes
from bench_spark.agent.tally import Tally
from bench_spark.agent.timeline import Timeline
from bench_spark.agent.tracing import Tracer
from bench_spark.core.clock import NowNs
from bench_spark.core.envelope import Envelopes, empty_envelopes
from bench_spark.plan import Assignment
from bench_spark.transports.base import U32, Batch, Producers

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
        aside: SetAside | None,
        sizes: BodySizes,
        recorder: Recorder,
        tally: Tally,
        now_ns: NowNs,
        carrying: Carrying | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        """`paced`: with a schedule, that and the same flow."""
        self._start_ns = timeline.start_ns
        self._producers = producers
        self._flow = flow
        self._paced = paced
        self._aside = aside
        self._sizes = sizes
        self._recorder = recorder
        self._tally = tally
        self._now_ns = now_ns
        self._carrying = carrying
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
        if self._carrying is None:
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
        lane, head = self._lanes[:messages], self._heads[:messages]
        batch = Batch(
            lane=lane,
            head=head,
            tail=b"" if self._carrying is not None else self._padding.of(messages),
            route=self._routes[:messages],
            head_bytes=self._head_bytes,
        )
        if self._carrying is not None:
            self._carrying.prepare(batch)
        if self._paced is not None:
            self._stamp_due(*self._paced, lane, head)
        sent_ns = self._now_ns()
        if sent_ns >= self._next_size_ns:
            self.set_size(sent_ns)
            return self._stamp_and_send(min(messages, self.batch_messages))
        stamp_sent(head, sent_ns, self._paced is None, messages)
        accepted = self._producers.send(batch)
        makes_way = False
        if accepted < len(batch) and self._aside is not None:
            makes_way = self._aside.put(lane[accepted:], sent_ns)
        if not accepted and not makes_way:
            # Arrivals go on waking the loop; only the producers' own descriptor is worth a new try.
            self.refused_until_ns = sent_ns + REFUSED_WAIT_NS
        if accepted:
            self._note_accepted(batch, accepted, sent_ns, self._now_ns() - sent_ns)
        return accepted, makes_way

    def _stamp_due(self, schedule: Pacing, flow: ScheduledFlow, lane: U32, head: Envelopes) -> None:
        first, messages = flow.next_number, len(head)
        if first is not None:
            if not self._stretch.first <= first < self._stretch.end:
                self._stretch = schedule.stretch_of(first)
            stretch = self._stretch
            if first + messages <= stretch.end:
                place = first - stretch.first
                stamp_due(
                    head, place, stretch.first_ns, stretch.period_ns, self._start_ns, messages
                )
                return
        # Lanes out of step, a change of rate within the batch, or a recorded schedule.
        numbers = flow.numbers(lane, head["sequence"])
        head["intended_ns"] = schedule.intended_of_ns(numbers) + self._start_ns

    def _note_accepted(self, batch: Batch, accepted: int, sent_ns: int, insert_ns: int) -> None:
        lane, head = batch.lane[:accepted], batch.head[:accepted]
        self._recorder.insert_duration(sent_ns, insert_ns, accepted)
        self._recorder.sent(lane, head, batch.sizes)
        if self._carrying is not None:
            self._carrying.accepted(batch, accepted)
        if self._tracer is not None:
            self._trace(self._tracer, batch, accepted, insert_ns)
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
