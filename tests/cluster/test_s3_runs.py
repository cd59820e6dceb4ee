"""Whole runs with their store on S3 (`make test-s3`): written by deltalake, read by Spark on two
executors, whose workers know nothing of S3."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from object_store import BUCKET, SECRET, s3_server
from patience import eventually
from refused import check_refused

from bench_spark.errors import EXIT_DEGRADED, EXIT_VALID, StoreError
from bench_spark.jars import delta_set, jar_set
from bench_spark.store.delta import Store
from benchmarks.standalone import HERE, ROOT, Cluster, standalone

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
# So long that a live row comes in time even where the machine is busy with other things.
RUN, RATE, SECONDS = "on-s3", 200, 90
# Room for the executors of two applications on two workers.
CORES_OF_A_WORKER, CORES_OF_A_RUN = 4, 4


@dataclass(frozen=True)
class OnS3:
    """A server of S3 with a store, and a cluster."""

    files: Path
    environment: Mapping[str, str]
    cluster: Cluster

    @property
    def store(self) -> Store:
        return Store(URI, self.environment)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """A command on this store."""
        return subprocess.Popen(
            [sys.executable, "-m", "bench_spark.cli", *arguments, "--store", URI],
            env=os.environ | dict(self.environment) | {"SPARK_LOCAL_IP": "127.0.0.1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self, command: subprocess.Popen[str]) -> tuple[int, str, str]:
        """Its exit code, and what it said on either stream."""
        try:
            out, err = command.communicate(timeout=JOB_SECONDS_AT_MOST)
        finally:
            command.kill()
        return command.returncode, out, err

    def call(self, *arguments: str) -> str:
        """What a command on this store prints."""
        return measured(*self.end(self.start(*arguments)))

    def on_cluster(self, executors_jars: Sequence[Path] | None = None) -> list[str]:
        """Options with which the cluster carries a command out; the jars are where it runs."""
        aws = ":".join(map(str, jar_set("hadoop-aws", say=print)))
        executors = aws if executors_jars is None else ":".join(map(str, executors_jars))
        settings = {
            "spark.executor.memory": "512m",
            "spark.cores.max": str(CORES_OF_A_RUN),
            "spark.benchspark.executors.timeout": "300s",
            "spark.driver.extraClassPath": aws,
            "spark.executor.extraClassPath": executors,
        }
        options = [f"--conf={key}={value}" for key, value in settings.items()]
        return ["--master", self.cluster.master, *options]

    def result(self, run_id: str) -> dict[str, Any]:
        (row,) = self.store.read("runs", run_id=run_id).to_pylist()
        found: dict[str, Any] = json.loads(row["result_json"])
        return found


def measured(code: int, out: str, err: str) -> str:
    # A busy machine may not keep the schedule; everything else must be as it should.
    assert code in (EXIT_VALID, EXIT_DEGRADED), out + err
    return out


@pytest.fixture(scope="module")
def on_s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnS3]:
    directory = tmp_path_factory.mktemp("s3")
    plain = {"PYSPARK_PYTHON": sys.executable}
    with (
        s3_server(directory) as environment,
        standalone([HERE] * 2, CORES_OF_A_WORKER, directory, worker_environment=plain) as cluster,
    ):
        yield OnS3(directory, environment, cluster)


@dataclass(frozen=True)
class Watched:
    """A traced run with live metrics, what it said, and what somebody saw who watched it."""

    result: Mapping[str, Any]
    said: str
    seen: str


@pytest.fixture(scope="module")
def run(on_s3: OnS3) -> Watched:
    overrides = (
        *("agents=2", "producers=2", "consumers=2", "destinations=2", "trace=all"),
        *(f"load.rate_per_second={RATE}", f"phases.measure_seconds={SECONDS}"),
        "phases.warmup_seconds=1",
    )
    running = on_s3.start(
        *("run", "steady", "--broker=loopback", "--run-id", RUN, *on_s3.on_cluster()),
        *("--format=json", *(f"--set={override}" for override in overrides)),
    )

    def is_claimed() -> bool:
        try:
            return bool(on_s3.store.read("runs", columns=["run_id"], run_id=RUN).num_rows)
        except StoreError:
            return False

    assert eventually(lambda: is_claimed() or running.poll() is not None, JOB_SECONDS_AT_MOST)
    watching = on_s3.start("watch", RUN)
    code, out, err = on_s3.end(running)
    measured(code, out, err)
    watched = on_s3.end(watching)
    measured(*watched)
    return Watched(json.loads(out), out + err, watched[2])


def test_two_executors_carry_a_run_out_and_every_message_is_joined_by_spark(run: Watched) -> None:
    assert run.result["status"] in ("valid", "degraded")
    assert len({agent["executor"] for agent in run.result["agents"]}) == 2
    assert run.result["counts"]["sent"] == RATE * SECONDS
    trace = run.result["trace"]
    assert trace["joined"], run.result["audit"]
    assert trace["sent"] == trace["received_once"] == RATE * SECONDS


def test_rolling_metrics_come_while_the_load_runs(on_s3: OnS3, run: Watched) -> None:
    (row,) = on_s3.store.read("runs", run_id=RUN).to_pylist()
    windows = on_s3.store.read("metrics", run_id=RUN, window="rolling").to_pylist()
    assert min(window["written_at"] for window in windows) < row["measured_until"]
    (live,) = (each for each in run.result["audit"]["checks"] if each["name"] == "live")
    assert live["text"].startswith("the newest live metrics came"), live


def test_a_run_can_be_watched_from_elsewhere_while_it_goes_on(run: Watched) -> None:
    line = rf"^{RUN}  measure  \d+/{SECONDS + 1} s .* P99 "  # the total holds the warm-up
    assert re.findall(line, run.seen, re.MULTILINE), run.seen


def test_events_are_compacted_when_the_run_has_ended(on_s3: OnS3, run: Watched) -> None:
    options = dict(on_s3.environment)
    history = DeltaTable(f"{URI}/events", storage_options=options).history()
    assert history[0]["operation"] == "OPTIMIZE"


def test_spark_answers_queries_by_jars_or_packages_and_other_commands_need_neither(
    on_s3: OnS3, run: Watched
) -> None:
    query = f"SELECT count(*) AS rows FROM events WHERE run_id = '{RUN}'"
    jars = [f"--jars={jar}" for jar in jar_set("hadoop-aws", say=print)]
    # Ivy's files, and no ~/.m2: what the machine has gathered there does not help.
    ivy = f"--conf=spark.jars.ivy={ROOT / 'build' / 'ivy-of-s3'}"
    for brought in (jars, [f"--packages={delta_set().hadoop_aws}", ivy]):
        (row,) = json.loads(on_s3.call("sql", query, "--format", "json", *brought))
        assert row["rows"] > 0
    assert RUN in on_s3.call("runs")
    assert RUN in on_s3.call("show", RUN)


def test_a_suite_runs_with_its_store_on_s3(on_s3: OnS3) -> None:
    (on_s3.files / "grid.yaml").write_text(SUITE)
    suite = str(on_s3.files / "grid.yaml")
    on_s3.call("suite", "run", suite, "--broker=loopback", *on_s3.on_cluster())
    rows = on_s3.store.read("runs", suite="on-s3").to_pylist()
    assert sorted(row["trial"] for row in rows) == [1, 2]
    assert {row["status"] for row in rows} <= {"valid", "degraded"}


def test_two_runs_at_once_lose_no_row(on_s3: OnS3) -> None:
    short = ("--broker=loopback", "--set=load.rate_per_second=500", *on_s3.on_cluster())
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
        counts = on_s3.result(name)["counts"]
        rows = events[(events.run_id == name) & (events.phase == "measure")]
        assert rows.sent.sum() == rows.received.sum() == counts["sent"] == 2500
        assert not rows.duplicated(["agent", "attempt", "row_number"]).any()


def test_spark_without_jars_for_s3_is_said_before_the_load(on_s3: OnS3) -> None:
    options = {
        "live": on_s3.on_cluster()[:2],
        "not-live": [*on_s3.on_cluster()[:2], "--no-live"],
    }
    for name, given in options.items():
        code, out, err = on_s3.end(
            on_s3.start("run", "steady", "--broker=loopback", "--run-id", name, *given)
        )
        words = (
            "Spark cannot read it: its class path has no jars",
            f"add --packages {delta_set().hadoop_aws}",
        )
        check_refused(code, out + err, *words, store=URI, environment=on_s3.environment)


def test_executors_that_cannot_read_the_store_are_said_before_the_load(on_s3: OnS3) -> None:
    options = on_s3.on_cluster(executors_jars=[])
    code, out, err = on_s3.end(
        on_s3.start("run", "steady", "--broker=loopback", "--run-id=unread", *options)
    )
    words = "its class path has no jars for S3; add --packages"
    check_refused(code, out + err, words, store=URI, environment=on_s3.environment)


def test_credentials_are_neither_said_nor_stored(on_s3: OnS3, run: Watched) -> None:
    assert SECRET not in run.said
    for file in (on_s3.files / BUCKET).rglob("*"):
        if file.is_file():
            assert SECRET.encode() not in file.read_bytes(), file
