"""A transport without a broker: what this process sends, it receives.

It serves tests, and it measures the ceiling of the harness itself: no socket, no copy of a body, no
Python per message. Each process has its own loopback "broker" per run, so a destination must have
both its ends in one agent (`placement: paired`).

A subscription is a bounded queue of chunks; a full one refuses, which is back-pressure. Its
messages are dealt in turn to the lanes that serve it. A destination leads to the queues of all
subscriptions of its group: without a topology that is one, and has its name. In a run without
consumers it is a sink, which takes everything and keeps nothing.
"""

from __future__ import annotations

import os
import select
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

import bench_spark
from bench_spark.errors import BrokerRefused, ConfigurationError
from bench_spark.measure.clock import NowNs
from bench_spark.measure.envelope import (
    ENVELOPE_BYTES,
    Envelopes,
    envelope_bytes,
    leading_envelopes,
)
from bench_spark.scenario.models import Scenario
from bench_spark.scenario.topologies import Wiring
from bench_spark.transports.base import (
    HEAD_ONLY,
    U32,
    Batch,
    BrokerFacts,
    Destination,
    Headers,
    Lane,
    OutcomeKind,
    Outcomes,
    Part,
    Received,
    Signal,
    Subscription,
    TransportContext,
    no_outcomes,
    nothing_received,
)

DEFAULT_CAPACITY_MESSAGES = 65536
"""Per destination."""


def refuse_impossible(scenario: Scenario) -> None:
    if scenario.only_consumes:
        raise ConfigurationError(
            "producers: 0 does not go with kind loopback: nothing is there before a run"
        )
    if scenario.placement == "split":
        raise ConfigurationError("placement: kind loopback works inside one process; use paired")


class _Bell:
    """A descriptor that is readable while somebody has something to fetch."""

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._is_ringing = False
        self._is_closed = False

    def set(self, is_ringing: bool) -> None:
        if is_ringing == self._is_ringing or self._is_closed:
            return
        self._is_ringing = is_ringing
        if is_ringing:
            os.eventfd_write(self.descriptor, 1)
        else:
            os.eventfd_read(self.descriptor)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            os.close(self.descriptor)


@dataclass
class _Chunk:
    """Messages of one batch that went to one queue; all but heads are shared with the sender."""

    head: Envelopes
    size: U32
    tail: bytes | Sequence[bytes]
    keys: Sequence[bytes] | None = None
    headers: Sequence[Headers] | None = None

    def __len__(self) -> int:
        return len(self.head)

    def bodies(self) -> list[bytes]:
        tails = [self.tail] * len(self) if isinstance(self.tail, bytes) else self.tail
        return [
            row.tobytes()[: size - len(tail)] + tail if size > len(tail) else tail
            for row, size, tail in zip(
                envelope_bytes(self.head), self.size.tolist(), tails, strict=True
            )
        ]


@dataclass
class _Queue:
    name: str
    capacity: int
    is_sink: bool = False
    chunks: deque[_Chunk] = field(default_factory=deque)
    depth: int = 0
    readers: list[_Bell] = field(default_factory=list)
    refused: list[_Bell] = field(default_factory=list)
    """Of producers that wait for room."""

    @property
    def room(self) -> int:
        return self.capacity - self.depth

    def ask_for_room(self, bell: _Bell) -> None:
        if bell not in self.refused:
            self.refused.append(bell)

    def put(self, chunk: _Chunk) -> None:
        if self.is_sink:
            return
        self.chunks.append(chunk)
        self.depth += len(chunk)
        for bell in self.readers:
            bell.set(True)

    def take_all(self) -> list[_Chunk]:
        taken = list(self.chunks)
        self.chunks.clear()
        self.depth = 0
        for bell in self.refused:
            bell.set(True)
        self.refused.clear()
        return taken


