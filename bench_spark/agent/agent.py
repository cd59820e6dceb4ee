"""One agent: an Assignment carried out inside a Spark task. Imports no Spark.

The agent walks through the steps of a run in time with all others, because the driver answers each
report only when everyone has made it: probe, declare, open, start, produced, drained, closed,
inspected. **It never raises**: in a barrier stage one exception kills every other task without its
`finally`, so a failure is a report, and what was measured until then is still the result.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from bench_spark.agent.carrying import Carrying
from bench_spark.agent.ends import EndsTransport, EndTransport, make_room_for_lanes, open_ends
from bench_spark.agent.host import host_facts, is_this_host
from bench_spark.agent.link import Link, LinkLost, report
from bench_spark.agent.loop import Lanes, LoadLoop
from bench_spark.agent.recorder import CONSUMER, PRODUCER, Recorder, RecorderSetup
from bench_spark.agent.records import carrying_for
from bench_spark.agent.rows import EventRow
from bench_spark.agent.sampling import Sampler, SamplingRule
from bench_spark.agent.sizes import BodySizes, body_sizes
from bench_spark.agent.time_slice import short_time_slice
from bench_spark.agent.timeline import MEASURE, WARMUP, Timeline
from bench_spark.agent.tracing import MakeMessageWriter, MessageFile, Tracer, TraceSetup
from bench_spark.agent.waiting import Waiting
from bench_spark.errors import BenchError
from bench_spark.load_course import timeline_of
from bench_spark.measure.clock import NANOSECONDS
from bench_spark.measure.hdr import shape_for
from bench_spark.measure.sequences import SequencePages, SequenceSets
from bench_spark.placement import Member
from bench_spark.plan import Assignment
from bench_spark.scenario.ends import Ends
from bench_spark.scenario.topologies import Wiring
from bench_spark.scenario.trace_section import traced_every
from bench_spark.transports.base import (
    HEAD_ONLY,
    I64,
    Answering,
    Consumers,
    Destination,
    Lane,
    OverClients,
    Parting,
    Producers,
    Signal,
    Subscription,
    Transport,
    Wired,
)
from bench_spark.transports.pace import OpeningPace

STEP_TIMEOUT_SECONDS = 120.0
START_TIMEOUT_SECONDS = 600.0
"""Opening thousands of connections in other agents takes its time."""
OPENING_NEWS_SECONDS = 0.25


@dataclass(frozen=True)
class AgentTask:
    """Everything one task needs; travels inside the closure, credentials and all."""

    assignment: Assignment
    ends: Ends
    collector: tuple[str, int]
    token: str = field(repr=False)


@dataclass
class AgentResult:
    """What the task returns. The link has delivered most of it already; this is what it did not."""

    agent: int
    failure: tuple[str, str] | None = None
    rows: list[EventRow] = field(default_factory=list)
    files: list[MessageFile] = field(default_factory=list)
    report: dict[str, Any] = field(default_factory=dict)


class _Stopped(Exception):
    """The driver said stop before the load began."""


def run_agent(
    task: AgentTask,
    attempt: int = 0,
    executor: str | None = None,
    preflight: Callable[[], None] | None = None,
    message_writer: MakeMessageWriter | None = None,
) -> AgentResult:
    """Carry out an assignment; whatever happens is in the result.

    `executor` is where it runs, for the record. `preflight` is what else must hold on this machine;
    it raises a PreflightError if it does not. `message_writer` writes the rows of single messages,
    where the scenario asks for them.
    """
    result = AgentResult(agent=task.assignment.agent)
    try:
        link = Link(task.collector, task.token, task.assignment.agent, attempt)
    except (OSError, BenchError) as error:
        host, port = task.collector
        result.failure = ("RunError", f"no link to the driver at {host}:{port}: {error}")
        return result
    try:
        if preflight is not None:
            preflight()
        _Agent(task, link, executor, attempt, message_writer).run(result)
    except _Stopped:
        pass  # The driver knows why.
    except Exception as error:
        result.failure = _as_failure(error)
        link.send({"type": "failed", "kind": result.failure[0], "text": result.failure[1]})
        report(link, "inspected", depths={})
    finally:
        link.close()
        result.rows = link.unacknowledged_rows()
        result.files = link.untaken_files()
    return result


def _as_failure(error: Exception) -> tuple[str, str]:
    if isinstance(error, BenchError):
        return error.kind, str(error)
    # Only the type and place of an unforeseen error are safe to show: its text may hold anything.
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    place = f"{frame.tb_frame.f_code.co_qualname}:{frame.tb_lineno}" if frame else "unknown place"
    return "BenchError", f"unexpected {type(error).__name__} in {place}"


class _Agent:
    def __init__(
        self,
        task: AgentTask,
        link: Link,
        executor: str | None,
        attempt: int,
        message_writer: MakeMessageWriter | None,
    ) -> None:
        self._assignment = task.assignment
        self._task = task
        self._executor = executor
        self._attempt = attempt
        self._message_writer = message_writer
        self._link = link
        self._waiting = Waiting()
        self._ends = open_ends(
            task.assignment,
            task.ends,
            attempt,
            pace=_pace_of(task.assignment),
            on_opened=_OpeningNews(link).opened,
        )
        self._transport: Transport | EndsTransport = (
            EndsTransport(self._ends) if task.ends.are_apart else self._ends[0].transport
        )
        self._declared: tuple[Destination, ...] = ()

    def run(self, result: AgentResult) -> None:
        with (
            contextlib.closing(self._transport),
            contextlib.closing(self._waiting),
            carrying_for(self._assignment, self._link.clock.now_ns) as carrying,
            short_time_slice() as slice_ns,
        ):
            try:
                destinations = self._prepare(slice_ns)
                self._carry_load(destinations, carrying, result)
            except Exception:
                self._leave_nothing_behind()
                raise
            depths = self._inspect()
            report(self._link, "inspected", depths=depths)

    # -- before ----------------------------------------------------------------------------------

    def _prepare(self, slice_ns: int | None) -> dict[int, Destination]:
        make_room_for_lanes(self._ends, self._assignment)
        brokers = [_probed(one) for one in self._ends]
        host = host_facts() | {
            "shares_host_with_broker": any(is_this_host(one.end.broker.host) for one in self._ends),
            "time_slice_us": slice_ns / 1_000 if slice_ns is not None else None,
        }
        report(
            self._link,
            "probed",
            brokers=brokers,
            host=host,
            executor=self._executor,
        )
        self._expect("declare")
        wanted = [Destination(index) for index in self._assignment.declares]
        if wanted and self._assignment.scenario.only_consumes:
            self._declared = self._ends[0].transport.find(wanted)
        elif wanted:
            self._declared = self._transport.declare(wanted)
        report(
            self._link,
            "declared",
            destinations=[[d.index, d.name, d.declared] for d in self._declared],
        )
        opened = self._expect("open")
        return {
            int(index): Destination(int(index), name, declared)
            for index, name, declared in opened["destinations"]
        }

    def _expect(
        self,
        command: str,
        timeout_seconds: float = STEP_TIMEOUT_SECONDS,
        meanwhile: Callable[[], None] | None = None,
    ) -> dict[str, Any]:
        message = self._link.wait_for(command, timeout_seconds, meanwhile)
        if message["type"] == "stop":
            report(self._link, "inspected", depths={})
            raise _Stopped
        return message

    # -- during ----------------------------------------------------------------------------------

    def _carry_load(
        self,
        destinations: dict[int, Destination],
        carrying: Carrying | None,
        result: AgentResult,
    ) -> None:
        now_ns = self._link.clock.now_ns
        consumers: Consumers | None = None
        producers: Producers | None = None
        tracer: Tracer | None = None
        try:
            if self._assignment.consumers:
                lanes = self._consumer_lanes(destinations)
                consumers = self._transport.open_consumers(
                    lanes, now_ns, HEAD_ONLY if carrying is None else carrying.wants
                )
            if self._assignment.producers:
                lanes = _lanes_of(self._assignment.producers, destinations)
                producers = self._transport.open_producers(lanes, now_ns)
            fills_first = consumers is not None and self._fills_first
            if consumers is not None and not fills_first:
                consumers.attach()
            confirms = producers is not None and self._transport.confirms
            report(
                self._link,
                "ready",
                confirms=confirms,
                connections={
                    "producers": _connections(producers, len(self._assignment.producers)),
                    "consumers": _connections(consumers, len(self._assignment.consumers)),
                },
            )
            early = _EarlySignals(producers, consumers)
            start = self._expect("start", START_TIMEOUT_SECONDS, meanwhile=early.collect)
            timeline = timeline_of(self._assignment.scenario, int(start["start_at_ns"]))
            sizes = body_sizes(self._assignment.scenario.message, timeline)
            recorder = Recorder(self._recorder_setup(destinations, sizes), timeline)
            sampler = self._make_sampler(timeline)
            tracer = self._make_tracer(destinations, timeline)
            lanes_open = Lanes(
                producers=producers,
                consumers=consumers,
                subscription_of=self._subscription_of(),
                addresses=self._addresses(),
                confirms=confirms,
                fills_first=fills_first,
                are_self_limiting=self._has_length_limit(),
                early_signals=early.collected,
                carrying=carrying,
            )
            loop = LoadLoop(
                self._assignment,
                timeline,
                lanes_open,
                recorder,
                self._link,
                now_ns,
                self._waiting,
                sizes,
                sampler,
                tracer,
            )
            with _undisturbed():
                loop.run()
            if loop.failure is not None:
                result.failure = (loop.failure.kind, str(loop.failure))
        finally:
            for end in (producers, consumers):
                if end is not None:
                    self._close_lanes(end, result)
            if tracer is not None:
                tracer.close()
                if tracer.failure is not None:
                    result.failure = result.failure or _as_failure(tracer.failure)
        totals, pages = self._closing_report(recorder, sampler)
        totals["outages"] = loop.outages.report()
        totals["trace"] = tracer.report() if tracer is not None else None
        if isinstance(producers, Answering):
            totals["answers_by_status"] = dict(producers.answers_by_status)
        # Without confirms, what a broker had not read when it was hung up on was not lost by it.
        is_read = confirms or not isinstance(producers, Parting) or producers.has_closed_in_order
        totals["is_settled"] = loop.has_detached and is_read
        result.report = totals
        report(self._link, "closed", pages, **totals)

    @staticmethod
    def _close_lanes(end: Producers | Consumers, result: AgentResult) -> None:
        try:
            end.close()
        except BenchError as error:
            # A connection that will not end in order is a failure, but costs nothing measured.
            result.failure = result.failure or (error.kind, str(error))

    def _recorder_setup(
        self, destinations: dict[int, Destination], sizes: BodySizes
    ) -> RecorderSetup:
        scenario = self._assignment.scenario
        names = {index: destination.name or "" for index, destination in destinations.items()}
        scheduled = scenario.load.has_schedule and not scenario.only_consumes
        return RecorderSetup(
            shape=shape_for(scenario.histogram.highest_us),
            run_tag=self._assignment.run_tag,
            producers=scenario.producers,
            stream_of_producer=scenario.wiring.stream_of_producer,
            streams_per_subscription=scenario.wiring.streams,
            subscriptions=tuple(names[first] for first in self._first_destinations),
            destinations_by_producer=tuple(
                names[member.destinations[0]] for member in self._assignment.producers
            ),
            sizes=sizes,
            has_schedule=scheduled,
            takes_any=scenario.only_consumes,
            reads_timestamps=scenario.message.timestamped,
            is_carried=not scenario.has_envelopes,
            first_measured=_as_column(self._assignment.first_measured),
            by_destination=scenario.breakdown == "destination",
        )

    @property
    def _fills_first(self) -> bool:
        """Where the broker returns what no consumer can take at once, one must be there first."""
        scenario = self._assignment.scenario
        is_immediate = any(
            one.end.broker.kind == "amqp" and one.scenario.amqp.immediate for one in self._ends
        )
        return scenario.load.fill_first and not is_immediate

    def _make_sampler(self, timeline: Timeline) -> Sampler | None:
        scenario = self._assignment.scenario
        sampling = scenario.sampling
        if not sampling.samples:
            return None
        wiring = scenario.wiring
        producers = Counter(wiring.group_of_producer(m.index) for m in self._assignment.producers)
        rule = SamplingRule(
            samples=sampling.samples,
            threshold_ns=round(sampling.threshold_seconds * NANOSECONDS),
            from_ns=timeline.measure_start_ns,
        )
        per_producer = scenario.skipped_per_producer
        skipped = [
            producers[wiring.group_of_subscription(index)] * per_producer
            for index in self._subscriptions
        ]
        return Sampler(rule, np.array(skipped, dtype=np.int64))

    def _make_tracer(
        self, destinations: dict[int, Destination], timeline: Timeline
    ) -> Tracer | None:
        scenario = self._assignment.scenario
        every = traced_every(scenario.trace)
        if self._message_writer is None or not every:
            return None
        names = {index: destination.name or "" for index, destination in destinations.items()}
        setup = TraceSetup(
            run_id=self._assignment.run_id,
            run_tag=self._assignment.run_tag,
            agent=self._assignment.agent,
            attempt=self._attempt,
            every=every,
            producers=scenario.producers,
            timeline=timeline,
            destinations_by_producer=tuple(
                names[member.destinations[0]] for member in self._assignment.producers
            ),
            subscriptions=tuple(self._subscriptions),
            destinations_by_subscription=tuple(names[one] for one in self._first_destinations),
            first_measured=self._assignment.first_measured,
        )
        return Tracer(setup, self._message_writer(setup), self._link.send_file)

    def _has_length_limit(self) -> bool:
        limits = ("x-max-length", "x-max-length-bytes")
        return any(
            name in one.scenario.amqp.queue.arguments
            for one in self._ends
            if one.end.broker.kind == "amqp"
            for name in limits
        )

    def _addresses(self) -> dict[str, str]:
        """Nothing where a role has several: those name the one that they speak of."""
        ends = self._task.ends
        return {
            role: side[0].address if len(side) == 1 else ""
            for role, side in ((PRODUCER, ends.ingress), (CONSUMER, ends.egress))
        }

    def _consumer_lanes(self, destinations: dict[int, Destination]) -> list[Lane]:
        wiring = self._assignment.scenario.wiring
        lanes = _lanes_of(self._assignment.consumers, destinations)
        return [
            replace(lane, subscriptions=tuple(wiring.subscriptions_of_consumer(lane.member)))
            for lane in lanes
        ]

    @property
    def _subscriptions(self) -> list[int]:
        """Subscriptions this agent serves; in its rows and sets they are known by their place."""
        wiring = self._assignment.scenario.wiring
        consumers = self._assignment.consumers
        return sorted(
            {one for member in consumers for one in wiring.subscriptions_of_consumer(member.index)}
        )

    @property
    def _first_destinations(self) -> list[int]:
        """Of each of these subscriptions."""
        wiring = self._assignment.scenario.wiring
        groups = map(wiring.group_of_subscription, self._subscriptions)
        return [wiring.destinations_of_group(group)[0] for group in groups]

    def _subscription_of(self) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
        wiring = self._assignment.scenario.wiring
        places = {subscription: place for place, subscription in enumerate(self._subscriptions)}
        consumers = self._assignment.consumers
        served = [wiring.subscriptions_of_consumer(member.index) for member in consumers]
        routes = [len(member.destinations) for member in consumers]
        width = max([*routes, *map(len, served)], default=1)
        table = np.zeros((max(1, len(consumers)), width), dtype=np.int64)
        for lane, subscriptions in enumerate(served):
            table[lane, : len(subscriptions)] = [places[one] for one in subscriptions]
            if len(subscriptions) == 1:  # whichever of its destinations it came from
                table[lane, :] = places[subscriptions[0]]
        return table

    # -- after -----------------------------------------------------------------------------------

    def _closing_report(
        self, recorder: Recorder, sampler: Sampler | None
    ) -> tuple[dict[str, Any], bytes]:
        """Per producer what was sent, and which sequence numbers arrived, were confirmed, failed;
        last come the samples.

        Numbers of groups are made global here: subscription and stream for what was received, the
        producer for the rest.
        """
        recorder.fold()
        streams = self._assignment.scenario.wiring.streams
        subscriptions = np.array(self._subscriptions or [0], dtype=np.int64)
        members = np.array([m.index for m in self._assignment.producers] or [0], dtype=np.int64)
        blobs = [
            _relabelled(
                recorder.received_sets,
                lambda group: subscriptions[group // streams] * streams + group % streams,
            ),
            _relabelled(recorder.confirmed_sets, lambda group: members[group]),
            _relabelled(recorder.failed_sets, lambda group: members[group]),
            sampler.samples(subscriptions).tobytes() if sampler is not None else b"",
        ]
        totals = {
            "sent_by_producer": [
                [
                    member.index,
                    int(recorder.sent_by_lane[WARMUP][lane]),
                    int(recorder.sent_by_lane[MEASURE][lane]),
                ]
                for lane, member in enumerate(self._assignment.producers)
            ],
            "page_bytes": [len(blob) for blob in blobs],
            "received_span_ns": recorder.received_span_ns,
        }
        return totals, b"".join(blobs)

    def _inspect(self) -> dict[str, int | None]:
        """Count what is left for the subscriptions to the destinations this agent made, then delete
        these.

        Where a run has one end only, nobody can say what should be left, and nobody asks.
        """
        with contextlib.suppress(LinkLost):
            self._link.wait_for("inspect", STEP_TIMEOUT_SECONDS)
        scenario = self._assignment.scenario
        depths: dict[int, int | None] = dict.fromkeys(self._assignment.inspects)
        if scenario.has_both_ends:
            with contextlib.suppress(BenchError):
                depths |= self._depths(scenario.wiring)
        if scenario.keep_destinations:
            self._declared = tuple(replace(d, declared=False) for d in self._declared)
        self._leave_nothing_behind()
        return {str(subscription): depth for subscription, depth in depths.items()}

    def _depths(self, wiring: Wiring) -> dict[int, int | None]:
        """By subscription."""
        if wiring.is_plain:
            found = self._ends[0].transport.depths(self._declared)
            return {d.index: depth for d, depth in zip(self._declared, found, strict=True)}
        assert isinstance(self._transport, Wired), "the registry has checked"
        declared = {destination.index: destination for destination in self._declared}
        subscriptions = [
            Subscription(
                index,
                tuple(
                    declared[one]
                    for one in wiring.destinations_of_group(wiring.group_of_subscription(index))
                ),
            )
            for index in self._assignment.inspects
        ]
        left = self._transport.left_in(subscriptions)
        return dict(zip(self._assignment.inspects, left, strict=True))

    def _leave_nothing_behind(self) -> None:
        # A broker that is gone cannot be tidied up; the failure that says so is already reported.
        with contextlib.suppress(BenchError):
            self._transport.delete(self._declared)


def _pace_of(assignment: Assignment) -> OpeningPace:
    """This agent's share of the rate at which connections are opened."""
    asked = assignment.scenario.connections_per_second
    return OpeningPace(None if asked is None else asked / assignment.agents)


