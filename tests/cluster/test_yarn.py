"""Whole runs on YARN with their store on HDFS (`make test-yarn`): nodes have Spark and no Python,
and dynamic allocation is on, as platforms preset it."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
import yaml
from bereft_runs import await_load, check_bereft, executors_below, kill_with_children
from mini_hadoop import MiniHadoop, Submitted, mini_hadoop
from two_drivers import check_that_two_drivers_lose_no_row

from bench_spark.config.broker import Broker
from bench_spark.errors import EXIT_DEGRADED, EXIT_PREFLIGHT, EXIT_VALID
from bench_spark.store.delta import Store

pytestmark = pytest.mark.yarn

RATE, WARMUP_SECONDS, SECONDS = 500, 1, 20
SMALL = {"EXECUTOR_MEMORY": "512m", "EXECUTOR_OVERHEAD": "512m"}


@dataclass(frozen=True)
class OnYarn:
    hadoop: MiniHadoop
    archive: Path

    @property
    def store(self) -> str:
        return f"{self.hadoop.hdfs}/bench"

    def start(self, run_id: str, *arguments: str, mode: str, **variables: str) -> Submitted:
        common = ("--store", self.store, "--run-id", run_id)
        sets = (
            *("agents=2", "producers=2", "consumers=2", "destinations=2"),
            *(f"load.rate_per_second={RATE}", f"phases.warmup_seconds={WARMUP_SECONDS}"),
        )
        return self.hadoop.submit(
            {},
            *("steady", *common, *(f"--set={each}" for each in sets), *arguments),
            DEPLOY_MODE=mode,
            ARCHIVE=str(self.archive),
            **(SMALL | variables),
        )

    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command on the same store from a machine of no cluster."""
        return subprocess.run(
            [sys.executable, "-m", "bench_spark.cli", *arguments, "--store", self.store],
            env=dict(self.hadoop.environment),
            capture_output=True,
            text=True,
            check=False,
        )

    def result(self, run_id: str) -> dict[str, Any]:
        (row,) = Store(self.store).read("runs", run_id=run_id).to_pylist()
        assert row["result_json"], row["reasons"]
        return dict(json.loads(row["result_json"]))

    def live_rows(self, run_id: str) -> list[dict[str, Any]]:
        """Of each rolling window the row that was written first, in the order of the batches."""
        columns = ["window_end", "written_at", "batch_id"]
        rows = Store(self.store).read("metrics", columns=columns, run_id=run_id, window="rolling")
        first: dict[Any, dict[str, Any]] = {}
        for row in sorted(rows.to_pylist(), key=itemgetter("batch_id", "window_end")):
            first.setdefault(row["window_end"], row)
        return list(first.values())


@pytest.fixture(scope="module")
def on_yarn(tmp_path_factory: pytest.TempPathFactory, whole_archive: Path) -> Iterator[OnYarn]:
    with mini_hadoop(tmp_path_factory.mktemp("hadoop")) as hadoop:
        yield OnYarn(hadoop, whole_archive)


@pytest.mark.parametrize("mode", ["client", "cluster"])
def test_a_run_asks_for_its_executors_and_brings_its_python(on_yarn: OnYarn, mode: str) -> None:
    job = on_yarn.start(
        f"in-{mode}", "--broker=loopback", f"--set=phases.measure_seconds={SECONDS}", mode=mode
    )
    code = job.end()
    said = job.said
    result = on_yarn.result(f"in-{mode}")
    # A busy machine may not keep the schedule; everything else must be as it should.
    expected = {"valid": EXIT_VALID, "degraded": EXIT_DEGRADED}[result["status"]]
    # In cluster mode spark-submit only says whether the driver has ended with 0.
    assert code == (expected if mode == "client" else int(expected != EXIT_VALID)), said[-3000:]
    assert result["counts"]["sent"] == result["counts"]["received_once"] == RATE * SECONDS
    assert len({agent["executor"] for agent in result["agents"]}) == 2
    check_live_metrics(on_yarn.live_rows(f"in-{mode}"), result)
    shown = on_yarn.call("show", f"in-{mode}", "--exit-code")
    assert shown.returncode == expected


def check_live_metrics(rows: list[dict[str, Any]], result: dict[str, Any]) -> None:
    """Every window was written, in order, in several batches while the load ran, and the audit
    has said how late. How late that is depends on how busy this machine is."""
    ends = [row["window_end"] for row in rows]
    assert ends == sorted(ends)
    assert len(ends) == SECONDS + WARMUP_SECONDS
    assert len({row["batch_id"] for row in rows}) > 1
    assert rows[0]["written_at"] < ends[-1]
    (live,) = (check for check in result["audit"]["checks"] if check["name"] == "live")
    assert live["text"].startswith("the newest live metrics came"), live
    delays = [(row["written_at"] - row["window_end"]).total_seconds() for row in rows]
    print(f"live: median {statistics.median(delays):.1f} s of {delays}; {live}")


def test_a_lost_container_ends_the_run_with_exact_accounts(
    on_yarn: OnYarn, rabbitmq_broker: Broker, tmp_path: Path
) -> None:
    keys = rabbitmq_broker.model_dump(exclude_none=True, exclude_defaults=True)
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(keys))
    job = on_yarn.start(
        "bereft",
        *("--broker", str(tmp_path / "mine.yaml"), "--set=phases.measure_seconds=120"),
        mode="client",
    )

    def raise_if_ended() -> None:
        assert job.process.poll() is None, job.said[-3000:]

    try:
        await_load(on_yarn.store, "bereft", raise_if_ended)
        kill_with_children(executors_below(on_yarn.hadoop.process.pid)[0])
        code = job.end()
    finally:
        job.process.kill()
    assert code == EXIT_DEGRADED, job.said[-3000:]
    check_bereft(on_yarn.result("bereft"), rabbitmq_broker, "bereft")
    assert on_yarn.call("show", "bereft", "--exit-code").returncode == EXIT_DEGRADED


def test_two_drivers_at_once_lose_no_row_on_hdfs(on_yarn: OnYarn) -> None:
    environment = dict(on_yarn.hadoop.environment)
    check_that_two_drivers_lose_no_row(f"{on_yarn.hadoop.hdfs}/two", environment)


def test_a_user_who_may_not_write_is_refused_in_one_sentence(on_yarn: OnYarn) -> None:
    own = {**on_yarn.hadoop.environment, "HADOOP_USER_NAME": "nobody"}
    done = subprocess.run(
        [
            *(sys.executable, "-m", "bench_spark.cli", "run", "steady", "--broker=loopback"),
            *("--store", f"{on_yarn.hadoop.hdfs}/denied"),
        ],
        env=own,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == EXIT_PREFLIGHT
    (said,) = done.stderr.strip().splitlines()
    assert "HDFS denies WRITE on / to the user nobody; set HADOOP_USER_NAME" in said
