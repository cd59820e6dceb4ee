"""A Kafka broker that dies under load and comes back with its data."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from agents import Load, run_load
from contract import (
    KAFKA_PLANES,
    batch,
    consuming,
    declared,
    heads,
    joined,
    open_transport,
    producing,
    receive_into,
)

from bench_spark.brokers.kafka import Kafka
from bench_spark.brokers.process import end, last_lines, spawn
from bench_spark.plan import make_plan
from bench_spark.scenario.broker import Broker
from bench_spark.scenario.models import Scenario
from bench_spark.transports.base import (
    Consumers,
    Destination,
    OutcomeKind,
    Producers,
    Received,
    SignalKind,
)

START_SECONDS = 60.0


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Restartable:
    """A broker that can be killed and started again, on the same port and with the same log."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ports = {name: free_port() for name in ("client", "controller")}
        (self._command,) = Kafka().prepare(directory, self._ports, say=lambda _: None)
        self.start()

    def start(self) -> None:
        log = self._directory / "log"
        self._process = spawn(self._command, self._directory, log)
        started = time.monotonic()
        while not Kafka().answers(self._ports):
            assert time.monotonic() - started < START_SECONDS, last_lines(log)
            time.sleep(0.1)

    def kill(self) -> None:
        if self._process.is_alive:
            os.kill(self._process.pid, signal.SIGKILL)
        end(self._process, patience_seconds=5)

    def start_if_dead(self) -> None:
        if not self._process.is_alive:
            self.start()

    @property
    def broker(self) -> Broker:
        servers = f"127.0.0.1:{self._ports['client']}"
        return Broker(name="restartable", kind="kafka", bootstrap_servers=servers)


@pytest.fixture(scope="module")
def one_of_our_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Restartable]:
    made = Restartable(tmp_path_factory.mktemp("kafka"))
    yield made
    made.kill()


@pytest.fixture
def restartable(one_of_our_own: Restartable) -> Restartable:
    one_of_our_own.start_if_dead()
    return one_of_our_own


class Ends:
    """Both ends of a load, and what they say."""

    def __init__(self, producers: Producers, consumers: Consumers) -> None:
        self._producers, self._consumers = producers, consumers
        self.sent = 0
        self.kinds: list[int] = []
        self.parts: list[Received] = []
        self.said: dict[str, list[SignalKind]] = {"producers": [], "consumers": []}

    def go_on(self, messages: int = 0) -> None:
        if messages:
            self.sent += self._producers.send(batch(heads(messages, first=self.sent)))
        self.kinds += self._producers.outcomes().kind.tolist()
        receive_into(self.parts, self._consumers, 0.01, acknowledge=True)
        for name, side in (("producers", self._producers), ("consumers", self._consumers)):
            self.said[name] += [one.kind for one in side.signals()]

    def until(self, is_true: Callable[[], object], messages: int = 0) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not is_true():
            assert time.monotonic() < deadline, (self.sent, len(self.kinds), self.said)
            self.go_on(messages)

    @property
    def received(self) -> set[int]:
        return set(joined(self.parts, "head")["sequence"].tolist()) if self.parts else set()


on_both_planes = pytest.mark.usefixtures("kafka_plane")


