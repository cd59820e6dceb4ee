"""Stored runs with what their events say, read by deltalake: no session is started."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow.compute as pc

from bench_spark.compare.comparison import Group
from bench_spark.compare.series import RunSeries, run_series
from bench_spark.config.models import stored_scenario
from bench_spark.driver_process import ABANDONED, RUNNING
from bench_spark.errors import ConfigurationError
from bench_spark.results.document import Reached, partial_document
from bench_spark.results.stored import StoredRun, stored_run
from bench_spark.spark.merge import merged_ticks_here, ticks_here
from bench_spark.store.delta import Store


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
    document = partial_document(
        run_id,
        stored_scenario(run_id, found.document["scenario"]),
        found.document["broker"],
        reached,
        ticks_here(store, run_id, reached.newest_tick),
    )
    return StoredRun(document | {"status": found.document["status"]}, found.exit_code)


def group_of_runs(
    store: Store, run_ids: Sequence[str], label: str, found_keys: Sequence[str] = ()
) -> Group:
    return Group(label, [_series(store, run_id) for run_id in run_ids], found_keys)


def _series(store: Store, run_id: str) -> RunSeries:
    found = stored_run(store, run_id)
    if not found.document.get("measures") and not found.document.get("rates"):
        raise ConfigurationError(
            f"compare: {run_id} has no result: it is {found.document['status']}"
        )
    [times] = store.read(
        "runs", columns=["measured_from", "measured_until"], run_id=run_id
    ).to_pylist()
    began, ended = times["measured_from"], times["measured_until"]
    measured = None if began is None or ended is None else (began.timestamp(), ended.timestamp())
    resources = store.read("resources", run_id=run_id, phase="measure").to_pylist()
    return run_series(found.document, merged_ticks_here(store, run_id), measured, resources)
