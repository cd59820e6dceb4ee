"""Executors that die, and sessions that are too small."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
import yaml
from contract import eventually
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from fault_records import Seen
from whole_runs import CarryOut, Loading, workers_at

from bench_spark.config.broker import Broker
from bench_spark.errors import EXIT_PREFLIGHT, TooFewSlots
from benchmarks.standalone import HERE, Cluster, Job, standalone

RATE = 400


@pytest.mark.fault(case=10)
def test_a_killed_python_worker_ends_the_run_with_what_was_measured(
    rabbitmq_broker: Broker, carry_out: CarryOut, seen: Seen
) -> None:
    killed: list[float] = []

    def kill(loading: Loading) -> None:
        loading.sleep_until(1.5)
        workers_at(rabbitmq_broker.port)[0].send_signal(signal.SIGKILL)
        killed.append(time.monotonic())

    outcome = carry_out(
        rabbitmq_broker,
        kill,
        phases={"warmup_seconds": 0, "measure_seconds": 60, "drain_seconds": 2},
        **{"agents": 2, "producers": 2, "consumers": 2, "destinations": 2},
        load={"rate_per_second": RATE},
    )
    over_seconds = time.monotonic() - killed[0]
    assert (outcome.status, outcome.exit_code) == ("degraded", 4)
    assert outcome.counts["sent"] > 0
    assert outcome.counts["received_once"] > 0
    assert outcome.counts["duplicates"] == 0
    assert outcome.closes
    assert outcome.document["measured_seconds"] < 30
    check_one_producer_each(outcome.events.drop(columns=["histograms"]).to_dict("records"))
    seen(
        f"Python worker: over {over_seconds:.1f} s after the kill, "
        f"{outcome.counts['received_once']} messages kept"
    )


def check_one_producer_each(rows: list[dict[str, object]]) -> None:
    """No agent has sent in two attempts."""
    sending = {(row["agent"], row["attempt"]) for row in rows if row["sent"]}
    assert len({agent for agent, _ in sending}) == len(sending)


@pytest.mark.fault(case=11)
def test_too_few_slots_are_refused_at_once(
    loopback_broker: Broker, carry_out: CarryOut, seen: Seen
) -> None:
    started = time.monotonic()
    keys = {"agents": 40, "producers": 40, "consumers": 40, "destinations": 40}
    with pytest.raises(TooFewSlots, match="41 slots") as refused:
        carry_out(loopback_broker, **keys)
    seconds = time.monotonic() - started
    assert refused.value.exit_code == EXIT_PREFLIGHT
    assert seconds < 60
    seen(f"local: refused in {seconds:.1f} s")


# -- on a standalone cluster -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


def has_received(store: Path, run_id: str) -> bool:
    try:
        rows = DeltaTable(str(store / "events")).to_pandas(columns=["run_id", "received"])
    except TableNotFoundError:
        return False
    return bool(rows[rows.run_id == run_id].received.sum() > 0)


@pytest.mark.fault(case=10)
@pytest.mark.fault(case=11)
@pytest.mark.faults_slow
def test_a_killed_standalone_worker_ends_the_run_with_what_was_measured(
    rabbitmq_broker: Broker, cluster_directory: Path, tmp_path: Path, seen: Seen
) -> None:
    keys = rabbitmq_broker.model_dump(exclude_none=True, exclude_defaults=True)
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(keys))
    store = tmp_path / "store"
    common = (
        *("steady", "--broker", str(tmp_path / "mine.yaml"), "--store", str(store)),
        *("--set", f"load.rate_per_second={RATE}", "--set", "phases.warmup_seconds=0"),
    )
    with standalone([HERE, HERE], 2, cluster_directory) as cluster:
        check_refused_for_slots(cluster, common, seen)
        arguments = (
            *("--run-id", "bereft", "--format", f"json={tmp_path / 'result.json'}"),
            *("--set", "agents=2", "--set", "producers=2", "--set", "consumers=2"),
            *("--set", "destinations=2", "--set", "phases.measure_seconds=120"),
        )
        driver = cluster.start(Job("run_scenario.py", [*common, *arguments]))
        try:
            deadline = time.monotonic() + 180
            while not has_received(store, "bereft"):
                assert driver.poll() is None, driver.communicate()[0]
                assert time.monotonic() < deadline
                time.sleep(0.3)
            kill_with_children(cluster.workers[0])
            killed = time.monotonic()
            said, _ = driver.communicate(timeout=180)
        finally:
            driver.kill()
    assert driver.returncode == 4, said[-3000:]
    over_seconds = time.monotonic() - killed
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["status"] == "degraded"
    assert result["counts"]["received_once"] > 0
    rows = DeltaTable(str(store / "events")).to_pandas().drop(columns=["histograms"])
    check_one_producer_each(rows[rows.run_id == "bereft"].to_dict("records"))
    assert eventually(lambda: not workers_at(rabbitmq_broker.port)), "nobody goes on sending"
    seen(f"standalone worker: over {over_seconds:.1f} s after the kill", case=10)


def kill_with_children(worker: subprocess.Popen[bytes]) -> None:
    """As when its machine loses power: the worker, its executor and their Python workers."""
    family = [psutil.Process(worker.pid), *psutil.Process(worker.pid).children(recursive=True)]
    for process in family:
        process.send_signal(signal.SIGKILL)


def check_refused_for_slots(cluster: Cluster, common: tuple[str, ...], seen: Seen) -> None:
    agents = (f"{key}=9" for key in ("agents", "producers", "consumers", "destinations"))
    options = [part for setting in agents for part in ("--set", setting)]
    done = cluster.start(Job("run_scenario.py", [*common, *options, "--verbose"]))
    assert done.stdout is not None
    planned = 0.0
    said = []
    for line in done.stdout:
        said.append(line)
        if "run steady" in line and not planned:
            planned = time.monotonic()  # the session is there, and the plan made
    assert done.wait(60) == EXIT_PREFLIGHT, "".join(said)
    assert "offers 4" in "".join(said)
    seconds = time.monotonic() - planned
    assert seconds < 60
    seen(f"standalone: refused {seconds:.1f} s after the session was there", case=11)
