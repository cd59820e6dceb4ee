"""Brokers in the parts they play for an agent: opened, several of them as one transport, the open
lanes, and which subscriptions they serve."""

from __future__ import annotations

import select
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from bench_spark.config.ends import End, Ends, scenario_at
from bench_spark.config.models import Scenario
from bench_spark.config.topologies import EndSizes, ThroughSystem
from bench_spark.core.clock import NowNs
from bench_spark.errors import BenchError, error_of_kind
from bench_spark.plan import Assignment, Member
from bench_spark.process import make_room_for
from bench_spark.transports.base import (
    Capabilities,
    Consumers,
    Destination,
    Lane,
    OpeningPace,
    Producers,
    Signal,
    Subscription,
    Transport,
    TransportContext,
    alone,
)
from bench_spark.transports.batches import (
    ENVELOPE_ONLY,
    Batch,
    Outcomes,
    Part,
    Received,
    joined,
    joined_outcomes,
)
from bench_spark.transports.registry import kind_of, make_transport

Opened = TypeVar("Opened", Producers, Consumers)

_OF_LISTS = ("bodies", "keys", "headers")
"""Columns of what was received that `joined` leaves out, because a slow consumer needs none."""
KEPT_WAIT_SECONDS = 0.005


@dataclass
class EndLanes(Generic[Opened]):
    """The lanes of one end: `lanes` many from `first` on."""

    opened: Opened
    first: int
    lanes: int
    address: str
    """Host and port, for messages to people."""

    @property
    def end(self) -> int:
        return self.first + self.lanes

    def holds(self, lane: npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_]:
        found: npt.NDArray[np.bool_] = (lane >= self.first) & (lane < self.end)
        return found

    def own(self, lanes: Iterable[int]) -> list[int]:
        """Those of these lanes that are of this part, by its own numbers."""
        return [lane - self.first for lane in lanes if self.first <= lane < self.end]


class _Several(Generic[Opened]):
    def __init__(self, parts: Sequence[EndLanes[Opened]]) -> None:
        self._parts: list[EndLanes[Opened]] = list(parts)
        self._epoll = select.epoll()
        for descriptor in {part.opened.descriptor for part in parts}:
            self._epoll.register(descriptor, select.EPOLLIN)

    @property
    def descriptor(self) -> int:
        return self._epoll.fileno()

    def connections(self, lanes: int) -> int:
        return sum(part.opened.connections(part.lanes) for part in self._parts)

    def signals(self) -> list[Signal]:
        return [
            replace(signal, lane=signal.lane + part.first, reason=_named(signal.reason, part))
            for part in self._parts
            for signal in part.opened.signals()
        ]

    def close(self) -> None:
        """All of them, whatever becomes of one; the last error is raised."""
        with ExitStack() as stack:
            stack.callback(self._epoll.close)
            for part in self._parts:
                stack.callback(part.opened.close)


def _named(reason: str, part: EndLanes[Opened]) -> str:
    return reason if not reason or part.address in reason else f"{part.address}: {reason}"


