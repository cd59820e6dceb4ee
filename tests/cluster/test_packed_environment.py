"""Workers without any of our dependencies, and a load that grows with their number.

One run proves both: two executors whose Python comes out of an archive, with as many agents as fit.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench_spark.errors import EXIT_DEGRADED, EXIT_VALID
from benchmarks.standalone import DELTA, HERE, Job, standalone

WORKERS, RATE_OF_AN_AGENT, SECONDS = 2, 500, 2

pytestmark = pytest.mark.deployment


@pytest.fixture(scope="module")
def result(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    directory = tmp_path_factory.mktemp("bare")
    overrides = {
        "agents": "auto",
        "load.scope": "per_agent",
        "load.rate_per_second": RATE_OF_AN_AGENT,
        "phases.warmup_seconds": 0.5,
        "phases.measure_seconds": SECONDS,
    }
    job = Job(
        "run_scenario.py",
        [
            *("steady", "--broker", "loopback", "--store", str(directory / "store")),
            *("--format", f"json={directory / 'result.json'}"),
            *(f"--set={key}={value}" for key, value in overrides.items()),
        ],
        {
            # A path below the executor's own directory: nothing but the archive can be there.
            "spark.pyspark.python": "./environment/bin/python",
            # Jars come with the job too.
            "spark.jars": DELTA.replace(":", ","),
            "spark.executor.extraClassPath": "",
            # An executor that unpacks longer than the other is waited for.
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
        },
        ["--archives", f"{archive}#environment"],
    )
    bare = {"PYSPARK_PYTHON": "/nowhere/python"}
    with standalone([HERE] * WORKERS, 2, directory, worker_environment=bare) as cluster:
        done = cluster.submit(job)
    # A busy machine may not keep the schedule; everything else must be as it should.
    ended = (EXIT_VALID, EXIT_DEGRADED)
    assert done.returncode in ended, done.stdout[-3000:] + done.stderr[-3000:]
    found: dict[str, Any] = json.loads((directory / "result.json").read_text())
    return found


def test_executors_find_everything_in_the_archive(result: dict[str, Any]) -> None:
    assert result["status"] in ("valid", "degraded")
    assert len({agent["executor"] for agent in result["agents"]}) == WORKERS


def test_twice_the_executors_offer_twice_the_load(result: dict[str, Any]) -> None:
    assert result["counts"]["sent"] == WORKERS * RATE_OF_AN_AGENT * SECONDS
    each = [agent["sent"] for agent in result["agents"]]
    assert len(each) == WORKERS
    assert max(each) == min(each)


def test_how_far_apart_the_agents_began_is_recorded(result: dict[str, Any]) -> None:
    late_us = [agent["started_late_us"] for agent in result["agents"]]
    assert result["start_spread_us"] == pytest.approx(max(late_us) - min(late_us))
