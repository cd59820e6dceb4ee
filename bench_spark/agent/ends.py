"""The brokers of an agent as one transport: ingresses for its producers, egresses for its
consumers, and every destination at the end that it belongs to.

An agent whose run has one broker has that broker's transport, and nothing of this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

from bench_spark.agent.several import Part, SeveralConsumers, SeveralProducers
from bench_spark.core.clock import NowNs
from bench_spark.descriptors import make_room_for
from bench_spark.errors import BenchError, error_of_kind
from bench_spark.placement import Member
from bench_spark.plan import Assignment
from bench_spark.scenario.ends import End, Ends, scenario_at
from bench_spark.scenario.models import Scenario
from bench_spark.scenario.topologies import EndSizes, ThroughSystem
from bench_spark.transports.base import (
    HEAD_ONLY,
    Consumers,
    Destination,
    Lane,
    Producers,
    Subscription,
    Transport,
    TransportContext,
)
from bench_spark.transports.base import Part as MessagePart
from bench_spark.transports.pace import OpeningPace
from bench_spark.transports.registry import connections_of, files_of_connection, make_transport

Opened = TypeVar("Opened", Producers, Consumers)


@dataclass(frozen=True)
class EndTransport:
    """One end with its transport, and which members and destinations of the run are its own."""

    end: End
    scenario: Scenario
    transport: Transport
    first_member: int = 0
    first_destination: int = 0
    sizes: EndSizes | None = None
    """None where one broker is both ends: then everything is its own."""

    def destinations(self, destinations: Sequence[Destination]) -> list[Destination]:
        """Those of these that are here, by the numbers that this end knows them by."""
        if self.sizes is None:
            return list(destinations)
        numbers = range(self.first_destination, self.first_destination + self.sizes.destinations)
        return [
            replace(one, index=one.index - self.first_destination)
            for one in destinations
            if one.index in numbers
        ]

    def numbered_through(self, destinations: Sequence[Destination]) -> list[Destination]:
        first = self.first_destination
        return [replace(one, index=one.index + first) for one in destinations]

    def lanes(self, lanes: Sequence[Lane]) -> list[Lane]:
        return [self._own_lane(lane) for lane in lanes if self._has(lane.member)]

    def members(self, members: Sequence[Member]) -> int:
        """How many of these are here."""
        return sum(self._has(member.index) for member in members)

    def _has(self, member: int) -> bool:
        if self.sizes is None:
            return True
        return self.first_member <= member < self.first_member + self.sizes.members

    def _own_lane(self, lane: Lane) -> Lane:
        destinations = tuple(self.destinations(lane.destinations))
        # Each end is wired plainly: a destination is a subscription of the same number.
        subscriptions = tuple(one.index for one in destinations)
        return Lane(lane.member - self.first_member, destinations, subscriptions)

    @property
    def returns_what_nobody_takes(self) -> bool:
        """At once, instead of keeping it for a consumer that comes later."""
        return self.end.broker.kind == "amqp" and self.scenario.amqp.immediate

    @property
    def has_length_limit(self) -> bool:
        """Whether its destinations drop what is too much for them."""
        limits = ("x-max-length", "x-max-length-bytes")
        return self.end.broker.kind == "amqp" and any(
            name in self.scenario.amqp.queue.arguments for name in limits
        )

    @contextmanager
    def named(self) -> Iterator[None]:
        """Errors say which end they are about."""
        try:
            yield
        except BenchError as error:
            if self.sizes is None:
                raise
            raise error_of_kind(error.kind, f"{self.end.label}: {error}") from error


def open_ends(
    assignment: Assignment,
    ends: Ends,
    attempt: int,
    pace: OpeningPace,
    on_opened: Callable[[int], None],
) -> tuple[EndTransport, ...]:
    """A transport for every end; connects to nothing yet."""
    opened = []
    for end, (first_member, first_destination, sizes) in _placed(assignment.scenario, ends):
        scenario = scenario_at(assignment.scenario, end)
        context = TransportContext(
            end.run_id(assignment.run_id),
            scenario,
            end.broker,
            end.credentials,
            attempt,
            pace=pace,
            on_opened=on_opened,
        )
        transport = make_transport(context)
        opened.append(
            EndTransport(end, scenario, transport, first_member, first_destination, sizes)
        )
    return tuple(opened)


def _placed(
    scenario: Scenario, ends: Ends
) -> Iterator[tuple[End, tuple[int, int, EndSizes | None]]]:
    """Every end with its first member, its first destination, and how many it has of both."""
    if not ends.are_apart:
        yield ends.ingress[0], (0, 0, None)
        return
    wiring = scenario.wiring
    assert isinstance(wiring, ThroughSystem)
    first_destination = 0
    for side, all_sizes in ((ends.ingress, wiring.ingress), (ends.egress, wiring.egress)):
        first_member = 0
        for end, sizes in zip(side, all_sizes, strict=True):
            yield end, (first_member, first_destination, sizes)
            first_member += sizes.members
            first_destination += sizes.destinations


def make_room_for_lanes(ends: Sequence[EndTransport], assignment: Assignment) -> None:
    """Refuses more connections than this process may have, before the first is opened."""
    connections, files = 0, 1
    for one in ends:
        producers = one.members(assignment.producers) if one.end.role != "egress" else 0
        consumers = one.members(assignment.consumers) if one.end.role != "ingress" else 0
        connections += connections_of(one.scenario, one.end.broker, producers, consumers)
        files = max(files, files_of_connection(one.end.broker))
    if connections:
        make_room_for(connections, files)


class EndsTransport:
    """What an agent needs of a transport while it carries its load, from all ends together; see
    `bench_spark.transports.base.Transport` and `Wired`."""

    def __init__(self, ends: Sequence[EndTransport]) -> None:
        self._ends = list(ends)
        self._ingress = [one for one in ends if one.end.role == "ingress"]
        self._egress = [one for one in ends if one.end.role == "egress"]

    @property
    def confirms(self) -> bool:
        return all(one.transport.confirms for one in self._ingress)

    def declare(self, destinations: Sequence[Destination]) -> tuple[Destination, ...]:
        made: list[Destination] = []
        try:
            for one in self._ends:
                own = one.destinations(destinations)
                if own:
                    with one.named():
                        made += one.numbered_through(one.transport.declare(own))
        except BenchError:
            self.delete(made)
            raise
        return tuple(made)

    def open_producers(self, lanes: Sequence[Lane], now_ns: NowNs) -> Producers:
        def opened(one: EndTransport, own: list[Lane]) -> Producers:
            return one.transport.open_producers(own, now_ns)

        parts = _opened(self._ingress, lanes, opened)
        return parts[0].opened if len(parts) == 1 else SeveralProducers(parts)

    def open_consumers(
        self, lanes: Sequence[Lane], now_ns: NowNs, want: frozenset[MessagePart] = HEAD_ONLY
    ) -> Consumers:
        def opened(one: EndTransport, own: list[Lane]) -> Consumers:
            return one.transport.open_consumers(own, now_ns, want)

        parts = _opened(self._egress, lanes, opened)
        return parts[0].opened if len(parts) == 1 else SeveralConsumers(parts)

    def left_in(self, subscriptions: Sequence[Subscription]) -> tuple[int | None, ...]:
        """There is one subscription, to everything: what is left at all ends.

        An ingress of Kafka cannot tell: what is left there is what the system has not read, and
        nobody here knows by what group it reads. For whoever waits at the other end a message that
        the system has not taken is as lost as one that it has dropped.
        """
        return tuple(self._left_in(one.destinations) for one in subscriptions)

    def _left_in(self, destinations: Sequence[Destination]) -> int | None:
        left = 0
        for one in self._ends:
            own = one.destinations(destinations)
            if not own or (one.end.role == "ingress" and one.end.broker.kind == "kafka"):
                continue
            with one.named():
                depths = one.transport.depths(own)
            if one.end.role == "egress" and None in depths:
                return None
            left += sum(depth or 0 for depth in depths)
        return left

    def delete(self, destinations: Sequence[Destination]) -> None:
        with ExitStack() as stack:
            for one in self._ends:
                own = one.destinations(destinations)
                if own:
                    stack.callback(one.transport.delete, own)

    def close(self) -> None:
        with ExitStack() as stack:
            for one in self._ends:
                stack.callback(one.transport.close)


def _opened(
    ends: Sequence[EndTransport],
    lanes: Sequence[Lane],
    open_lanes: Callable[[EndTransport, list[Lane]], Opened],
) -> list[Part[Opened]]:
    """The lanes of each end that has some in this agent; all are closed again if one fails."""
    parts: list[Part[Opened]] = []
    first = 0
    with ExitStack() as stack:
        for one in ends:
            own = one.lanes(lanes)
            if not own:
                continue
            with one.named():
                opened = open_lanes(one, own)
            stack.callback(opened.close)
            parts.append(Part(opened, first, len(own), one.end.address))
            first += len(own)
        stack.pop_all()
    return parts
