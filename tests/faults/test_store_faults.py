"""Stores that fill up, cannot be written, are damaged, or are shared by two applications."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from fault_records import Seen
from whole_runs import CarryOut, Loading

from bench_spark import tables
from bench_spark.cli import main
from bench_spark.errors import EXIT_DEGRADED, EXIT_PREFLIGHT, StoreError, StoreNotReady
from bench_spark.plan import make_plan
from bench_spark.scenario.broker import Broker
from bench_spark.scenario.models import Scenario
from bench_spark.spark.housekeeping import compact_if_alone
from bench_spark.store import Store
from bench_spark.summary.rows import run_row

LOAD = {"rate_per_second": 500}


@contextmanager
def small_disk(directory: Path, mebibytes: int) -> Iterator[Path]:
    """A disk of its own; only root may mount one."""
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "none", str(directory)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


def fill(disk: Path) -> Path:
    """Use up all that is free."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)) == 4096:
                pass
        except OSError:
            pass  # which was the intention
    return ballast


@pytest.mark.fault(case=14)
@pytest.mark.faults_slow
def test_a_disk_that_fills_up_in_mid_run_is_named_and_costs_nothing_that_was_stored(
    loopback_broker: Broker, carry_out: CarryOut, tmp_path: Path, seen: Seen
) -> None:
    with small_disk(tmp_path / "disk", mebibytes=8) as disk:
        store = disk / "store"
        phases = {"warmup_seconds": 0, "measure_seconds": 1, "drain_seconds": 2}
        first = carry_out(loopback_broker, store=store, phases=phases, load=LOAD)
        assert first.status == "valid"
        ballast: list[Path] = []

        def fill_up(loading: Loading) -> None:
            ballast.append(fill(disk))

        with pytest.raises(StoreError, match=r"(?i)no space left|storage full") as failed:
            carry_out(loopback_broker, fill_up, store=store, phases=phases, load=LOAD)
        assert failed.value.exit_code == EXIT_DEGRADED
        assert str(store) in str(failed.value)
        # What was stored before can be read while the disk is full, and afterwards written to.
        assert len(first.events) > 0
        ballast[0].unlink()
        again = carry_out(loopback_broker, store=store, phases=phases, load=LOAD)
        assert again.status == "valid"
        assert len(first.events) > 0
        statuses = DeltaTable(str(store / "runs")).to_pandas().status.tolist()
        assert sorted(statuses) in (["running", "valid", "valid"], ["failed", "valid", "valid"])
    seen("disk full: named, earlier runs readable, the next run valid")


