"""How large bodies are, now and over time. Pure.

A message has the size of the moment at which it is sent, so that its size is known from its send
time alone: nobody needs to keep it.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bench_spark.agent.timeline import Timeline
from bench_spark.measure.clock import NANOSECONDS
from bench_spark.scenario.load_sections import Message

NEVER_NS = 2**63 - 1


@dataclass(frozen=True)
class BodySizes:
    first_bytes: int
    changes: tuple[tuple[int, int], ...] = ()
    """From when on bodies have which size, in order of time."""

    @property
    def smallest_bytes(self) -> int:
        return min([self.first_bytes, *(size for _, size in self.changes)])

    def at(self, at_ns: int) -> tuple[int, int]:
        """The size at a moment, and when it ends."""
        passed = bisect.bisect_right(self.changes, at_ns, key=lambda change: change[0])
        size = self.changes[passed - 1][1] if passed else self.first_bytes
        return size, self.changes[passed][0] if passed < len(self.changes) else NEVER_NS

    def total_bytes(self, sent_ns: npt.NDArray[np.int64]) -> int:
        """Of the bodies sent at these moments."""
        if not self.changes:
            return len(sent_ns) * self.first_bytes
        moments = np.array([at_ns for at_ns, _ in self.changes], np.int64)
        sizes = np.array([self.first_bytes, *(size for _, size in self.changes)], np.int64)
        return int(sizes[np.searchsorted(moments, sent_ns, side="right")].sum())


def body_sizes(message: Message, timeline: Timeline) -> BodySizes:
    at_seconds, changes = 0.0, []
    for step in message.steps:
        changes.append((timeline.measure_start_ns + round(at_seconds * NANOSECONDS), step.bytes))
        at_seconds += step.seconds
    return BodySizes(message.bytes, tuple(changes))
