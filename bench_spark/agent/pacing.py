"""When messages are due: by a rate, by changing rates, or by recorded times. Pure: the caller owns
the clock and does the waiting.

Row g of a recorded data set is due `due_ns[g]` after the first; after the last the recording begins
again, one lap later. Rows go to the producers of the whole run in turn, and an agent's
stream consists of the rows of its own producers.

On a schedule the due time follows from who sent a message and from its number: so an agent knows it
of the messages of others that carry only an ID, and can check what an envelope says (`DueTimes`).
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from bench_spark.core.clock import NANOSECONDS
from bench_spark.core.envelope import Envelopes
from bench_spark.data.records import DUE, RowFacts
from bench_spark.data.scanning import mapped

BATCH_NS = 750_000
"""Longest stretch of schedule sent in one go: the resolution of the intended send times."""

NO_END = 1 << 62

_F64 = npt.NDArray[np.float64]


class Stretch(NamedTuple):
    """Messages [first, end) of a schedule, due `first_ns` after the start and every `period_ns`."""

    first: int
    end: int
    first_ns: float
    period_ns: float


class Pacing(Protocol):
    """When the messages of an agent's stream are due, in nanoseconds after the start. Messages are
    counted from 0 on, and none is due before the one before it."""

    def batch_from(self, message: int) -> int:
        """How many messages to send together, of which that is the first."""

    @property
    def resolution_ns(self) -> float:
        """How long the first message of a batch waits for the last: what batching adds at most."""

    def intended_ns(self, message: int) -> int: ...

    def intended_of_ns(self, messages: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]: ...

    def stretch_of(self, message: int) -> Stretch:
        """The messages around that one which are due at one rate."""

    def messages_before(self, elapsed_ns: int) -> int:
        """How many messages are due strictly before that moment."""


@dataclass(frozen=True)
class Schedule:
    """A stream that is even as long as its rate does not change.

    At one rate, message k is due `shift_ns + k * period_ns` after the start. With `changes` (from
    when on, which rate), message k is due when the rate summed up over time has come so far: at a
    change the distance to the next message begins to shrink or grow, and none is skipped or
    repeated. Several agents on one total rate are shifted against each other, so that together they
    send an even stream rather than bursts.
    """

    rate_per_second: float
    shift_ns: float = 0.0
    changes: tuple[tuple[int, float], ...] = ()

    @cached_property
    def _begins_ns(self) -> list[int]:
        """From when on each stretch has its rate."""
        return [0, *(from_ns for from_ns, _ in self.changes)]

    @cached_property
    def _stretches(self) -> tuple[Stretch, ...]:
        begins = [(0, self.shift_ns, NANOSECONDS / self.rate_per_second)]
        # In exact numbers: a count that is off by a hair would move a message to another second.
        rate = Fraction(self.rate_per_second) / NANOSECONDS
        counted = -Fraction(self.shift_ns) * rate
        begin_ns = 0
        for from_ns, rate_per_second in self.changes:
            counted += (from_ns - begin_ns) * rate
            begin_ns, rate = from_ns, Fraction(rate_per_second) / NANOSECONDS
            # The first message that is due in it, or would be if it lasted long enough.
            first = max(0, math.ceil(counted))
            first_ns = float(from_ns + (first - counted) / rate)
            begins.append((first, first_ns, NANOSECONDS / rate_per_second))
        ends = [*(first for first, _, _ in begins[1:]), NO_END]
        return tuple(
            Stretch(first, end, float(first_ns), float(period_ns))
            for (first, first_ns, period_ns), end in zip(begins, ends, strict=True)
        )

    @cached_property
    def _firsts(self) -> list[int]:
        """First message of each stretch."""
        return [one.first for one in self._stretches]

    @cached_property
    def _columns(self) -> tuple[npt.NDArray[np.int64], _F64, _F64]:
        """First message, when it is due, and period of each stretch."""
        stretches = self._stretches
        return (
            np.array(self._firsts, np.int64),
            np.array([one.first_ns for one in stretches], np.float64),
            np.array([one.period_ns for one in stretches], np.float64),
        )

    def stretch_of(self, message: int) -> Stretch:
        if not self.changes:
            return self._stretches[0]
        return self._stretches[bisect.bisect_right(self._firsts, message) - 1]

    def batch_from(self, message: int) -> int:
        """How many messages to send together, of which that is the first: as many as are due within
        `BATCH_NS`, at one rate."""
        stretch = self.stretch_of(message)
        return min(_batch_messages(stretch), stretch.end - message)

    @property
    def resolution_ns(self) -> float:
        """How long the first message of a batch waits for the last: what batching adds at most."""
        return max((_batch_messages(one) - 1) * one.period_ns for one in self._stretches)

    def intended_ns(self, message: int) -> int:
        first, _, first_ns, period_ns = self.stretch_of(message)
        # Rounded, not cut: a product a hair short of a whole second belongs to the next one.
        return round(first_ns + (message - first) * period_ns)

    def intended_of_ns(self, messages: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        firsts, firsts_ns, periods_ns = self._columns
        stretch = np.searchsorted(firsts, messages, side="right") - 1
        return _rounded(firsts_ns[stretch] + (messages - firsts[stretch]) * periods_ns[stretch])

    def messages_before(self, elapsed_ns: int) -> int:
        """How many messages are due strictly before that moment."""
        stretch = self._stretches[0]
        if self.changes:
            later = bisect.bisect_left(self._begins_ns, elapsed_ns)
            stretch = self._stretches[max(0, later - 1)]
        waited_ns = elapsed_ns - stretch.first_ns
        guess = stretch.first + max(0, math.ceil(waited_ns / stretch.period_ns))
        # The division may be one off where the product is not; the product is what is sent.
        while guess > 0 and self.intended_ns(guess - 1) >= elapsed_ns:
            guess -= 1
        while self.intended_ns(guess) < elapsed_ns:
            guess += 1
        return guess


def _batch_messages(stretch: Stretch) -> int:
    return max(1, int(BATCH_NS / stretch.period_ns))


def _rounded(due_ns: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.int64]:
    rounded: npt.NDArray[np.int64] = np.rint(due_ns).astype(np.int64)
    return rounded


I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Recording:
    due_ns: I64
    """Never falls."""
    lap_ns: int
    repeats: bool = True

    @property
    def last_ns(self) -> int:
        """When the last row is due for the first time."""
        return int(self.due_ns[-1])

    def due_of_ns(self, rows: I64) -> I64:
        lap, within = np.divmod(rows, len(self.due_ns))
        due: I64 = lap * self.lap_ns + self.due_ns[within]
        return due

    def rows_before(self, elapsed_ns: int) -> int:
        """How many rows are due strictly before that moment."""
        if elapsed_ns <= 0:
            return 0
        # Rows at the end of a lap may be due at the very moment at which the next one begins.
        lap = (elapsed_ns - 1) // self.lap_ns
        if lap and not self.repeats:
            return len(self.due_ns)
        within = int(np.searchsorted(self.due_ns, elapsed_ns - lap * self.lap_ns, side="left"))
        return lap * len(self.due_ns) + within


@lru_cache(maxsize=4)
def recording_at(directory: str, repeats: bool) -> Recording:
    facts = RowFacts.read(Path(directory))
    assert facts.lap_ns is not None, "the table has no intervals"
    return Recording(mapped(Path(directory) / DUE, "<i8", facts.records), facts.lap_ns, repeats)


@dataclass(frozen=True)
class RecordedSchedule:
    """A `Pacing` by a recording."""

    recording: Recording
    members: tuple[int, ...]
    """This agent's producers, in order."""
    producers: int
    """Of the whole run."""

    @cached_property
    def _members(self) -> I64:
        return np.array(self.members, np.int64)

    def _rows(self, messages: I64) -> I64:
        turn, place = np.divmod(messages, len(self.members))
        rows: I64 = turn * self.producers + self._members[place]
        return rows

    def batch_from(self, message: int) -> int:
        until_ns = self.intended_ns(message) + BATCH_NS
        return max(1, self.messages_before(until_ns) - message)

    @property
    def resolution_ns(self) -> float:
        return float(BATCH_NS)

    def stretch_of(self, message: int) -> Stretch:
        """Every message is due at a time of its own."""
        turn, place = divmod(message, len(self.members))
        lap, within = divmod(
            turn * self.producers + self.members[place], len(self.recording.due_ns)
        )
        due_ns = lap * self.recording.lap_ns + int(self.recording.due_ns[within])
        return Stretch(message, message + 1, float(due_ns), 0.0)

    def intended_ns(self, message: int) -> int:
        return int(self.intended_of_ns(np.array([message]))[0])

    def intended_of_ns(self, messages: I64) -> I64:
        return self.recording.due_of_ns(self._rows(messages))

    def messages_before(self, elapsed_ns: int) -> int:
        rows = self.recording.rows_before(elapsed_ns)
        return int(np.maximum(0, -(-(rows - self._members) // self.producers)).sum())


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

    def fill(self, envelope: Envelopes) -> None:
        """Put in when messages of this run were due, where that is not known yet."""
        is_open = (envelope["intended_ns"] == 0) & (envelope["run_tag"] == self._run_tag)
        is_open &= envelope["producer"] < len(self._stream_of)
        places = np.flatnonzero(is_open)
        if not len(places):
            return
        sequence = envelope["sequence"][places].astype(np.int64)
        due_ns, is_known = self.of(envelope["producer"][places], sequence)
        envelope["intended_ns"][places[is_known]] = due_ns[is_known]

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
