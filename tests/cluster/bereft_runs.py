"""Runs that lose an executor while the load runs, and what must be true of them afterwards."""

from __future__ import annotations

import base64
import json
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any

import psutil
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from patience import eventually

from bench_spark.config.broker import Broker

FATES = ("received_once", "left_in_broker", "lost", "indeterminate", "refused", "returned")
BACKENDS = ("CoarseGrainedExecutorBackend", "YarnCoarseGrainedExecutorBackend")
"""Main classes of executors, behind the last dot."""
LOAD_SECONDS = 300
"""How long a cluster on a busy machine may take until the first message is in the store."""


def executors_below(parent: int) -> list[psutil.Process]:
    """The JVMs of the executors that a process has started."""
    found = []
    for process in psutil.Process(parent).children(recursive=True):
        try:
            classes = [word.rpartition(".")[2] for word in process.cmdline()]
            if process.name() == "java" and not set(BACKENDS).isdisjoint(classes):
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def kill_with_children(process: psutil.Process) -> None:
    """As when its machine loses power: an executor with its Python workers."""
    for each in (*process.children(recursive=True), process):
        each.kill()


def await_load(store: str, run_id: str, raise_if_ended: Callable[[], None]) -> None:
    """Return when the store knows of messages that were received."""
    deadline = time.monotonic() + LOAD_SECONDS
    while not _received(store, run_id):
        raise_if_ended()
        assert time.monotonic() < deadline, "no message has been received"
        time.sleep(0.5)


def _received(store: str, run_id: str) -> int:
    try:
        rows = DeltaTable(f"{store}/events").to_pandas(columns=["run_id", "received"])
    except TableNotFoundError:
        return 0
    return int(rows[rows.run_id == run_id].received.sum())


def check_bereft(result: dict[str, Any], broker: Broker, run_id: str) -> None:
    """Degraded with what was measured, every message with one fate, nothing left in the broker."""
    counts = result["counts"]
    assert result["status"] == "degraded"
    assert result["measured_seconds"] < 90
    assert counts["received_once"] > 0
    assert counts["sent"] == sum(counts[fate] for fate in FATES)
    assert counts["received"] == counts["received_once"] + counts["duplicates"]
    assert counts["duplicates"] == 0
    # A deleted topic is still listed for a moment.
    assert eventually(lambda: not destinations_of(broker, run_id)), destinations_of(broker, run_id)


def destinations_of(broker: Broker, run_id: str) -> list[str]:
    """Names of queues or topics that this run has made."""
    return [name for name in _names(broker) if run_id in name]


def _names(broker: Broker) -> list[str]:
    if broker.kind == "kafka":
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        return list(admin.list_topics(timeout=30).topics)
    parts = urllib.parse.urlsplit(broker.management_uri or "")
    login = base64.b64encode(f"{parts.username}:{parts.password}".encode()).decode()
    request = urllib.request.Request(
        f"http://{parts.hostname}:{parts.port}/api/queues",
        headers={"Authorization": f"Basic {login}"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return [queue["name"] for queue in json.load(answer)]
