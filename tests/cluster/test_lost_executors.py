"""A standalone cluster of two executors loses one by kill -9 while the load runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from bereft_runs import await_load, check_bereft, executors_below, kill_with_children

from bench_spark.config.broker import Broker
from bench_spark.errors import EXIT_DEGRADED
from benchmarks.standalone import HERE, Cluster, Job, standalone

RATE = 400

pytestmark = pytest.mark.deployment


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with standalone([HERE, HERE], 2, tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.mark.parametrize("kind", ["rabbitmq", "kafka"])
def test_a_lost_executor_ends_the_run_with_exact_accounts(
    kind: str, cluster: Cluster, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    broker: Broker = request.getfixturevalue(f"{kind}_broker")
    keys = broker.model_dump(exclude_none=True, exclude_defaults=True)
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(keys))
    run_id, store = f"bereft-{kind}", tmp_path / "store"
    sets = (
        *("agents=2", "producers=2", "consumers=2", "destinations=2"),
        *(f"load.rate_per_second={RATE}", "phases.warmup_seconds=0", "phases.measure_seconds=120"),
    )
    driver = cluster.start(
        Job(
            "run_scenario.py",
            [
                *("steady", "--broker", str(tmp_path / "mine.yaml"), "--run-id", run_id),
                *("--store", str(store), "--format", f"json={tmp_path / 'result.json'}"),
                *(f"--set={each}" for each in sets),
            ],
        )
    )

    def raise_if_ended() -> None:
        assert driver.poll() is None, driver.communicate()[0]

    try:
        await_load(str(store), run_id, raise_if_ended)
        (executor,) = executors_below(cluster.workers[0].pid)
        kill_with_children(executor)
        said, _ = driver.communicate(timeout=300)
    finally:
        driver.kill()
    assert driver.returncode == EXIT_DEGRADED, said[-3000:]
    check_bereft(json.loads((tmp_path / "result.json").read_text()), broker, run_id)