@pytest.mark.fault(case=14)
def test_a_read_only_store_is_refused_for_runs_and_read_all_the_same(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with small_disk(tmp_path / "disk", mebibytes=4) as disk:
        store = disk / "store"
        Store(store).open()
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        started = time.monotonic()
        arguments = ["--broker", "loopback", "--store", str(store)]
        assert main(["run", "steady", *arguments]) == EXIT_PREFLIGHT
        said = capfd.readouterr()
        assert "cannot be written: Read-only file system" in said.err
        assert time.monotonic() - started < 15
        assert main(["runs", "--store", str(store)]) == 0


def marker(number: int) -> pa.Table:
    row = {"run_id": f"run-{number}", "agent": 0, "attempt": 0, "row_number": number}
    return pa.Table.from_pylist([row], schema=tables.EVENTS)


@pytest.mark.fault(case=14)
def test_a_damaged_table_is_named(tmp_path: Path) -> None:
    store = Store(tmp_path / "store").open()
    for number in range(3):
        store.append("events", marker(number))
    log = tmp_path / "store" / "events" / "_delta_log"
    newest = max(log.glob("*.json"))
    newest.write_text("{ this is no commit")
    with pytest.raises((StoreNotReady, StoreError), match="events"):
        Store(tmp_path / "store").open().read("events")
    newest.unlink()
    newest.with_suffix(".crc").unlink()
    assert Store(tmp_path / "store").open().read("events").num_rows == 2


@pytest.mark.fault(case=14)
@pytest.mark.faults_slow
def test_a_damaged_checkpoint_of_the_rolling_metrics_costs_no_result(
    loopback_broker: Broker, carry_out: CarryOut, tmp_path: Path, seen: Seen
) -> None:
    """The query cannot write its progress any more, nor start again from what it has written."""
    store = tmp_path / "store"

    def spoil(loading: Loading) -> None:
        loading.sleep_until(0.5)
        for directory in (store / "_checkpoints").glob("*/offsets"):
            for file in directory.iterdir():
                file.write_text("spoiled")
        for directory in (store / "_checkpoints").glob("*/commits"):
            for file in directory.iterdir():
                file.unlink()

    outcome = carry_out(
        loopback_broker,
        spoil,
        store=store,
        live=True,
        phases={"warmup_seconds": 0, "measure_seconds": 3, "drain_seconds": 2},
        load=LOAD,
    )
    assert outcome.exit_code == 0
    assert outcome.counts["received_once"] == 1500
    seen("damaged checkpoint: " + (outcome.check("metrics") or "the metrics were complete")[:80])


@pytest.mark.fault(case=14)
def test_what_is_written_while_one_application_compacts_is_there_once(tmp_path: Path) -> None:
    """Each has a store object of its own, as two processes have."""
    Store(tmp_path / "store").open()
    errors: list[Exception] = []

    def work(first: int) -> None:
        own = Store(tmp_path / "store")
        try:
            for number in range(first, first + 10):
                own.append("events", marker(number), app_id=f"application-{first}", version=number)
                if first == 0 and number % 3 == 0:
                    own.compact("events")
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(first,)) for first in (0, 100, 200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    found = Store(tmp_path / "store").read("events", columns=["row_number"])["row_number"]
    assert sorted(found.to_pylist()) == [*range(10), *range(100, 110), *range(200, 210)]


def running_since(run_id: str, started_at: datetime) -> dict[str, object]:
    return run_row(make_plan(Scenario(), run_id), {"name": "loopback"}, started_at)


@pytest.mark.fault(case=14)
def test_no_two_applications_compact_at_once(tmp_path: Path) -> None:
    """deltalake would let both commit, and every row were there twice."""
    store = Store(tmp_path / "store").open()
    for number in range(4):
        store.append("events", marker(number))
    now = datetime.now(UTC)
    store.replace_run(running_since("one", now))
    store.replace_run(running_since("other", now))
    assert not compact_if_alone(store, "one")
    assert not compact_if_alone(store, "other")
    store.replace_run(running_since("other", now) | {"status": "valid"})
    store.replace_run(running_since("killed", now - timedelta(hours=2)))
    assert compact_if_alone(store, "one")
    assert store.read("events").num_rows == 4


@pytest.mark.fault(case=14)
@pytest.mark.faults_slow
def test_two_applications_share_a_store(tmp_path: Path, seen: Seen) -> None:
    store = tmp_path / "store"
    programs = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "bench_spark.cli", "run", "steady", "--run-id", run_id),
                *("--broker", "loopback", "--store", str(store), "--format", "json", "--quiet"),
                *("--set", "load.rate_per_second=500", "--set", "phases.warmup_seconds=0"),
                *("--set", "phases.measure_seconds=8"),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for run_id in ("one", "other")
    ]
    for program in programs:
        out, err = program.communicate(timeout=150)
        assert program.returncode in (0, EXIT_DEGRADED), err  # a busy machine may miss its rate
        counts = json.loads(out)["counts"]
        assert counts["sent"] == counts["received_once"]
    events = DeltaTable(str(store / "events")).to_pandas()
    metrics = DeltaTable(str(store / "metrics")).to_pandas()
    for run_id in ("one", "other"):
        assert events[events.run_id == run_id].sent.sum() == 4000
        assert len(metrics[metrics.run_id == run_id]) > 0
    keys = ["run_id", "agent", "attempt", "row_number", "role", "tick"]
    assert not events[events.agent >= 0].duplicated(keys).any()
    seen("two applications at once: 4,000 of 4,000 messages in the rows of each")
