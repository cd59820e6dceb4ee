"""How long the rest of a suite will take, judged by how long its trials took so far. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from bench_spark.report.formatting import seconds


class TimeLeft:
    """Expectations are corrected by the trials that are over: hooks and starting agents take time
    that nobody knows beforehand, and searches may be short."""

    def __init__(self, expected_seconds: Mapping[str, float]) -> None:
        """Of every trial that is still to be run, by its key."""
        self._expected = dict(expected_seconds)
        self._expected_so_far = self._taken_so_far = 0.0

    def took(self, key: str, taken_seconds: float) -> None:
        """A trial is over."""
        self._expected_so_far += self._expected.pop(key)
        self._taken_so_far += taken_seconds

    @property
    def seconds(self) -> float:
        correction = 1.0
        if self._expected_so_far > 0:
            correction = self._taken_so_far / self._expected_so_far
        return sum(self._expected.values()) * correction

    @property
    def text(self) -> str:
        return f"about {seconds(round(self.seconds))} left"
