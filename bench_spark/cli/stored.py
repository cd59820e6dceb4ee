"""Reading runs back from a store, without Spark."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench_spark.errors import ConfigurationError, StoreNotReady
from bench_spark.report.measures import Document
from bench_spark.scenario.nearest import nearest
from bench_spark.scenario.shown import shown_value
from bench_spark.store import Store

_LISTED = (
    "run_id",
    "scenario",
    "broker",
    "status",
    "reasons",
    "exit_code",
    "started_at",
    "ended_at",
    "rates",
    "delivery_rate",
)
_WHOLE = ("run_id", "status", "exit_code", "reasons", "scenario_json", "broker_json", "result_json")


@dataclass(frozen=True)
class StoredRun:
    document: Document
    exit_code: int | None
    """None while the run has not ended."""


def existing_store(uri: str) -> Store:
    """A store to read from: unlike one to write to, it is not made where there is none."""
    store = Store(uri)
    if store.is_local and not Path(store.table_uri("runs")).is_dir():
        raise StoreNotReady(
            f"there is no store at {store.uri}; run something first, or give --store"
        )
    return store


def listed_runs(store: Store) -> list[dict[str, Any]]:
    """The runs, newest first, each as the columns of a list."""
    found = store.read("runs", columns=list(_LISTED))
    rows: list[dict[str, Any]] = found.to_pylist(maps_as_pydicts="strict")
    return sorted(rows, key=lambda row: row["started_at"], reverse=True)


def stored_run(store: Store, run_id: str) -> StoredRun:
    rows = store.read("runs", columns=list(_WHOLE), run_id=run_id).to_pylist()
    if not rows:
        known = store.read("runs", columns=["run_id"])["run_id"].to_pylist()
        guess = nearest(run_id, known)
        raise ConfigurationError(
            f"there is no run {shown_value(run_id)} in {store.uri}; `bench-spark runs` lists them"
            + (f"; did you mean {guess}?" if guess else "")
        )
    row = rows[0]
    document = json.loads(row["result_json"]) if row["result_json"] else _without_result(row)
    return StoredRun(document, row["exit_code"])


def _without_result(row: dict[str, Any]) -> Document:
    """What there is to show of a run that is running, or that could not start."""
    return {
        **{name: row[name] for name in ("run_id", "status", "exit_code", "reasons")},
        "scenario": json.loads(row["scenario_json"]),
        "broker": json.loads(row["broker_json"]),
    }
