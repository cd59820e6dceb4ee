"""What measures an agent's load: recorder, sampler and tracer, as its scenario asks for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np

from bench_spark.agent.endpoints import Serving
from bench_spark.agent.pacing import DueTimes, Schedule, Stream
from bench_spark.agent.payload import BodySizes
from bench_spark.agent.recorder import Recorder, RecorderSetup
from bench_spark.agent.sampler import Sampler, SamplingRule
from bench_spark.agent.timeline import Timeline
from bench_spark.agent.tracer import (
    HasPossibleTimes,
    MakeMessageWriter,
    MessageFile,
    Tracer,
    TraceSetup,
)
from bench_spark.config.sections import traced_every
from bench_spark.core.clock import NANOSECONDS
from bench_spark.core.envelope import foreign_stamps
from bench_spark.core.hdr import shape_for
from bench_spark.plan import Assignment
from bench_spark.transports.base import I64


def make_recorder(
    serving: Serving, names: Mapping[int, str], sizes: BodySizes, timeline: Timeline
) -> Recorder:
    """`names`: of the destinations."""
    assignment = serving.assignment
    scenario = assignment.scenario
    setup = RecorderSetup(
        shape=shape_for(scenario.histogram.highest_us),
        run_tag=assignment.run_tag,
        producers=scenario.producers,
        stream_of_producer=scenario.wiring.stream_of_producer,
        streams_per_subscription=scenario.wiring.streams,
        subscriptions=tuple(names[first] for first in serving.first_destinations),
        destinations_by_producer=_destinations_by_producer(serving, names),
        sizes=sizes,
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


def make_sampler(serving: Serving, timeline: Timeline) -> Sampler | None:
    scenario = serving.assignment.scenario
    sampling = scenario.sampling
    if not sampling.samples:
        return None
    wiring = scenario.wiring
    producers = Counter(wiring.group_of_producer(m.index) for m in serving.assignment.producers)
    rule = SamplingRule(
        samples=sampling.samples,
        threshold_ns=round(sampling.threshold_seconds * NANOSECONDS),
        from_ns=timeline.measure_start_ns,
    )
    per_producer = scenario.skipped_per_producer
    skipped = [
        producers[wiring.group_of_subscription(index)] * per_producer
        for index in serving.subscriptions
    ]
    return Sampler(rule, np.array(skipped, dtype=np.int64))


def make_tracer(
    serving: Serving,
    names: Mapping[int, str],
    timeline: Timeline,
    attempt: int,
    make_writer: MakeMessageWriter | None,
    send_file: Callable[[MessageFile], None],
    has_possible_times: HasPossibleTimes,
) -> Tracer | None:
    assignment = serving.assignment
    every = traced_every(assignment.scenario.trace)
    if make_writer is None or not every:
        return None
    setup = TraceSetup(
        run_id=assignment.run_id,
        run_tag=assignment.run_tag,
        agent=assignment.agent,
        attempt=attempt,
        every=every,
        producers=assignment.scenario.producers,
        timeline=timeline,
        destinations_by_producer=_destinations_by_producer(serving, names),
        subscriptions=tuple(serving.subscriptions),
        destinations_by_subscription=tuple(names[one] for one in serving.first_destinations),
        first_measured=assignment.first_measured,
    )
    return Tracer(setup, make_writer(setup), send_file, has_possible_times)


def _destinations_by_producer(serving: Serving, names: Mapping[int, str]) -> tuple[str, ...]:
    return tuple(names[member.destinations[0]] for member in serving.assignment.producers)


def _as_column(numbers: tuple[int, ...] | None) -> I64 | None:
    return None if numbers is None else np.array(numbers, np.int64)
