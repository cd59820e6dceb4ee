"""What the engine is asked for, and whom it tells meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from bench_spark.agent.timeline import Timeline
from bench_spark.config.ends import Ends
from bench_spark.plan import Plan
from bench_spark.results.rows import TrialOf, run_row
from bench_spark.spark.windows import LiveWindow


class Display(Protocol):
    """What the engine tells the person who waits."""

    def step(self, text: str) -> None: ...

    def opening(self, plan: Plan, opened: int) -> None: ...

    def started(self, plan: Plan, timeline: Timeline, now_ns: Callable[[], int]) -> None: ...

    def update(self, window: LiveWindow | None, is_draining: bool) -> None: ...

    def counted(self, totals: Mapping[str, int]) -> None: ...

    def ended(self) -> None: ...


@dataclass(frozen=True)
class RunRequest:
    plan: Plan
    ends: Ends
    live: bool = True
    trial: TrialOf | None = None
    """What the run is a part of, if it is. Others follow then, so the rolling metrics need not be
    waited for."""
    stops_on_slo: bool = False
    """End the run as soon as a rolling window misses an objective of the scenario."""

    def row(self, started_at: datetime, **outcome: Any) -> dict[str, Any]:
        """The run's row in `runs`; `outcome` as `run_row` takes it."""
        brokers = self.ends.all_shown
        return run_row(
            self.plan, self.ends.shown, started_at, brokers=brokers, trial=self.trial, **outcome
        )
