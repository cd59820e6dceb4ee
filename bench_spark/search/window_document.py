"""The result of a window search as one JSON document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from bench_spark.search.trial_run import TrialRun
from bench_spark.search.window import WindowSearch

ENDS = {
    "narrowed": "the best window is known to 1 %",
    "adjacent": "the best window's neighbours are worse",
    "noise": "two steps in a row changed nothing beyond noise",
    "plateau": "throughput no longer changes with the window",
    "highest": "it still rose at the highest window",
    "trials": "all trials allowed were used",
}


def window_document(
    found: WindowSearch,
    runs: Sequence[TrialRun],
    scenario: Mapping[str, Any],
    broker: Mapping[str, Any],
    took_seconds: float,
) -> dict[str, Any]:
    """`runs` go with the trials one by one; scenario and broker as they are stored."""
    return {
        "in_flight": found.chosen.in_flight,
        "smallest_in_flight": found.smallest.in_flight,
        "median_per_second": found.chosen.median_per_second,
        "smallest_median_per_second": found.smallest.median_per_second,
        "end": found.end,
        "end_text": ENDS[found.end],
        "took_seconds": took_seconds,
        "trials": [
            {"trial": number, **asdict(run), **throughput.as_dict()}
            for number, (throughput, run) in enumerate(
                zip(found.trials, runs, strict=True), start=1
            )
        ],
        "curve": [throughput.as_dict() for throughput in found.curve],
        "scenario": scenario,
        "broker": broker,
    }
