"""When messages are due. Pure: the caller owns the clock and does the waiting."""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from bench_spark.core.clock import NANOSECONDS

BATCH_NS = 500_000
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

    def messages_due(self, elapsed_ns: int) -> int:
        """How many messages should have been sent once that moment has come."""


class _Stretch(NamedTuple):
    """A part of the schedule with one rate."""

    from_ns: int
    first: int
    """The first message that is due in it, or would be if it lasted long enough."""
    first_ns: float
    """When that one is due."""
    period_ns: float

    @property
    def batch_messages(self) -> int:
        return max(1, int(BATCH_NS / self.period_ns))


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
    def _stretches(self) -> tuple[_Stretch, ...]:
        stretches = [_Stretch(0, 0, self.shift_ns, NANOSECONDS / self.rate_per_second)]
        # In exact numbers: a count that is off by a hair would move a message to another second.
        rate = Fraction(self.rate_per_second) / NANOSECONDS
        counted = -Fraction(self.shift_ns) * rate
        begin_ns = 0
        for from_ns, rate_per_second in self.changes:
            counted += (from_ns - begin_ns) * rate
            begin_ns, rate = from_ns, Fraction(rate_per_second) / NANOSECONDS
            first = max(0, math.ceil(counted))
            first_ns = float(from_ns + (first - counted) / rate)
            stretches.append(_Stretch(from_ns, first, first_ns, NANOSECONDS / rate_per_second))
        return tuple(stretches)

    @cached_property
    def _columns(self) -> tuple[npt.NDArray[np.int64], _F64, _F64]:
        """First message, when it is due, and period of each stretch."""
        stretches = self._stretches
        return (
            np.array([one.first for one in stretches], np.int64),
            np.array([one.first_ns for one in stretches], np.float64),
            np.array([one.period_ns for one in stretches], np.float64),
        )

    def _stretch_of(self, message: int) -> int:
        return bisect.bisect_right(self._stretches, message, key=lambda one: one.first) - 1

    def batch_from(self, message: int) -> int:
        """How many messages to send together, of which that is the first: as many as are due within
        `BATCH_NS`, at one rate."""
        number = self._stretch_of(message)
        most = self._stretches[number].batch_messages
        if number + 1 < len(self._stretches):
            most = min(most, self._stretches[number + 1].first - message)
        return most

    @property
    def resolution_ns(self) -> float:
        """How long the first message of a batch waits for the last: what batching adds at most."""
        return max((one.batch_messages - 1) * one.period_ns for one in self._stretches)

    def stretch_of(self, message: int) -> Stretch:
        number = self._stretch_of(message)
        _, first, first_ns, period_ns = self._stretches[number]
        following = self._stretches[number + 1 : number + 2]
        end = following[0].first if following else NO_END
        return Stretch(first, end, float(first_ns), float(period_ns))

    def intended_ns(self, message: int) -> int:
        _, first, first_ns, period_ns = self._stretches[self._stretch_of(message)]
        # Rounded, not cut: a product a hair short of a whole second belongs to the next one.
        return round(first_ns + (message - first) * period_ns)

    def intended_of_ns(self, messages: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        if not self.changes:
            [(_, _, shift_ns, period_ns)] = self._stretches
            return _rounded(shift_ns + messages * period_ns)
        firsts, firsts_ns, periods_ns = self._columns
        stretch = np.searchsorted(firsts, messages, side="right") - 1
        return _rounded(firsts_ns[stretch] + (messages - firsts[stretch]) * periods_ns[stretch])

    def messages_before(self, elapsed_ns: int) -> int:
        """How many messages are due strictly before that moment."""
        later = bisect.bisect_left(self._stretches, elapsed_ns, key=lambda one: one.from_ns)
        _, first, first_ns, period_ns = self._stretches[max(0, later - 1)]
        guess = first + max(0, math.ceil((elapsed_ns - first_ns) / period_ns))
        # The division may be one off where the product is not; the product is what is sent.
        while guess > 0 and self.intended_ns(guess - 1) >= elapsed_ns:
            guess -= 1
        while self.intended_ns(guess) < elapsed_ns:
            guess += 1
        return guess

    def messages_due(self, elapsed_ns: int) -> int:
        """How many messages should have been sent once that moment has come."""
        return self.messages_before(elapsed_ns + 1)


def _rounded(due_ns: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.int64]:
    rounded: npt.NDArray[np.int64] = np.rint(due_ns).astype(np.int64)
    return rounded
