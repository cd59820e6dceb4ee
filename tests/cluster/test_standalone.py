"""The job on a real standalone cluster: a master and two workers, submitted by spark-submit."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable
from standalone import JOBS, standalone_cluster, submit


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A master and two workers; yields the master's URL."""
    with standalone_cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started.master


def test_two_executors_on_two_workers_each_carry_out_their_assignment(
    cluster: str, tmp_path: Path
) -> None:
    store, result = tmp_path / "store", tmp_path / "result.json"
    done = submit(
        cluster,
        JOBS / "run_scenario.py",
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
    named = [[str(JOBS / job), *arguments] for job, *arguments in jobs]
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
