"""What of a run its store would not take. The result is told all the same, and says so."""

from __future__ import annotations

from collections.abc import Callable

from bench_spark.agent.protocol import EventRow
from bench_spark.collector.committer import Committer
from bench_spark.core.clock import NANOSECONDS
from bench_spark.errors import BenchError, StoreError
from bench_spark.summary.document import RunSummary


class Unstored:
    """Of one run, from when its committer is closed until its row is in `runs`."""

    def __init__(self, committer: Committer) -> None:
        self.error: BenchError | None = committer.error
        self._first_words = None if self.error is None else str(self.error)
        self._parts: list[str] = []
        rows = [row for _, _, row in committer.unwritten]
        if rows:
            self._parts.append(f"the last {_length_seconds(rows):.0f} s of its events")
        if committer.unwritten_files:
            self._parts.append(f"{committer.unwritten_files} file(s) of messages")

    def keep(self, part: str, write: Callable[[], object]) -> bool:
        """Write a part of the result; whether the store took it."""
        try:
            write()
        except StoreError as error:
            self.error = self.error or error
            self._parts.append(part)
            return False
        return True

    def told_in(self, summary: RunSummary) -> RunSummary:
        """The result with one sentence about all that is missing in the store, if anything is."""
        if self.error is None:
            return summary
        *others, last = self._parts
        missing = f"{', '.join(others)} and {last}" if others else last
        reason = f"{self.error}; this result is whole, but the store lacks {missing}"
        return summary.not_stored(reason, instead_of=self._first_words)


def _length_seconds(rows: list[EventRow]) -> float:
    first_ns = min(row.tick_start_ns for row in rows)
    last_ns = max(row.tick_start_ns + round(row.tick_seconds * NANOSECONDS) for row in rows)
    return max(1.0, (last_ns - first_ns) / NANOSECONDS)
