"""`bench-spark watch` on runs that grow, without Spark: what is said, and how it ends."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import result_documents as documents
from deltalake import DeltaTable, write_deltalake
from growing_run import GrowingRun

from bench_spark.brokers.base import free_ports
from bench_spark.cli import main
from bench_spark.errors import BrokerUnreachable
from bench_spark.store.delta import Store


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def between_looks(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """What happens while the watcher sleeps: once each, in this order."""

    def happen(*events: Callable[[], None]) -> None:
        left = iter(events)
        clock = SimpleNamespace(sleep=lambda seconds: next(left)())
        monkeypatch.setattr("bench_spark.cli.watch.time", clock)

    return happen


@pytest.fixture
def run(tmp_path: Path) -> GrowingRun:
    growing = GrowingRun(Store(tmp_path / "store").open())
    growing.begin()
    return growing


def watch(run: GrowingRun, *more: str) -> int:
    return main(["watch", "--store", run.store.uri, *more])


def test_the_newest_run_is_followed_to_its_result(
    run: GrowingRun, capsys: pytest.CaptureFixture[str], between_looks: Callable[..., None]
) -> None:
    for second in range(3):
        run.add_second(second)
    between_looks(lambda: run.add_second(3, rate=2000), lambda: run.end(documents.degraded()))
    assert watch(run) == 0
    said = capsys.readouterr()
    assert said.err.splitlines() == [
        "watching r1 on mine",
        "r1  measure  3/8 s  990 msg/s  delivery P99 8.00 ms",
        "r1  measure  4/8 s  2,001 msg/s  delivery P99 8.00 ms",
    ]
    assert said.out.startswith("DEGRADED  steady on ")


def test_watching_can_end_like_the_run_did(
    run: GrowingRun, capsys: pytest.CaptureFixture[str]
) -> None:
    run.fail(BrokerUnreachable("nobody there"))
    assert watch(run, "r1", "--exit-code", "--quiet") == 3
    said = capsys.readouterr()
    assert said.err == ""
    assert "nobody there" in said.out


def test_without_a_run_that_is_running_one_must_be_named(
    run: GrowingRun, capsys: pytest.CaptureFixture[str]
) -> None:
    run.fail(BrokerUnreachable("nobody there"))
    assert watch(run) == 2
    assert "no run is running in" in capsys.readouterr().err


def test_a_run_that_is_not_there_is_named_with_the_nearest(
    run: GrowingRun, capsys: pytest.CaptureFixture[str]
) -> None:
    assert watch(run, "r11") == 2
    assert "did you mean r1?" in capsys.readouterr().err


def test_a_run_that_says_nothing_any_more_is_called_silent(
    run: GrowingRun,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    between_looks: Callable[..., None],
) -> None:
    monkeypatch.setattr("bench_spark.cli.watch.QUIET_SECONDS", 0.0)
    between_looks(lambda: None, lambda: None, lambda: run.end(documents.VALID))
    assert watch(run) == 0
    assert capsys.readouterr().err.count("no news of r1 for") == 1


def test_a_run_whose_driver_has_vanished_is_abandoned(
    run: GrowingRun, capsys: pytest.CaptureFixture[str], between_looks: Callable[..., None]
) -> None:
    """It is noticed while it is watched, and nothing is written: that is for others."""
    for second in range(3):
        run.add_second(second)
    between_looks(run.lose_driver, lambda: None)
    assert watch(run, "--exit-code") == 4
    said = capsys.readouterr()
    assert said.out.startswith("ABANDONED  steady on mine")
    assert "its driver has vanished" in said.out
    assert "watching r1 on mine" in said.err
    assert run.store.read("runs")["status"].to_pylist() == ["running"]
    assert watch(run) == 2, "it is not one that is running"
    assert "no run is running in" in capsys.readouterr().err


def forget_drivers(run: GrowingRun, **changes: Any) -> None:
    """Write `runs` again as older versions did: there is no column for the driver."""
    table = DeltaTable(run.store.table_uri("runs"))
    rows = table.to_pyarrow_table()
    changed = pa.Table.from_pylist([row | changes for row in rows.to_pylist()], rows.schema)
    kept = [name for name in rows.column_names if name != "driver_json"]
    write_deltalake(table, changed.select(kept), mode="overwrite", schema_mode="overwrite")


def test_a_run_in_a_store_of_an_older_version_is_followed_to_its_end(
    run: GrowingRun, capsys: pytest.CaptureFixture[str], between_looks: Callable[..., None]
) -> None:
    forget_drivers(run, started_at=datetime.now(UTC))
    failed = {"status": "failed", "exit_code": 3, "reasons": ["nobody there"]}
    between_looks(
        lambda: None,  # nothing new: is the driver still there?
        lambda: run.add_second(3),
        lambda: forget_drivers(run, **failed),
    )
    assert watch(run, "r1", "--exit-code") == 3
    assert "nobody there" in capsys.readouterr().out


def test_a_run_of_an_older_version_that_should_have_ended_is_abandoned(
    run: GrowingRun, capsys: pytest.CaptureFixture[str], between_looks: Callable[..., None]
) -> None:
    forget_drivers(run)
    between_looks(lambda: None)
    assert watch(run, "r1", "--exit-code") == 4
    assert capsys.readouterr().out.startswith("ABANDONED  steady on mine")
    cleanup = ["cleanup", "--broker", "loopback", "--store", run.store.uri, "--delete"]
    assert main(cleanup) == 0
    [row] = Store(run.store.uri).read("runs").to_pylist()
    assert (row["status"], row["exit_code"]) == ("abandoned", 4)


def test_the_dashboards_address_is_told(
    run: GrowingRun, capsys: pytest.CaptureFixture[str]
) -> None:
    run.end(documents.VALID)
    [port] = free_ports(1)
    assert watch(run, "r1", "--dashboard", str(port)) == 0
    assert f"dashboard at http://127.0.0.1:{port}/" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--dashboard", "--prometheus"])
def test_an_address_that_is_none_is_refused(
    capsys: pytest.CaptureFixture[str], option: str
) -> None:
    assert main(["watch", "r1", option, "x"]) == 2
    assert f"{option}: 'x' is not allowed; allowed: PORT or HOST:PORT" in capsys.readouterr().err


def test_a_dashboard_needs_live_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["run", "steady", "--broker", "loopback", "--no-live", "--dashboard", "8080"]
    assert main(arguments) == 2
    assert "--dashboard: --no-live" in capsys.readouterr().err
