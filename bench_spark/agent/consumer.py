"""Receives messages: records them, acknowledges them, and tells those who wait for them.

Consumers that are slow on purpose take messages one by one, in order: each as soon as it has
arrived, is free and the rate allows. *Received* is when it is taken, wherever it waited until then.
It is acknowledged when it has been processed. Nothing sleeps: messages wait here, and other lanes
are not disturbed.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Collection, Iterator

import numpy as np

from bench_spark.agent.classification import fill_subscriptions
from bench_spark.agent.connections import Tally
from bench_spark.agent.endpoints import SubscriptionTable
from bench_spark.agent.flow import Flow
from bench_spark.agent.link import Link, report
from bench_spark.agent.pacing import DueTimes
from bench_spark.agent.payload import head_bytes
from bench_spark.agent.producer import Releasing
from bench_spark.agent.recorder import Recorder
from bench_spark.agent.records import RecordCodec
from bench_spark.agent.sampler import Sampler
from bench_spark.agent.timeline import Timeline
from bench_spark.agent.tracer import Tracer
from bench_spark.config.sections import Consumer
from bench_spark.core.clock import NANOSECONDS, NowNs
from bench_spark.core.envelope import ENVELOPE_BYTES
from bench_spark.plan import Assignment
from bench_spark.transports.base import I64, Consumers, Received, joined

NEVER_NS = 2**62


class Taking:
    def __init__(self, consumer: Consumer, lanes: int) -> None:
        self._processing_ns = consumer.processing_us * 1000
        rate = consumer.rate_per_second
        self.interval_ns = max(self._processing_ns, round(NANOSECONDS / rate) if rate else 0)
        """Between two messages of one consumer, at least."""
        self._free_ns = np.zeros(lanes, np.int64)
        """By lane: when its consumer can take the next message that arrives."""
        self._waiting = _Line(lanes)
        self._in_process = _Line(lanes)

    def arrived(self, received: Received) -> None:
        for lane, part in _by_lane(received):
            taken_ns = self._turns(lane, part.received_ns)
            part.rows["received_ns"] = taken_ns
            self._waiting.add(lane, taken_ns, part)

    def _turns(self, lane: int, arrived_ns: I64) -> I64:
        """When messages that arrived then are taken, each no earlier than one interval after the
        last: t[i] = max(arrived[i], t[i - 1] + interval), without a loop."""
        steps = np.arange(len(arrived_ns), dtype=np.int64) * self.interval_ns
        earliest = arrived_ns - steps
        earliest[0] = max(int(earliest[0]), int(self._free_ns[lane]))
        turns: I64 = np.maximum.accumulate(earliest) + steps
        self._free_ns[lane] = turns[-1] + self.interval_ns
        return turns

    def taken(self, now_ns: int) -> Received:
        """Messages whose turn has come, each received at that moment."""
        taken = joined([part for _, part in self._waiting.until(now_ns)])
        self._process(taken)
        return taken

    def _process(self, taken: Received) -> None:
        for lane, part in _by_lane(taken):
            self._in_process.add(lane, part.received_ns + self._processing_ns, part)

    def processed(self, now_ns: int) -> Received:
        """Messages that were taken and are to be acknowledged now."""
        return joined([part for _, part in self._in_process.until(now_ns)])

    def all_at_once(self, now_ns: int) -> Received:
        """What is still waiting, taken at the end of a run without further ado."""
        left = joined([part for _, part in self._waiting.until(NEVER_NS)])
        left.rows["received_ns"] = now_ns
        self._process(left)
        return left

    @property
    def busy_lanes(self) -> frozenset[int]:
        """Lanes with messages that were not taken yet: no more need be fetched for them."""
        return frozenset(np.flatnonzero(self._waiting.counts).tolist())

    @property
    def wake_ns(self) -> int:
        """When there is something to do next."""
        return min(self._waiting.first_ns, self._in_process.first_ns)


class _Line:
    """Messages with a time each, which rises within a lane; the earliest ones come out first."""

    def __init__(self, lanes: int) -> None:
        self._parts: list[tuple[int, int, int, I64, Received]] = []
        """A heap by the time of each part's first message."""
        self._order = itertools.count()
        self.counts = np.zeros(lanes, np.int64)

    @property
    def first_ns(self) -> int:
        return self._parts[0][0] if self._parts else NEVER_NS

    def add(self, lane: int, times_ns: I64, part: Received) -> None:
        self.counts[lane] += len(part)
        self._push(lane, times_ns, part)

    def _push(self, lane: int, times_ns: I64, part: Received) -> None:
        entry = (int(times_ns[0]), next(self._order), lane, times_ns, part)
        heapq.heappush(self._parts, entry)

    def until(self, now_ns: int) -> Iterator[tuple[int, Received]]:
        while self._parts and self.first_ns <= now_ns:
            _, _, lane, times_ns, part = heapq.heappop(self._parts)
            count = int(np.searchsorted(times_ns, now_ns, side="right"))
            if count < len(part):
                self._push(lane, times_ns[count:], part.at(slice(count, None)))
                part = part.at(slice(count))
            self.counts[lane] -= count
            yield lane, part


def _by_lane(received: Received) -> Iterator[tuple[int, Received]]:
    if not len(received):
        return
    order = np.argsort(received.lane, kind="stable")
    lanes = received.lane[order]
    bounds = [0, *(np.flatnonzero(np.diff(lanes)) + 1).tolist(), len(lanes)]
    for start, end in itertools.pairwise(bounds):
        yield int(lanes[start]), received.at(order[start:end])