class SeveralProducers(_Several[Producers], Producers):
    """A batch is accepted from its front, so the parts must stop at the same message.

    The part that refused last is asked first, and the others get only what comes before the message
    that it refuses. Where yet another refuses an earlier one, what lies between is kept here and
    sent first thing: those messages count as accepted, and their wait as latency.
    """

    def __init__(self, parts: Sequence[EndLanes[Producers]]) -> None:
        super().__init__(parts)
        self._order = list(range(len(parts)))
        self._kept: dict[int, Batch] = {}
        """By part: accepted, and still to be handed over."""

    def send(self, batch: Batch) -> int:
        self._send_kept()
        accepted = len(batch)
        places = [np.flatnonzero(part.holds(batch.lane)) for part in self._parts]
        for number in self._kept:
            accepted = min([accepted, *places[number][:1].tolist()])
        handed_over: dict[int, int] = {}
        for number in tuple(self._order):
            own = places[number][places[number] < accepted]
            handed_over[number] = sent = self._hand_over(number, batch, own)
            if sent < len(own):
                accepted = int(own[sent])
                self._order.remove(number)
                self._order.insert(0, number)
        # Whoever was asked early may have taken what comes after the message refused at last.
        furthest = max(
            (int(places[n][sent - 1]) + 1 for n, sent in handed_over.items() if sent), default=0
        )
        if furthest <= accepted:
            return accepted
        for number, sent in handed_over.items():
            left = places[number][sent:]
            left = left[left < furthest]
            if len(left):
                self._kept[number] = self._own_batch(number, batch, left)
        return furthest

    def _hand_over(self, number: int, batch: Batch, places: npt.NDArray[np.intp]) -> int:
        if not len(places):
            return 0
        sent: int = self._parts[number].opened.send(self._own_batch(number, batch, places))
        return sent

    def _own_batch(self, number: int, batch: Batch, places: npt.NDArray[np.intp]) -> Batch:
        own = batch.at(places)
        own.lane -= np.uint32(self._parts[number].first)
        return own

    def _send_kept(self) -> None:
        for number, batch in tuple(self._kept.items()):
            sent = self._parts[number].opened.send(batch)
            if sent < len(batch):
                self._kept[number] = batch.starting_at(sent)
            else:
                del self._kept[number]

    def commit(self) -> None:
        self._send_kept()
        for part in self._parts:
            part.opened.commit()

    def outcomes(self) -> Outcomes:
        self._send_kept()
        found = []
        for part in self._parts:
            outcomes = part.opened.outcomes()
            if len(outcomes):
                outcomes.rows["lane"] += np.uint32(part.first)
                found.append(outcomes)
        return joined_outcomes(found)

    def in_flight(self) -> int:
        kept = sum(map(len, self._kept.values()))
        unsettled = [part.opened.in_flight() for part in self._parts]
        return kept + sum(unsettled)

    def flush(self, timeout_seconds: float) -> None:
        deadline = time.monotonic() + timeout_seconds
        self._send_kept()
        while self._kept and time.monotonic() < deadline:
            self._epoll.poll(KEPT_WAIT_SECONDS)
            self._send_kept()
        for part in self._parts:
            part.opened.flush(max(0.0, deadline - time.monotonic()))

    def full_among(self, lanes: Iterable[int]) -> set[int]:
        asked = list(lanes)
        full: set[int] = set()
        for number, part in enumerate(self._parts):
            own = part.own(asked)
            if number in self._kept:
                full.update(lane + part.first for lane in own)
            else:
                full.update(lane + part.first for lane in part.opened.full_among(own))
        return full

    def close(self) -> None:
        try:
            super().close()
        finally:
            closed = [part.opened.has_closed_in_order for part in self._parts]
            self.has_closed_in_order = not self._kept and all(closed)

    @property
    def answers_by_status(self) -> Mapping[str, int]:
        counted: Counter[str] = Counter()
        for part in self._parts:
            counted.update(part.opened.answers_by_status)
        return counted


class SeveralConsumers(_Several[Consumers], Consumers):
    def attach(self) -> None:
        for part in self._parts:
            part.opened.attach()

    def detach(self) -> bool:
        # Every one of them, also after one that could not await its messages.
        have_arrived = [part.opened.detach() for part in self._parts]
        return all(have_arrived)

    def receive(self, timeout_seconds: float) -> Received:
        if timeout_seconds > 0:
            self._epoll.poll(timeout_seconds)
        found = []
        for part in self._parts:
            received = part.opened.receive(0.0)
            if len(received):
                received.rows["lane"] += np.uint32(part.first)
                found.append(received)
        whole = joined(found)
        for column in _OF_LISTS:
            columns = [getattr(received, column) for received in found]
            if len(found) > 1 and columns[0] is not None:
                setattr(whole, column, [each for one in columns for each in one])
        return whole

    def acknowledge(self, received: Received) -> int:
        """Every part is called, also with nothing: some has been left over from the last time."""
        acknowledged = 0
        for part in self._parts:
            own = received.at(np.flatnonzero(part.holds(received.lane)))
            own.rows["lane"] -= np.uint32(part.first)
            acknowledged += part.opened.acknowledge(own)
        return acknowledged

    def hold(self, lanes: Collection[int]) -> None:
        for part in self._parts:
            part.opened.hold(part.own(lanes))


