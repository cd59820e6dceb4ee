"""What measures an agent's load: recorder, sampler and tracer, as its scenario asks for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from bench_spark.agent.job import Job, Serving
from bench_spark.agent.pacing import DueTimes, Schedule, Stream
from bench_spark.agent.recorder import Recorder, RecorderSetup
from bench_spark.agent.sampler import Sampler, SamplingRule
from bench_spark.agent.timeline import Timeline
from bench_spark.agent.tracer import (
    MakeMessageWriter,
    MessageFile,
    NoTracer,
    Tracer,
    TraceSetup,
)
from bench_spark.config.sections import traced_every
from bench_spark.core.clock import NANOSECONDS
from bench_spark.core.envelope import foreign_stamps
from bench_spark.core.hdr import shape_for
from bench_spark.plan import Assignment
from bench_spark.transports.batches import I64


@dataclass(frozen=True)
class Instruments:
    recorder: Recorder
    sampler: Sampler
    """Ends the measured phase once it is complete."""
    tracer: Tracer | NoTracer
    """Writes single messages down."""


@dataclass(frozen=True)
class Tracing:
    """How single messages are written, where the scenario asks for them."""

    attempt: int
    make_writer: MakeMessageWriter | None
    on_file: Callable[[MessageFile], None]


def make_instruments(
    job: Job, serving: Serving, names: Mapping[int, str], tracing: Tracing
) -> Instruments:
    """`names`: of the destinations."""
    recorder = make_recorder(job, serving, names)
    tracer = _make_tracer(job, serving, names, tracing, recorder)
    return Instruments(recorder, make_sampler(job, serving), tracer)


def make_recorder(job: Job, serving: Serving, names: Mapping[int, str]) -> Recorder:
    assignment, timeline = job.assignment, job.timeline
    scenario = assignment.scenario
    setup = RecorderSetup(
        shape=shape_for(scenario.histogram.highest_us),
        run_tag=assignment.run_tag,
        producers=scenario.producers,
        stream_of_producer=scenario.wiring.stream_of_producer,
        streams_per_subscription=scenario.wiring.streams,
        subscriptions=tuple(names[first] for first in serving.first_destinations),
        destinations_by_producer=_destinations_by_producer(serving, names),
        sizes=job.sizes,
        has_schedule=scenario.load.has_schedule and not scenario.only_consumes,
        takes_any=scenario.only_consumes,
        foreign_stamps=foreign_stamps(scenario.message.timestamped),
        is_carried=not scenario.has_envelopes,
        first_measured=_as_column(assignment.first_measured),
        by_destination=scenario.metrics_by == "destination",
        own_producers=tuple(member.index for member in assignment.producers),
        due_times=_due_times(assignment, timeline),
    )
    return Recorder(setup, timeline)


def _due_times(assignment: Assignment, timeline: Timeline) -> DueTimes | None:
    """Where a message's number says when it is due: of this agent's producers, or of all."""
    schedule = assignment.schedule
    streams = assignment.streams
    if not streams and isinstance(schedule, Schedule) and not assignment.shares_destinations:
        streams = (Stream(tuple(member.index for member in assignment.producers), schedule),)
    # In mode `request` whoever is free sends what is due.
    if not streams or assignment.scenario.load.mode != "rate":
        return None
    return DueTimes(streams, assignment.run_tag, timeline.start_ns)


def make_sampler(job: Job, serving: Serving) -> Sampler:
    """Without pairs where no samples are wanted."""
    scenario = job.assignment.scenario
    sampling = scenario.sampling
    wiring = scenario.wiring
    producers = Counter(wiring.group_of_producer(m.index) for m in job.assignment.producers)
    rule = SamplingRule(
        samples=sampling.samples,
        threshold_ns=round(sampling.threshold_seconds * NANOSECONDS),
        from_ns=job.timeline.measure_start_ns,
    )
    per_producer = scenario.skipped_per_producer
    skipped = [
        producers[wiring.group_of_subscription(index)] * per_producer
        for index in (serving.subscriptions if sampling.samples else ())
    ]
    return Sampler(rule, np.array(skipped, dtype=np.int64))


def _make_tracer(
    job: Job, serving: Serving, names: Mapping[int, str], tracing: Tracing, recorder: Recorder
) -> Tracer | NoTracer:
    assignment = job.assignment
    every = traced_every(assignment.scenario.trace)
    if tracing.make_writer is None or not every:
        return NoTracer()
    setup = TraceSetup(
        run_id=assignment.run_id,
        run_tag=assignment.run_tag,
        agent=assignment.agent,
        attempt=tracing.attempt,
        every=every,
        producers=assignment.scenario.producers,
        timeline=job.timeline,
        destinations_by_producer=_destinations_by_producer(serving, names),
        subscriptions=tuple(serving.subscriptions),
        destinations_by_subscription=tuple(names[one] for one in serving.first_destinations),
        first_measured=assignment.first_measured,
    )
    writer = tracing.make_writer(setup)
    return Tracer(setup, writer, tracing.on_file, recorder.has_possible_times)


def _destinations_by_producer(serving: Serving, names: Mapping[int, str]) -> tuple[str, ...]:
    return tuple(names[member.destinations[0]] for member in serving.assignment.producers)


def _as_column(numbers: tuple[int, ...] | None) -> I64 | None:
    return None if numbers is None else np.array(numbers, np.int64)
