"""A standalone Spark cluster of this machine's processes: a master, workers, and jobs for them.

Every part may have an address of its own and a command put before it, such as `ip netns exec NAME`,
so that parts can live on hosts that are only simulated.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyspark

from bench_spark import jars
from bench_spark.java import require_java

ROOT = Path(__file__).parents[1]
SPARK_HOME = Path(pyspark.__file__).parent
REGISTRATION_SECONDS = 90
END_SECONDS = 20
JOB_SECONDS_AT_MOST = 300
# A dozen JVMs that live for seconds: the optimising compiler and collector threads do not pay.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
DELTA = ":".join(map(str, jars.delta_jars()))


def _with_class_archive() -> str:
    """For JVMs that have Delta's jars first on their class path: the archive fits only there."""
    if archive := jars.class_data_archive():
        return f"{QUICK_JAVA} -XX:SharedArchiveFile={archive} -Xshare:auto -Xlog:disable"
    return QUICK_JAVA


def quick_environment() -> dict[str, str]:
    """This process's own, with its Python, and what makes Spark's programs start quickly."""
    return os.environ | _bare_environment() | {"PYSPARK_PYTHON": sys.executable}


def _bare_environment() -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": os.environ.get("HOME", "/"),
        "SPARK_HOME": str(SPARK_HOME),
        "JAVA_HOME": str(require_java().parent.parent),
        "SPARK_DAEMON_JAVA_OPTS": _with_class_archive(),
        "SPARK_DAEMON_CLASSPATH": DELTA,
        "SPARK_LAUNCHER_OPTS": QUICK_JAVA,
    }


@dataclass(frozen=True)
class Place:
    """A host, real or simulated."""

    address: str = "127.0.0.1"
    enter: Sequence[str] = ()
    """What comes before a command so that it runs there."""


HERE = Place()


@dataclass(frozen=True)
class Job:
    """A program with its arguments and what spark-submit is told beside the usual."""

    program: str | Path
    """Of jobs/, or a file elsewhere by its whole path."""
    arguments: Sequence[str]
    settings: Mapping[str, str] = field(default_factory=dict)
    options: Sequence[str] = ()


@dataclass(frozen=True)
class Submitter:
    """Hands jobs to a master, from the place where their drivers run."""

    master: str
    driver: Place = HERE
    environment: Mapping[str, str] = field(default_factory=quick_environment)

    def start(self, job: Job) -> subprocess.Popen[str]:
        """Start a job; spark-submit joins the two streams of a Python driver, and so does this."""
        return subprocess.Popen(
            self._command(job),
            env=self._drivers_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def submit(self, job: Job) -> subprocess.CompletedProcess[str]:
        """Run a job to its end."""
        return subprocess.run(
            self._command(job),
            env=self._drivers_environment(),
            capture_output=True,
            text=True,
            timeout=JOB_SECONDS_AT_MOST,
            check=False,
        )

    def _command(self, job: Job) -> list[str]:
        log = ROOT / "conf" / "log4j2.properties"
        settings = {
            "spark.driver.host": self.driver.address,
            "spark.driver.bindAddress": self.driver.address,
            "spark.pyspark.driver.python": sys.executable,
            "spark.driver.extraJavaOptions": (
                f"-Dlog4j2.configurationFile=file:{log} {_with_class_archive()}"
            ),
            "spark.executor.extraJavaOptions": _with_class_archive(),
            "spark.executor.memory": "512m",
            # This machine may be busy with other things.
            "spark.benchspark.executors.timeout": "300s",
            # Every place has this machine's files, simulated or not: nothing is to be fetched.
            "spark.jars.packages": "",
            "spark.driver.extraClassPath": DELTA,
            "spark.executor.extraClassPath": DELTA,
            **job.settings,
        }
        return [
            *self.driver.enter,
            str(SPARK_HOME / "bin" / "spark-submit"),
            *("--master", self.master, "--properties-file", str(ROOT / "spark-defaults.conf")),
            *(word for one in settings.items() for word in ("--conf", "=".join(one))),
            *job.options,
            str(ROOT / "jobs" / job.program),
            *job.arguments,
        ]

    def _drivers_environment(self) -> dict[str, str]:
        # The driver may use this checkout; what its executors use is theirs.
        path = os.environ.get("PYTHONPATH", str(ROOT))
        return {**self.environment, "SPARK_LOCAL_IP": self.driver.address, "PYTHONPATH": path}


@dataclass(frozen=True, kw_only=True)
class Cluster(Submitter):
    workers: Sequence[subprocess.Popen[bytes]]


@contextmanager
def standalone(
    workers: Sequence[Place],
    cores: int,
    directory: Path,
    driver: Place = HERE,
    worker_environment: Mapping[str, str] | None = None,
) -> Iterator[Cluster]:
    """A master on the driver's place and these workers, with so many cores each.

    `worker_environment`: of workers and thereby executors, beside what Spark needs; unset: this
    process's own, with its Python.
    """
    base = _bare_environment()
    ours = quick_environment()
    theirs = ours if worker_environment is None else base | dict(worker_environment)
    port, web_port = free_port(driver), free_port(driver)
    url = f"spark://{driver.address}:{port}"
    address = ("--host", driver.address, "--port", str(port), "--webui-port", str(web_port))
    started = [
        _start("Master", address, driver, base, directory / "master.log"),
        *(
            _start(
                "Worker",
                (
                    *("--host", place.address, "--cores", str(cores), "--memory", "1g"),
                    *("--webui-port", "0", "--work-dir", str(directory / f"work-{number}"), url),
                ),
                place,
                theirs,
                directory / f"worker-{number}.log",
            )
            for number, place in enumerate(workers)
        ),
    ]
    try:
        _await_workers(driver, web_port, len(workers))
        used = base if worker_environment is not None else ours
        yield Cluster(url, driver, used, workers=started[1:])
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(END_SECONDS)


def free_port(place: Place = HERE) -> int:
    """One that nobody listens on there just now."""
    ask = "import socket; s = socket.socket(); s.bind(('', 0)); print(s.getsockname()[1])"
    if place.enter:
        command = [*place.enter, sys.executable, "-c", ask]
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    with socket.socket() as probe:
        probe.bind((place.address, 0))
        port: int = probe.getsockname()[1]
        return port


def _start(
    role: str, arguments: Sequence[str], place: Place, environment: Mapping[str, str], log: Path
) -> subprocess.Popen[bytes]:
    command = [
        *place.enter,
        str(SPARK_HOME / "bin" / "spark-class"),
        f"org.apache.spark.deploy.{role.lower()}.{role}",
        *arguments,
    ]
    with log.open("wb") as output:
        return subprocess.Popen(
            command,
            env=dict(environment) | {"SPARK_LOCAL_IP": place.address},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _await_workers(driver: Place, web_port: int, count: int) -> None:
    deadline = time.monotonic() + REGISTRATION_SECONDS
    while time.monotonic() < deadline:
        if _alive_workers(driver, web_port) == count:
            return
        time.sleep(0.3)
    raise TimeoutError(f"{count} workers have not registered in {REGISTRATION_SECONDS} s")


def _alive_workers(driver: Place, web_port: int) -> int:
    url = f"http://{driver.address}:{web_port}/json/"
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return int(json.load(answer)["aliveworkers"])
    except OSError:
        return 0  # The master is still starting.
