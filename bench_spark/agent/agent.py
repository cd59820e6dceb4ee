"""One agent: an Assignment carried out inside a Spark task. Imports no Spark.

The agent walks through the steps of a run in time with all others, because the driver answers each
report only when everyone has made it: probe, declare, open, start, produced, drained, closed,
inspected. **It never raises**: in a barrier stage one exception kills every other task without its
`finally`, so a failure is a report, and what was measured until then is still the result.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from bench_spark.agent.endpoints import (
    EndsTransport,
    EndTransport,
    NoConsumers,
    NoProducers,
    consumer_lanes,
    make_room_for_lanes,
    open_ends,
    producer_lanes,
)
from bench_spark.agent.host import (
    Waiting,
    host_facts,
    is_this_host,
    short_time_slice,
    without_interruptions,
)
from bench_spark.agent.link import Link, LinkLost, report
from bench_spark.agent.load import AgentLoad
from bench_spark.agent.loop import LoadLoop
from bench_spark.agent.protocol import EventRow
from bench_spark.agent.recorder import recorder_for
from bench_spark.agent.records import Bodies, bodies_for
from bench_spark.agent.sampler import sampler_for
from bench_spark.agent.timeline import CONSUMER, MEASURE, PRODUCER, WARMUP
from bench_spark.agent.tracer import MakeMessageWriter, MessageFile, NoTracer, Tracer, trace_setup
from bench_spark.config.ends import Ends
from bench_spark.core.kernel_cache import WarmUp, only_compiled
from bench_spark.core.sequences import SequencePages, SequenceSets
from bench_spark.errors import BenchError
from bench_spark.plan import Assignment, timeline_of
from bench_spark.process import own_thread_errors, unexpected
from bench_spark.transports.base import (
    Consumers,
    Destination,
    OpeningPace,
    Producers,
    Signal,
    Subscription,
    Transport,
)
from bench_spark.transports.batches import I64


def closing_report(load: AgentLoad) -> tuple[dict[str, Any], bytes]:
    """Per producer what was sent, and which sequence numbers arrived, were confirmed, failed;
    last come the samples.

    Numbers of groups are made global here: subscription and stream for what was received, the
    producer for the rest.
    """
    assignment, recorder = load.assignment, load.recorder
    streams = assignment.scenario.wiring.streams
    subscriptions = np.array(assignment.subscriptions or [0], dtype=np.int64)
    members = np.array(assignment.producer_numbers or [0], dtype=np.int64)
    blobs = [
        _relabelled(
            recorder.received_sets,
            lambda group: subscriptions[group // streams] * streams + group % streams,
        ),
        _relabelled(recorder.confirmed_sets, lambda group: members[group]),
        _relabelled(recorder.failed_sets, lambda group: members[group]),
        load.sampler.samples(subscriptions).tobytes(),
    ]
    totals = {
        "sent_by_producer": [
            [
                member.index,
                int(recorder.sent_by_lane[WARMUP][lane]),
                int(recorder.sent_by_lane[MEASURE][lane]),
            ]
            for lane, member in enumerate(assignment.producers)
        ],
        "page_bytes": [len(blob) for blob in blobs],
        "received_span_ns": recorder.received_span_ns,
        "trace": load.tracer.report(),
    }
    return totals, b"".join(blobs)


def _relabelled(sets: SequenceSets, label: Callable[[I64], I64]) -> bytes:
    pages = sets.export()
    return SequencePages(group=label(pages.group), page=pages.page, bits=pages.bits).to_bytes()


def depths_left(
    assignment: Assignment,
    declared: Sequence[Destination],
    transport: Transport | EndsTransport,
) -> dict[int, int | None]:
    """By subscription to the destinations that this agent looks after; None where unknown."""
    wiring = assignment.scenario.wiring
    by_index = {destination.index: destination for destination in declared}
    subscriptions = [
        Subscription(
            index,
            tuple(
                by_index[one]
                for one in wiring.destinations_of_group(wiring.group_of_subscription(index))
            ),
        )
        for index in assignment.inspects
    ]
    left = transport.backlog(subscriptions)
    return dict(zip(assignment.inspects, left, strict=True))


OPENING_NEWS_SECONDS = 0.25


def pace_of(assignment: Assignment) -> OpeningPace:
    """This agent's share of the rate at which connections are opened."""
    asked = assignment.scenario.connections_per_second
    return OpeningPace(None if asked is None else asked / assignment.agents)


