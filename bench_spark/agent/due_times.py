"""When messages of other agents were due. Pure.

On a schedule that follows from who sent a message and from its number, which its ID says: so the
time since it was due is known wherever it arrives, and only the time since it was sent is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bench_spark.agent.pacer import Pacing
from bench_spark.measure.envelope import Envelopes


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
        producer = head["producer"][places]
        stream = self._stream_of[producer]
        sequence = head["sequence"][places].astype(np.int64)
        for number in np.unique(stream[stream >= 0]).tolist():
            mine = stream == number
            message = sequence[mine] * self._lanes[number] + self._lane_of[producer[mine]]
            due_ns = self._schedules[number].intended_of_ns(message) + self._start_ns
            head["intended_ns"][places[mine]] = due_ns
