"""The lifecycle with a stand-in program: no JVM, no network beyond loopback."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from bench_spark import brokers
from bench_spark.brokers import lifecycle
from bench_spark.brokers.base import HOST, Command, Say, exchange, free_ports
from bench_spark.config.broker import Broker
from bench_spark.errors import ConfigurationError, EnvironmentNotReady

SERVER = """
import socket, sys
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    connection, _ = server.accept()
    connection.sendall(connection.recv(64))
    connection.close()
"""


class Echo:
    """A broker that answers what it is asked: the program that `code` says."""

    name = "echo"
    ports: Mapping[str, int] = {"client": 20001, "other": 0}

    def __init__(self, code: str = SERVER) -> None:
        self.code = code

    def prepare(self, directory: Path, ports: Mapping[str, int], say: Say) -> Sequence[Command]:
        (directory / "data").mkdir()
        return [Command([sys.executable, "-c", self.code, str(ports["client"])])]

    def answers(self, ports: Mapping[str, int]) -> bool:
        return exchange(ports["client"], b"hello", b"hello")

    def address(self, ports: Mapping[str, int], directory: Path) -> dict[str, Any]:
        return {"kind": "mqtt", "uri": f"mqtt://{HOST}:{ports['client']}"}


class Echoes(Echo):
    """Several of them, each started when the one before answers."""

    def __init__(self, nodes: int = 1) -> None:
        super().__init__()
        self.nodes = nodes
        self.ports = {"client": 20001, **{f"client-{node}": 0 for node in range(1, nodes)}}

    def with_nodes(self, nodes: int) -> Echoes:
        return Echoes(nodes)

    def prepare(self, directory: Path, ports: Mapping[str, int], say: Say) -> Sequence[Command]:
        def is_ready(number: int) -> bool:
            answering = [exchange(port, b"hello", b"hello") for port in ports.values()]
            assert not any(answering[number + 1 :]), "none is started before its turn"
            return answering[number]

        return [
            Command(
                [sys.executable, "-c", self.code, str(port)],
                is_ready=functools.partial(is_ready, number),
            )
            for number, port in enumerate(ports.values())
        ]


@pytest.fixture
def echo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Echo:
    recipe = Echo()
    monkeypatch.setattr(lifecycle, "RECIPES", {"echo": recipe})
    monkeypatch.setenv("BENCH_SPARK_STATE", str(tmp_path))
    monkeypatch.setenv("BENCH_SPARK_PORT_ECHO", str(free_ports(1)[0]))
    return recipe


def has_ended(pid: int) -> bool:
    """Gone, or waiting for a parent that is not this process to notice."""
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.fixture
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in list(os.environ):
        if variable.startswith("BENCH_SPARK_PORT_"):
            monkeypatch.delenv(variable)


@pytest.mark.parametrize("name", brokers.NAMES)
@pytest.mark.usefixtures("own_environment")
def test_the_shipped_broker_file_points_at_the_embedded_broker(name: str, tmp_path: Path) -> None:
    conf = Path(__file__).parents[3] / "conf" / "brokers"
    shipped = yaml.safe_load((conf / f"{name}.yaml").read_text())
    # What it uses is found by its name; a stopped one has no process to name.
    assert shipped.pop("resources") == [{"embedded": name}]
    assert Broker(name=name, **shipped) == brokers.status(name, state=tmp_path).broker


@pytest.mark.usefixtures("own_environment")
def test_no_two_embedded_brokers_want_the_same_port() -> None:
    wanted = [port for recipe in lifecycle.RECIPES.values() for port in recipe.ports.values()]
    fixed = [port for port in wanted if port]
    assert len(set(fixed)) == len(fixed)


def test_asking_for_the_status_creates_nothing(echo: Echo, tmp_path: Path) -> None:
    assert brokers.status("echo").state == "stopped"
    assert list(tmp_path.iterdir()) == []


def test_two_starts_at_once_give_one_broker(echo: Echo, tmp_path: Path) -> None:
    pids: list[int | None] = []
    threads = [
        threading.Thread(target=lambda: pids.append(brokers.start("echo").pid)) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    brokers.stop("echo")
    assert len(pids) == 4
    assert len(set(pids)) == 1
    assert list(tmp_path.iterdir()) == []


def test_another_port_for_a_running_broker_is_refused(echo: Echo) -> None:
    running = brokers.start("echo")
    try:
        with pytest.raises(EnvironmentNotReady, match=f"runs at 127.0.0.1:{running.port} already"):
            brokers.start("echo", port=running.port + 1)
    finally:
        brokers.stop("echo")


def test_a_broker_that_dies_while_starting_is_reported_with_its_last_words(
    echo: Echo, tmp_path: Path
) -> None:
    echo.code = "import sys; sys.exit('no room on this disk')"
    with pytest.raises(
        EnvironmentNotReady, match=r"(?s)echo ended while it started.*no room"
    ) as error:
        brokers.start("echo")
    assert error.value.exit_code == 3
    assert list(tmp_path.iterdir()) == []


def test_a_broker_that_never_answers_is_ended(
    echo: Echo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "START_SECONDS", 0.5)
    echo.code = "import time; print('dreaming', flush=True); time.sleep(60)"
    with pytest.raises(EnvironmentNotReady, match="did not answer"):
        brokers.start("echo")
    assert list(tmp_path.iterdir()) == []


def test_a_broker_that_ignores_the_request_to_end_is_killed(
    echo: Echo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "STOP_SECONDS", 0.5)
    echo.code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)" + SERVER
    pid = brokers.start("echo").pid
    assert brokers.stop("echo").state == "stopped"
    assert pid is not None
    assert has_ended(pid)
    assert list(tmp_path.iterdir()) == []


def test_what_a_broker_started_ends_with_it(echo: Echo, tmp_path: Path) -> None:
    helper = tmp_path / "helper"
    spawn = (
        "import subprocess, sys, pathlib; "
        "h = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], "
        "start_new_session=True); "
        f"pathlib.Path({str(helper)!r}).write_text(str(h.pid))"
    )
    echo.code = spawn + SERVER
    brokers.start("echo")
    brokers.stop("echo")
    assert has_ended(int(helper.read_text()))


def test_a_process_id_that_was_handed_out_again_is_left_alone(echo: Echo, tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as stranger:
        directory = tmp_path / "echo"
        directory.mkdir()
        stale = {"ports": {"client": 1}, "processes": [{"pid": stranger.pid, "birth_ticks": 1}]}
        (directory / "state.json").write_text(json.dumps(stale))
        assert brokers.status("echo").state == "stopped"
        brokers.stop("echo")
        assert stranger.poll() is None
        stranger.kill()
    assert list(tmp_path.iterdir()) == []


def test_a_broker_inherits_no_secret_of_the_shell(
    echo: Echo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_PASSWORD", "swordfish")
    running = brokers.start("echo")
    try:
        assert b"swordfish" not in Path(f"/proc/{running.pid}/environ").read_bytes()
    finally:
        brokers.stop("echo")


def test_an_unknown_broker_is_refused_with_the_known_names() -> None:
    with pytest.raises(ConfigurationError, match="unknown broker rabbit; known are kafka, qpid"):
        brokers.start("rabbit")


@pytest.mark.parametrize("text", ["", "0", "65536", "amqp", "-1", "1e3"])
def test_a_port_in_the_environment_must_be_one(
    echo: Echo, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("BENCH_SPARK_PORT_ECHO", text)
    with pytest.raises(ConfigurationError, match="BENCH_SPARK_PORT_ECHO must be a port number"):
        brokers.status("echo")


def test_nodes_of_a_cluster_start_one_after_the_other_and_end_together(
    echo: Echo, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(lifecycle, "RECIPES", {"echo": Echoes()})
    started = brokers.start("echo", nodes=3)
    pids = [
        one["pid"] for one in json.loads((tmp_path / "echo/state.json").read_text())["processes"]
    ]
    try:
        assert started.nodes == 3
        assert len(started.ports) == len(pids) == 3
        assert brokers.status("echo") == started
        assert brokers.start("echo") == started, "however many there are, it runs"
        with pytest.raises(EnvironmentNotReady, match=r"runs already, with 3 nodes.* with 2"):
            brokers.start("echo", nodes=2)
    finally:
        brokers.stop("echo")
    assert all(map(has_ended, pids))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("recipe", "nodes", "message"),
    [
        (Echo(), 2, "nodes: echo is started as one node only; several nodes: none"),
        (Echoes(), 10, "nodes: 10 is not allowed; allowed: 1 to 9"),
        (Echoes(), 0, "nodes: 0 is not allowed; allowed: 1 to 9"),
    ],
)
def test_a_number_of_nodes_that_cannot_be_is_refused(
    echo: Echo, monkeypatch: pytest.MonkeyPatch, recipe: Echo, nodes: int, message: str
) -> None:
    monkeypatch.setattr(lifecycle, "RECIPES", {"echo": recipe})
    with pytest.raises(ConfigurationError, match=f"^{message}"):
        brokers.start("echo", nodes=nodes)
