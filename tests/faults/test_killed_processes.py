"""Processes of a run that are killed while the driver goes on, as the system does out of memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pika
import psutil
import pytest
import yaml
from whole_runs import workers_at

from bench_spark.config.broker import Broker
from bench_spark.errors import StoreError
from bench_spark.store.delta import Store

PATIENCE_SECONDS = 600


def jvm_of(driver: psutil.Process, _port: int = 0) -> psutil.Process | None:
    return next((child for child in driver.children() if child.name() == "java"), None)


def worker_of(driver: psutil.Process, port: int) -> psutil.Process | None:
    """The Python worker that is an agent."""
    jvm = jvm_of(driver)
    own = set() if jvm is None else {process.pid for process in jvm.children(recursive=True)}
    return next((process for process in workers_at(port) if process.pid in own), None)


@pytest.mark.deployment
@pytest.mark.parametrize("victim_of", [jvm_of, worker_of])
def test_what_was_measured_is_kept_and_nothing_is_left(
    victim_of: Callable[[psutil.Process, int], psutil.Process | None],
    rabbitmq_broker: Broker,
    tmp_path: Path,
) -> None:
    run_id = f"killed-{victim_of.__name__}-{time.time_ns()}"
    broker = tmp_path / "broker.yaml"
    shown = rabbitmq_broker.model_dump(exclude_none=True, exclude_defaults=True)
    broker.write_text(yaml.safe_dump(shown))
    store = Store(tmp_path / "store")
    rates = ["--set", "load.rate_per_second=200", "--set", "phases.warmup_seconds=1"]
    command = ["run", "steady", "--broker", str(broker), "--duration", "30m", *rates]
    command += ["--store", store.uri, "--run-id", run_id, "--format", "json"]
    with (tmp_path / "errors").open("w") as errors:
        program = subprocess.Popen(
            [sys.executable, "-m", "bench_spark.cli", *command],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
    try:
        wait_for_measured_events(store, run_id, program)
        victim = victim_of(psutil.Process(program.pid), rabbitmq_broker.port)
        assert victim is not None
        victim.kill()
        out, _ = program.communicate(timeout=PATIENCE_SECONDS)
    finally:
        for process in psutil.process_iter():
            if process.pid == program.pid or is_in_session(process, program.pid):
                process.kill()
    said = (tmp_path / "errors").read_text()
    assert program.returncode == 4, said
    assert "this is a bug" not in said
    assert "\tat " not in said
    assert "Exception" not in said, "what Java thinks of it is in Spark's log"
    document = json.loads(out)
    assert document["status"] == "degraded"
    assert document["reasons"]
    assert document["counts"]["sent"] > 0
    [row] = store.read("runs", run_id=run_id).to_pylist()
    assert (row["status"], row["exit_code"]) == ("degraded", 4)
    assert json.loads(row["result_json"])["counts"] == document["counts"]
    assert not is_there(rabbitmq_broker, f"bench-{run_id}-0")


def wait_for_measured_events(store: Store, run_id: str, program: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        assert program.poll() is None
        assert time.monotonic() < deadline
        try:
            if len(store.read("events", columns=["tick"], run_id=run_id, phase="measure")) > 3:
                return
        except StoreError:
            pass  # not made yet
        time.sleep(0.3)


def is_in_session(process: psutil.Process, session: int) -> bool:
    try:
        return os.getsid(process.pid) == session
    except ProcessLookupError:
        return False


def is_there(broker: Broker, queue: str) -> bool:
    connection = pika.BlockingConnection(pika.URLParameters(broker.uri))
    try:
        connection.channel().queue_declare(queue, passive=True)
    except pika.exceptions.ChannelClosedByBroker:
        return False
    else:
        return True
    finally:
        connection.close()
