"""Lanes of several transports as if they were one's: producers at all ingresses of a run, or
consumers at all its egresses.

Each part has a range of lanes, in order. What comes out of a part is numbered through; what goes in
is dealt out and numbered as the part knows it. The loop waits for one descriptor, an epoll of all.
"""

from __future__ import annotations

import select
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from bench_spark.errors import RunError
from bench_spark.transports.base import (
    Answering,
    Batch,
    Consumers,
    Holdable,
    Outcomes,
    OverClients,
    Parting,
    Producers,
    Received,
    Signal,
    Skippable,
    joined,
    joined_outcomes,
)

Opened = TypeVar("Opened", Producers, Consumers)

_OF_LISTS = ("bodies", "keys", "headers")
"""Columns of what was received that `joined` leaves out, because a slow consumer needs none."""
KEPT_WAIT_SECONDS = 0.005


@dataclass
class Part(Generic[Opened]):
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
    def __init__(self, parts: Sequence[Part[Opened]]) -> None:
        self._parts: list[Part[Opened]] = list(parts)
        self._epoll = select.epoll()
        for descriptor in {part.opened.descriptor for part in parts}:
            self._epoll.register(descriptor, select.EPOLLIN)

    @property
    def descriptor(self) -> int:
        return self._epoll.fileno()

    @property
    def clients(self) -> int:
        return sum(
            part.opened.clients if isinstance(part.opened, OverClients) else part.lanes
            for part in self._parts
        )

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


def _named(reason: str, part: Part[Opened]) -> str:
    return reason if not reason or part.address in reason else f"{part.address}: {reason}"


class SeveralProducers(_Several[Producers]):
    """A batch is accepted from its front, so the parts must stop at the same message.

    The part that refused last is asked first, and the others get only what comes before the message
    that it refuses. Where yet another refuses an earlier one, what lies between is kept here and
    sent first thing: those messages count as accepted, and their wait as latency.
    """

    def __init__(self, parts: Sequence[Part[Producers]]) -> None:
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
            elif isinstance(part.opened, Skippable):
                full.update(lane + part.first for lane in part.opened.full_among(own))
        return full

    @property
    def has_closed_in_order(self) -> bool:
        has_all = not self._kept
        return has_all and all(
            part.opened.has_closed_in_order
            for part in self._parts
            if isinstance(part.opened, Parting)
        )

    @property
    def answers_by_status(self) -> Mapping[str, int]:
        counted: Counter[str] = Counter()
        for part in self._parts:
            if isinstance(part.opened, Answering):
                counted.update(part.opened.answers_by_status)
        return counted


class SeveralConsumers(_Several[Consumers]):
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
            if not isinstance(part.opened, Holdable):
                raise RunError(f"consumer: consumers at {part.address} cannot be slowed down")
            part.opened.hold(part.own(lanes))
