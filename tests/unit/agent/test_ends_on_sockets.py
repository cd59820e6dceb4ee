"""Whole agents with ends apart: in by HTTP, out by TCP, and a small system between them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from agents import Load, run_load

from bench_spark.config.broker import Broker
from bench_spark.config.ends import Ends
from bench_spark.config.models import Scenario
from bench_spark.plan import make_plan
from bench_spark.transports.registry import fitted_to


class System(ThreadingHTTPServer):
    """Passes every body that is posted on to a TCP listener; every tenth it forgets."""

    daemon_threads = True

    def __init__(self, to: tuple[str, int]) -> None:
        super().__init__(("127.0.0.1", 0), Passing)
        self._to = to
        self._out: socket.socket | None = None
        self._lock = threading.Lock()
        self.taken = self.passed = 0
        self.forgets = False

    def pass_on(self, body: bytes) -> None:
        with self._lock:
            self.taken += 1
            if self.forgets and self.taken % 10 == 0:
                return
            self._out = self._out or socket.create_connection(self._to)
            self._out.sendall(len(body).to_bytes(4, "big") + body)
            self.passed += 1

    def server_close(self) -> None:
        super().server_close()
        if self._out is not None:
            self._out.close()


class Passing(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        assert isinstance(self.server, System)
        self.server.pass_on(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(204)
        self.end_headers()

    def do_HEAD(self) -> None:
        self.send_response(405)
        self.end_headers()

    def log_message(self, *words: Any) -> None: ...


@pytest.fixture
def egress() -> Broker:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return Broker(name="out", kind="tcp", uri=f"tcp://127.0.0.1:{free.getsockname()[1]}")


@pytest.fixture
def system(egress: Broker) -> Iterator[System]:
    with System(egress.address()) as made:
        threading.Thread(target=made.serve_forever, args=(0.05,), daemon=True).start()
        yield made
        made.shutdown()


def run(system: System, egress: Broker, run_id: str, agents: int = 1, **load: Any) -> Load:
    uri = f"http://127.0.0.1:{system.server_port}/messages"
    ends = Ends.apart([Broker(name="in", kind="http", uri=uri)], [egress])
    scenario = Scenario.model_validate(
        {
            "agents": agents,
            "placement": "paired" if agents == 1 else "split",
            "producers": 4,
            "message": {"bytes": 64},
            "load": {"rate_per_second": 200} | load,
            "phases": {"warmup_seconds": 0, "measure_seconds": 0.8, "drain_seconds": 3},
            "ingress": [{"broker": "in"}],
            "egress": [{"broker": "out"}],
        }
    )
    found = run_load(make_plan(fitted_to(scenario, ends), run_id), ends)
    assert not found.control.failures
    return found


@pytest.mark.parametrize("mode", ["rate", "request"])
def test_what_a_system_forgets_is_lost_and_nothing_else(
    system: System, egress: Broker, mode: str
) -> None:
    system.forgets = True
    load = run(system, egress, f"forgetful-{mode}", mode=mode, request_timeout_seconds=0.1)
    accounts = load.accounts()
    assert accounts.sent == system.taken > 50
    assert accounts.received_once == system.passed
    assert accounts.lost == system.taken - system.passed > 0
    assert load.total("producer", "confirmed") == system.taken
    assert load.histogram("latency").count == system.passed


@pytest.mark.parametrize("agents", [1, 2])
def test_the_sender_is_free_when_its_message_has_come_out(
    system: System, egress: Broker, agents: int
) -> None:
    """In two agents it comes out where its sender is not, and that is told over the links."""
    load = run(system, egress, f"answered-{agents}", agents, mode="request")
    assert load.accounts().sent == load.total("producer", "due") == 160
    round_trip, latency = load.histogram("round_trip"), load.histogram("latency")
    assert round_trip.count == latency.count == 160
    assert round_trip.sum_us >= latency.sum_us
