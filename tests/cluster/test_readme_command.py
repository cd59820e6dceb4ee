"""The README's spark-submit command, with only its addresses replaced, on workers that have Spark
and nothing else: Python comes out of the archive, Delta's jars from Maven Central."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from deltalake import DeltaTable

from bench_spark.brokers import BrokerStatus
from bench_spark.errors import EXIT_DEGRADED, EXIT_VALID
from benchmarks.standalone import HERE, JOB_SECONDS_AT_MOST, ROOT, SPARK_HOME, standalone

README = (ROOT / "README.md").read_text()
AGENTS = 2

pytestmark = pytest.mark.deployment


def command_of_the_readme() -> str:
    section = README.partition("## On a cluster\n")[2].partition("\n## ")[0]
    (block,) = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    made_before, _, command = block.partition("\n")
    assert made_before == "make archive FOR=executors"
    assert command.startswith("spark-submit ")
    return str(command)


def broker_file_of_the_readme(uri: str) -> str:
    (block,) = re.findall(r"```yaml\n# mine.yaml\n(.*?)```", README, re.DOTALL)
    return str(yaml.safe_dump(yaml.safe_load(block) | {"uri": uri, "username": "guest"}))


def with_addresses(command: str, addresses: dict[str, str]) -> str:
    for written, real in addresses.items():
        assert command.count(written) == 1, written
        command = command.replace(written, real)
    return command


@pytest.fixture(scope="module")
def checkout(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout after `make archive FOR=executors`."""
    directory = tmp_path_factory.mktemp("checkout")
    for name in ("conf", "jobs", "spark-defaults.conf"):
        (directory / name).symlink_to(ROOT / name)
    (directory / ".venv").symlink_to(sys.prefix)
    (directory / "dist").symlink_to(archive.parent)
    return directory


def test_the_command_of_the_readme_works_with_only_its_addresses_replaced(
    checkout: Path, rabbitmq: BrokerStatus, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    uri = f"amqp://{rabbitmq.host}:{rabbitmq.ports['amqp']}/"
    (checkout / "mine.yaml").write_text(broker_file_of_the_readme(uri))
    bare = {"PYSPARK_PYTHON": "/nowhere/python"}
    with standalone([HERE] * 2, AGENTS, tmp_path, worker_environment=bare) as cluster:
        command = with_addresses(
            command_of_the_readme(),
            {
                "spark://master.example.org:7077": cluster.master,
                "mine.yaml": str(checkout / "mine.yaml"),
                "/mnt/shared/bench": str(store),
            },
        )
        done = subprocess.run(
            ["bash", "-ec", command],
            cwd=checkout,
            env={
                "PATH": f"{SPARK_HOME / 'bin'}:{os.environ['PATH']}",
                "JAVA_HOME": cluster.environment["JAVA_HOME"],
                "SPARK_LOCAL_IP": "127.0.0.1",
                "MINE_PASSWORD": "guest",
                # Ivy's files, and no ~/.m2: what the machine has gathered there does not help.
                "SPARK_SUBMIT_OPTS": f"-Duser.home={ROOT / 'build' / 'home-of-ivy'}",
            },
            capture_output=True,
            text=True,
            timeout=JOB_SECONDS_AT_MOST,
            check=False,
        )
    said = done.stdout + done.stderr
    # A busy machine may not keep the schedule; everything else must be as it should.
    assert done.returncode in (EXIT_VALID, EXIT_DEGRADED), said[-3000:]
    (row,) = DeltaTable(str(store / "runs")).to_pandas().to_dict("records")
    assert row["status"] in ("valid", "degraded"), said[-3000:]
    events = DeltaTable(str(store / "events")).to_pandas()
    assert set(events[events.phase == "measure"].agent) == set(range(AGENTS))
    # Live: the first row was there before the measured phase was over, and the audit agrees.
    metrics = DeltaTable(str(store / "metrics")).to_pandas()
    assert metrics["written_at"].min() < row["measured_until"]
    checks = json.loads(row["result_json"])["audit"]["checks"]
    (live,) = (check for check in checks if check["name"] == "live")
    assert live["text"].startswith("the newest live metrics came")
    assert not re.findall(r"^.* (?:INFO|WARN) .*$", said, re.MULTILINE)
    assert "Exception" not in said
    assert "measure  " in said
