"""Trials of a search for a rate: how one is carried out, and the document of all."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from bench_spark.errors import EXIT_DATA_LOST, EXIT_DEGRADED, EXIT_VALID
from bench_spark.results.document import Document, RunSummary
from bench_spark.results.totals import Tick
from bench_spark.suites.sustained import ENDS, Bounds, Kept, Sustained, find_sustained, judge_rate
from bench_spark.suites.throughput import measured_ticks


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
        report: Callable[[RateRun], None] | None = None,
    ) -> None:
        """`run` carries out a load of so many messages per second, `ticks` gives what the run of an
        id counted second by second, `report` gets every load that was judged."""
        self._run = run
        self._ticks = ticks
        self._report = report
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
        if self._report is not None:
            self._report(self.runs[-1])
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


PERCENTILES = ("p50", "p99")
HONEST, FALLBACK = "delivery_latency", "latency"
"""The first counts from the moment at which a message was due, and so contains what a rate that is
too high does to it; bodies that carry one time only have the other."""


def rate_document(
    found: Sustained,
    unthrottled: Document,
    runs: Sequence[RateRun],
    standing: RateRun,
    scenario: Mapping[str, Any],
    broker: Mapping[str, Any],
    took_seconds: float,
) -> dict[str, Any]:
    """`unthrottled` is the result that the search began with, `standing` the run that stands for
    the answer; scenario and broker as they are stored."""
    measure = _measure_of(standing.document)
    trials = [
        _trial(1, unthrottled, measure),
        *(_trial(number, run.document, measure, run) for number, run in enumerate(runs, start=2)),
    ]
    return {
        "status": status_of(found, standing),
        "rate_per_second": found.rate_per_second,
        "above_per_second": found.above_per_second,
        "range_low_per_second": found.rate_per_second,
        "range_high_per_second": found.range_high_per_second,
        "is_settled": found.is_settled,
        "is_lower_bound": found.is_lower_bound,
        "limited_by": found.limited_by,
        "limit": found.limit,
        "objective": found.objective,
        "text": found.text,
        "run_id": standing.document["run_id"],
        "measure": measure,
        **_percentiles(standing.document, measure),
        "unthrottled_per_second": received_per_second(unthrottled),
        "end": found.end,
        "end_text": ENDS[found.end],
        "edge_trials": [trials[place + 1]["trial"] for place in found.edge],
        "took_seconds": took_seconds,
        "trials": trials,
        "curve": _curve(trials),
        "scenario": scenario,
        "broker": broker,
    }


def _measure_of(document: Document) -> str:
    return HONEST if HONEST in (document.get("measures") or {}) else FALLBACK


def _trial(
    number: int, document: Document, measure: str, run: RateRun | None = None
) -> dict[str, Any]:
    """Without a run: the unthrottled one, which has no schedule to be late for, and no verdict."""
    verdict = None if run is None else run.verdict
    return {
        "trial": number,
        "run_id": document["run_id"],
        "status": document["status"],
        "rate_per_second": None if run is None else run.rate_per_second,
        "sent_per_second": document["rates"]["send_rate"],
        "received_per_second": received_per_second(document),
        "kept": None if verdict is None else verdict.kept,
        "limited_by": None if verdict is None else verdict.limited_by,
        "objective": None if verdict is None else verdict.objective,
        "why": "" if verdict is None else verdict.why,
        "limit": "" if verdict is None else verdict.limit,
        **_percentiles(document, measure if run is not None else FALLBACK),
    }


def _percentiles(document: Document, measure: str) -> dict[str, Any]:
    found = (document.get("measures") or {}).get(measure) or {}
    bounds = found.get("lower_bounds") or ()
    values = {f"{name}_us": found.get(f"{name}_us") for name in PERCENTILES}
    return values | {f"{name}_is_lower_bound": f"{name}_us" in bounds for name in PERCENTILES}


def _curve(trials: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Latency over the rate, in order of rates: of what was tried several times the middle."""
    paced = [trial for trial in trials if trial["rate_per_second"] is not None]
    paced.sort(key=lambda trial: trial["rate_per_second"])
    return [
        _point(rate, list(group))
        for rate, group in groupby(paced, key=lambda trial: trial["rate_per_second"])
    ]


def _point(rate_per_second: float, trials: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    kept = sum(trial["kept"] for trial in trials)
    point: dict[str, Any] = {
        "rate_per_second": rate_per_second,
        "trials": len(trials),
        "trials_kept": kept,
        "kept": kept > len(trials) / 2,
    }
    for name in PERCENTILES:
        known = [trial[f"{name}_us"] for trial in trials if trial[f"{name}_us"] is not None]
        point |= {
            f"{name}_us": statistics.median(known) if known else None,
            f"{name}_low_us": min(known, default=None),
            f"{name}_high_us": max(known, default=None),
        }
    return point
