"""Lanes that take messages out of queues, in turn."""

from __future__ import annotations

import select
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from bench_spark.core.clock import NowNs
from bench_spark.transports.base import Lane, Part, Received, Signal, joined, nothing_received
from bench_spark.transports.loopback.chunks import joined_columns
from bench_spark.transports.loopback.memory import Bell, MemoryBroker, Queue


@dataclass
class _Inlet:
    """A queue, and the lanes of one `LoopbackConsumers` among which its messages are dealt."""

    queue: Queue
    lanes: list[int] = field(default_factory=list)
    routes: list[int] = field(default_factory=list)
    dealt: int = 0


class LoopbackConsumers:
    def __init__(
        self,
        broker: MemoryBroker,
        lanes: Sequence[Lane],
        now_ns: NowNs,
        want: frozenset[Part],
    ) -> None:
        self._now_ns = now_ns
        self._want = want
        self._bell = Bell()
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
        received = joined(parts)
        if len(parts) > 1:
            received.bodies = self._wanted(Part.BODY, [part.bodies or () for part in parts])
            received.keys = self._wanted(Part.KEY, [part.keys or () for part in parts])
            received.headers = self._wanted(Part.HEADERS, [part.headers or () for part in parts])
        return received

    def _wanted(self, part: Part, columns: Iterable[Sequence[Any]]) -> list[Any] | None:
        """One behind the other; None where nobody wants them."""
        return list(chain.from_iterable(columns)) if part in self._want else None

    def _deal(self, inlet: _Inlet, received_ns: int) -> Received:
        chunks = inlet.queue.take_all()
        count = sum(len(chunk) for chunk in chunks)
        free = [place for place, lane in enumerate(inlet.lanes) if lane not in self._held]
        turns = np.array(free)[(inlet.dealt + np.arange(count)) % len(free)]
        inlet.dealt += count
        return Received.of_columns(
            received_ns=np.full(count, received_ns, np.int64),
            lane=np.array(inlet.lanes, np.uint32)[turns],
            route=np.array(inlet.routes, np.uint16)[turns],
            head=joined_columns([chunk.head for chunk in chunks]),
            size=joined_columns([chunk.size for chunk in chunks]),
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