class _MemoryBroker:
    def __init__(self, wiring: Wiring) -> None:
        self._wiring = wiring
        self.queues: dict[str, _Queue] = {}
        self.users = 0

    def find(self, destination: Destination) -> _Queue:
        queue = self.queues.get(destination.name or "")
        if queue is None:
            raise BrokerRefused(f"loopback: no destination {destination.name!r} in this process")
        return queue

    def behind(self, destination: Destination) -> list[_Queue]:
        """The queues that get what is published to a destination."""
        if self._wiring.is_plain:
            return [self.find(destination)]
        group = self._wiring.group_of_destination(destination.index)
        return [
            self.find(self.subscribed(index))
            for index in self._wiring.subscriptions_of_group(group)
        ]

    def read_by(self, lane: Lane) -> list[_Queue]:
        """The queue of each of a consumer's routes."""
        if self._wiring.is_plain:
            return [self.find(destination) for destination in lane.destinations]
        return [self.find(self.subscribed(index)) for index in lane.subscriptions]

    @staticmethod
    def subscribed(index: int) -> Destination:
        """The queue of a subscription, as if it were a destination."""
        return Destination(index, f"loopback-subscription-{index}", declared=True)

    def subscribed_to(self, destinations: Sequence[Destination]) -> list[Destination]:
        """The queues of all subscriptions to these."""
        groups = sorted({self._wiring.group_of_destination(one.index) for one in destinations})
        return [
            self.subscribed(index)
            for group in groups
            for index in self._wiring.subscriptions_of_group(group)
        ]


_BROKERS: dict[str, _MemoryBroker] = {}
"""By run id: transports of one run in one process meet here."""


class LoopbackTransport:
    def __init__(
        self,
        context: TransportContext,
        *,
        capacity_messages: int = DEFAULT_CAPACITY_MESSAGES,
        confirms: bool = False,
    ) -> None:
        self._run_id = context.run_id
        self._capacity_messages = capacity_messages
        self._has_consumers = context.scenario.consumers > 0
        self._confirms = confirms
        self._wiring = context.scenario.wiring
        self._broker = _BROKERS.setdefault(context.run_id, _MemoryBroker(self._wiring))
        self._broker.users += 1
        self._is_closed = False

    @property
    def confirms(self) -> bool:
        return self._confirms

    def probe(self) -> BrokerFacts:
        return BrokerFacts(
            product="loopback",
            version=bench_spark.__version__,
            capabilities=frozenset({"confirms"}),
        )

    def declare(self, destinations: Sequence[Destination]) -> tuple[Destination, ...]:
        if self._wiring.is_plain:
            return tuple(self._declare(destination) for destination in destinations)
        for queue in self._broker.subscribed_to(destinations):
            self._declare(queue)
        return tuple(
            replace(one, name=f"loopback-{one.index}", declared=True) for one in destinations
        )

    def _declare(self, destination: Destination) -> Destination:
        name = destination.name or f"loopback-{destination.index}"
        existed = name in self._broker.queues
        queue = _Queue(name, self._capacity_messages, is_sink=not self._has_consumers)
        self._broker.queues.setdefault(name, queue)
        return replace(destination, name=name, declared=not existed)

    def find(self, destinations: Sequence[Destination]) -> tuple[Destination, ...]:
        named = (replace(one, name=one.name or f"loopback-{one.index}") for one in destinations)
        return tuple(replace(one, name=self._broker.find(one).name) for one in named)

    def open_producers(self, lanes: Sequence[Lane], now_ns: NowNs) -> LoopbackProducers:
        return LoopbackProducers(self._broker, lanes, now_ns, self._confirms)

    def open_consumers(
        self, lanes: Sequence[Lane], now_ns: NowNs, want: frozenset[Part] = HEAD_ONLY
    ) -> LoopbackConsumers:
        return LoopbackConsumers(self._broker, lanes, now_ns, want)

    def depths(self, destinations: Sequence[Destination]) -> tuple[int | None, ...]:
        queues = (self._broker.queues.get(one.name or "") for one in destinations)
        return tuple(None if queue is None else queue.depth for queue in queues)

    def left_in(self, subscriptions: Sequence[Subscription]) -> tuple[int | None, ...]:
        return self.depths([self._broker.subscribed(one.index) for one in subscriptions])

    def delete(self, destinations: Sequence[Destination]) -> None:
        made = destinations
        if not self._wiring.is_plain:
            made = self._broker.subscribed_to([one for one in destinations if one.declared])
        for destination in made:
            if destination.declared:
                self._broker.queues.pop(destination.name or "", None)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._broker.users -= 1
            if not self._broker.users:
                _BROKERS.pop(self._run_id, None)


