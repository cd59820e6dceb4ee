"""A real standalone cluster: a master and workers, and jobs submitted by spark-submit."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

from bench_spark import jars

ROOT = Path(__file__).parents[1]
JOBS = ROOT / "jobs"
QUIET = ROOT / "conf" / "log4j2.properties"
SPARK_HOME = Path(pyspark.__file__).parent
DELTA = ":".join(map(str, jars.delta_jars()))


@dataclass(frozen=True)
class Cluster:
    master: str
    workers: Sequence[subprocess.Popen[bytes]]


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
        # A script has its own directory on the path, and not the one that the tests are run in.
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
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


@contextmanager
def standalone_cluster(directory: Path, workers: int = 2) -> Iterator[Cluster]:
    """A master and workers of two cores each."""
    port, web_port = free_port(), free_port()
    master = f"spark://127.0.0.1:{port}"
    address = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", str(web_port)]
    processes = [start(directory / "master.log", "org.apache.spark.deploy.master.Master", *address)]
    for number in range(workers):
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
        wait_for_workers(web_port, workers)
        yield Cluster(master, processes[1:])
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


def submission(master: str, job: Path, *arguments: str, settings: Sequence[str] = ()) -> list[str]:
    """The command that submits a job; `settings` are KEY=VALUE."""
    own = (
        "spark.driver.host=127.0.0.1",
        f"spark.driver.extraClassPath={DELTA}",
        f"spark.executor.extraClassPath={DELTA}",
        f"spark.driver.extraJavaOptions=-Dlog4j2.configurationFile=file:{QUIET} {quick_java()}",
        f"spark.executor.extraJavaOptions={quick_java()}",
    )
    return [
        *(str(SPARK_HOME / "bin" / "spark-submit"), "--master", master),
        *("--properties-file", str(ROOT / "spark-defaults.conf")),
        *("--executor-cores", "2", "--executor-memory", "512m"),
        *(part for setting in (*own, *settings) for part in ("--conf", setting)),
        *(str(job), *arguments),
    ]


def submit(master: str, job: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        submission(master, job, *arguments),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