class OpeningNews:
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


STEP_TIMEOUT_SECONDS = 120.0
START_TIMEOUT_SECONDS = 3600.0
"""Python workers on a slow cluster and thousands of connections of other agents take their time.
The driver decides how long to wait; this is for one that has vanished without a word."""


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
    with own_thread_errors() as errors:
        try:
            link = Link(task.collector, task.token, task.assignment.agent, attempt)
        except (OSError, BenchError) as error:
            host, port = task.collector
            result.failure = ("RunError", f"no link to the driver at {host}:{port}: {error}")
            return result
        # The driver answers with `stop`, and the closing steps follow.
        errors.on_error = partial(_tell_failure, link)
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
        if (thread_error := errors.take()) is not None:
            # Whatever else went wrong did so because a thread was missing.
            result.failure = _as_failure(thread_error)
    return result


def _tell_failure(link: Link, error: BenchError) -> None:
    link.send({"type": "failed", "kind": error.kind, "text": str(error)})


def _as_failure(error: Exception) -> tuple[str, str]:
    told = error if isinstance(error, BenchError) else unexpected(error)
    return told.kind, str(told)


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
            pace=pace_of(task.assignment),
            on_opened=OpeningNews(link).opened,
        )
        self._transport: Transport | EndsTransport = (
            EndsTransport(self._ends) if task.ends.are_apart else self._ends[0].transport
        )
        self._declared: tuple[Destination, ...] = ()
        self._kernels = WarmUp()

    def run(self, result: AgentResult) -> None:
        with (
            contextlib.closing(self._transport),
            contextlib.closing(self._waiting),
            bodies_for(self._assignment, self._link.clock.now_ns) as bodies,
            short_time_slice() as slice_ns,
        ):
            try:
                destinations = self._prepare(slice_ns)
                self._carry_load(destinations, bodies, result)
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
        self._expect("declare", START_TIMEOUT_SECONDS)
        wanted = [Destination(index) for index in self._assignment.declares]
        if wanted and self._assignment.scenario.only_consumes:
            self._declared = self._ends[0].transport.find(wanted)
        elif wanted:
            self._declared = self._transport.declare(wanted)
        report(
            self._link,
            "declared",
            destinations=[[d.index, d.name, d.declared] for d in self._declared],
            depths=self._depths_before(),
        )
        opened = self._expect("open")
        return {
            int(index): Destination(int(index), name, declared)
            for index, name, declared in opened["destinations"]
        }

    def _depths_before(self) -> dict[str, int | None]:
        """What others have left in destinations that existed already; those that were made are
        empty."""
        if all(one.declared for one in self._declared):
            return {}
        if not self._assignment.scenario.has_both_ends:
            return {}
        with contextlib.suppress(BenchError):
            found = depths_left(self._assignment, self._declared, self._transport)
            return {str(subscription): depth for subscription, depth in found.items()}
        return {}

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
        self, destinations: dict[int, Destination], bodies: Bodies, result: AgentResult
    ) -> None:
        now_ns, assignment = self._link.clock.now_ns, self._assignment
        consumers: Consumers = NoConsumers()
        producers: Producers = NoProducers()
        tracer: Tracer | NoTracer = NoTracer()
        undisturbed = contextlib.ExitStack()
        try:
            if assignment.consumers:
                lanes = consumer_lanes(assignment, destinations)
                consumers = self._transport.open_consumers(lanes, now_ns, bodies.wants)
            if assignment.producers:
                lanes = producer_lanes(assignment, destinations)
                producers = self._transport.open_producers(lanes, now_ns)
            fills_first = bool(assignment.consumers) and self._fills_first
            if not fills_first:
                consumers.attach()
            confirms = bool(assignment.producers) and self._transport.capabilities.confirms
            early: list[tuple[str, Signal]] = []

            def serve_lanes() -> None:
                # Compiling and the other agents may take minutes, and lanes live only while they
                # are served: unanswered heartbeats end a connection.
                early.extend((PRODUCER, signal) for signal in producers.signals())
                early.extend((CONSUMER, signal) for signal in consumers.signals())

            self._kernels.wait(meanwhile=serve_lanes)
            # Done before the others wait for this agent: it may take a while.
            undisturbed.enter_context(without_interruptions())
            report(
                self._link,
                "ready",
                confirms=confirms,
                connections={
                    "producers": producers.connections(len(assignment.producers)),
                    "consumers": consumers.connections(len(assignment.consumers)),
                },
            )
            start = self._expect("start", START_TIMEOUT_SECONDS, meanwhile=serve_lanes)
            timeline = timeline_of(assignment.scenario, int(start["start_at_ns"]))
            recorder = recorder_for(assignment, timeline, destinations)
            trace = trace_setup(assignment, timeline, destinations, self._attempt)
            if self._message_writer is not None and trace.every:
                writer = self._message_writer(trace)
                tracer = Tracer(trace, writer, self._link.send_file, recorder.has_possible_times)
            load = AgentLoad(
                assignment,
                timeline,
                self._link,
                producers=producers,
                consumers=consumers,
                bodies=bodies,
                recorder=recorder,
                sampler=sampler_for(assignment, timeline),
                tracer=tracer,
                addresses=self._addresses(),
                confirms=confirms,
                fills_first=fills_first,
                drops_overflow=any(one.capabilities.drops_overflow for one in self._ends),
                early_signals=early,
            )
            loop = LoadLoop(load, self._waiting)
            with only_compiled():
                loop.run()
            if loop.failure is not None:
                result.failure = (loop.failure.kind, str(loop.failure))
        finally:
            undisturbed.close()
            for end in (producers, consumers):
                self._close_lanes(end, result)
            tracer.close()
            if tracer.failure is not None:
                result.failure = result.failure or _as_failure(tracer.failure)
        totals, pages = closing_report(load)
        totals["turns_per_second"] = loop.turns_per_second
        totals["outages"] = loop.outages.report()
        totals["stalls"] = loop.stalls
        totals["answers_by_status"] = dict(producers.answers_by_status)
        # Without confirms, what a broker had not read when it was cut off was not lost by it.
        is_read = confirms or producers.has_closed_in_order
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

    @property
    def _fills_first(self) -> bool:
        """Where the broker returns what no consumer can take at once, one must be there first."""
        asks = self._assignment.scenario.load.prefill
        return asks and not any(one.capabilities.returns_unconsumed for one in self._ends)

    def _addresses(self) -> dict[str, str]:
        """Nothing where a role has several: those name the one that they speak of."""
        ends = self._task.ends
        return {
            role: side[0].address if len(side) == 1 else ""
            for role, side in ((PRODUCER, ends.ingress), (CONSUMER, ends.egress))
        }

    # -- after -----------------------------------------------------------------------------------

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
                depths |= depths_left(self._assignment, self._declared, self._transport)
        if scenario.keep_destinations:
            self._declared = tuple(replace(d, declared=False) for d in self._declared)
        self._leave_nothing_behind()
        return {str(subscription): depth for subscription, depth in depths.items()}

    def _leave_nothing_behind(self) -> None:
        # A broker that is gone cannot be tidied up; the failure that says so is already reported.
        with contextlib.suppress(BenchError):
            self._transport.delete(self._declared)


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
