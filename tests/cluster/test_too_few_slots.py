"""Clusters that cannot hold the agents of a run: refused in one sentence, before the load."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from refused import check_refused

from benchmarks.standalone import HERE, JOB_SECONDS_AT_MOST, standalone

pytestmark = pytest.mark.deployment


def run_on(master: str, store: Path, *options: str) -> tuple[int, str]:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "bench_spark.cli", "run", "steady", "--broker=loopback"),
            *("--master", master, "--store", str(store), "--conf=spark.executor.memory=512m"),
            *options,
        ],
        env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=JOB_SECONDS_AT_MOST,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_a_cluster_that_gives_no_executor_is_refused(tmp_path: Path) -> None:
    with standalone([], 2, tmp_path) as cluster:
        soon = "--conf=spark.benchspark.executors.timeout=2s"
        for agents in ("1", "auto"):
            code, said = run_on(cluster.master, tmp_path / "store", soon, f"--set=agents={agents}")
            words = "has given no executor for 2 s: are its workers there"
            check_refused(code, said, words, soon[7:-3], store=str(tmp_path / "store"))


def test_a_cluster_with_too_few_slots_is_refused(tmp_path: Path) -> None:
    with standalone([HERE], 2, tmp_path) as cluster:
        patient = "--conf=spark.benchspark.executors.timeout=300s"
        code, said = run_on(
            cluster.master,
            tmp_path / "store",
            patient,
            "--set=load.scope=per_agent",
            "--set=agents=4",
        )
    words = "4 agents and the rolling metrics need 5 slots", "offers 2: add executors"
    check_refused(code, said, *words, store=str(tmp_path / "store"))
