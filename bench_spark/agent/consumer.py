"""Receives messages: records them, acknowledges them, and releases senders that wait for them.

Consumers that are slow on purpose take messages one by one, in order: each as soon as it has
arrived, is free and the rate allows. *Received* is when it is taken, wherever it waited until then.
It is acknowledged when it has been processed. Nothing sleeps: messages wait here, and other lanes
are not disturbed.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator

import numpy as np

from bench_spark.agent.classification import fill_subscriptions
from bench_spark.agent.flow import Flow
from bench_spark.agent.link import report
from bench_spark.agent.load import AgentLoad, Backlog
from bench_spark.agent.pacing import DueTimes
from bench_spark.agent.producer import LoadProducer
from bench_spark.config.sections import Consumer
from bench_spark.core.clock import NANOSECONDS
from bench_spark.plan import Assignment
from bench_spark.transports.batches import I64, Received, joined

NEVER_NS = 2**62


class SlowConsumption:
    """When slow consumers take and acknowledge what has arrived."""

    def __init__(self, consumer: Consumer, lanes: int) -> None:
        self._processing_ns = consumer.processing_us * 1000
        rate = consumer.rate_per_second
        self.interval_ns = max(self._processing_ns, round(NANOSECONDS / rate) if rate else 0)
        """Between two messages of one consumer, at least."""
        self._free_ns = np.zeros(lanes, np.int64)
        """By lane: when its consumer can take the next message that arrives."""
        self._waiting = _DueQueue(lanes)
        self._in_process = _DueQueue(lanes)

    def arrived(self, received: Received) -> None:
        for lane, part in _by_lane(received):
            taken_ns = self._due_of(lane, part.received_ns)
            part.rows["received_ns"] = taken_ns
            self._waiting.add(lane, taken_ns, part)

    def _due_of(self, lane: int, arrived_ns: I64) -> I64:
        """When messages that arrived then are taken, each no earlier than one interval after the
        last: t[i] = max(arrived[i], t[i - 1] + interval), without a loop."""
        steps = np.arange(len(arrived_ns), dtype=np.int64) * self.interval_ns
        earliest = arrived_ns - steps
        earliest[0] = max(int(earliest[0]), int(self._free_ns[lane]))
        turns: I64 = np.maximum.accumulate(earliest) + steps
        self._free_ns[lane] = turns[-1] + self.interval_ns
        return turns

    def consumed(self, now_ns: int) -> Received:
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

    def consume_rest(self, now_ns: int) -> Received:
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


class _DueQueue:
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


SHORTEST_SLEEP_NS = 200_000
"""How often to look whether slow consumers may take another message."""


SubscriptionTable = np.ndarray[tuple[int, int], np.dtype[np.int64]]
"""[consumer lane, route] -> subscription, by its place among those that this agent serves."""


def subscription_table(assignment: Assignment) -> SubscriptionTable:
    wiring, consumers = assignment.scenario.wiring, assignment.consumers
    places = {subscription: place for place, subscription in enumerate(assignment.subscriptions)}
    served = [wiring.subscriptions_of_consumer(member.index) for member in consumers]
    routes = [len(member.destinations) for member in consumers]
    width = max([*routes, *map(len, served)], default=1)
    table = np.zeros((max(1, len(consumers)), width), dtype=np.int64)
    for lane, subscriptions in enumerate(served):
        table[lane, : len(subscriptions)] = [places[one] for one in subscriptions]
        if len(subscriptions) == 1:  # whichever of its destinations it came from
            table[lane, :] = places[subscriptions[0]]
    return table


class LoadConsumer:
    """Records what arrives, and acknowledges it at once."""

    wake_ns = NEVER_NS
    """When slow consumers may take the next message."""
    interval_ns = 0
    """Between two messages that a consumer takes, at least."""

    def __init__(
        self, load: AgentLoad, flow: Flow, backlog: Backlog, producer: LoadProducer
    ) -> None:
        """`producer`: has senders that wait for arrivals, in mode `request`."""
        self._now_ns = load.link.clock.now_ns
        self._consumers = load.consumers
        self._identification = _identification(load)
        self._subscription_of = subscription_table(load.assignment)
        self._has_several_subscriptions = bool(self._subscription_of.any())
        self._flow = flow
        self._backlog = backlog
        self._producer = producer
        self._recorder = load.recorder
        self._sampler = load.sampler
        self._tracers = load.tracers
        self._link = load.link
        self._run_tag = load.assignment.run_tag
        # What another run left behind gives back no credit, where it can be told apart.
        self._tells_runs_apart = (
            load.bodies.is_numbered and not load.assignment.scenario.only_consumes
        )
        self._is_sampling = load.sampler.is_wanted
        self.has_detached = False
        """Whether all that was on its way to the consumers has arrived in the end."""

    def consume(self) -> None:
        received = self._receive()
        self._record(received)
        # An empty turn lets the transport acknowledge what was left over from the last one.
        self._acknowledge(received)

    def _receive(self) -> Received:
        received = self._consumers.receive(0.0)
        for identify in self._identification:
            received = identify(received)
        return received

    def finish(self) -> None:
        """Take in all that is on its way, whatever the time: what the broker has pushed and
        forgotten would else count as lost."""
        self.has_detached = self._consumers.detach()
        self.consume()

    def end_sampling(self) -> None:
        """Nothing is sent any more: what still arrives says nothing of the load."""
        self._is_sampling = False

    def _acknowledge(self, received: Received) -> None:
        acknowledged = self._consumers.acknowledge(received)
        if acknowledged:
            self._recorder.acknowledged(self._now_ns(), acknowledged)

    def _record(self, received: Received) -> None:
        rows = received.rows
        if not len(rows):
            return
        if self._has_several_subscriptions:
            fill_subscriptions(rows, self._subscription_of)
        of_this_run = self._recorder.received(rows)
        for tracer in self._tracers:
            tracer.received(received)
        if self._tells_runs_apart and of_this_run < len(rows):
            rows = rows[rows["envelope"]["run_tag"] == self._run_tag]
        self._backlog.received += len(rows)
        if self._flow.is_closed_loop:
            self._flow.consumed(rows["envelope"]["producer"])
        if self._producer.awaits_arrivals:
            self._producer.arrived(rows["envelope"])
        if self._is_sampling:
            self._sample(rows["subscription"].astype(np.int64), rows["received_ns"])

    def _sample(self, subscription: I64, received_ns: I64) -> None:
        """The load goes on until all agents have their samples: each would else lighten the load
        of the others."""
        self._sampler.add(subscription, received_ns)
        if self._sampler.is_complete:
            self._is_sampling = False
            report(self._link, "sampled")


class SlowConsumer(LoadConsumer):
    """Records and acknowledges what arrives as slowly as the scenario says."""

    def __init__(
        self, load: AgentLoad, flow: Flow, backlog: Backlog, producer: LoadProducer
    ) -> None:
        super().__init__(load, flow, backlog, producer)
        assignment = load.assignment
        self._slow = SlowConsumption(assignment.scenario.consumer, len(assignment.consumers))
        self.interval_ns = self._slow.interval_ns

    def consume(self) -> None:
        self._slow.arrived(self._receive())
        now = self._now_ns()
        self._record(self._slow.consumed(now))
        self._acknowledge(self._slow.processed(now))
        self._consumers.hold(self._slow.busy_lanes)
        self.wake_ns = max(self._slow.wake_ns, now + SHORTEST_SLEEP_NS)

    def finish(self) -> None:
        """What has reached slow consumers by the end is received then: it is here, and not in the
        broker."""
        super().finish()
        self._record(self._slow.consume_rest(self._now_ns()))
        self._acknowledge(self._slow.processed(NEVER_NS))


def _identification(load: AgentLoad) -> tuple[Callable[[Received], Received], ...]:
    """How messages are known again, step by step; by envelopes they are as they come. Of records
    that other agents send on a schedule, only when they were due is known here."""
    assignment = load.assignment
    steps = [codec.identify for codec in load.codecs]
    if assignment.scenario.has_envelopes or not assignment.streams:
        return tuple(steps)
    due_times = DueTimes(assignment.streams, assignment.run_tag, load.timeline.start_ns)

    def date(received: Received) -> Received:
        due_times.fill(received.envelope)
        return received

    return (*steps, date)