class LoopbackProducers:
    def __init__(
        self, broker: _MemoryBroker, lanes: Sequence[Lane], now_ns: NowNs, confirms: bool
    ) -> None:
        self._now_ns = now_ns
        self._confirms = confirms
        self._bell = _Bell()
        self._settled: list[Outcomes] = []
        used = {one.name or "": one for lane in lanes for one in lane.destinations}
        number = {name: place for place, name in enumerate(sorted(used))}
        self._outlets = [broker.behind(used[name]) for name in sorted(used)]
        """Per destination the queues behind it."""
        width = max((len(lane.destinations) for lane in lanes), default=0)
        self._outlet_of = np.zeros((len(lanes), width), np.int64)
        """Which of them a lane's route leads to."""
        for place, lane in enumerate(lanes):
            for route, destination in enumerate(lane.destinations):
                self._outlet_of[place, route] = number[destination.name or ""]

    @property
    def descriptor(self) -> int:
        return self._bell.descriptor

    def send(self, batch: Batch) -> int:
        self._bell.set(bool(self._settled))
        if len(self._outlets) == 1:
            accepted = self._put_in_one(batch)
        else:
            accepted = self._put_in_several(batch)
        if self._confirms and accepted:
            self._confirm(batch, accepted)
        return accepted

    def _put_in_one(self, batch: Batch) -> int:
        [outlet] = self._outlets
        accepted = min(len(batch), self._room_for(len(batch), outlet))
        if accepted:
            chunk = _chunk(batch, slice(accepted))
            for queue in outlet:
                queue.put(chunk)
        return accepted

    def _room_for(self, wanted: int, outlet: list[_Queue]) -> int:
        """How many messages every queue of a destination has room for."""
        for queue in outlet:
            if queue.room < wanted:
                queue.ask_for_room(self._bell)
        return min(queue.room for queue in outlet)

    def _put_in_several(self, batch: Batch) -> int:
        targets = self._outlet_of[batch.lane, batch.route]
        used = np.unique(targets)
        accepted = len(batch)
        for target in used:
            places = np.flatnonzero(targets == target)
            room = self._room_for(len(places), self._outlets[target])
            if room < len(places):
                accepted = min(accepted, int(places[room]))
        for target in used:
            places = np.flatnonzero(targets[:accepted] == target)
            if len(places):
                chunk = _chunk(batch, places)
                for queue in self._outlets[target]:
                    queue.put(chunk)
        return accepted

    def _confirm(self, batch: Batch, accepted: int) -> None:
        self._settled.append(
            Outcomes(
                at_ns=np.full(accepted, self._now_ns(), np.int64),
                lane=batch.lane[:accepted].copy(),
                kind=np.full(accepted, OutcomeKind.CONFIRMED, np.uint8),
                head=batch.head[:accepted].copy(),
            )
        )
        self._bell.set(True)

    def commit(self) -> None:
        """Every send is final: there is no transaction to end."""

    def outcomes(self) -> Outcomes:
        self._bell.set(False)
        settled, self._settled = self._settled, []
        if not settled:
            return no_outcomes()
        return Outcomes(
            at_ns=_joined([one.at_ns for one in settled]),
            lane=_joined([one.lane for one in settled]),
            kind=_joined([one.kind for one in settled]),
            head=_joined([one.head for one in settled]),
        )

    def in_flight(self) -> int:
        return sum(len(one) for one in self._settled)

    def flush(self, timeout_seconds: float) -> None:
        """Nothing is ever buffered."""

    def signals(self) -> list[Signal]:
        return []

    def close(self) -> None:
        self._bell.close()


def _chunk(batch: Batch, places: slice | npt.NDArray[np.int64]) -> _Chunk:
    """A copy of these messages' heads, cut as they would be in a body; tails are not copied."""
    head = np.array(batch.head[places])
    if 0 < batch.head_bytes < ENVELOPE_BYTES:
        envelope_bytes(head)[:, batch.head_bytes :] = 0
    is_plain = isinstance(batch.tail, bytes) and batch.head_bytes > 0
    if is_plain and batch.keys is None and batch.headers is None:
        size = np.full(len(head), batch.head_bytes + len(batch.tail), np.uint32)
        return _Chunk(head, size, batch.tail)
    own = batch.rows(np.arange(len(batch))[places])
    tails = [own.tail] * len(own) if isinstance(own.tail, bytes) else own.tail
    lengths = np.fromiter(map(len, tails), np.uint32, len(tails))
    size = lengths + np.uint32(batch.head_bytes)
    if not batch.head_bytes:
        head = leading_envelopes(tails)
    return _Chunk(head, size, own.tail, own.keys, own.headers)


