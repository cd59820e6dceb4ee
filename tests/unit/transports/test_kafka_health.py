"""When the lanes of a Kafka client are lost, come back, or are lost for good."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from bench_spark.transports.base import Signal, SignalKind
from bench_spark.transports.kafka import client_pool
from bench_spark.transports.kafka.client_pool import Health, Wakeup

LOST, REOPENED = SignalKind.LOST, SignalKind.REOPENED


class HandCluster:
    """Stands for a client: answers the question, or does not."""

    answers = True

    def list_topics(self, timeout: float) -> None:
        if not self.answers:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT, "nobody there"))


class HandTime:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> HandTime:
    made = HandTime()
    monkeypatch.setattr(client_pool, "time", made)
    return made


@pytest.fixture
def wakeup() -> Iterator[Wakeup]:
    made = Wakeup()
    yield made
    made.close()


def health(wakeup: Wakeup, reconnect_seconds: float) -> Health:
    ticking = itertools.count(1)
    return Health([3, 7], "host:1", lambda: next(ticking), wakeup, reconnect_seconds)


def complain(to: Health) -> None:
    to.on_error(KafkaError(KafkaError._ALL_BROKERS_DOWN))


def said(signals: list[Signal]) -> list[tuple[SignalKind, int, int, bool]]:
    return [(one.kind, one.lane, one.generation, one.is_reopening) for one in signals]


def examined(found: Health, cluster: Any, clock: HandTime) -> list[tuple[SignalKind, int, bool]]:
    """What is said of the first lane after the next question."""
    clock.now += 1.0
    assert found.needs_examination
    found.examine(cluster)
    return [
        (kind, at, is_reopening)
        for kind, lane, at, is_reopening in said(found.take_signals())
        if lane == 3
    ]


def test_a_complaint_alone_loses_nothing(wakeup: Wakeup, clock: HandTime) -> None:
    found = health(wakeup, 30)
    assert not found.needs_examination
    complain(found)
    assert examined(found, HandCluster(), clock) == []
    assert not found.needs_examination


def test_without_time_to_reconnect_lanes_are_lost_for_good_at_once(
    wakeup: Wakeup, clock: HandTime
) -> None:
    found, cluster = health(wakeup, 0), HandCluster()
    cluster.answers = False
    complain(found)
    found.examine(cluster)
    assert said(found.take_signals()) == [(LOST, 3, 0, False), (LOST, 7, 0, False)]
    assert found.is_lost_for_good
    found.alive(10**9)
    assert found.take_signals() == []
    assert not found.needs_examination


def test_a_cluster_that_answers_in_time_reopens_its_lanes_as_a_new_generation(
    wakeup: Wakeup, clock: HandTime
) -> None:
    found, cluster = health(wakeup, 30), HandCluster()
    for generation in range(2):
        cluster.answers = False
        complain(found)
        assert examined(found, cluster, clock) == [(LOST, generation, True)]
        assert examined(found, cluster, clock) == []
        assert found.is_lost
        cluster.answers = True
        assert examined(found, cluster, clock) == [(REOPENED, generation + 1, False)]
        assert not found.is_lost


def test_a_message_that_comes_through_reopens_them_too(wakeup: Wakeup, clock: HandTime) -> None:
    found, cluster = health(wakeup, 30), HandCluster()
    cluster.answers = False
    complain(found)
    found.examine(cluster)
    found.take_signals()
    found.alive(0)
    assert found.is_lost, "that message came before"
    found.alive(10**9)
    assert [one.kind for one in found.take_signals()] == [REOPENED, REOPENED]


def test_after_that_time_they_are_lost_for_good(wakeup: Wakeup, clock: HandTime) -> None:
    found, cluster = health(wakeup, 30), HandCluster()
    cluster.answers = False
    complain(found)
    assert examined(found, cluster, clock) == [(LOST, 0, True)]
    clock.now += 28.5
    assert examined(found, cluster, clock) == []
    assert examined(found, cluster, clock) == [(LOST, 0, False)]
    assert not found.needs_examination


def test_a_refused_login_is_final(wakeup: Wakeup, clock: HandTime) -> None:
    found = health(wakeup, 30)
    found.on_error(KafkaError(KafkaError._AUTHENTICATION, "no"))
    assert [one.is_reopening for one in found.take_signals()] == [False, False]
    assert found.is_lost_for_good


def test_a_question_without_an_answer_says_nothing_of_the_other_brokers(
    wakeup: Wakeup, clock: HandTime
) -> None:
    found, cluster = health(wakeup, 30), HandCluster()
    cluster.answers = False
    found.on_error(KafkaError(KafkaError._TRANSPORT, "host:3/3: Connect to ipv4#1 failed"))
    found.examine(cluster)
    told = {signal.reason for signal in found.take_signals()}
    assert told == {"host:1: no answer from the cluster in 2 s: Connect to ipv4#1 failed"}
