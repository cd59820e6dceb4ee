"""The "broker": bounded queues in this process's memory, and bells for those who wait for them."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench_spark.config.topologies import Wiring
from bench_spark.errors import BrokerRefused
from bench_spark.transports.base import Destination, Lane
from bench_spark.transports.loopback.chunks import Chunk


class Bell:
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
class Queue:
    name: str
    capacity: int
    is_sink: bool = False
    chunks: deque[Chunk] = field(default_factory=deque)
    depth: int = 0
    readers: list[Bell] = field(default_factory=list)
    refused: list[Bell] = field(default_factory=list)
    """Of producers that wait for room."""
    wants_bodies: list[bool] = field(default_factory=list)
    """Of the lanes that read from it."""

    @property
    def keeps_bodies(self) -> bool:
        """Whether anybody may look at them: unknown before there are consumers."""
        return not self.wants_bodies or any(self.wants_bodies)

    @property
    def room(self) -> int:
        return self.capacity - self.depth

    def ask_for_room(self, bell: Bell) -> None:
        if bell not in self.refused:
            self.refused.append(bell)

    def put(self, chunk: Chunk) -> None:
        if self.is_sink:
            return
        self.chunks.append(chunk)
        self.depth += len(chunk)
        for bell in self.readers:
            bell.set(True)

    def take_all(self) -> list[Chunk]:
        taken = list(self.chunks)
        self.chunks.clear()
        self.depth = 0
        for bell in self.refused:
            bell.set(True)
        self.refused.clear()
        return taken


class MemoryBroker:
    def __init__(self, wiring: Wiring) -> None:
        self._wiring = wiring
        self.queues: dict[str, Queue] = {}
        self.users = 0

    def find(self, destination: Destination) -> Queue:
        queue = self.queues.get(destination.name or "")
        if queue is None:
            raise BrokerRefused(f"loopback: no destination {destination.name!r} in this process")
        return queue

    def behind(self, destination: Destination) -> list[Queue]:
        """The queues that get what is published to a destination."""
        if self._wiring.is_plain:
            return [self.find(destination)]
        group = self._wiring.group_of_destination(destination.index)
        return [
            self.find(self.subscribed(index))
            for index in self._wiring.subscriptions_of_group(group)
        ]

    def read_by(self, lane: Lane) -> list[Queue]:
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
