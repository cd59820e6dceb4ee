"""Tidying up a store that other applications may be using.

Two applications must not compact a table at once (see `Store.compact`), and no lock reaches every
kind of store. But whoever compacts has a run in `runs` that is `running`, put there long before and
changed only afterwards: of two applications that come to compact, one at least sees the other, and
whoever sees another leaves the files as they are. The next run will compact them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from bench_spark.driver_process import COLUMNS, RUNNING, has_vanished
from bench_spark.errors import StoreError
from bench_spark.store import Store


def compact_if_alone(store: Store, run_id: str, tables: Sequence[str] = ("events",)) -> bool:
    """To be called while this run is `running`; whether its tables were compacted."""
    running = store.read("runs", columns=list(COLUMNS), status=RUNNING).to_pylist()
    if not all(has_vanished(row) for row in running if row["run_id"] != run_id):
        return False
    for name in tables:
        store.compact(name)
    return True


def compact_overdue(store: Store, run_id: str) -> None:
    """In a soak: what has grown since it was last looked at. Whatever comes of it, no row is lost
    by it, so a failure is no reason to end the run; the next look tries again."""
    overdue = store.overdue()
    if overdue:
        with suppress(StoreError):
            compact_if_alone(store, run_id, overdue)
