"""Every embedded broker, started and stopped for real, away from the user's own."""

from __future__ import annotations

import base64
import http.client
import ipaddress
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from contract import (
    batch,
    collect,
    consuming,
    declared,
    envelopes,
    eventually,
    open_transport,
    producing,
    send_all,
)

from bench_spark import brokers
from bench_spark.brokers import BrokerStatus, lifecycle, mosquitto, rabbitmq
from bench_spark.brokers.base import free_ports
from bench_spark.errors import EnvironmentNotReady

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

INSTALLED_PROGRAM = {
    "rabbitmq": rabbitmq.installed_programs,
    "mosquitto": mosquitto.installed_program,
}


def skip_unless_installed(name: str) -> None:
    try:
        INSTALLED_PROGRAM.get(name, lambda: None)()
    except EnvironmentNotReady as missing:
        pytest.skip(str(missing))


@pytest.fixture
def quickest() -> str:
    """What holds for all brokers is tested with the one that starts first; Qpid is always there."""
    try:
        mosquitto.installed_program()
    except EnvironmentNotReady:
        return "qpid"
    return "mosquitto"


def processes_with(directory: Path) -> list[psutil.Process]:
    """All processes that work in a broker's directory."""
    found = []
    for process in psutil.process_iter():
        try:
            if Path(process.cwd()).is_relative_to(directory):
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def has_ended(status: BrokerStatus) -> bool:
    """Gone, or waiting for a parent that is not this process to notice."""
    assert status.pid is not None
    try:
        return psutil.Process(status.pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def listening_addresses(process: psutil.Process) -> list[Address]:
    listening = [
        ipaddress.ip_address(connection.laddr.ip)
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ]
    return [getattr(address, "ipv4_mapped", None) or address for address in listening]


@pytest.mark.parametrize("name", brokers.NAMES)
def test_a_broker_starts_once_answers_on_loopback_only_and_leaves_nothing_behind(
    name: str, tmp_path: Path
) -> None:
    skip_unless_installed(name)
    [port] = free_ports(1)
    said: list[str] = []
    running = brokers.start(name, said.append, port=port, state=tmp_path)
    try:
        assert running.line == f"{name} running 127.0.0.1:{port}"
        assert brokers.status(name, state=tmp_path) == running
        assert running.broker.port == port
        if management := running.broker.management_uri:
            page = http.client.HTTPConnection("127.0.0.1", urlsplit(management).port, timeout=60)
            page.request("GET", "/")
            assert b"RabbitMQ" in page.getresponse().read()
            page.close()
        members = processes_with(tmp_path)
        assert running.pid in {process.pid for process in members}
        for process in members:
            assert all(address.is_loopback for address in listening_addresses(process))

        again = brokers.start(name, said.append, state=tmp_path)
        assert again.pid == running.pid
        assert said[-1] == f"{name} runs already"
    finally:
        stopped = brokers.stop(name, state=tmp_path)
    assert stopped.state == "stopped"
    assert processes_with(tmp_path) == []
    assert list(tmp_path.iterdir()) == []
    assert brokers.stop(name, state=tmp_path).state == "stopped"


def test_brokers_run_side_by_side_for_the_length_of_a_block(quickest: str) -> None:
    names = {"qpid", quickest}
    with brokers.embedded(*names) as running:
        assert running.keys() == names
        assert {status.state for status in running.values()} == {"running"}
        root = running["qpid"].directory.parent
    assert not root.exists()
    assert all(has_ended(status) for status in running.values())


def test_brokers_of_a_block_end_even_if_its_process_is_killed(quickest: str) -> None:
    code = """
import sys, time
from bench_spark import brokers
with brokers.embedded(sys.argv[1]) as running:
    [status] = running.values()
    print(status.directory.parent, status.pid, flush=True)
    time.sleep(300)
"""
    command = [sys.executable, "-c", code, quickest]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        root, pid = owner.stdout.readline().split()
        assert psutil.pid_exists(int(pid))
        owner.kill()
    deadline = time.monotonic() + 30
    while Path(root).exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert processes_with(Path(root)) == []


def start_by_another_process(name: str, state: Path) -> BrokerStatus:
    """As the command line does: the process that starts the broker ends at once."""
    code = (
        "import sys, pathlib; from bench_spark import brokers; "
        "brokers.start(sys.argv[1], port=int(sys.argv[2]), state=pathlib.Path(sys.argv[3]))"
    )
    [port] = free_ports(1)
    subprocess.run(
        [sys.executable, "-c", code, name, str(port), str(state)], check=True, timeout=120
    )
    return brokers.status(name, state=state)


def test_a_broker_outlives_its_starter_and_a_killed_one_is_noticed_and_replaced(
    tmp_path: Path, quickest: str
) -> None:
    killed = start_by_another_process(quickest, tmp_path)
    assert killed.is_running
    assert killed.pid is not None
    os.kill(killed.pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while brokers.status(quickest, state=tmp_path).is_running:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    try:
        fresh = brokers.start(quickest, port=killed.port, state=tmp_path)
        assert fresh.is_running
        assert fresh.pid != killed.pid
    finally:
        brokers.stop(quickest, state=tmp_path)
    assert has_ended(fresh)
    assert list(tmp_path.iterdir()) == []


def test_a_taken_port_is_named_before_anything_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(EnvironmentNotReady, match=f"127.0.0.1:{port} is in use"):
            brokers.start("qpid", port=port, state=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.deployment
def test_three_nodes_of_rabbitmq_form_a_cluster_and_leave_nothing_behind(tmp_path: Path) -> None:
    skip_unless_installed("rabbitmq")
    [port] = free_ports(1)
    running = brokers.start("rabbitmq", port=port, state=tmp_path, nodes=3)
    try:
        assert running.line == f"rabbitmq running 127.0.0.1:{port}"
        assert running.line_with_ports.startswith(f"{running.line} (amqp {port}, management ")
        assert running.nodes == 3
        assert len(set(running.node_pids)) == 3
        assert not any("epmd" in psutil.Process(pid).name() for pid in running.node_pids)
        assert [source.pid for source in running.broker.resources] == [*running.node_pids]
        assert brokers.status("rabbitmq", state=tmp_path) == running
        assert len({running.ports[name] for name in ("amqp", "amqp-2", "amqp-3")}) == 3
        for process in processes_with(tmp_path):
            assert all(address.is_loopback for address in listening_addresses(process))

        quorum = {"arguments": {"x-queue-type": "quorum"}, "durable": True}
        mirrors = {"definition": {"ha-mode": "exactly", "ha-params": 2}}
        for amqp, copies in (
            ({"queue": quorum, "confirms": 50}, ("members", 3)),
            ({"policy": mirrors, "confirms": 50}, ("slave_nodes", 1)),
        ):
            transport = open_transport(running.broker, amqp=amqp)
            with (
                declared(transport) as made,
                consuming(transport, made) as consumers,
                producing(transport, made) as producers,
            ):
                send_all(producers, batch(envelopes(100)), expected_outcomes=100)
                collect(consumers, 100)
                name, count = copies
                assert eventually(
                    lambda: len(queue_facts(running, made[0].name)[name]) == count  # noqa: B023
                )
    finally:
        brokers.stop("rabbitmq", state=tmp_path)
    assert processes_with(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.deployment
def test_three_nodes_of_kafka_hold_copies_and_go_on_without_one_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The last node has no majority and does not end when it is asked to.
    monkeypatch.setattr(lifecycle, "STOP_SECONDS", 2.0)
    [port] = free_ports(1)
    running = brokers.start("kafka", port=port, state=tmp_path, nodes=3)
    try:
        assert running.line == f"kafka running 127.0.0.1:{port}"
        assert running.nodes == 3
        assert len(set(running.node_pids)) == 3
        assert brokers.status("kafka", state=tmp_path) == running
        transport = open_transport(
            running.broker,
            kafka={
                "topic": {"replication_factor": 3, "properties": {"min.insync.replicas": 2}},
                "producer": {"acks": "all"},
            },
        )
        with (
            declared(transport) as made,
            consuming(transport, made) as consumers,
            producing(transport, made) as producers,
        ):
            send_all(producers, batch(envelopes(100)), expected_outcomes=100)
            collect(consumers, 100)
            os.kill(running.node_pids[1], signal.SIGKILL)
            send_all(producers, batch(envelopes(100, first=101)), expected_outcomes=100)
            collect(consumers, 100)
    finally:
        brokers.stop("kafka", state=tmp_path)
    assert processes_with(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def queue_facts(running: BrokerStatus, name: str | None) -> Any:
    """What the management API says of a queue."""
    page = http.client.HTTPConnection("127.0.0.1", running.ports["management"], timeout=60)
    login = base64.b64encode(b"guest:guest").decode()
    page.request("GET", f"/api/queues/%2F/{name}", headers={"Authorization": f"Basic {login}"})
    return {"members": [], "slave_nodes": []} | json.loads(page.getresponse().read())