class NoProducers(Producers):
    """A role without members in this agent: there is nothing to wait for."""

    descriptor = -1

    def send(self, batch: Batch) -> int:
        return 0

    def commit(self) -> None: ...

    def outcomes(self) -> Outcomes:
        return joined_outcomes(())

    def in_flight(self) -> int:
        return 0

    def flush(self, timeout_seconds: float) -> None: ...

    def signals(self) -> list[Signal]:
        return []

    def close(self) -> None: ...


class NoConsumers(Consumers):
    descriptor = -1

    def attach(self) -> None: ...

    def detach(self) -> bool:
        return True

    def receive(self, timeout_seconds: float) -> Received:
        return joined(())

    def acknowledge(self, received: Received) -> int:
        return 0

    def hold(self, lanes: Collection[int]) -> None: ...

    def signals(self) -> list[Signal]:
        return []

    def close(self) -> None: ...


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

    @property
    def capabilities(self) -> Capabilities:
        return self.transport.capabilities

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


def make_room_for_lanes(ends: Sequence[EndTransport], assignment: Assignment) -> None:
    """Refuses more connections than this process may have, before the first is opened."""
    connections, files = 0, 1
    for one in ends:
        producers = one.members(assignment.producers) if one.end.role != "egress" else 0
        consumers = one.members(assignment.consumers) if one.end.role != "ingress" else 0
        kind = kind_of(one.end.broker)
        connections += kind.connections(one.scenario, producers, consumers)
        files = max(files, kind.files_per_connection)
    if connections:
        make_room_for(connections, files)


class EndsTransport:
    """What an agent needs of a transport while it carries its load, from all ends together; see
    `bench_spark.transports.base.Transport`."""

    def __init__(self, ends: Sequence[EndTransport]) -> None:
        self._ends = list(ends)
        self._ingress = [one for one in ends if one.end.role == "ingress"]
        self._egress = [one for one in ends if one.end.role == "egress"]

    @property
    def capabilities(self) -> Capabilities:
        confirms = all(one.capabilities.confirms for one in self._ingress)
        return Capabilities(confirms=confirms, topologies=True)

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
        self, lanes: Sequence[Lane], now_ns: NowNs, want: frozenset[Part] = ENVELOPE_ONLY
    ) -> Consumers:
        def opened(one: EndTransport, own: list[Lane]) -> Consumers:
            return one.transport.open_consumers(own, now_ns, want)

        parts = _opened(self._egress, lanes, opened)
        return parts[0].opened if len(parts) == 1 else SeveralConsumers(parts)

    def backlog(self, subscriptions: Sequence[Subscription]) -> tuple[int | None, ...]:
        """There is one subscription, to everything: what is left at all ends.

        An ingress that counts by reader cannot tell: what is left there is what the system has not
        read, and nobody here knows by what group it reads. For whoever waits at the other end a
        message that the system has not taken is as lost as one that it has dropped.
        """
        return tuple(self._left_in(one.destinations) for one in subscriptions)

    def _left_in(self, destinations: Sequence[Destination]) -> int | None:
        left = 0
        for one in self._ends:
            own = one.destinations(destinations)
            is_unknown = one.end.role == "ingress" and one.capabilities.counts_by_reader
            if not own or is_unknown:
                continue
            with one.named():
                depths = one.transport.backlog(alone(own))
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
) -> list[EndLanes[Opened]]:
    """The lanes of each end that has some in this agent; all are closed again if one fails."""
    parts: list[EndLanes[Opened]] = []
    first = 0
    with ExitStack() as stack:
        for one in ends:
            own = one.lanes(lanes)
            if not own:
                continue
            with one.named():
                opened = open_lanes(one, own)
            stack.callback(opened.close)
            parts.append(EndLanes(opened, first, len(own), one.end.address))
            first += len(own)
        stack.pop_all()
    return parts
