"""When messages are due whose times were recorded. Pure, over times that lie in a file.

Row g of the data set is due `due_ns[g]` after the first; after the last the recording begins again,
one lap later. Rows are dealt to the producers of the whole run in turn, and an agent's stream
consists of the rows of its own producers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench_spark.agent.pacer import BATCH_NS, Stretch
from bench_spark.datasets.column_records import DUE, RowFacts
from bench_spark.datasets.index import mapped

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

    def messages_due(self, elapsed_ns: int) -> int:
        return self.messages_before(elapsed_ns + 1)
