"""The job on a real standalone cluster: a master and two workers, submitted by spark-submit."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from deltalake import DeltaTable

from bench_spark import jars

ROOT = Path(__file__).parents[2]
QUIET = ROOT / "conf" / "log4j2.properties"
SPARK_HOME = Path(pyspark.__file__).parent
DELTA = ":".join(map(str, jars.delta_jars()))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def quick_java() -> str:
    """What makes a short-lived JVM cheap: a dozen of them start here, and none runs for long."""
    options = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    if archive := jars.class_data_archive():
        # Fits only where Delta's jars are first on the class path; else Java leaves it aside.
        options += [f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", "-Xlog:disable"]
    return " ".join(options)


def environment() -> dict[str, str]:
    return os.environ | {
        "SPARK_DAEMON_JAVA_OPTS": quick_java(),
        "SPARK_DAEMON_CLASSPATH": DELTA,
        "SPARK_LAUNCHER_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


def start(log: Path, *arguments: str) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(
            [str(SPARK_HOME / "bin" / "spark-class"), *arguments],
            env=environment(),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A master and two workers of two cores each; yields the master's URL."""
    directory = tmp_path_factory.mktemp("cluster")
    port, web_port = free_port(), free_port()
    master = f"spark://127.0.0.1:{port}"
    address = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", str(web_port)]
    processes = [start(directory / "master.log", "org.apache.spark.deploy.master.Master", *address)]
    for number in range(2):
        options = ["--host", "127.0.0.1", "--cores", "2", "--memory", "1g", "--webui-port", "0"]
        processes.append(
            start(
                directory / f"worker{number}.log",
                "org.apache.spark.deploy.worker.Worker",
                *options,
                "--work-dir",
                str(directory / f"work{number}"),
                master,
            )
        )
    try:
        wait_for_workers(web_port, 2)
        yield master
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(20)


def wait_for_workers(web_port: int, count: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{web_port}/json/", timeout=2) as answer:
                if json.load(answer)["aliveworkers"] == count:
                    return
        except OSError:
            pass  # The master is still starting.
        time.sleep(0.3)
    raise AssertionError("the workers did not register")


def submit(master: str, job: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            str(SPARK_HOME / "bin" / "spark-submit"),
            "--master",
            master,
            "--properties-file",
            str(ROOT / "spark-defaults.conf"),
            "--executor-cores",
            "2",
            "--executor-memory",
            "512m",
            "--conf",
            "spark.driver.host=127.0.0.1",
            "--conf",
            f"spark.driver.extraClassPath={DELTA}",
            "--conf",
            f"spark.executor.extraClassPath={DELTA}",
            "--conf",
            f"spark.driver.extraJavaOptions=-Dlog4j2.configurationFile=file:{QUIET} {quick_java()}",
            "--conf",
            f"spark.executor.extraJavaOptions={quick_java()}",
            str(job),
            *arguments,
        ],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_two_executors_on_two_workers_each_carry_out_their_assignment(
    cluster: str, tmp_path: Path
) -> None:
    store, result = tmp_path / "store", tmp_path / "result.json"
    done = submit(
        cluster,
        ROOT / "jobs" / "run_scenario.py",
        "steady",
        *("--broker", "loopback", "--store", str(store), "--run-id", "on-a-cluster"),
        *("--format", f"json={result}", "--set", "agents=2", "--set", "producers=3"),
        *("--set", "consumers=3", "--set", "destinations=3"),
        *("--set", "load.rate_per_second=3000", "--set", "phases.warmup_seconds=1"),
        *("--set", "phases.measure_seconds=3"),
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    document = json.loads(result.read_text())
    assert document["status"] == "valid"

    executors = {agent["executor"] for agent in document["agents"]}
    assert len(executors) == 2
    assert len({executor.rpartition(":")[2] for executor in executors}) == 2

    events = DeltaTable(str(store / "events")).to_pandas()
    events = events[(events.run_id == "on-a-cluster") & (events.phase == "measure")]
    sent = events[events.role == "producer"].groupby("agent").sent.sum().to_dict()
    received = events[events.role == "consumer"].groupby("agent").received.sum().to_dict()
    # Three pairs at 1000 msg/s each for 3 s: two of them are the first agent's share.
    assert sent == received == {0: 6000, 1: 3000}


SUITE = """
name: grid
base:
  agents: 2
  producers: 2
  consumers: 2
  destinations: 2
  phases: {warmup_seconds: 0.5, measure_seconds: 1, drain_seconds: 5}
axes:
  load.rate_per_second: [200, 400]
"""

SEVERAL_JOBS = """
import json, runpy, sys

codes = []
for job, *arguments in json.loads(sys.argv[1]):
    sys.argv = [job, *arguments]
    print(f"JOB {job}", flush=True)
    try:
        runpy.run_path(job, run_name="__main__")
    except SystemExit as ended:
        codes.append(ended.code)
print(f"CODES {codes}")
sys.exit(codes[-1])
"""
"""A driver that does what several submitted jobs would do, one after the other, each with an
application of its own. The JVM of a driver is most of what a short job costs."""


@pytest.fixture(scope="module")
def several(
    cluster: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A suite, a search and a run that is refused: the directory they wrote to, and what they
    said."""
    directory = tmp_path_factory.mktemp("several")
    (directory / "several.py").write_text(SEVERAL_JOBS)
    (directory / "grid.yaml").write_text(SUITE)
    quick = ("phases.warmup_seconds=0.5", "phases.measure_seconds=1", "phases.drain_seconds=2")
    jobs = [
        [
            *("run_suite.py", str(directory / "grid.yaml"), "--broker", "loopback"),
            *("--store", str(directory / "suites"), "--format", "csv"),
        ],
        [
            *("search_window.py", "window", "--broker", "loopback", "--highest", "2"),
            *("--store", str(directory / "windows"), "--base", "2"),
            *("--format", f"json={directory / 'best.json'}"),
            *(f"--set={override}" for override in quick),
        ],
        ["run_scenario.py", "steady", "--broker", "loopback", "--store", "bench-store"],
    ]
    named = [[str(ROOT / "jobs" / job), *arguments] for job, *arguments in jobs]
    return directory, submit(cluster, directory / "several.py", json.dumps(named))


def test_a_suite_runs_on_a_cluster(
    several: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    directory, done = several
    assert "CODES [0, 0, 3]" in done.stdout, done.stdout[-3000:] + done.stderr[-3000:]
    runs = DeltaTable(str(directory / "suites" / "runs")).to_pandas()
    assert sorted(runs.trial) == [1, 2]
    assert set(runs.status) == {"valid"}
    hosts = json.loads(runs.result_json[0])["agents"]
    assert len({agent["executor"] for agent in hosts}) == 2
    assert "load.rate_per_second,status," in done.stdout


def test_the_best_window_is_searched_on_a_cluster(
    several: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    document = json.loads((several[0] / "best.json").read_text())
    assert {trial["in_flight"] for trial in document["trials"]} <= {1, 2}
    assert {trial["status"] for trial in document["trials"]} == {"valid"}


def test_a_store_that_the_executors_do_not_share_is_refused(
    several: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    _, done = several
    # spark-submit joins the two streams of a Python driver, and ends as it did.
    said = (done.stdout + done.stderr).partition("run_scenario.py")[2]
    assert done.returncode == 3, said
    assert "every machine shares" in said
    assert "Traceback" not in said
