"""Tidying up a store that other applications may be using.

Two applications must not compact a table at once (see `Store.compact`), and no lock reaches every
kind of store. But whoever compacts has a run in `runs` that is `running`, put there long before and
changed only afterwards: of two applications that come to compact, one at least sees the other, and
whoever sees another leaves the files as they are. The next run will compact them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from bench_spark.errors import StoreError
from bench_spark.store import Store
from bench_spark.summary.rows import RUNNING

GRACE = timedelta(hours=1)
"""How much longer than planned a run may take, all in all, before it is taken for killed."""


def compact_if_alone(store: Store, run_id: str, tables: Sequence[str] = ("events",)) -> bool:
    """To be called while this run is `running`; whether its tables were compacted."""
    columns = ["run_id", "started_at", "scenario_json"]
    running = store.read("runs", columns=columns, status=RUNNING).to_pylist()
    now = datetime.now(UTC)
    if any(may_be_alive(row, now) for row in running if row["run_id"] != run_id):
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


def may_be_alive(row: Mapping[str, Any], now: datetime) -> bool:
    """Whether a run that has not ended may still end: its driver was perhaps killed."""
    phases = json.loads(row["scenario_json"])["phases"]
    names = ("warmup_seconds", "measure_seconds", "drain_seconds")
    planned = timedelta(seconds=sum(phases[name] for name in names))
    return bool(now < row["started_at"] + planned + GRACE)
