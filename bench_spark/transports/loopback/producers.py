"""Lanes that put messages into queues."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bench_spark.core.clock import NowNs
from bench_spark.transports.base import Lane, Producers, Signal
from bench_spark.transports.batches import Batch, OutcomeKind, Outcomes, joined_outcomes
from bench_spark.transports.loopback.memory import MemoryBroker, Queue, Wakeup, chunk_of


class LoopbackProducers(Producers):
    def __init__(
        self, broker: MemoryBroker, lanes: Sequence[Lane], now_ns: NowNs, confirms: bool
    ) -> None:
        self._now_ns = now_ns
        self._confirms = confirms
        self._wakeup = Wakeup()
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
            keeps_tails = any(queue.keeps_bodies for queue in outlet)
            chunk = chunk_of(batch, slice(accepted), keeps_tails)
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
                head=batch.head[:accepted].copy(),
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
