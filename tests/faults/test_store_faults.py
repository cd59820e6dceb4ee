"""Stores that fill up, cannot be written, are damaged, or are shared by two applications."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deltalake import DeltaTable
from fault_records import Seen
from patience import eventually
from whole_runs import CarryOut, Loading

from bench_spark.cli import main
from bench_spark.config.broker import Broker, resolve_credentials
from bench_spark.config.models import Scenario
from bench_spark.driver_process import this_process
from bench_spark.errors import EXIT_DEGRADED, EXIT_PREFLIGHT, StoreError, StoreNotReady
from bench_spark.plan import make_plan
from bench_spark.results.document import run_row
from bench_spark.spark.run import compact_if_alone
from bench_spark.store.arrow import EVENTS
from bench_spark.store.delta import KEPT_FREE_BYTES, Store
from bench_spark.transports.leftovers import Wanted
from bench_spark.transports.registry import sweeper_of

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


def turn_read_only(disk: Path) -> None:
    """Refused while a file is open for writing, as one is now and then."""
    remount = ["mount", "-o", "remount,ro", str(disk)]
    assert eventually(
        lambda: not subprocess.run(remount, capture_output=True, check=False).returncode
    )


@dataclass(frozen=True)
class Ended:
    """A command that has ended, and what it has written."""

    code: int
    document: dict[str, Any]
    err: str

    @property
    def reasons_about_store(self) -> list[str]:
        return [one for one in self.document["reasons"] if "the store" in one]

    @property
    def reason(self) -> str:
        [sentence] = self.reasons_about_store
        return sentence


RunCommand = Callable[..., Ended]


@pytest.fixture
def between_writes(monkeypatch: pytest.MonkeyPatch) -> threading.RLock:
    """Held by whoever writes to a store. A disk that fills up in the very midst of a write makes
    threads of deltalake say that they panicked; a test that meets this does so by chance."""
    gate = threading.RLock()

    def guarded(write: Callable[..., Any]) -> Callable[..., Any]:
        def wait_and_write(*arguments: Any, **named: Any) -> Any:
            with gate:
                return write(*arguments, **named)

        return wait_and_write

    for name in ("append", "add_files", "replace_run", "compact"):
        monkeypatch.setattr(Store, name, guarded(getattr(Store, name)))
    return gate


@pytest.fixture
def run_command(
    spark: Any, between_writes: threading.RLock, capfd: pytest.CaptureFixture[str]
) -> RunCommand:
    """`bench-spark run` on the shared session, and what happens once it measures."""

    def run(broker: str, store: Path, seconds: int, harm: Callable[[], object] = int) -> Ended:
        run_id = f"harmed-{time.time_ns()}"
        own = Store(store).open()

        def has_sent() -> bool:
            return any(own.read("events", columns=["sent"], run_id=run_id)["sent"].to_pylist())

        def harm_when_measured() -> None:
            if eventually(has_sent):
                with between_writes:
                    harm()

        thread = threading.Thread(target=harm_when_measured)
        capfd.readouterr()
        thread.start()
        code = main(
            [
                *("run", "steady", "--run-id", run_id, "--broker", broker, "--store", str(store)),
                *("--format", "json", "--set", "load.rate_per_second=200"),
                *("--set", "phases.warmup_seconds=0", "--set", f"phases.measure_seconds={seconds}"),
            ]
        )
        thread.join()
        said = capfd.readouterr()
        return Ended(code, json.loads(said.out), said.err)

    return run


def assert_told(ended: Ended, store: Path, cause: str) -> None:
    """The result of a run whose store was harmed under way, and nothing but it."""
    assert ended.code == ended.document["exit_code"] == EXIT_DEGRADED
    assert ended.document["status"] == "degraded"
    assert ended.reason.startswith(f"the store {store} cannot be written: {cause}; ")
    assert re.search(r"the store lacks the last \d+ s of its events", ended.reason)
    counts = ended.document["counts"]
    # Events say what was sent and received, agents what became of it: no row is missing.
    fates = ("received_once", "left_in_broker", "lost", "indeterminate", "refused", "returned")
    assert counts["sent"] == sum(counts[name] for name in fates) > 0
    assert counts["received"] == counts["received_once"] + counts["duplicates"] > 0
    assert ended.document["measures"]["latency"]["count"] == counts["received"]
    for noise in ("panicked", "Traceback", "Exception in thread", "\tat "):
        assert noise not in ended.err


LONG, SHORT = 120, 2
"""Seconds: much longer than a run lasts that has lost its store, and long enough for one row."""


@pytest.mark.fault(case=14)
def test_a_disk_that_fills_up_in_mid_run_costs_no_result(
    rabbitmq_broker: Broker, run_command: RunCommand, tmp_path: Path, seen: Seen
) -> None:
    keys = rabbitmq_broker.model_dump(exclude_none=True, exclude_defaults=True)
    mine = tmp_path / "mine.yaml"
    mine.write_text(yaml.safe_dump(keys))
    with small_disk(tmp_path / "disk", mebibytes=16) as disk:
        store = disk / "store"
        ended = run_command(str(mine), store, LONG, lambda: fill(disk))
        assert_told(ended, store, "No space left on device")
        assert "ending the load: the store" in ended.err
        sweeper = sweeper_of(rabbitmq_broker, resolve_credentials(rabbitmq_broker))
        assert sweeper.find(Wanted(run_prefix=ended.document["run_id"])) == []
        # What was stored before can be read while the disk is full, and afterwards written to.
        run_id = ended.document["run_id"]
        stored = Store(store).read("events", columns=["sent"], run_id=run_id)["sent"]
        assert 0 < sum(stored.to_pylist()) < ended.document["counts"]["sent"]
        (disk / "ballast").unlink()
        assert run_command("loopback", store, SHORT).reasons_about_store == []
    seen("disk full: result shown, load ended, nothing left in the broker, the next run is stored")


@pytest.mark.fault(case=14)
def test_a_store_that_turns_read_only_in_mid_run_costs_no_result(
    run_command: RunCommand, tmp_path: Path, seen: Seen
) -> None:
    with small_disk(tmp_path / "disk", mebibytes=16) as disk:
        store = disk / "store"
        ended = run_command("loopback", store, LONG, lambda: turn_read_only(disk))
        assert_told(ended, store, "Read-only file system")
        assert ended.reason.endswith("its rows of `summary` and its row of `runs`")
    seen("read-only in mid-run: result shown, with what the store lacks")


@pytest.mark.fault(case=14)
def test_the_last_of_a_disk_is_left_to_the_result(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with small_disk(tmp_path / "disk", mebibytes=8) as disk:
        store = Store(disk / "store").open()
        store.append("events", marker(0))
        store.replace_run(running_since("one", datetime.now(UTC)))
        ballast = fill(disk)
        os.truncate(ballast, ballast.stat().st_size - KEPT_FREE_BYTES)
        with pytest.raises(StoreError, match="cannot be written: No space left on device"):
            store.append("events", marker(1))
        store.replace_run(running_since("one", datetime.now(UTC)) | {"status": "degraded"})
        assert store.read("runs")["status"].to_pylist() == ["degraded"]
        assert store.read("events").num_rows == 1
        fill(disk)
        with pytest.raises(StoreError, match="cannot be written: No space left on device"):
            store.replace_run(running_since("two", datetime.now(UTC)))
    assert "panicked" not in capfd.readouterr().err


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
        assert time.monotonic() - started < 60
        assert main(["runs", "--store", str(store)]) == 0


def marker(number: int) -> pa.Table:
    row = {"run_id": f"run-{number}", "agent": 0, "attempt": 0, "row_number": number}
    return pa.Table.from_pylist([row], schema=EVENTS)


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
    gone = subprocess.Popen(["true"])
    gone.wait()
    driver = json.dumps(json.loads(this_process()) | {"pid": gone.pid})
    store.replace_run(running_since("killed", now) | {"driver_json": driver})
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
