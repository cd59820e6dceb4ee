"""Jobs on a real standalone cluster: a master and two workers, submitted by spark-submit."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from deltalake import DeltaTable

from benchmarks.standalone import HERE, ROOT, Job, standalone

pytestmark = pytest.mark.deployment

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

import bench_spark.spark.launch

# The next job finds the application of the one before, and the executors that it has.
bench_spark.spark.launch._stop = lambda spark: None

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
"""A driver that does what several submitted jobs do, one after the other. The JVMs of a driver
and its executors are most of what a short job costs."""


@dataclass(frozen=True)
class Several:
    """A run, a suite, a search and a run that is refused: where they wrote to, what they said."""

    directory: Path
    done: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Several:
    directory = tmp_path_factory.mktemp("several")
    (directory / "several.py").write_text(SEVERAL_JOBS)
    (directory / "grid.yaml").write_text(SUITE)
    three = ("producers=3", "consumers=3", "destinations=3", "load.rate_per_second=3000")
    long = ("phases.warmup_seconds=0.5", "phases.measure_seconds=2")
    short = ("phases.warmup_seconds=0.5", "phases.measure_seconds=1", "phases.drain_seconds=2")
    jobs = [
        [
            *("run_scenario.py", "steady", "--broker", "loopback", "--run-id", "on-a-cluster"),
            *("--store", str(directory / "store"), "--format", f"json={directory / 'run.json'}"),
            *(f"--set={override}" for override in ("agents=2", *three, *long)),
        ],
        [
            *("run_suite.py", str(directory / "grid.yaml"), "--broker", "loopback"),
            *("--store", str(directory / "suites"), "--format", "csv"),
        ],
        [
            *("search_window.py", "window", "--broker", "loopback", "--highest", "2"),
            *("--store", str(directory / "windows"), "--base", "2"),
            *("--format", f"json={directory / 'best.json'}"),
            *(f"--set={override}" for override in short),
        ],
        ["run_scenario.py", "steady", "--broker", "loopback", "--store", "bench-store"],
    ]
    named = [[str(ROOT / "jobs" / job), *arguments] for job, *arguments in jobs]
    with standalone([HERE, HERE], 2, directory) as cluster:
        done = cluster.submit(Job(directory / "several.py", [json.dumps(named)]))
    assert "CODES [0, 0, 0, 3]" in done.stdout, done.stdout[-3000:] + done.stderr[-3000:]
    return Several(directory, done)


def test_two_executors_on_two_workers_each_carry_out_their_assignment(several: Several) -> None:
    document = json.loads((several.directory / "run.json").read_text())
    assert document["status"] == "valid"
    executors = {agent["executor"] for agent in document["agents"]}
    assert len(executors) == 2
    assert len({executor.rpartition(":")[2] for executor in executors}) == 2

    events = DeltaTable(str(several.directory / "store" / "events")).to_pandas()
    events = events[(events.run_id == "on-a-cluster") & (events.phase == "measure")]
    sent = events[events.role == "producer"].groupby("agent").sent.sum().to_dict()
    received = events[events.role == "consumer"].groupby("agent").received.sum().to_dict()
    # Three pairs at 1000 msg/s each for 2 s: two of them are the first agent's share.
    assert sent == received == {0: 4000, 1: 2000}


def test_a_suite_runs_on_a_cluster(several: Several) -> None:
    runs = DeltaTable(str(several.directory / "suites" / "runs")).to_pandas()
    assert sorted(runs.trial) == [1, 2]
    assert set(runs.status) == {"valid"}
    agents = json.loads(runs.result_json[0])["agents"]
    run = json.loads((several.directory / "run.json").read_text())
    # Where metrics keep one executor busy, Spark may give both agents to the other.
    assert len(agents) == 2
    assert {agent["executor"] for agent in agents} <= {agent["executor"] for agent in run["agents"]}
    assert "load.rate_per_second,status," in several.done.stdout


def test_the_best_window_is_searched_on_a_cluster(several: Several) -> None:
    document = json.loads((several.directory / "best.json").read_text())
    assert {trial["in_flight"] for trial in document["trials"]} <= {1, 2}
    assert {trial["status"] for trial in document["trials"]} == {"valid"}


def test_a_store_that_the_executors_do_not_share_is_refused(several: Several) -> None:
    # spark-submit joins the two streams of a Python driver, and ends as it did.
    said = (several.done.stdout + several.done.stderr).rpartition("run_scenario.py")[2]
    assert several.done.returncode == 3, said
    assert "every machine shares" in said
    assert "Traceback" not in said
