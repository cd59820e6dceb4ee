"""Whole runs with their store on S3, written by deltalake and read by Spark (`make test-s3`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from object_store import BUCKET, SECRET, s3_server

from bench_spark.errors import EXIT_DEGRADED, EXIT_VALID
from bench_spark.jars import jar_set
from bench_spark.store.delta import Store

pytestmark = pytest.mark.s3

SUITE = """
name: on-s3
base: steady
set: {phases.warmup_seconds: 0.5, phases.measure_seconds: 1}
axes:
  load.rate_per_second: [200, 400]
"""
JOB_SECONDS_AT_MOST = 900
URI = f"s3://{BUCKET}/store"
RUN = "on-s3"


@dataclass(frozen=True)
class OnS3:
    """A traced run with live metrics, its environment, and all that it said."""

    files: Path
    environment: Mapping[str, str]
    result: dict[str, Any]
    said: str

    def call(self, *arguments: str) -> str:
        """What a command on the same store prints."""
        return called(self.environment, *arguments).stdout


def called(environment: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "bench_spark.cli", *arguments, "--store", URI],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=JOB_SECONDS_AT_MOST,
        check=False,
    )
    # A busy machine may not keep the schedule; everything else must be as it should.
    assert done.returncode in (EXIT_VALID, EXIT_DEGRADED), done.stdout + done.stderr
    return done


def with_jars() -> list[str]:
    return [f"--jars={jar}" for jar in jar_set("hadoop-aws", say=print)]


@pytest.fixture(scope="module")
def on_s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnS3]:
    directory = tmp_path_factory.mktemp("s3")
    overrides = (
        *("agents=2", "producers=2", "consumers=2", "destinations=2", "trace=all"),
        *("load.rate_per_second=1000", "phases.warmup_seconds=1", "phases.measure_seconds=12"),
    )
    with s3_server(directory) as environment:
        done = called(
            environment,
            *("run", "steady", "--broker", "loopback", "--run-id", RUN, "--format", "json"),
            *(f"--set={override}" for override in overrides),
            *with_jars(),
        )
        said = done.stdout + done.stderr
        yield OnS3(directory, environment, json.loads(done.stdout), said)


def test_a_run_has_its_result_and_every_message_joined_by_spark(on_s3: OnS3) -> None:
    assert on_s3.result["status"] in ("valid", "degraded")
    assert on_s3.result["counts"]["sent"] == 12_000
    trace = on_s3.result["trace"]
    assert trace["joined"], on_s3.result["audit"]
    assert (trace["sent"], trace["received_once"]) == (12_000, 12_000)


def test_rolling_metrics_come_while_the_load_runs(on_s3: OnS3) -> None:
    (live,) = (each for each in on_s3.result["audit"]["checks"] if each["name"] == "live")
    assert live["text"].startswith("the newest live metrics came"), live


def test_events_are_compacted_when_the_run_has_ended(on_s3: OnS3) -> None:
    options = dict(on_s3.environment)
    history = DeltaTable(f"{URI}/events", storage_options=options).history()
    assert history[0]["operation"] == "OPTIMIZE"


def test_spark_answers_queries_and_other_commands_need_no_jars(on_s3: OnS3) -> None:
    query = f"SELECT count(*) AS rows FROM events WHERE run_id = '{RUN}'"
    (row,) = json.loads(on_s3.call("sql", query, "--format", "json", *with_jars()))
    assert row["rows"] > 0
    assert RUN in on_s3.call("runs")
    assert RUN in on_s3.call("watch", RUN)


def test_a_suite_runs_with_its_store_on_s3(on_s3: OnS3) -> None:
    (on_s3.files / "grid.yaml").write_text(SUITE)
    on_s3.call("suite", "run", str(on_s3.files / "grid.yaml"), "--broker=loopback", *with_jars())
    rows = runs_of(on_s3, suite="on-s3")
    assert sorted(row["trial"] for row in rows) == [1, 2]
    assert {row["status"] for row in rows} <= {"valid", "degraded"}


def test_two_runs_at_once_lose_no_row(on_s3: OnS3) -> None:
    short = ("--broker=loopback", "--set=load.rate_per_second=500", *with_jars())
    phases = ("--set=phases.warmup_seconds=0", "--set=phases.measure_seconds=5")
    names = ("one", "other")
    with ThreadPoolExecutor() as pool:
        started = [
            pool.submit(on_s3.call, "run", "steady", "--run-id", name, *short, *phases)
            for name in names
        ]
        for run in started:
            run.result()
    options = dict(on_s3.environment)
    events = DeltaTable(f"{URI}/events", storage_options=options).to_pandas()
    for name in names:
        (row,) = runs_of(on_s3, run_id=name)
        counts = json.loads(row["result_json"])["counts"]
        rows = events[(events.run_id == name) & (events.phase == "measure")]
        assert rows.sent.sum() == rows.received.sum() == counts["sent"] == 2500
        assert not rows.duplicated(["agent", "attempt", "row_number"]).any()


def runs_of(on_s3: OnS3, **equals: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = Store(URI, on_s3.environment).read("runs", **equals).to_pylist()
    return found


def test_credentials_are_neither_said_nor_stored(on_s3: OnS3) -> None:
    assert SECRET not in on_s3.said
    for file in (on_s3.files / BUCKET).rglob("*"):
        if file.is_file():
            assert SECRET.encode() not in file.read_bytes(), file
