"""When consumers take what has arrived, if they are slow on purpose. Pure: time is the caller's.

A consumer takes messages one by one, in order: each as soon as it has arrived, is free and the rate
allows. *Received* is when it is taken, wherever it waited until then. It is acknowledged when it
has been processed. Nothing sleeps: messages wait here, and other lanes are not disturbed.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator

import numpy as np

from bench_spark.core.clock import NANOSECONDS
from bench_spark.scenario.load_sections import Consumer
from bench_spark.transports.base import I64, Received, joined

NEVER_NS = 2**62


class Taking:
    def __init__(self, consumer: Consumer, lanes: int) -> None:
        self._processing_ns = consumer.processing_us * 1000
        rate = consumer.rate_per_second
        self.interval_ns = max(self._processing_ns, round(NANOSECONDS / rate) if rate else 0)
        """Between two messages of one consumer, at least."""
        self._free_ns = np.zeros(lanes, np.int64)
        """By lane: when its consumer can take the next message that arrives."""
        self._waiting = _Line(lanes)
        self._in_process = _Line(lanes)

    def arrived(self, received: Received) -> None:
        for lane, part in _by_lane(received):
            taken_ns = self._turns(lane, part.received_ns)
            part.rows["received_ns"] = taken_ns
            self._waiting.add(lane, taken_ns, part)

    def _turns(self, lane: int, arrived_ns: I64) -> I64:
        """When messages that arrived then are taken, each no earlier than one interval after the
        last: t[i] = max(arrived[i], t[i - 1] + interval), without a loop."""
        steps = np.arange(len(arrived_ns), dtype=np.int64) * self.interval_ns
        earliest = arrived_ns - steps
        earliest[0] = max(int(earliest[0]), int(self._free_ns[lane]))
        turns: I64 = np.maximum.accumulate(earliest) + steps
        self._free_ns[lane] = turns[-1] + self.interval_ns
        return turns

    def taken(self, now_ns: int) -> Received:
        """Messages whose turn has come, each received at that moment."""
        taken = joined([part for _, part in self._waiting.until(now_ns)])
        self._process(taken)
        return taken

    def _process(self, taken: Received) -> None:
        for lane, part in _by_lane(taken):
            self._in_process.add(lane, part.received_ns + self._processing_ns, part)

    def processed(self, now_ns: int) -> Received:
        """Messages that were taken and are to be acknowledged now."""
        return joined([part for _, part in self._in_process.until(now_ns)])

    def all_at_once(self, now_ns: int) -> Received:
        """What is still waiting, taken at the end of a run without further ado."""
        left = joined([part for _, part in self._waiting.until(NEVER_NS)])
        left.rows["received_ns"] = now_ns
        self._process(left)
        return left

    @property
    def busy_lanes(self) -> frozenset[int]:
        """Lanes with messages that were not taken yet: no more need be fetched for them."""
        return frozenset(np.flatnonzero(self._waiting.counts).tolist())

    @property
    def wake_ns(self) -> int:
        """When there is something to do next."""
        return min(self._waiting.first_ns, self._in_process.first_ns)


class _Line:
    """Messages with a time each, which rises within a lane; the earliest ones come out first."""

    def __init__(self, lanes: int) -> None:
        self._parts: list[tuple[int, int, int, I64, Received]] = []
        """A heap by the time of each part's first message."""
        self._order = itertools.count()
        self.counts = np.zeros(lanes, np.int64)

    @property
    def first_ns(self) -> int:
        return self._parts[0][0] if self._parts else NEVER_NS

    def add(self, lane: int, times_ns: I64, part: Received) -> None:
        self.counts[lane] += len(part)
        self._push(lane, times_ns, part)

    def _push(self, lane: int, times_ns: I64, part: Received) -> None:
        entry = (int(times_ns[0]), next(self._order), lane, times_ns, part)
        heapq.heappush(self._parts, entry)

    def until(self, now_ns: int) -> Iterator[tuple[int, Received]]:
        while self._parts and self.first_ns <= now_ns:
            _, _, lane, times_ns, part = heapq.heappop(self._parts)
            count = int(np.searchsorted(times_ns, now_ns, side="right"))
            if count < len(part):
                self._push(lane, times_ns[count:], part.at(slice(count, None)))
                part = part.at(slice(count))
            self.counts[lane] -= count
            yield lane, part


def _by_lane(received: Received) -> Iterator[tuple[int, Received]]:
    if not len(received):
        return
    order = np.argsort(received.lane, kind="stable")
    lanes = received.lane[order]
    bounds = [0, *(np.flatnonzero(np.diff(lanes)) + 1).tolist(), len(lanes)]
    for start, end in itertools.pairwise(bounds):
        yield int(lanes[start]), received.at(order[start:end])
