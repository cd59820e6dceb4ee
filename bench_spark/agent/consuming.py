"""What arrives: taken, recorded, acknowledged, and told to those who wait for it."""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np

from bench_spark.agent.carrying import Carrying
from bench_spark.agent.classification import fill_subscriptions
from bench_spark.agent.due_times import DueTimes
from bench_spark.agent.flow import Flow
from bench_spark.agent.lanes import SubscriptionTable
from bench_spark.agent.link import Link, report
from bench_spark.agent.payload import head_bytes
from bench_spark.agent.recorder import Recorder
from bench_spark.agent.releasing import Releasing
from bench_spark.agent.sampling import Sampler
from bench_spark.agent.taking import NEVER_NS, Taking
from bench_spark.agent.tally import Tally
from bench_spark.agent.timeline import Timeline
from bench_spark.agent.tracing import Tracer
from bench_spark.core.clock import NowNs
from bench_spark.core.envelope import ENVELOPE_BYTES
from bench_spark.errors import RunError
from bench_spark.plan import Assignment
from bench_spark.transports.base import I64, Consumers, Holdable, Received

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
        carrying: Carrying | None = None,
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
        self._carrying = carrying
        self._sampler = sampler
        self._tracer = tracer
        self._run_tag = assignment.run_tag
        is_numbered = carrying is not None or head_bytes(scenario.message) == ENVELOPE_BYTES
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
        if not isinstance(self._consumers, Holdable):
            raise RunError("consumer: consumers of this kind of broker cannot be slowed down")
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
        if self._carrying is not None:
            received = self._carrying.identify(received)
            if self._due_times is not None:
                self._due_times.fill(received.head)
        if self._taking is not None:
            self._consume_slowly(self._taking, received)
            return
        self._record(received)
        # An empty turn lets the transport acknowledge what was left over from the last one.
        self._recorder.acknowledged(self._now_ns(), self._consumers.acknowledge(received))

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
        self._recorder.received(rows)
        if self._tracer is not None:
            self._tracer.received(received, rows["subscription"])
        if self._tells_runs_apart:
            # What another run left behind gives back no credit.
            is_ours = rows["head"]["run_tag"] == self._run_tag
            if not is_ours.all():
                rows = rows[is_ours]
        self._tally.received += len(rows)
        head = rows["head"]
        self._flow.consumed(head["producer"])
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