@pytest.mark.parametrize(
    ("plane", "transaction_messages"), [("fast", 0), ("confluent", 0), ("confluent", 20)]
)
def test_a_load_goes_on_when_its_broker_is_back(
    restartable: Restartable, plane: str, transaction_messages: int
) -> None:
    kafka = {
        "plane": plane,
        "transaction_messages": transaction_messages,
        "producer": {"linger.ms": 0},
    }
    transport = open_transport(restartable.broker, kafka=kafka, reconnect_seconds=60)
    with (
        declared(transport) as made,
        consuming(transport, made) as consumers,
        producing(transport, made) as producers,
    ):
        ends = Ends(producers, consumers)
        ends.until(lambda: len(ends.received) >= 200, messages=20)
        restartable.kill()
        died = time.monotonic()
        ends.until(lambda: all(ends.said.values()), messages=20)
        assert time.monotonic() - died < 20  # On an idle machine it is some 3 s.
        before = ends.sent
        restartable.start()
        both = [SignalKind.LOST, SignalKind.REOPENED]
        ends.until(lambda: all(said == both for said in ends.said.values()))
        ends.until(lambda: ends.sent >= before + 200, messages=20)
        producers.commit()
        ends.until(lambda: len(ends.kinds) == ends.sent)
        confirmed = ends.kinds.count(OutcomeKind.CONFIRMED)
        ends.until(lambda: len(ends.received) >= confirmed)
        assert ends.said == {"producers": both, "consumers": both}
        assert confirmed >= 400
        # librdkafka keeps what it was given during the outage and sends it afterwards.
        assert set(np.unique(ends.kinds)) <= {OutcomeKind.CONFIRMED, OutcomeKind.REFUSED}


@on_both_planes
def test_a_broker_that_stays_away_is_lost_for_good_in_the_end(restartable: Restartable) -> None:
    transport = open_transport(restartable.broker, reconnect_seconds=3)
    made = transport.declare([Destination(0)])
    with consuming(transport, made) as consumers, producing(transport, made) as producers:
        ends = Ends(producers, consumers)
        ends.until(lambda: len(ends.received) >= 20, messages=20)
        restartable.kill()
        twice = [SignalKind.LOST] * 2
        ends.until(lambda: all(said == twice for said in ends.said.values()))


def paced(phases: dict[str, float], reconnect_seconds: float, plane: str) -> Scenario:
    keys = {"phases": phases, "load": {"rate_per_second": 500}, "kafka": {"plane": plane}}
    return Scenario.model_validate(keys | {"reconnect_seconds": reconnect_seconds})


@pytest.mark.parametrize("plane", KAFKA_PLANES)
@pytest.mark.fault(case=9)
def test_a_whole_run_survives_the_restart_of_its_broker(
    restartable: Restartable, plane: str
) -> None:
    def restart(load: Load) -> None:
        time.sleep(1.5)
        restartable.kill()
        time.sleep(4)  # long enough to be noticed
        restartable.start()

    phases = {"warmup_seconds": 0.5, "measure_seconds": 30, "drain_seconds": 20}
    load = run_load(
        make_plan(paced(phases, 60, plane), f"surviving-{plane}"), restartable.broker, restart
    )
    assert not load.control.failures
    for role in ("producer", "consumer"):
        assert load.total(role, "errors") == load.total(role, "reconnects") == 1
    accounts = load.accounts()
    assert accounts.closes
    assert accounts.lost == 0
    # librdkafka keeps what it was given and sends it when the broker is back.
    assert accounts.received_once == accounts.sent == 15_000


@pytest.mark.parametrize("plane", KAFKA_PLANES)
@pytest.mark.fault(case=9)
def test_without_time_to_reconnect_a_run_ends_within_seconds_of_its_brokers_death(
    restartable: Restartable, plane: str
) -> None:
    """Not after the minutes for which librdkafka itself would go on trying."""
    died: list[float] = []

    def kill(load: Load) -> None:
        time.sleep(1.5)
        restartable.kill()
        died.append(time.monotonic())

    phases = {"warmup_seconds": 0.5, "measure_seconds": 120, "drain_seconds": 60}
    load = run_load(make_plan(paced(phases, 0, plane), f"dying-{plane}"), restartable.broker, kill)
    assert time.monotonic() - died[0] < 40  # On an idle machine it is some 8 s.
    assert restartable.broker.bootstrap_servers in load.control.failures[0].text
    errors = [row for _, row in load.rows if row.counters.get("errors")]
    assert errors
    accounts = load.accounts()
    assert accounts.closes
    assert accounts.received_once > 0
