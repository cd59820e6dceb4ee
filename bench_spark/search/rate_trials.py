"""Loads at fixed rates for a search, judged one by one: what suites and `search-rate` share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bench_spark.errors import EXIT_DATA_LOST, EXIT_DEGRADED, EXIT_VALID
from bench_spark.search.rate_verdict import Kept, judge_rate
from bench_spark.search.sustained import Bounds, Sustained, find_sustained
from bench_spark.search.ticks import measured_ticks
from bench_spark.summary.document import Document, RunSummary
from bench_spark.summary.totals import Tick


@dataclass(frozen=True)
class RateRun:
    """A load at a rate, and what was thought of it."""

    rate_per_second: float
    verdict: Kept
    summary: RunSummary

    @property
    def document(self) -> Document:
        return self.summary.document


class RateTrials:
    """Runs and judges loads, and remembers them."""

    def __init__(
        self,
        run: Callable[[float], RunSummary],
        ticks: Callable[[str], Iterable[Tick]],
        tell: Callable[[RateRun], None] | None = None,
    ) -> None:
        """`run` carries out a load of so many messages per second, `ticks` gives what the run of an
        id counted second by second, `tell` is told of every load that was judged."""
        self._run = run
        self._ticks = ticks
        self._tell = tell
        self.runs: list[RateRun] = []

    def find(self, unthrottled_per_second: float, bounds: Bounds) -> Sustained:
        return find_sustained(unthrottled_per_second, self._run_at_rate, bounds)

    def standing_for(self, found: Sustained) -> RateRun:
        """The run that stands for the answer: at the rate that was found, one that kept it, and is
        valid if there is such; if no rate was kept, one at the lowest."""
        rate = found.rate_per_second
        if rate is None:
            rate = min(run.rate_per_second for run in self.runs)
        at_rate = [run for run in self.runs if run.rate_per_second == rate]
        return max(at_rate, key=lambda run: (run.verdict.kept, run.document["status"] == "valid"))

    def _run_at_rate(self, rate_per_second: float) -> Kept:
        summary = self._run(rate_per_second)
        ticks = measured_ticks(self._ticks(summary.document["run_id"]))
        verdict = judge_rate(summary.document, ticks, rate_per_second)
        self.runs.append(RateRun(rate_per_second, verdict, summary))
        if self._tell is not None:
            self._tell(self.runs[-1])
        return verdict


def received_per_second(document: Mapping[str, Any]) -> float:
    """The throughput that a search starts from, of messages: copies are not counted."""
    return float(document["rates"]["receive_rate"] or 0.0) / (document.get("copies") or 1)


def status_of(found: Sustained, standing: RateRun) -> str:
    """Valid if a rate was found, the search is settled, and the run that stands for it is valid.

    Loads above the answer are degraded by their nature and do not count."""
    is_found = found.rate_per_second is not None and found.is_settled
    return "valid" if is_found and standing.document["status"] == "valid" else "degraded"


def exit_code_of(found: Sustained, standing: RateRun, all_codes: Iterable[int]) -> int:
    """Of a search: by its status, but confirmed messages that were lost count in whatever load."""
    if EXIT_DATA_LOST in all_codes:
        return EXIT_DATA_LOST
    return EXIT_VALID if status_of(found, standing) == "valid" else EXIT_DEGRADED
