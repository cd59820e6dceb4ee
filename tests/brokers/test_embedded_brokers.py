"""Every embedded broker, started and stopped for real, away from the user's own."""

from __future__ import annotations

import ipaddress
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from bench_spark import brokers
from bench_spark.brokers import BrokerStatus, mosquitto, rabbitmq
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


def test_rabbitmq_answers_on_its_management_port(tmp_path: Path) -> None:
    skip_unless_installed("rabbitmq")
    with brokers.embedded("rabbitmq") as running:
        management = running["rabbitmq"].ports["management"]
        assert running["rabbitmq"].broker.management_uri is not None
        assert f":{management}" in running["rabbitmq"].broker.management_uri
        with socket.create_connection(("127.0.0.1", management), 2):
            pass


def test_brokers_run_side_by_side_for_the_length_of_a_block() -> None:
    with brokers.embedded("kafka", "qpid") as running:
        assert {status.state for status in running.values()} == {"running"}
        root = running["kafka"].directory.parent
    assert not root.exists()
    assert all(has_ended(status) for status in running.values())


@pytest.fixture
def started_elsewhere(tmp_path: Path) -> Callable[[str], BrokerStatus]:
    """Starts a broker by another process that then ends, as the command line does."""

    def start(name: str) -> BrokerStatus:
        skip_unless_installed(name)
        [port] = free_ports(1)
        code = (
            "import sys, pathlib; from bench_spark import brokers; "
            "brokers.start(sys.argv[1], port=int(sys.argv[2]), state=pathlib.Path(sys.argv[3]))"
        )
        arguments = [sys.executable, "-c", code, name, str(port), str(tmp_path)]
        subprocess.run(arguments, check=True, timeout=120)
        return brokers.status(name, state=tmp_path)

    return start


def test_a_broker_outlives_the_command_that_started_it(
    started_elsewhere: Callable[[str], BrokerStatus], tmp_path: Path
) -> None:
    running = started_elsewhere("qpid")
    assert running.state == "running"
    assert brokers.stop("qpid", state=tmp_path).state == "stopped"
    assert has_ended(running)


def test_a_killed_broker_is_seen_as_stopped_and_can_be_started_again(
    started_elsewhere: Callable[[str], BrokerStatus], tmp_path: Path
) -> None:
    killed = started_elsewhere("qpid")
    assert killed.pid is not None
    os.kill(killed.pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while brokers.status("qpid", state=tmp_path).is_running:
        assert time.monotonic() < deadline
    try:
        fresh = brokers.start("qpid", port=killed.port, state=tmp_path)
        assert fresh.is_running
        assert fresh.pid != killed.pid
    finally:
        brokers.stop("qpid", state=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_taken_port_is_named_before_anything_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(EnvironmentNotReady, match=f"127.0.0.1:{port} is in use"):
            brokers.start("qpid", port=port, state=tmp_path)
    assert list(tmp_path.iterdir()) == []
