"""When messages are due. Pure: the caller owns the clock and does the waiting."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from bench_spark.measure.clock import NANOSECONDS

BATCH_NS = 500_000
"""Longest stretch of schedule sent in one go: the resolution of the intended send times."""


@dataclass(frozen=True)
class Schedule:
    """An even stream: message k is due `shift_ns + k * period_ns` after the start.

    Several agents on one total rate are shifted against each other, so that together they send an
    even stream rather than bursts.
    """

    rate_per_second: float
    shift_ns: float = 0.0

    @cached_property
    def period_ns(self) -> float:
        return NANOSECONDS / self.rate_per_second

    @cached_property
    def batch_messages(self) -> int:
        return max(1, int(BATCH_NS / self.period_ns))

    @property
    def resolution_ns(self) -> float:
        """How long the first message of a batch waits for the last: what batching adds at most."""
        return (self.batch_messages - 1) * self.period_ns

    def intended_ns(self, message: int) -> int:
        # Rounded, not cut: a product a hair short of a whole second belongs to the next one.
        return round(self.shift_ns + message * self.period_ns)

    def intended_many_ns(self, first: int, count: int) -> npt.NDArray[np.int64]:
        return self.intended_of_ns(np.arange(first, first + count, dtype=np.int64))

    def intended_of_ns(self, messages: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        intended: npt.NDArray[np.int64] = np.rint(self.shift_ns + messages * self.period_ns).astype(
            np.int64
        )
        return intended

    def messages_before(self, elapsed_ns: int) -> int:
        """How many messages are due strictly before that moment."""
        guess = max(0, math.ceil((elapsed_ns - self.shift_ns) / self.period_ns))
        # The division may be one off where the product is not; the product is what is sent.
        while guess > 0 and self.intended_ns(guess - 1) >= elapsed_ns:
            guess -= 1
        while self.intended_ns(guess) < elapsed_ns:
            guess += 1
        return guess

    def messages_due(self, elapsed_ns: int) -> int:
        """How many messages should have been sent once that moment has come."""
        return self.messages_before(elapsed_ns + 1)
