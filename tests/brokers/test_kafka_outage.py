"""A Kafka broker that dies under load and comes back with its data."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
from agents import Load, start_load
from contract import (
    CLOCK,
    PATIENCE_SECONDS,
    batch,
    collect,
    consuming,
    envelopes,
    eventually,
    joined,
    left_in,
    numbered,
    open_transport,
    producing,
    receive_into,
    send_all,
    signals_until,
)
from restartable import Restartable

from bench_spark.brokers.kafka import KafkaRecipe
from bench_spark.config.broker import Broker
from bench_spark.config.models import Scenario
from bench_spark.errors import BrokerUnreachable
from bench_spark.plan import make_plan
from bench_spark.transports.base import Consumers, Destination, Producers, SignalKind
from bench_spark.transports.batches import OutcomeKind, Received

START_SECONDS = 60.0


@pytest.fixture(scope="module")
def one_of_our_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Restartable]:
    made = Restartable(KafkaRecipe(), tmp_path_factory.mktemp("kafka"))
    yield made
    made.close()


@pytest.fixture
def restartable(one_of_our_own: Restartable) -> Restartable:
    one_of_our_own.start()
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
            self.sent += self._producers.send(batch(envelopes(messages, first=self.sent)))
        self.kinds += self._producers.outcomes().kind.tolist()
        receive_into(self.parts, self._consumers, 0.01, acknowledge=True)
        for name, side in (("producers", self._producers), ("consumers", self._consumers)):
            self.said[name] += [one.kind for one in side.signals()]

    def commit(self) -> None:
        self._producers.commit()

    @property
    def received(self) -> set[int]:
        return set(joined(self.parts, "envelope")["sequence"].tolist()) if self.parts else set()


def until(
    loads: Sequence[Ends], is_true: Callable[[Ends], object], messages_at_once: int = 0
) -> None:
    """Go on with all of them until it is true of each."""
    deadline = time.monotonic() + START_SECONDS
    while waiting := [one for one in loads if not is_true(one)]:
        told = [(one.sent, len(one.kinds), one.said) for one in waiting]
        assert time.monotonic() < deadline, told
        for one in loads:
            one.go_on(messages_at_once if one in waiting else 0)


@contextmanager
def exchange(broker: Broker, reconnect_seconds: float, **kafka: Any) -> Iterator[Ends]:
    transport = open_transport(broker, kafka=kafka, reconnect_seconds=reconnect_seconds)
    made = transport.declare([Destination(0)])
    with consuming(transport, made) as consumers, producing(transport, made) as producers:
        yield Ends(producers, consumers)


# An outage takes seconds and a Kafka that starts again takes more: all that are to be tested meet
# the same one.

WAYS: tuple[dict[str, Any], ...] = ({}, {"transaction_messages": 20})


def test_a_load_goes_on_when_its_broker_is_back(restartable: Restartable) -> None:
    lost, both = [SignalKind.LOST], [SignalKind.LOST, SignalKind.REOPENED]
    with ExitStack() as stack:
        loads = [
            stack.enter_context(exchange(restartable.broker, 60, producer={"linger.ms": 0}, **way))
            for way in WAYS
        ]
        until(loads, lambda one: len(one.received) >= 200, messages_at_once=20)
        restartable.kill()
        died = time.monotonic()
        until(loads, lambda one: all(one.said.values()), messages_at_once=20)
        assert time.monotonic() - died < PATIENCE_SECONDS  # On an idle machine it is some 3 s.
        assert [said for one in loads for said in one.said.values()] == [lost] * 2 * len(WAYS)
        before = {one: one.sent for one in loads}
        restartable.start()
        until(loads, lambda one: all(said == both for said in one.said.values()))
        until(loads, lambda one: one.sent >= before[one] + 200, messages_at_once=20)
        for one in loads:
            one.commit()
        until(loads, lambda one: len(one.kinds) == one.sent)
        until(loads, lambda one: len(one.received) >= one.kinds.count(OutcomeKind.CONFIRMED))
        for one in loads:
            assert one.said == {"producers": both, "consumers": both}
            assert one.kinds.count(OutcomeKind.CONFIRMED) >= 400
            # librdkafka keeps what it was given during the outage and sends it afterwards.
            assert set(np.unique(one.kinds)) <= {OutcomeKind.CONFIRMED, OutcomeKind.REFUSED}


def started_load(
    broker: Broker, name: str, phases: dict[str, float], reconnect_seconds: float
) -> Load:
    keys = {"phases": phases, "load": {"rate_per_second": 500}}
    scenario = Scenario.model_validate(keys | {"reconnect_seconds": reconnect_seconds})
    load = start_load(make_plan(scenario, name), broker)
    assert load.control.started.wait(30), load.control.failures
    assert eventually(lambda: progress_of(load, "received_once") > 100)
    return load


def progress_of(load: Load, name: str) -> int:
    return int(load.control.agents[0].progress.get(name, 0))


@pytest.mark.fault(case=9)
def test_a_run_survives_the_restart_of_its_broker_and_without_time_for_it_ends_within_seconds(
    restartable: Restartable,
) -> None:
    """Not after the minutes for which librdkafka itself would go on trying."""
    phases = {"warmup_seconds": 0, "measure_seconds": 10, "drain_seconds": 60}
    surviving = started_load(restartable.broker, "surviving", phases, reconnect_seconds=60)
    phases = {"warmup_seconds": 0, "measure_seconds": 600, "drain_seconds": 60}
    dying = started_load(restartable.broker, "dying", phases, reconnect_seconds=0)
    restartable.kill()
    died = time.monotonic()
    dying.wait()
    assert time.monotonic() - died < PATIENCE_SECONDS  # On an idle machine it is some 8 s.
    assert eventually(lambda: progress_of(surviving, "down") == 2)
    restartable.start()
    surviving.wait(timeout_seconds=150)

    assert str(restartable.broker.bootstrap_servers) in dying.control.failures[0].text
    assert [row for _, row in dying.rows if row.counters.get("errors")]
    accounts = dying.accounts()
    assert accounts.closes
    assert accounts.received_once > 0

    assert not surviving.control.failures
    for role in ("producer", "consumer"):
        assert surviving.total(role, "errors") == surviving.total(role, "reconnects") == 1
    accounts = surviving.accounts()
    assert accounts.closes
    assert accounts.lost == 0
    # librdkafka keeps what it was given and sends it when the broker is back.
    assert accounts.received_once == accounts.sent == 5000


def test_what_was_on_its_way_to_a_broker_that_stays_away_is_unknown_within_seconds(
    restartable: Restartable, capfd: pytest.CaptureFixture[str]
) -> None:
    """One by one, in a transaction, and where it is tried to reconnect."""
    plain = open_transport(restartable.broker, kafka={"producer": {"linger.ms": 0}})
    transactional = open_transport(restartable.broker, kafka={"transaction_messages": 10})
    made = plain.declare([Destination(0)])
    with (
        exchange(restartable.broker, 3) as load,
        consuming(plain, made) as consumers,
    ):
        until([load], lambda one: len(one.received) >= 20, messages_at_once=20)
        producers = {
            transport: transport.open_producers(numbered([made]), CLOCK.now_ns)
            for transport in (plain, transactional)
        }
        for each in producers.values():
            send_all(each, batch(envelopes(10)), expected_outcomes=10)
        collect(consumers, 20)
        in_transaction = producers[transactional]
        assert eventually(lambda: in_transaction.send(batch(envelopes(1, first=10))))
        capfd.readouterr()
        restartable.kill()
        assert producers[plain].send(batch(envelopes(500, first=10))) == 500
        assert in_transaction.send(batch(envelopes(9, first=11))) == 9
        for each, in_flight in zip(producers.values(), (500, 10), strict=True):
            [lost, *_] = signals_until(SignalKind.LOST, each)
            assert lost.reason.startswith(f"{restartable.broker.bootstrap_servers}: ")
            assert each.in_flight() == in_flight
            started = time.monotonic()
            each.close()
            assert time.monotonic() - started < PATIENCE_SECONDS
            unknown: list[int] = []
            assert eventually(partial(take_unknown, each, unknown, in_flight))
            assert sorted(unknown) == [*range(10, 10 + in_flight)]
        lost_for_good = [SignalKind.LOST] * 2
        until([load], lambda one: all(said == lost_for_good for said in one.said.values()))
    with pytest.raises(BrokerUnreachable, match=str(restartable.broker.bootstrap_servers)):
        left_in(plain, made)
    assert "rdkafka" not in capfd.readouterr().err


def take_unknown(producers: Producers, found: list[int], wanted: int) -> bool:
    """Adds the numbers of those whose outcome has come, and says whether all have."""
    outcomes = producers.outcomes()
    assert set(outcomes.kind.tolist()) <= {OutcomeKind.UNKNOWN}
    found += outcomes.envelope["sequence"].tolist()
    return len(found) >= wanted
