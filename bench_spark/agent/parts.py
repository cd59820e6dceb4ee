"""What a load loop is put together from, made for one assignment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench_spark.agent.answers import Answers
from bench_spark.agent.backlog import Backlog
from bench_spark.agent.consuming import Consuming
from bench_spark.agent.flow import Flow, RequestFlow, RoundRobinFlow, WindowFlow
from bench_spark.agent.heeding import Heeding
from bench_spark.agent.lanes import Lanes
from bench_spark.agent.link import Link
from bench_spark.agent.producing import Producing
from bench_spark.agent.recorder import Recorder
from bench_spark.agent.releasing import Releasing
from bench_spark.agent.sampling import Sampler
from bench_spark.agent.sending import Paced, Sending
from bench_spark.agent.setting_aside import SetAside
from bench_spark.agent.sizes import BodySizes
from bench_spark.agent.tally import Tally
from bench_spark.agent.timeline import Timeline
from bench_spark.agent.tracing import Tracer
from bench_spark.core.clock import NANOSECONDS, NowNs
from bench_spark.errors import BenchError
from bench_spark.plan import Assignment
from bench_spark.transports.base import Producers, Skippable


@dataclass(frozen=True)
class Parts:
    """None: this load has no use for it, or the agent has no lanes of that role."""

    tally: Tally
    flow: Flow
    aside: SetAside | None
    backlog: Backlog | None
    heeding: Heeding
    releasing: Releasing | None
    producing: Producing | None
    answers: Answers | None
    consuming: Consuming | None


def make_parts(
    assignment: Assignment,
    timeline: Timeline,
    lanes: Lanes,
    recorder: Recorder,
    link: Link,
    now_ns: NowNs,
    sizes: BodySizes,
    fail: Callable[[BenchError], None],
    sampler: Sampler | None,
    tracer: Tracer | None,
) -> Parts:
    """`fail`: called with the reason why the load cannot go on."""
    tally = Tally()
    flow = _flow_for(assignment)
    aside = _aside_for(assignment, lanes.producers, flow)
    backlog = _backlog_for(assignment, lanes, tally)
    heeding = Heeding(assignment, timeline, lanes, flow, aside, backlog, recorder, tally, fail)
    producing = None
    if lanes.producers is not None:
        paced = _paced(assignment, flow)
        sending = Sending(
            assignment,
            timeline,
            lanes.producers,
            flow,
            paced=paced,
            aside=aside,
            sizes=sizes,
            recorder=recorder,
            tally=tally,
            now_ns=now_ns,
            carrying=lanes.carrying,
            tracer=tracer,
        )
        producing = Producing(
            timeline,
            sending,
            paced=paced,
            scheduled_total=messages_scheduled(assignment, timeline),
            messages=assignment.messages,
            backlog=backlog,
            heeding=heeding,
            recorder=recorder,
            tally=tally,
            now_ns=now_ns,
        )
    releasing = None
    if assignment.scenario.load.mode == "request":
        releasing = Releasing(
            flow if isinstance(flow, RequestFlow) else None,
            recorder,
            link,
            now_ns,
            patience_ns=round(assignment.scenario.load.patience_seconds * NANOSECONDS),
            on_release=producing.send_at_once if producing is not None else _nobody_waits,
        )
    answers = None
    if lanes.producers is not None:
        answers = Answers(lanes.producers, flow, recorder, tally, releasing, lanes.carrying, tracer)
    consuming = None
    if lanes.consumers is not None:
        consuming = Consuming(
            assignment,
            timeline,
            lanes.consumers,
            lanes.subscription_of,
            flow,
            recorder=recorder,
            link=link,
            tally=tally,
            now_ns=now_ns,
            releasing=releasing,
            carrying=lanes.carrying,
            sampler=sampler,
            tracer=tracer,
        )
    return Parts(
        tally=tally,
        flow=flow,
        aside=aside,
        backlog=backlog,
        heeding=heeding,
        releasing=releasing,
        producing=producing,
        answers=answers,
        consuming=consuming,
    )


def messages_scheduled(assignment: Assignment, timeline: Timeline) -> int:
    """Messages of warm-up and measured phase together, of a load with a schedule."""
    if assignment.schedule is None:
        return 0
    warmup = assignment.schedule.messages_before(timeline.warmup_ns)
    return warmup + (assignment.expected_messages or 0)


def _flow_for(assignment: Assignment) -> Flow:
    load = assignment.scenario.load
    members = tuple(member.index for member in assignment.producers)
    if load.mode == "request" and members:
        return RequestFlow(members)
    if load.mode == "window":
        return WindowFlow(members, load.in_flight)
    return RoundRobinFlow(members or (0,), owes=assignment.schedule is not None)


def _paced(assignment: Assignment, flow: Flow) -> Paced | None:
    if assignment.schedule is None:
        return None
    assert isinstance(flow, RoundRobinFlow | RequestFlow)
    return assignment.schedule, flow


def _aside_for(assignment: Assignment, producers: Producers | None, flow: Flow) -> SetAside | None:
    """On a schedule, a lane that is full must not make the others late."""
    is_needed = assignment.schedule is not None and len(assignment.producers) > 1
    if not is_needed or not isinstance(producers, Skippable):
        return None
    # With one message on its way at most, no lane of a request/response load is ever full.
    return SetAside(producers, flow) if isinstance(flow, RoundRobinFlow) else None


def _backlog_for(assignment: Assignment, lanes: Lanes, tally: Tally) -> Backlog | None:
    scenario = assignment.scenario
    # Without consumers there is no backlog to watch: the scenario bounds the load otherwise.
    is_bounded = lanes.are_self_limiting or scenario.only_publishes
    if scenario.load.mode != "maximum" or is_bounded:
        return None
    return Backlog(
        tally,
        scenario.load.backlog_limit_bytes,
        copies=scenario.wiring.copies,
        is_shared=assignment.shares_destinations,
    )


def _nobody_waits() -> None:
    """An agent that sends nothing has nothing to hurry with."""
