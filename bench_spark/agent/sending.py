"""Batches made and handed to the transport: the innermost part of the loop.

Which messages are next is the dealer's business, how many and when is the caller's (`producing`).
Here they get their numbers and times, go out, and are recorded as far as they were accepted.
"""

from __future__ import annotations

from bench_spark.agent.carrying import Carrying
from bench_spark.agent.dealing import Dealer, Stream
from bench_spark.agent.pacer import Pacing
from bench_spark.agent.payload import Padding, head_bytes
from bench_spark.agent.recorder import Recorder
from bench_spark.agent.requests import Requests
from bench_spark.agent.setting_aside import SetAside
from bench_spark.agent.sizes import BodySizes
from bench_spark.agent.stamping import HeadBuffer
from bench_spark.agent.tally import Tally
from bench_spark.agent.timeline import Timeline
from bench_spark.agent.tracing import Tracer
from bench_spark.core.clock import NowNs
from bench_spark.plan import Assignment
from bench_spark.transports.base import Batch, Producers

REFUSED_WAIT_NS = 5_000_000
"""How long to wait, at most, for a full socket or a full backlog: both wake the loop when they have
room again, and trying in vain takes CPU from the broker."""
BATCH_BYTES = 256 * 1024
BATCH_MESSAGES = 1024

Paced = tuple[Pacing, Stream]
"""A schedule, and the dealer of the messages that it is for."""


class Sending:
    def __init__(
        self,
        assignment: Assignment,
        timeline: Timeline,
        producers: Producers,
        dealer: Dealer,
        paced: Paced | None,
        aside: SetAside | None,
        sizes: BodySizes,
        recorder: Recorder,
        tally: Tally,
        now_ns: NowNs,
        carrying: Carrying | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        """`paced`: with a schedule, that and the same dealer."""
        self._start_ns = timeline.start_ns
        self._producers = producers
        self._dealer = dealer
        self._requests = dealer if isinstance(dealer, Requests) else None
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
        self._heads = HeadBuffer(
            assignment.run_tag,
            tuple(member.index for member in assignment.producers),
            _batch_messages(sizes.smallest_bytes),
        )
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
        lane, sequence = self._dealer.deal(messages)
        if not len(lane):
            return 0, False
        head = self._heads.numbered(lane, sequence)
        batch = Batch(
            lane=lane,
            head=head,
            tail=b"" if self._carrying is not None else self._padding.of(len(lane)),
            route=self._heads.routes(len(lane)),
            head_bytes=self._head_bytes,
        )
        if self._carrying is not None:
            self._carrying.prepare(batch)
        if self._paced is not None:
            schedule, stream = self._paced
            offsets = schedule.intended_of_ns(stream.numbers(lane, sequence))
            head["intended_ns"] = offsets + self._start_ns
        sent_ns = self._now_ns()
        if sent_ns >= self._next_size_ns:
            self.set_size(sent_ns)
            return self._stamp_and_send(min(messages, self.batch_messages))
        head["sent_ns"] = sent_ns
        if self._paced is None:
            head["intended_ns"] = sent_ns
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

    def _note_accepted(self, batch: Batch, accepted: int, sent_ns: int, insert_ns: int) -> None:
        lane, head = batch.lane[:accepted], batch.head[:accepted]
        self._recorder.insert_duration(sent_ns, insert_ns, accepted)
        self._recorder.sent(lane, head, batch.sizes)
        if self._carrying is not None:
            self._carrying.accepted(batch, accepted)
        if self._tracer is not None:
            self._trace(self._tracer, batch, accepted, insert_ns)
        self._padding.sent(accepted)
        self._dealer.accepted(lane)
        if self._requests is not None:
            self._requests.sent(lane, head)
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
