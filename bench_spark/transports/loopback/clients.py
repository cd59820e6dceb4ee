"""Producers that put messages into queues, and consumers that take them out, in turn."""

from __future__ import annotations

import select
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from bench_spark.core.clock import NowNs
from bench_spark.transports.base import Consumers, Lane, Producers, Signal
from bench_spark.transports.batches import (
    I64,
    RECEIVED_DTYPE,
    Batch,
    OutcomeKind,
    Outcomes,
    Part,
    Received,
    joined_outcomes,
    nothing_received,
)
from bench_spark.transports.loopback.memory import (
    Chunk,
    MemoryBroker,
    Queue,
    ReadyEvent,
    chunk_of,
    deliver,
)


class LoopbackProducers(Producers):
    def __init__(
        self, broker: MemoryBroker, lanes: Sequence[Lane], now_ns: NowNs, confirms: bool
    ) -> None:
        self._now_ns = now_ns
        self._confirms = confirms
        self._wakeup = ReadyEvent()
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
        return self._wakeup.descriptor

    def send(self, batch: Batch) -> int:
        self._wakeup.set(bool(self._settled))
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
            keeps_payloads = any(queue.keeps_bodies for queue in outlet)
            chunk = chunk_of(batch, slice(accepted), keeps_payloads)
            for queue in outlet:
                queue.put(chunk)
        return accepted

    def _room_for(self, wanted: int, outlet: list[Queue]) -> int:
        """How many messages every queue of a destination has room for."""
        for queue in outlet:
            if queue.room < wanted:
                queue.ask_for_room(self._wakeup)
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
                outlet = self._outlets[target]
                chunk = chunk_of(batch, places, any(queue.keeps_bodies for queue in outlet))
                for queue in outlet:
                    queue.put(chunk)
        return accepted

    def _confirm(self, batch: Batch, accepted: int) -> None:
        self._settled.append(
            Outcomes.of_columns(
                at_ns=np.full(accepted, self._now_ns(), np.int64),
                lane=batch.lane[:accepted].copy(),
                kind=np.full(accepted, OutcomeKind.CONFIRMED, np.uint8),
                envelope=batch.envelope[:accepted].copy(),
            )
        )
        self._wakeup.set(True)

    def commit(self) -> None:
        """Every send is final: there is no transaction to end."""

    def outcomes(self) -> Outcomes:
        self._wakeup.set(False)
        settled, self._settled = self._settled, []
        return joined_outcomes(settled)

    def in_flight(self) -> int:
        return sum(len(one) for one in self._settled)

    def flush(self, timeout_seconds: float) -> None:
        """Nothing is ever buffered."""

    def signals(self) -> list[Signal]:
        return []

    def close(self) -> None:
        self._wakeup.close()


FIRST_ROWS = 4096
"""Of the buffer for received messages, which grows as it must."""


@dataclass
class _Inlet:
    """A queue, and the lanes of one `LoopbackConsumers` among which its messages go in turn."""

    queue: Queue
    lanes: list[int] = field(default_factory=list)
    routes: list[int] = field(default_factory=list)
    turn: int = 0
    """Messages so far: the next goes to that lane, modulo their number."""
    _turns: tuple[frozenset[int], I64] | None = None
    """Of the lanes that are not held back, with those that are."""

    def turns(self, held: frozenset[int]) -> I64:
        """Lane and route of each that takes its turn."""
        if self._turns is None or self._turns[0] != held:
            both = zip(self.lanes, self.routes, strict=True)
            free = [(lane, route) for lane, route in both if lane not in held]
            self._turns = (held, np.array(free, np.int64).reshape(-1, 2))
        return self._turns[1]


class LoopbackConsumers(Consumers):
    def __init__(
        self,
        broker: MemoryBroker,
        lanes: Sequence[Lane],
        now_ns: NowNs,
        want: frozenset[Part],
    ) -> None:
        self._now_ns = now_ns
        self._want = want
        self._wakeup = ReadyEvent()
        self._is_attached = False
        self._held: frozenset[int] = frozenset()
        self._rows = np.zeros(FIRST_ROWS, RECEIVED_DTYPE)
        inlets: dict[str, _Inlet] = {}
        for place, lane in enumerate(lanes):
            for route, queue in enumerate(broker.read_by(lane)):
                inlet = inlets.setdefault(queue.name, _Inlet(queue))
                queue.wants_bodies.append(Part.BODY in want)
                inlet.lanes.append(place)
                inlet.routes.append(route)
        self._inlets = list(inlets.values())

    @property
    def descriptor(self) -> int:
        return self._wakeup.descriptor

    def attach(self) -> None:
        self._is_attached = True
        for inlet in self._inlets:
            inlet.queue.readers.append(self._wakeup)
        self._wakeup.set(any(inlet.queue.depth for inlet in self._inlets))

    def detach(self) -> bool:
        """Nothing is ever on its way: what was not taken is still in the queue."""
        return True

    def hold(self, lanes: Collection[int]) -> None:
        self._held = frozenset(lanes)
        self._wakeup.set(any(map(self._has_something, self._inlets)))

    def _has_something(self, inlet: _Inlet) -> bool:
        return inlet.queue.depth > 0 and not self._held.issuperset(inlet.lanes)

    def receive(self, timeout_seconds: float) -> Received:
        if not self._is_attached:
            return nothing_received()
        if timeout_seconds > 0:
            select.select([self._wakeup.descriptor], [], [], timeout_seconds)
        received_ns = self._now_ns()
        self._wakeup.set(False)
        inlets = filter(self._has_something, self._inlets)
        count, taken = 0, []
        for inlet in inlets:
            chunks = inlet.queue.take_all()
            count = self._deliver(inlet, chunks, count, received_ns)
            taken += chunks
        received = Received(self._rows[:count])
        if self._want:
            received.bodies = self._wanted(Part.BODY, (one.bodies() for one in taken))
            received.keys = self._wanted(Part.KEY, (one.keys or [None] * len(one) for one in taken))
            received.headers = self._wanted(
                Part.HEADERS, (one.headers or [{}] * len(one) for one in taken)
            )
        return received

    def _wanted(self, part: Part, columns: Iterable[Sequence[Any]]) -> list[Any] | None:
        """One behind the other; None where nobody wants them."""
        return list(chain.from_iterable(columns)) if part in self._want else None

    def _deliver(self, inlet: _Inlet, chunks: list[Chunk], count: int, received_ns: int) -> int:
        """Write messages into rows from `count` on, in turn to the lanes that are not held back;
        how many rows there are now."""
        turns = inlet.turns(self._held)
        for chunk in chunks:
            end = count + len(chunk)
            if end > len(self._rows):
                grown = np.zeros(2 * end, RECEIVED_DTYPE)
                grown[:count] = self._rows[:count]
                self._rows = grown
            deliver(
                chunk.envelope, chunk.size, self._rows[count:end], turns, inlet.turn, received_ns
            )
            inlet.turn += len(chunk)
            count = end
        return count

    def acknowledge(self, received: Received) -> int:
        """Taken is gone: there is nothing to acknowledge."""
        return 0

    def signals(self) -> list[Signal]:
        return []

    def close(self) -> None:
        for inlet in self._inlets:
            if self._wakeup in inlet.queue.readers:
                inlet.queue.readers.remove(self._wakeup)
        self._is_attached = False
        self._wakeup.close()
