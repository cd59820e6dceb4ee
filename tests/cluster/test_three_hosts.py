"""Broker, driver and executor on three hosts (network namespaces), the broker some way off."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hosts
import pytest

from bench_spark.brokers.mosquitto import installed_program
from bench_spark.errors import EnvironmentNotReady
from benchmarks.standalone import Job, Place, standalone

# Addresses of the range that is set aside for benchmarks of networks; another process, others.
NETWORK = os.getpid() % 250
DRIVER, EXECUTOR = f"198.18.{NETWORK}.1", f"198.18.{NETWORK}.2"
NEAR_BROKER, BROKER, BROKER_PORT = f"198.19.{NETWORK}.1", f"198.19.{NETWORK}.2", 1883
DELAY_SECONDS = 0.02

pytestmark = pytest.mark.deployment


@contextmanager
def mosquitto(place: Place, directory: Path) -> Iterator[None]:
    settings = directory / "mosquitto.conf"
    settings.write_text(f"listener {BROKER_PORT} {place.address}\nallow_anonymous true\n")
    command = [*place.enter, str(installed_program()), "-c", str(settings)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    if reason := hosts.refusal():
        pytest.skip(reason)
    try:
        installed_program()
    except EnvironmentNotReady as error:
        pytest.skip(str(error))
    directory = tmp_path_factory.mktemp("hosts")
    broker_file = directory / "far.yaml"
    broker_file.write_text(f"kind: mqtt\nuri: mqtt://{BROKER}:{BROKER_PORT}\n")
    overrides = {
        "load.rate_per_second": 200,
        "phases.warmup_seconds": 0.5,
        "phases.measure_seconds": 2,
    }
    job = Job(
        "run_scenario.py",
        [
            *("steady", "--broker", str(broker_file), "--store", str(directory / "store")),
            *("--format", f"json={directory / 'result.json'}"),
            *(f"--set={key}={value}" for key, value in overrides.items()),
        ],
    )
    end = os.getpid() % 100000
    with (
        hosts.namespace(f"bse{end}") as executor,
        hosts.namespace(f"bsb{end}") as far,
        hosts.cable(executor, DRIVER, EXECUTOR) as worker,
        hosts.delayed_link((executor, NEAR_BROKER), (far, BROKER), DELAY_SECONDS),
        mosquitto(Place(BROKER, ("ip", "netns", "exec", far)), directory),
        standalone([worker], 2, directory, driver=Place(DRIVER)) as cluster,
    ):
        done = cluster.submit(job)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found: dict[str, Any] = json.loads((directory / "result.json").read_text())
    return found


def test_agents_reach_driver_and_broker_by_addresses_of_their_own(result: dict[str, Any]) -> None:
    assert result["status"] == "valid"
    assert [agent["executor"].rpartition(":")[0] for agent in result["agents"]] == [EXECUTOR]
    assert result["broker"]["uri"] == f"mqtt://{BROKER}:{BROKER_PORT}"


def test_the_way_to_the_broker_and_back_is_in_the_latency(result: dict[str, Any]) -> None:
    latency, lag = result["measures"]["latency"], result["measures"]["send_lag"]
    assert latency["min_us"] >= 2 * DELAY_SECONDS * 1e6
    # What happens before the network is not: a message is sent when it is due, however far it goes.
    assert lag["p50_us"] < DELAY_SECONDS * 1e6
