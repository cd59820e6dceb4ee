"""Reading runs back from a store, without Spark."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from bench_spark.cache import default_store
from bench_spark.config.models import stored_scenario
from bench_spark.config.problems import nearest, shown_value
from bench_spark.core.hdr import TOTALS, SparseHistogram
from bench_spark.driver_process import ABANDONED, AS_ABANDONED, RUNNING, has_vanished
from bench_spark.errors import ConfigurationError, StoreNotReady
from bench_spark.report.charts import distribution_rows
from bench_spark.report.formatting import Document
from bench_spark.report.run import RunReport
from bench_spark.report.timeline import (
    GENERATOR_COLUMNS,
    RESOURCE_COLUMNS,
    ROLLING,
    WINDOW_COLUMNS,
    RunHistory,
    RunTimes,
    timeline_of,
)
from bench_spark.results.document import Reached, partial_document
from bench_spark.store.delta import Store, refuse_file

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
_TIMES = ("started_at", "measured_from", "measured_until")
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
    """The runs, newest first, each as the columns of a list."""
    found = store.read("runs", columns=[*_LISTED, *_OF_DRIVER[:2]])
    read: list[dict[str, Any]] = found.to_pylist(maps_as_pydicts="strict")
    rows = [{name: row[name] for name in _LISTED} | _as_abandoned(row) for row in read]
    return sorted(rows, key=lambda row: row["started_at"], reverse=True)


def stored_run(store: Store, run_id: str) -> StoredRun:
    rows = store.read("runs", columns=[*_WHOLE, *_OF_DRIVER], run_id=run_id).to_pylist()
    if not rows:
        known = store.read("runs", columns=["run_id"])["run_id"].to_pylist()
        guess = nearest(run_id, known)
        raise ConfigurationError(
            f"there is no run {shown_value(run_id)} in {store.uri}; `bench-spark runs` lists them"
            + (f"; did you mean {guess}?" if guess else "")
        )
    row = rows[0] | _as_abandoned(rows[0])
    document = json.loads(row["result_json"]) if row["result_json"] else _without_result(row)
    return StoredRun(document, row["exit_code"])


def shown_run(store: Store, run_id: str) -> StoredRun:
    """A run with its result; of one that has none yet what its events say so far."""
    found = stored_run(store, run_id)
    if found.document["status"] not in (RUNNING, ABANDONED) or "counts" in found.document:
        return found
    columns = ["tick", "tick_start", "confirmed"]
    events = store.read("events", columns=columns, run_id=run_id)
    events = events.filter(pc.field("tick") >= 0)
    if not len(events):
        return found
    first = events.sort_by("tick").slice(0, 1)
    measured_from = store.read("runs", columns=["measured_from"], run_id=run_id)["measured_from"][0]
    reached = Reached(
        tick=first["tick"][0].as_py(),
        tick_start_ns=first["tick_start"][0].value * 1000,
        newest_tick=pc.max(events["tick"]).as_py(),
        has_confirms=bool(pc.sum(events["confirmed"]).as_py()),
        measured_from_ns=measured_from.value * 1000 if measured_from.is_valid else None,
    )
    from bench_spark.spark.merge import ticks_here

    document = partial_document(
        run_id,
        stored_scenario(run_id, found.document["scenario"]),
        found.document["broker"],
        reached,
        ticks_here(store, run_id, reached.newest_tick),
    )
    return StoredRun(document | {"status": found.document["status"]}, found.exit_code)


def _as_abandoned(row: dict[str, Any]) -> dict[str, Any]:
    """What differs from the row of a run if its driver has vanished."""
    return AS_ABANDONED if has_vanished(row) else {}


def run_report(document: Document, store: str) -> RunReport:
    """The result of a run, to be written; `store` as given by the user."""
    history = partial(run_history, Store(store), document)
    return RunReport(document, history, store, is_default_store=store == default_store())


def run_history(store: Store, document: Document) -> RunHistory:
    """What the tables know about the run of this document, beside it."""
    run_id = document["run_id"]
    [row] = store.read("runs", columns=list(_TIMES), run_id=run_id).to_pylist() or [{}]
    times = RunTimes(**row)
    events = store.read("events", columns=GENERATOR_COLUMNS, run_id=run_id)
    series = timeline_of(
        store.read("metrics", columns=WINDOW_COLUMNS, run_id=run_id, window=ROLLING),
        store.read("resources", columns=RESOURCE_COLUMNS, run_id=run_id),
        events.filter(pc.is_valid(events["host_busy_share"])),
        times,
    )
    return RunHistory(
        times,
        series,
        distribution_rows(*_histograms(store, document)),
    )


def _histograms(store: Store, document: Document) -> tuple[dict[str, SparseHistogram], int]:
    """Per measure the histogram of the run, and the end of their range."""
    rows = store.read("summary", run_id=document["run_id"], aggregation="run").to_pylist()
    found = {
        row["measure"]: SparseHistogram.decode(
            row["hdr_encoded"], {name: row.get(name) or 0 for name in TOTALS}
        )
        for row in rows
        if row["hdr_encoded"]
    }
    highest_seconds = document["scenario"]["histogram"]["highest_seconds"]
    return found, round(highest_seconds * 1_000_000)


def _without_result(row: dict[str, Any]) -> Document:
    """What there is to show of a run that is running, or that could not start."""
    return {
        **{name: row[name] for name in ("run_id", "status", "exit_code", "reasons")},
        "scenario": json.loads(row["scenario_json"]),
        "broker": json.loads(row["broker_json"]),
    }
