"""A store whose directory is another one on the executors' machine is refused before the load."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml
from bereft_runs import destinations_of
from deltalake import DeltaTable
from refused import check_refused

from bench_spark.config.broker import Broker
from bench_spark.errors import EXIT_PREFLIGHT
from benchmarks.standalone import Job, Place, standalone

pytestmark = pytest.mark.deployment

MOUNT = 'mount -t tmpfs none "$0" && exec "$@"'
"""Puts an empty directory over the first argument, and runs the others."""


def test_executors_that_see_another_directory_are_named(
    tmp_path: Path, rabbitmq_broker: Broker
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    enter = ("unshare", "--mount", "sh", "-c", MOUNT, str(shared))
    if subprocess.run([*enter, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount anything")
    store = shared / "store"
    with standalone([Place(enter=enter)], 2, tmp_path) as cluster:
        keys = rabbitmq_broker.model_dump(exclude_none=True, exclude_defaults=True)
        (tmp_path / "mine.yaml").write_text(yaml.safe_dump(keys))
        broker = f"--broker={tmp_path / 'mine.yaml'}"
        arguments = ("steady", broker, "--run-id=apart", f"--store={store}")
        done = cluster.submit(Job("run_scenario.py", arguments))
    said = done.stdout + done.stderr
    remedy = "must be a URI or path that every machine shares"
    check_refused(done.returncode, said, "cannot read the store", remedy, store=str(store))
    assert destinations_of(rabbitmq_broker, "apart") == []
    (run,) = DeltaTable(str(store / "runs")).to_pandas().to_dict("records")
    assert (run["status"], run["exit_code"]) == ("failed", EXIT_PREFLIGHT)
