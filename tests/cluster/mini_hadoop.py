"""HDFS and YARN of this machine, in one process: Hadoop's mini cluster (`make test-yarn`)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench_spark import jars
from bench_spark.java import require_java
from benchmarks.standalone import QUICK_JAVA, ROOT, SPARK_HOME, free_port

MAIN = "org.apache.hadoop.mapreduce.MiniHadoopClusterManager"
READY_SECONDS = 240
END_SECONDS = 20
JOB_SECONDS_AT_MOST = 900
LOG = ROOT / "conf" / "log4j2.properties"
MEMORY_MB, CORES = 8192, 12

# The mini cluster listens on all interfaces unless told otherwise (the port of MapReduce's shuffle,
# which nothing here uses, it cannot be told).
_HERE = {
    "yarn.resourcemanager.hostname": "localhost",
    "yarn.resourcemanager.bind-host": "127.0.0.1",
    "yarn.nodemanager.bind-host": "127.0.0.1",
    "mapreduce.jobhistory.bind-host": "127.0.0.1",
}
_PORTS = (
    "yarn.resourcemanager.scheduler.address",
    "yarn.resourcemanager.resource-tracker.address",
    "yarn.resourcemanager.admin.address",
    "yarn.resourcemanager.webapp.address",
    "mapreduce.jobhistory.address",
    "mapreduce.jobhistory.webapp.address",
    "mapreduce.jobhistory.admin.address",
)
_NODE = {
    "yarn.nodemanager.resource.memory-mb": str(MEMORY_MB),
    "yarn.nodemanager.resource.cpu-vcores": str(CORES),
    "yarn.scheduler.minimum-allocation-mb": "128",
    "yarn.scheduler.capacity.maximum-am-resource-percent": "0.9",
    "yarn.nodemanager.vmem-check-enabled": "false",
    "yarn.nodemanager.pmem-check-enabled": "false",
    "yarn.nodemanager.disk-health-checker.enable": "false",
}


@dataclass(frozen=True)
class MiniHadoop:
    """A cluster that runs, and what leads to it."""

    directory: Path
    hdfs: str
    environment: Mapping[str, str]
    process: psutil.Process

    def submit(self, settings: Mapping[str, str], *arguments: str, **variables: str) -> Submitted:
        """Start conf/yarn/submit.sh, with Spark settings beside those of spark-defaults.conf."""
        number = len(list(self.directory.glob("settings-*")))
        file = self.directory / f"settings-{number}.conf"
        file.write_text(_settings(settings))
        log = self.directory / f"job-{number}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [str(ROOT / "conf" / "yarn" / "submit.sh"), *arguments],
                env={**self.environment, "SETTINGS": str(file), **variables},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        return Submitted(process, log)


@dataclass(frozen=True)
class Submitted:
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def end(self) -> int:
        """The exit code of spark-submit."""
        try:
            return self.process.wait(JOB_SECONDS_AT_MOST)
        finally:
            self.process.kill()


@contextmanager
def mini_hadoop(directory: Path) -> Iterator[MiniHadoop]:
    """A NameNode, a DataNode, a ResourceManager and a NodeManager without any Python."""
    name_node, resource_manager = free_port(), free_port()
    addresses = {key: f"localhost:{free_port()}" for key in _PORTS}
    hdfs = f"hdfs://localhost:{name_node}"
    conf = directory / "conf"
    conf.mkdir()
    for name in ("core-site.xml", "hdfs-site.xml", "yarn-site.xml"):
        (conf / name).write_text(
            _xml(
                {
                    "fs.defaultFS": hdfs,
                    "dfs.replication": "1",
                    "yarn.resourcemanager.address": f"localhost:{resource_manager}",
                    **addresses,
                }
            )
        )
    bare = {
        "PATH": os.environ["PATH"],
        "HOME": str(directory),
        "JAVA_HOME": str(require_java().parent.parent),
        "HADOOP_CONF_DIR": str(conf),
        "HADOOP_USER_NAME": "bench",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    ready = directory / "ready.xml"
    classes = ":".join(map(str, jars.jar_set("minicluster", say=print)))
    command = [
        *(str(require_java()), "-Xmx768m", *QUICK_JAVA.split()),
        *("-Djava.net.preferIPv4Stack=true", "-cp", classes, MAIN, "-format"),
        *("-nnport", str(name_node), "-rmport", str(resource_manager)),
        *("-nodemanagers", "1", "-datanodes", "1", "-writeConfig", str(ready)),
        *(f"-D{key}={value}" for key, value in {**_HERE, **addresses, **_NODE}.items()),
    ]
    with (directory / "hadoop.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=directory,
            env=bare | {"PYSPARK_PYTHON": "/nowhere/python"},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        _await(ready, process)
        submitters = bare | {
            "SPARK_HOME": str(SPARK_HOME),
            "DRIVER_PYTHON": sys.executable,
            "PYTHONPATH": os.environ.get("PYTHONPATH", str(ROOT)),
            "SPARK_LAUNCHER_OPTS": QUICK_JAVA,
        }
        yield MiniHadoop(directory, hdfs, submitters, psutil.Process(process.pid))
    finally:
        _end(process)


def _await(ready: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while not (ready.exists() and ready.stat().st_size):
        assert process.poll() is None, "the mini cluster has ended: see its log"
        assert time.monotonic() < deadline, "the mini cluster does not come up"
        time.sleep(0.3)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the cluster with all containers that it has not ended itself."""
    family = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for left in family:
        if left.is_running():
            left.kill()


def _xml(settings: Mapping[str, str]) -> str:
    properties = (
        f"<property><name>{key}</name><value>{value}</value></property>"
        for key, value in settings.items()
    )
    return "<configuration>\n" + "\n".join(properties) + "\n</configuration>\n"


def _settings(settings: Mapping[str, str]) -> str:
    """spark-defaults.conf for one node of a small machine, as a platform presets it."""
    mine = {
        "spark.jars.packages": "",
        "spark.jars.excludes": "",
        "spark.jars": ",".join(map(str, jars.delta_jars())),
        "spark.yarn.jars": f"local:{SPARK_HOME}/jars/*",
        # As EMR and Dataproc do; the run has to see to its executors itself.
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.driver.memory": "768m",
        "spark.yarn.appMasterEnv.SPARK_LOCAL_IP": "127.0.0.1",
        "spark.executorEnv.SPARK_LOCAL_IP": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={LOG} {QUICK_JAVA}",
        "spark.executor.extraJavaOptions": QUICK_JAVA,
        "spark.yarn.am.extraJavaOptions": QUICK_JAVA,
        **settings,
    }
    shipped = (ROOT / "spark-defaults.conf").read_text().splitlines()
    kept = [line for line in shipped if not line.startswith(tuple(f"{key} " for key in mine))]
    return "\n".join([*kept, *(f"{key} {value}" for key, value in mine.items())]) + "\n"
