"""What an agent is to do, the lanes that it has opened for it, and what measures them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bench_spark.agent.pacing import DueTimes, Schedule, Stream
from bench_spark.agent.recorder import Recorder, RecorderSetup
from bench_spark.agent.records import Bodies, BodySizes
from bench_spark.agent.sampler import Sampler, SamplingRule
from bench_spark.agent.timeline import Timeline
from bench_spark.agent.tracer import MakeMessageWriter, MessageFile, NoTracer, Tracer, TraceSetup
from bench_spark.config.sections import traced_every
from bench_spark.core.clock import NANOSECONDS, NowNs
from bench_spark.core.envelope import foreign_stamps
from bench_spark.core.hdr import shape_for
from bench_spark.plan import Assignment
from bench_spark.transports.base import Consumers, Destination, Lane, Producers, Signal
from bench_spark.transports.batches import I64


@dataclass(frozen=True)
class Job:
    """What an agent is to do, from when on, and by which clock."""

    assignment: Assignment
    timeline: Timeline
    sizes: BodySizes
    now_ns: NowNs


SubscriptionTable = np.ndarray[tuple[int, int], np.dtype[np.int64]]
"""[consumer lane, route] -> subscription, by its place among those that this agent serves."""


@dataclass(frozen=True)
class Lanes:
    """The open connections of both roles; a role without members has a null object."""

    producers: Producers
    consumers: Consumers
    bodies: Bodies
    """What makes bodies, and knows messages again by them."""
    subscription_of: SubscriptionTable
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


def producer_lanes(assignment: Assignment, destinations: Mapping[int, Destination]) -> list[Lane]:
    return [
        Lane(member.index, tuple(destinations[index] for index in member.destinations))
        for member in assignment.producers
    ]


def consumer_lanes(assignment: Assignment, destinations: Mapping[int, Destination]) -> list[Lane]:
    subscriptions = assignment.scenario.wiring.subscriptions_of_consumer
    return [
        Lane(
            member.index,
            tuple(destinations[index] for index in member.destinations),
            tuple(subscriptions(member.index)),
        )
        for member in assignment.consumers
    ]


# -- what measures ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Instruments:
    recorder: Recorder
    sampler: Sampler
    """Ends the measured phase once it is complete."""
    tracer: Tracer | NoTracer
    """Writes single messages down."""


def make_instruments(
    job: Job,
    names: Mapping[int, str],
    attempt: int,
    make_writer: MakeMessageWriter | None,
    on_file: Callable[[MessageFile], None],
) -> Instruments:
    """`names`: of the destinations. `make_writer` and `on_file`: how single messages are written,
    where the scenario asks for them."""
    recorder = _make_recorder(job, names)
    tracer: Tracer | NoTracer = NoTracer()
    setup = _trace_setup(job, names, attempt)
    if make_writer is not None and setup.every:
        tracer = Tracer(setup, make_writer(setup), on_file, recorder.has_possible_times)
    return Instruments(recorder, _make_sampler(job), tracer)


def _make_recorder(job: Job, names: Mapping[int, str]) -> Recorder:
    assignment, timeline = job.assignment, job.timeline
    scenario = assignment.scenario
    setup = RecorderSetup(
        shape=shape_for(scenario.histogram.highest_us),
        run_tag=assignment.run_tag,
        producers=scenario.producers,
        stream_of_producer=scenario.wiring.stream_of_producer,
        streams_per_subscription=scenario.wiring.streams,
        subscriptions=tuple(names[first] for first in assignment.first_destinations),
        destinations_by_producer=_destinations_by_producer(assignment, names),
        sizes=job.sizes,
        has_schedule=scenario.is_paced,
        takes_any=scenario.only_consumes,
        foreign_stamps=foreign_stamps(scenario.message.timestamped),
        is_carried=not scenario.has_envelopes,
        first_measured=_as_column(assignment.first_measured),
        by_destination=scenario.metrics_by == "destination",
        own_producers=assignment.producer_numbers,
        due_times=_due_times(assignment, timeline),
    )
    return Recorder(setup, timeline)


def _due_times(assignment: Assignment, timeline: Timeline) -> DueTimes | None:
    """Where a message's number says when it is due: of this agent's producers, or of all."""
    schedule = assignment.schedule
    streams = assignment.streams
    if not streams and isinstance(schedule, Schedule) and not assignment.shares_destinations:
        streams = (Stream(assignment.producer_numbers, schedule),)
    # In mode `request` whoever is free sends what is due.
    if not streams or assignment.scenario.load.mode != "rate":
        return None
    return DueTimes(streams, assignment.run_tag, timeline.start_ns)


def _make_sampler(job: Job) -> Sampler:
    """Without pairs where no samples are wanted."""
    scenario = job.assignment.scenario
    sampling = scenario.sampling
    wiring = scenario.wiring
    producers = Counter(map(wiring.group_of_producer, job.assignment.producer_numbers))
    rule = SamplingRule(
        samples=sampling.samples,
        threshold_ns=round(sampling.threshold_seconds * NANOSECONDS),
        from_ns=job.timeline.measure_start_ns,
    )
    per_producer = scenario.skipped_per_producer
    skipped = [
        producers[wiring.group_of_subscription(index)] * per_producer
        for index in (job.assignment.subscriptions if sampling.samples else ())
    ]
    return Sampler(rule, np.array(skipped, dtype=np.int64))


def _trace_setup(job: Job, names: Mapping[int, str], attempt: int) -> TraceSetup:
    assignment = job.assignment
    return TraceSetup(
        run_id=assignment.run_id,
        run_tag=assignment.run_tag,
        agent=assignment.agent,
        attempt=attempt,
        every=traced_every(assignment.scenario.trace),
        producers=assignment.scenario.producers,
        timeline=job.timeline,
        destinations_by_producer=_destinations_by_producer(assignment, names),
        subscriptions=tuple(assignment.subscriptions),
        destinations_by_subscription=tuple(names[one] for one in assignment.first_destinations),
        first_measured=assignment.first_measured,
    )


def _destinations_by_producer(assignment: Assignment, names: Mapping[int, str]) -> tuple[str, ...]:
    return tuple(names[member.destinations[0]] for member in assignment.producers)


def _as_column(numbers: tuple[int, ...] | None) -> I64 | None:
    return None if numbers is None else np.array(numbers, np.int64)