def _probed(one: EndTransport) -> dict[str, Any]:
    """What a broker says of itself."""
    with one.named():
        facts = one.transport.probe()
    return {
        "role": one.end.role,
        "name": one.end.broker.name,
        "product": facts.product,
        "version": facts.version,
        "platform": facts.platform,
        "capabilities": sorted(facts.capabilities),
        "client_library": facts.client_library,
    }


def _connections(end: Producers | Consumers | None, lanes: int) -> int:
    return end.clients if isinstance(end, OverClients) else lanes


class _OpeningNews:
    """Tells the driver how many lanes are open, now and then."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._opened = 0
        self._next_seconds = 0.0

    def opened(self, lanes: int) -> None:
        self._opened += lanes
        now_seconds = time.monotonic()
        if now_seconds >= self._next_seconds:
            self._next_seconds = now_seconds + OPENING_NEWS_SECONDS
            self._link.send({"type": "opening", "opened": self._opened})


class _EarlySignals:
    """What happens to open lanes before the load begins.

    Others may take minutes to open theirs, and lanes live only while they are served: unanswered
    heartbeats end a connection.
    """

    def __init__(self, producers: Producers | None, consumers: Consumers | None) -> None:
        self._ends = [
            (role, end)
            for role, end in ((PRODUCER, producers), (CONSUMER, consumers))
            if end is not None
        ]
        self.collected: list[tuple[str, Signal]] = []

    def collect(self) -> None:
        for role, end in self._ends:
            self.collected += [(role, signal) for signal in end.signals()]


def _lanes_of(members: tuple[Member, ...], destinations: dict[int, Destination]) -> list[Lane]:
    return [
        Lane(member.index, tuple(destinations[index] for index in member.destinations))
        for member in members
    ]


def _as_column(numbers: tuple[int, ...] | None) -> I64 | None:
    return None if numbers is None else np.array(numbers, np.int64)


def _relabelled(sets: SequenceSets, label: Any) -> bytes:
    pages = sets.export()
    return SequencePages(group=label(pages.group), page=pages.page, bits=pages.bits).to_bytes()


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """No garbage collection and short thread switches while the load runs."""
    interval = sys.getswitchinterval()
    gc.collect()
    gc.freeze()
    gc.disable()
    sys.setswitchinterval(0.0005)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        gc.enable()
        gc.unfreeze()