SHORTEST_TAKING_NS = 200_000
"""How often to look whether slow consumers may take another message."""


class Consuming:
    def __init__(
        self,
        assignment: Assignment,
        timeline: Timeline,
        consumers: Consumers,
        subscription_of: SubscriptionTable,
        flow: Flow,
        recorder: Recorder,
        link: Link,
        tally: Tally,
        now_ns: NowNs,
        releasing: Releasing | None = None,
        codec: RecordCodec | None = None,
        sampler: Sampler | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        """`flow`: who may send again when messages of this agent arrive. `sampler`: what ends the
        measured phase once it is complete."""
        scenario = assignment.scenario
        self._consumers = consumers
        self._subscription_of = subscription_of
        self._has_several_subscriptions = bool(subscription_of.any())
        self._flow = flow
        self._recorder = recorder
        self._link = link
        self._tally = tally
        self._now_ns = now_ns
        self._releasing = releasing
        self._codec = codec
        self._sampler = sampler
        self._tracer = tracer
        self._run_tag = assignment.run_tag
        is_numbered = codec is not None or head_bytes(scenario.message) == ENVELOPE_BYTES
        self._tells_runs_apart = is_numbered and not scenario.only_consumes
        self._due_times = (
            DueTimes(assignment.streams, assignment.run_tag, timeline.start_ns)
            if assignment.streams
            else None
        )
        self._hold: Callable[[Collection[int]], None] = lambda lanes: None
        self._taking = self._make_taking(assignment)
        self._has_told_samples = False
        self.descriptor = consumers.descriptor
        self.wake_ns = NEVER_NS
        """When slow consumers may take the next message."""
        self.has_detached = False
        """Whether all that was on its way to the consumers has arrived in the end."""

    def _make_taking(self, assignment: Assignment) -> Taking | None:
        consumer = assignment.scenario.consumer
        if not consumer.is_slow:
            return None
        self._hold = self._consumers.hold
        return Taking(consumer, len(assignment.consumers))

    @property
    def interval_ns(self) -> int:
        """Between two messages that a consumer takes, at least."""
        return 0 if self._taking is None else self._taking.interval_ns

    def attach(self) -> None:
        self._consumers.attach()

    def consume(self) -> None:
        received = self._consumers.receive(0.0)
        if self._codec is not None:
            received = self._codec.identify(received)
            if self._due_times is not None:
                self._due_times.fill(received.head)
        if self._taking is not None:
            self._consume_slowly(self._taking, received)
            return
        self._record(received)
        # An empty turn lets the transport acknowledge what was left over from the last one.
        acknowledged = self._consumers.acknowledge(received)
        if acknowledged:
            self._recorder.acknowledged(self._now_ns(), acknowledged)

    def _consume_slowly(self, taking: Taking, received: Received) -> None:
        taking.arrived(received)
        now = self._now_ns()
        self._record(taking.taken(now))
        processed = taking.processed(now)
        self._recorder.acknowledged(self._now_ns(), self._consumers.acknowledge(processed))
        self._hold(taking.busy_lanes)
        self.wake_ns = max(taking.wake_ns, now + SHORTEST_TAKING_NS)

    def finish(self) -> None:
        """Take in all that is on its way, whatever the time: what the broker has pushed and
        forgotten would else count as lost."""
        self.has_detached = self._consumers.detach()
        self.consume()
        if self._taking is not None:
            self._take_the_rest(self._taking)

    def _take_the_rest(self, taking: Taking) -> None:
        """What has reached slow consumers by the end is received then: it is here, and not in the
        broker."""
        self._record(taking.all_at_once(self._now_ns()))
        rest = taking.processed(NEVER_NS)
        self._recorder.acknowledged(self._now_ns(), self._consumers.acknowledge(rest))

    def _record(self, received: Received) -> None:
        if not len(received):
            return
        if not received.rows.flags.c_contiguous:  # kernels are compiled for rows without gaps
            received = received.kept()
        rows = received.rows
        if self._has_several_subscriptions:
            fill_subscriptions(rows, self._subscription_of)
        of_this_run = self._recorder.received(rows)
        if self._tracer is not None:
            self._tracer.received(received, rows["subscription"])
        if self._tells_runs_apart and of_this_run < len(rows):
            # What another run left behind gives back no credit.
            rows = rows[rows["head"]["run_tag"] == self._run_tag]
        self._tally.received += len(rows)
        if self._flow.is_closed_loop:
            self._flow.consumed(rows["head"]["producer"])
        head = rows["head"]
        if self._releasing is not None:
            self._releasing.arrived(head["producer"], head["sequence"])
        if self._sampler is not None:
            self._sample(self._sampler, rows["subscription"].astype(np.int64), rows["received_ns"])

    def _sample(self, sampler: Sampler, subscription: I64, received_ns: I64) -> None:
        """The load goes on until all agents have their samples: each would else lighten the load
        of the others."""
        sampler.add(subscription, received_ns)
        if sampler.is_complete and not self._has_told_samples:
            self._has_told_samples = True
            report(self._link, "sampled")

    def end_sampling(self) -> None:
        """Nothing is sent any more: what still arrives says nothing of the load."""
        self._sampler = None
