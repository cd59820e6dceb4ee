"""What the driver of a run writes, by two processes at once into one store."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime

import pyarrow as pa

from bench_spark.store.arrow import EVENTS
from bench_spark.store.delta import Store

RUNS = ("first", "second")
APPENDS = 12


def check_that_two_drivers_lose_no_row(uri: str, environment: Mapping[str, str]) -> None:
    """Every row of both is there once, and each has its row in `runs`; both make the tables."""
    drivers = [
        subprocess.Popen(
            [sys.executable, __file__, uri, run_id],
            env=dict(environment),
            stderr=subprocess.PIPE,
            text=True,
        )
        for run_id in RUNS
    ]
    said = [driver.communicate(timeout=300)[1] for driver in drivers]
    assert [driver.returncode for driver in drivers] == [0, 0], said
    store = Store(uri, dict(environment))
    for run_id in RUNS:
        rows = store.read("events", columns=["row_number"], run_id=run_id)
        assert sorted(rows["row_number"].to_pylist()) == list(range(APPENDS)), run_id
        (run,) = store.read("runs", columns=["status"], run_id=run_id).to_pylist()
        assert run["status"] == "valid"


def drive(uri: str, run_id: str) -> None:
    """Claim a run, append its rows one by one, and put its result in."""
    store = Store(uri).open()
    row = {"run_id": run_id, "status": "running", "started_at": datetime.now(UTC)}
    assert store.claim_run(row)
    for number in range(APPENDS):
        event = {
            "run_id": run_id,
            "agent": 0,
            "attempt": 0,
            "row_number": number,
            "role": "producer",
            "phase": "measure",
            "tick": number,
            "tick_start": datetime.now(UTC),
            "tick_seconds": 1.0,
        }
        rows = pa.Table.from_pylist([event], schema=EVENTS)
        store.append("events", rows, app_id=run_id, version=number)
        if number % 4 == 3:
            store.replace_run(row)
    store.replace_run(row | {"status": "valid"})


if __name__ == "__main__":
    drive(*sys.argv[1:])
