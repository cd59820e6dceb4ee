"""A run's rows in the tables `runs` and `summary`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from bench_spark import __version__
from bench_spark.driver_process import RUNNING, this_process
from bench_spark.errors import BenchError
from bench_spark.plan import Plan
from bench_spark.results.document import RunSummary
from bench_spark.results.judging import FAILED
from bench_spark.store.arrow import SUMMARY
from bench_spark.store.schema import PERCENTILES


@dataclass(frozen=True)
class TrialOf:
    """What a run is a part of."""

    suite: str
    trial: int
    """Its number there, from 1."""
    parameters: Mapping[str, str]
    """What sets it apart from the other trials: keys of the scenario and their values."""


def run_row(
    plan: Plan,
    broker: dict[str, Any],
    started_at: datetime,
    *,
    brokers: Sequence[Mapping[str, Any]] | None = None,
    summary: RunSummary | None = None,
    measured: tuple[float | None, float | None] = (None, None),
    failure: BenchError | None = None,
    trial: TrialOf | None = None,
) -> dict[str, Any]:
    """The row of a run that is running, has ended with a summary, or has failed to start.

    `broker` and `brokers` are masked; unset: there is only that one.
    """
    document = summary.document if summary is not None else {}
    status, reasons = RUNNING, list[str]()
    exit_code: int | None = None
    if summary is not None:
        status, reasons = document["status"], document["reasons"]
        exit_code = summary.exit_code
    elif failure is not None:
        status, reasons, exit_code = FAILED, [str(failure)], failure.exit_code
    return {
        "run_id": plan.run_id,
        "scenario": plan.scenario.name,
        "broker": broker.get("name"),
        "brokers": [str(one.get("name")) for one in brokers or [broker]],
        "status": status,
        "reasons": reasons,
        "exit_code": exit_code,
        "started_at": started_at,
        "measured_from": _moment(measured[0]),
        "measured_until": _moment(measured[1]),
        "ended_at": None if status == RUNNING else datetime.now(UTC),
        "suite": trial.suite if trial is not None else None,
        "trial": trial.trial if trial is not None else None,
        "parameters": sorted(trial.parameters.items()) if trial is not None else [],
        "tags": sorted(plan.scenario.tags.items()),
        "counts": [item for item in document.get("counts", {}).items() if item[1] is not None],
        "rates": [item for item in document.get("rates", {}).items() if item[1] is not None],
        "expected": document.get("expected"),
        "delivery_rate": document.get("delivery_rate"),
        "scenario_json": json.dumps(plan.scenario.dump()),
        "broker_json": json.dumps(broker),
        "brokers_json": json.dumps(list(brokers or [{"role": "both", **broker}])),
        "environment_json": json.dumps(document.get("environment", {})),
        "result_json": json.dumps(document) if document else None,
        "bench_spark_version": __version__,
        "slo": [
            {name: one[name] for name in ("objective", "value", "met")}
            for one in document.get("slo", ())
        ],
        "driver_json": this_process(),
    }


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def summary_rows(plan: Plan, summary: RunSummary) -> pa.Table:
    highest_us = plan.scenario.histogram.highest_us
    rows = []
    for measure, found in summary.document["measures"].items():
        rows.append(
            _row(plan.run_id, "run", measure, found)
            | {"hdr_encoded": summary.histograms[measure].encode(highest_us)}
        )
        for aggregation in ("interval_max", "interval_mean"):
            entry = summary.document["percentiles"][aggregation][measure]
            rows.append(_row(plan.run_id, aggregation, measure, entry))
    return pa.Table.from_pylist(rows, schema=SUMMARY)


def _row(run_id: str, aggregation: str, measure: str, found: dict[str, Any]) -> dict[str, Any]:
    names = ["mean_us", *(name for name, _ in PERCENTILES)]
    row = {name: None if found[name] is None else float(found[name]) for name in names}
    # Whole numbers in the table, means of whole numbers in `interval_mean`: rounded outwards, so
    # that no percentile lies outside of them.
    extremes = {
        name: None if found[name] is None else outwards(found[name])
        for name, outwards in (("min_us", math.floor), ("max_us", math.ceil))
    }
    return (
        row
        | extremes
        | {name: found.get(name) for name in ("count", "negative", "overflow", "lower_bounds")}
        | {"run_id": run_id, "aggregation": aggregation, "measure": measure}
    )