def _joined(columns: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return columns[0] if len(columns) == 1 else np.concatenate(columns)


@dataclass
class _Inlet:
    """A queue, and the lanes of one `LoopbackConsumers` among which its messages are dealt."""

    queue: _Queue
    lanes: list[int] = field(default_factory=list)
    routes: list[int] = field(default_factory=list)
    dealt: int = 0


class LoopbackConsumers:
    def __init__(
        self,
        broker: _MemoryBroker,
        lanes: Sequence[Lane],
        now_ns: NowNs,
        want: frozenset[Part],
    ) -> None:
        self._now_ns = now_ns
        self._want = want
        self._bell = _Bell()
        self._is_attached = False
        self._held: frozenset[int] = frozenset()
        inlets: dict[str, _Inlet] = {}
        for place, lane in enumerate(lanes):
            for route, queue in enumerate(broker.read_by(lane)):
                inlet = inlets.setdefault(queue.name, _Inlet(queue))
                inlet.lanes.append(place)
                inlet.routes.append(route)
        self._inlets = list(inlets.values())

    @property
    def descriptor(self) -> int:
        return self._bell.descriptor

    def attach(self) -> None:
        self._is_attached = True
        for inlet in self._inlets:
            inlet.queue.readers.append(self._bell)
        self._bell.set(any(inlet.queue.depth for inlet in self._inlets))

    def detach(self) -> bool:
        """Nothing is ever on its way: what was not taken is still in the queue."""
        return True

    def hold(self, lanes: Collection[int]) -> None:
        self._held = frozenset(lanes)
        self._bell.set(any(map(self._has_something, self._inlets)))

    def _has_something(self, inlet: _Inlet) -> bool:
        return inlet.queue.depth > 0 and not self._held.issuperset(inlet.lanes)

    def receive(self, timeout_seconds: float) -> Received:
        if not self._is_attached:
            return nothing_received()
        if timeout_seconds > 0:
            select.select([self._bell.descriptor], [], [], timeout_seconds)
        received_ns = self._now_ns()
        self._bell.set(False)
        inlets = filter(self._has_something, self._inlets)
        parts = [self._deal(inlet, received_ns) for inlet in inlets]
        if not parts:
            return nothing_received()
        if len(parts) == 1:
            return parts[0]
        return Received(
            received_ns=np.concatenate([part.received_ns for part in parts]),
            lane=np.concatenate([part.lane for part in parts]),
            route=np.concatenate([part.route for part in parts]),
            head=np.concatenate([part.head for part in parts]),
            size=np.concatenate([part.size for part in parts]),
            redelivered=np.concatenate([part.redelivered for part in parts]),
            bodies=self._wanted(Part.BODY, [part.bodies or () for part in parts]),
            keys=self._wanted(Part.KEY, [part.keys or () for part in parts]),
            headers=self._wanted(Part.HEADERS, [part.headers or () for part in parts]),
        )

    def _wanted(self, part: Part, columns: Iterable[Sequence[Any]]) -> list[Any] | None:
        """One behind the other; None where nobody wants them."""
        return list(chain.from_iterable(columns)) if part in self._want else None

    def _deal(self, inlet: _Inlet, received_ns: int) -> Received:
        chunks = inlet.queue.take_all()
        count = sum(len(chunk) for chunk in chunks)
        free = [place for place, lane in enumerate(inlet.lanes) if lane not in self._held]
        turns = np.array(free)[(inlet.dealt + np.arange(count)) % len(free)]
        inlet.dealt += count
        return Received(
            received_ns=np.full(count, received_ns, np.int64),
            lane=np.array(inlet.lanes, np.uint32)[turns],
            route=np.array(inlet.routes, np.uint16)[turns],
            head=_joined([chunk.head for chunk in chunks]),
            size=_joined([chunk.size for chunk in chunks]),
            redelivered=np.zeros(count, np.bool_),
            bodies=self._wanted(Part.BODY, (chunk.bodies() for chunk in chunks)),
            keys=self._wanted(Part.KEY, (one.keys or [None] * len(one) for one in chunks)),
            headers=self._wanted(Part.HEADERS, (one.headers or [{}] * len(one) for one in chunks)),
        )

    def acknowledge(self, received: Received) -> int:
        """Taken is gone: there is nothing to acknowledge."""
        return 0

    def signals(self) -> list[Signal]:
        return []

    def close(self) -> None:
        for inlet in self._inlets:
            if self._bell in inlet.queue.readers:
                inlet.queue.readers.remove(self._bell)
        self._is_attached = False
        self._bell.close()
