"""Which process drives a run, and whether it is gone: a run whose driver was killed never ends by
itself, and stays `running` in its row."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from bench_spark.errors import EXIT_DEGRADED
from bench_spark.plan import LONGEST_SETTLING
from bench_spark.store.delta import Store

RUNNING, ABANDONED = "running", "abandoned"

GRACE = timedelta(hours=1)
"""How much longer than planned a run may take, all in all, before it is taken for killed where its
process cannot be looked at."""

COLUMNS = ("run_id", "status", "started_at", "scenario_json", "driver_json")
"""Of `runs`: what `has_vanished` needs."""

_WHY = "its driver has vanished: killed, or its machine was restarted"

AS_ABANDONED = {"status": ABANDONED, "reasons": [_WHY], "exit_code": EXIT_DEGRADED}
"""What the row of a run says whose driver has vanished."""


def this_process() -> str:
    """This process as the column `driver_json` holds it."""
    return json.dumps({**_place(), "pid": os.getpid(), "started": _started(os.getpid())})


def has_vanished(row: Mapping[str, Any], now: datetime | None = None) -> bool:
    """Whether a run that has not ended never will."""
    if row["status"] != RUNNING:
        return False
    driver = json.loads(row["driver_json"] or "{}")
    here = _place()
    if driver and all(driver.get(key) == value for key, value in here.items()):
        return bool(_started(driver["pid"]) != driver["started"])
    return not _may_be_alive(row, now or datetime.now(UTC))


def _may_be_alive(row: Mapping[str, Any], now: datetime) -> bool:
    phases = json.loads(row["scenario_json"])["phases"]
    warmup_seconds = LONGEST_SETTLING * phases["warmup_seconds"]
    longest = warmup_seconds + phases["measure_seconds"] + phases["drain_seconds"]
    planned = timedelta(seconds=longest)
    return bool(now < row["started_at"] + planned + GRACE)


def end_abandoned(store: Store, run_prefix: str = "") -> list[str]:
    """End the rows of runs whose driver has vanished; returns their ids."""
    rows = store.read("runs", columns=list(COLUMNS), status=RUNNING).to_pylist()
    return [
        row["run_id"]
        for row in rows
        if row["run_id"].startswith(run_prefix)
        and has_vanished(row)
        and store.end_run(row["run_id"], ABANDONED, _WHY, EXIT_DEGRADED)
    ]


@cache
def _place() -> dict[str, str]:
    """Where process ids mean the same processes: a host since it was started, and a container."""
    return {
        "host": socket.gethostname(),
        "boot": _text_of("/proc/sys/kernel/random/boot_id"),
        "processes": _link_of("/proc/self/ns/pid"),
    }


def _text_of(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _link_of(path: str) -> str:
    try:
        return str(Path(path).readlink())
    except OSError:
        return ""


def _started(pid: int) -> float | None:
    """When a process began; None if there is none of this id."""
    try:
        process = psutil.Process(pid)
        is_gone = process.status() == psutil.STATUS_ZOMBIE
        return None if is_gone else round(process.create_time(), 2)
    except psutil.NoSuchProcess:
        return None
