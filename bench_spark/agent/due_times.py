"""When messages were due, by their numbers. Pure.

On a schedule that follows from who sent a message and from its number: so an agent knows it of the
messages of others that carry only an ID, and can check what an envelope says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bench_spark.agent.pacer import Pacing, Stretch
from bench_spark.core.envelope import Envelopes

I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


class Stream(NamedTuple):
    """What one agent sends: message k by its producer k modulo their number."""

    members: tuple[int, ...]
    schedule: Pacing


class DueTimes:
    def __init__(self, streams: Sequence[Stream], run_tag: int, start_ns: int) -> None:
        self._schedules = [stream.schedule for stream in streams]
        self._run_tag = run_tag
        self._start_ns = start_ns
        producers = 1 + max((max(stream.members) for stream in streams), default=-1)
        self._stream_of = np.full(producers, -1, np.int64)
        self._lane_of = np.zeros(producers, np.int64)
        self._lanes = np.array([len(stream.members) for stream in streams], np.int64)
        for number, stream in enumerate(streams):
            self._stream_of[list(stream.members)] = number
            self._lane_of[list(stream.members)] = np.arange(len(stream.members))

    def fill(self, head: Envelopes) -> None:
        """Put in when messages of this run were due, where that is not known yet."""
        is_open = (head["intended_ns"] == 0) & (head["run_tag"] == self._run_tag)
        is_open &= head["producer"] < len(self._stream_of)
        places = np.flatnonzero(is_open)
        if not len(places):
            return
        sequence = head["sequence"][places].astype(np.int64)
        due_ns, is_known = self.of(head["producer"][places], sequence)
        head["intended_ns"][places[is_known]] = due_ns[is_known]

    def place_of(self, producer: int) -> tuple[int, int] | None:
        """Its place among the producers that share its schedule, and how many these are; None where
        it has none that is known."""
        if producer >= len(self._stream_of) or self._stream_of[producer] < 0:
            return None
        return int(self._lane_of[producer]), int(self._lanes[self._stream_of[producer]])

    def stretch_of(self, producer: int, sequence: int) -> Stretch:
        """The part of its producer's schedule around a message, in numbers of the schedule."""
        stream = int(self._stream_of[producer])
        message = sequence * int(self._lanes[stream]) + int(self._lane_of[producer])
        return self._schedules[stream].stretch_of(message)

    def of(self, producer: npt.NDArray[np.uint32], sequence: I64) -> tuple[I64, Bool]:
        """When these messages of the run are due, and of which of them that is known."""
        due_ns = np.zeros(len(producer), np.int64)
        is_known = producer < len(self._stream_of)
        stream = np.where(is_known, self._stream_of[np.where(is_known, producer, 0)], -1)
        for number in np.unique(stream[stream >= 0]).tolist():
            mine = stream == number
            message = sequence[mine] * self._lanes[number] + self._lane_of[producer[mine]]
            with np.errstate(invalid="ignore"):  # a number from a forged message may be any
                due_ns[mine] = self._schedules[number].intended_of_ns(message) + self._start_ns
        return due_ns, stream >= 0
