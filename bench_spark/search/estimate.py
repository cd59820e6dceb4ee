"""How long a search will take, told before it starts."""

from __future__ import annotations

from dataclasses import dataclass

from bench_spark.search.window import MOST_TRIALS

USUAL_TRIALS = 10
"""A search takes from 5 trials (a curve that is soon settled) to 20: this is within a factor of
two of both."""
OVERHEAD_SECONDS = 1.0
"""Of a trial beside its load: tasks start, connections open and close, results are summed up."""
STARTUP_SECONDS = 15.0
"""Until Spark and its workers are there, once for all trials."""
SAMPLE_STRETCH = 1.5
"""A sample lasts until the first arrival after its threshold, and before the first sample come the
messages that are skipped: so much longer is the phase than all thresholds together."""


@dataclass(frozen=True)
class TrialTime:
    """What one trial takes. A drain ends when the last message has arrived, which in a closed loop
    is at once, so its limit only counts for the longest case."""

    warmup_seconds: float
    measure_seconds: float
    drain_seconds: float
    sampled_seconds: float | None = None
    """All samples' thresholds together, where complete samples end the measured phase early."""
    overhead_seconds: float = OVERHEAD_SECONDS

    @property
    def usual_seconds(self) -> float:
        measured = self.measure_seconds
        if self.sampled_seconds is not None:
            measured = min(measured, SAMPLE_STRETCH * self.sampled_seconds)
        return self.warmup_seconds + measured + self.overhead_seconds

    @property
    def longest_seconds(self) -> float:
        phases = self.warmup_seconds + self.measure_seconds + self.drain_seconds
        return phases + self.overhead_seconds


@dataclass(frozen=True)
class Estimate:
    trials: int
    most_trials: int
    seconds: float
    most_seconds: float


def estimate(trial: TrialTime, most_trials: int = MOST_TRIALS) -> Estimate:
    trials = min(USUAL_TRIALS, most_trials)
    return Estimate(
        trials,
        most_trials,
        STARTUP_SECONDS + trials * trial.usual_seconds,
        STARTUP_SECONDS + most_trials * trial.longest_seconds,
    )
