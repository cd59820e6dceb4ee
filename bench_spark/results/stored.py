"""Runs as a store holds them: the list of all, and one with its result."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench_spark.config.objectives import headline_measure
from bench_spark.config.problems import did_you_mean, shown_value
from bench_spark.driver_process import AS_ABANDONED, has_vanished
from bench_spark.errors import ConfigurationError, StoreNotReady
from bench_spark.results.document import Document
from bench_spark.store.delta import Store, refuse_file

_LISTED = (
    *("run_id", "scenario", "broker", "status", "reasons", "exit_code"),
    *("started_at", "ended_at", "rates", "delivery_rate"),
)
_WHOLE = ("run_id", "status", "exit_code", "reasons", "broker_json", "result_json")
_OF_DRIVER = ("driver_json", "scenario_json", "started_at")
"""What says, beside the status, whether a run's driver has vanished."""


@dataclass(frozen=True)
class StoredRun:
    document: Document
    exit_code: int | None
    """None while the run has not ended."""


def existing_store(uri: str) -> Store:
    """A store to read from: unlike one to write to, it is not made where there is none."""
    store = Store(uri)
    if store.is_local:
        refuse_file(Path(store.uri))
    if store.is_local and not Path(store.table_uri("runs")).is_dir():
        raise StoreNotReady(
            f"there is no store at {store.uri}; run something first, or give --store"
        )
    return store


def listed_runs(store: Store) -> list[dict[str, Any]]:
    """The runs, newest first, each as the columns of a list; `p99_us` is of `p99_measure`."""
    found = store.read("runs", columns=[*_LISTED, *_OF_DRIVER[:2]])
    read: list[dict[str, Any]] = found.to_pylist(maps_as_pydicts="strict")
    p99s = _headline_p99s(store)
    rows = [
        {name: row[name] for name in _LISTED}
        | _as_abandoned(row)
        | p99s.get(row["run_id"], _WITHOUT_P99)
        for row in read
    ]
    return sorted(rows, key=lambda row: row["started_at"], reverse=True)


_WITHOUT_P99 = {"p99_measure": None, "p99_us": None, "p99_is_lower_bound": None}


def _headline_p99s(store: Store) -> dict[str, dict[str, Any]]:
    """By run the 99th percentile of the measure that one without a measure is of."""
    columns = ["run_id", "measure", "p99_us", "lower_bounds"]
    by_run: dict[str, dict[str, dict[str, Any]]] = {}
    for row in store.read("summary", columns=columns, aggregation="run").to_pylist():
        by_run.setdefault(row["run_id"], {})[row["measure"]] = row
    return {
        run_id: {
            "p99_measure": measure,
            "p99_us": measures[measure]["p99_us"],
            "p99_is_lower_bound": "p99_us" in (measures[measure]["lower_bounds"] or ()),
        }
        for run_id, measures in by_run.items()
        if (measure := headline_measure(measures)) is not None
    }


def stored_run(store: Store, run_id: str) -> StoredRun:
    rows = store.read("runs", columns=[*_WHOLE, *_OF_DRIVER], run_id=run_id).to_pylist()
    if not rows:
        known = store.read("runs", columns=["run_id"])["run_id"].to_pylist()
        raise ConfigurationError(
            f"there is no run {shown_value(run_id)} in {store.uri}; `bench-spark runs` lists them"
            + did_you_mean(run_id, known)
        )
    row = rows[0] | _as_abandoned(rows[0])
    document = json.loads(row["result_json"]) if row["result_json"] else _without_result(row)
    return StoredRun(document, row["exit_code"])


def _as_abandoned(row: dict[str, Any]) -> dict[str, Any]:
    """What differs from the row of a run if its driver has vanished."""
    return AS_ABANDONED if has_vanished(row) else {}


def _without_result(row: dict[str, Any]) -> Document:
    """What there is to show of a run that is running, or that could not start."""
    return {
        **{name: row[name] for name in ("run_id", "status", "exit_code", "reasons")},
        "scenario": json.loads(row["scenario_json"]),
        "broker": json.loads(row["broker_json"]),
    }
