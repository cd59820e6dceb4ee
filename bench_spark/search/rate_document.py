"""The result of a search for the highest rate as one JSON document."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from bench_spark.search.rate_trials import RateRun, received_per_second, status_of
from bench_spark.search.sustained import ENDS, Sustained
from bench_spark.summary.document import Document

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
