"""Transactional producers on a real Kafka: what is confirmed when, and what an abort leaves."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from agents import run_load
from confluent_kafka import Producer
from contract import (
    CLOCK,
    Settled,
    batch,
    collect,
    column,
    consuming,
    declared,
    envelopes,
    eventually,
    exchanging,
    joined,
    left_in,
    numbered,
    open_transport,
    producing,
    send_all,
    whole,
)

from bench_spark.config.broker import Broker
from bench_spark.config.models import Scenario
from bench_spark.plan import make_plan
from bench_spark.transports.base import Producers, Signal, SignalKind
from bench_spark.transports.batches import Headers, OutcomeKind, Part
from bench_spark.transports.kafka.transactions import TransactionalProducers


def of_messages(messages: int, **kafka: Any) -> dict[str, Any]:
    return {"transaction_messages": messages, **kafka}


def settle(producers: Producers, count: int) -> Settled:
    settled = Settled([])
    assert eventually(
        lambda: settled.parts.append(producers.outcomes()) or len(settled.kinds) >= count
    )
    assert len(settled.kinds) == count
    return settled


def test_nothing_is_confirmed_or_received_before_the_commit(kafka_broker: Broker) -> None:
    transport = open_transport(kafka_broker, kafka=of_messages(100))
    assert transport.capabilities.confirms
    with exchanging(transport) as (producers, consumers):
        assert isinstance(producers, TransactionalProducers)
        assert producers.send(batch(envelopes(99))) == 99
        producers.flush(0.5)
        assert len(consumers.receive(0.5)) == 0
        assert len(producers.outcomes()) == 0
        assert producers.in_flight() == 99
        sent_ns = CLOCK.now_ns()
        assert producers.send(batch(envelopes(1, first=99))) == 1
        settled = settle(producers, 100)
        assert set(settled.kinds) == {OutcomeKind.CONFIRMED}
        assert settled.envelopes["sequence"].tolist() == list(range(100))
        assert all(part.at_ns.min() > sent_ns for part in settled.parts if len(part))
        assert producers.in_flight() == 0
        parts = collect(consumers, 100)
    assert joined(parts, "envelope")["sequence"].tolist() == list(range(100))


def test_a_lane_takes_no_more_until_its_commit_has_returned(kafka_broker: Broker) -> None:
    transport = open_transport(kafka_broker, kafka=of_messages(100))
    with exchanging(transport) as (producers, consumers):
        all_of_them = batch(envelopes(1000))
        assert producers.send(all_of_them) == 100
        send_all(producers, all_of_them.starting_at(100), expected_outcomes=1000)
        parts = collect(consumers, 1000)
    assert joined(parts, "envelope")["sequence"].tolist() == list(range(1000))


def test_bodies_keys_and_headers_of_ones_own_go_by_transactions_too(kafka_broker: Broker) -> None:
    transport = open_transport(kafka_broker, kafka=of_messages(50))
    bodies = [b"%d" % number * number for number in range(100)]
    keys = [b"key-%d" % number for number in range(100)]
    headers: list[Headers] = [{"id": b"%d" % number} for number in range(100)]
    sent = whole(bodies, keys, headers)
    with exchanging(transport, want=frozenset(Part)) as (producers, consumers):
        settled = send_all(producers, sent, expected_outcomes=100)
        parts = collect(consumers, 100)
    assert np.array_equal(settled.envelopes, sent.envelope)
    assert column(parts, "bodies") == bodies
    assert column(parts, "keys") == keys
    assert column(parts, "headers") == headers


def test_commit_ends_a_transaction_that_is_not_full(kafka_broker: Broker) -> None:
    transport = open_transport(kafka_broker, producers=2, kafka=of_messages(100))
    with (
        declared(transport) as made,
        consuming(transport, made) as consumers,
        producing(transport, made, made) as producers,
    ):
        lanes = [0, 1] * 10
        assert producers.send(batch(envelopes(20, lanes), lanes)) == 20
        producers.commit()
        producers.flush(10)
        settled = settle(producers, 20)
        assert set(settled.kinds) == {OutcomeKind.CONFIRMED}
        for part in settled.parts:
            assert np.array_equal(part.lane, part.envelope["producer"])
        collect(consumers, 20)
        producers.commit()
        producers.flush(1)
        assert len(producers.outcomes()) == 0, "there was nothing to commit"
    assert open_transport(kafka_broker).capabilities.confirms


def test_the_marks_of_transactions_do_not_count_as_messages_left(kafka_broker: Broker) -> None:
    transport = open_transport(kafka_broker, kafka=of_messages(10))
    with declared(transport) as made:
        with producing(transport, made) as producers:
            send_all(producers, batch(envelopes(50)), expected_outcomes=50)
        assert left_in(transport, made) == (50,)
        with consuming(transport, made) as consumers:
            collect(consumers, 50)
        assert left_in(transport, made) == (0,)


def test_a_transaction_that_fails_is_refused_as_a_whole_and_the_next_goes_on(
    kafka_broker: Broker,
) -> None:
    """The broker will not take the second of three messages."""
    kafka = of_messages(3, topic={"properties": {"max.message.bytes": 2000}})
    transport = open_transport(kafka_broker, kafka=kafka)
    with exchanging(transport) as (producers, consumers):
        bad = batch(envelopes(3), payloads=[bytes(10), bytes(5000), bytes(10)])
        kinds = send_all(producers, bad, expected_outcomes=3).kinds
        assert set(kinds) == {OutcomeKind.REFUSED}
        # librdkafka 2.16 loses count of its sequence numbers there, and only the abort of one more
        # transaction gives it new ones.
        sequences = iter(range(3, 100, 3))
        first, kinds = 0, []
        while OutcomeKind.CONFIRMED not in kinds:
            first = next(sequences)
            good = batch(envelopes(3, first=first), payloads=[bytes(10)] * 3)
            kinds = send_all(producers, good, expected_outcomes=3).kinds
        assert set(kinds) == {OutcomeKind.CONFIRMED}
        assert not producers.signals()
        parts = collect(consumers, 3)
    assert joined(parts, "envelope")["sequence"].tolist() == [first, first + 1, first + 2]


def test_a_message_that_the_library_refuses_leaves_its_transaction_whole(
    kafka_broker: Broker,
) -> None:
    kafka = of_messages(2, producer={"message.max.bytes": 2000})
    transport = open_transport(kafka_broker, kafka=kafka)
    with exchanging(transport) as (producers, consumers):
        mixed = batch(envelopes(3), payloads=[bytes(10), bytes(5000), bytes(10)])
        settled = send_all(producers, mixed, expected_outcomes=3)
        kinds = dict(zip(settled.envelopes["sequence"].tolist(), settled.kinds, strict=True))
        parts = collect(consumers, 2)
    assert kinds[1] == OutcomeKind.REFUSED
    assert kinds[0] == kinds[2] == OutcomeKind.CONFIRMED
    assert joined(parts, "envelope")["sequence"].tolist() == [0, 2]


def test_closing_aborts_what_nobody_committed(kafka_broker: Broker) -> None:
    transport = open_transport(kafka_broker, kafka=of_messages(100))
    with declared(transport) as made, consuming(transport, made) as consumers:
        producers = transport.open_producers(numbered([made]), CLOCK.now_ns)
        assert producers.send(batch(envelopes(7))) == 7
        producers.close()
        outcomes = producers.outcomes()
        assert set(outcomes.kind.tolist()) == {OutcomeKind.REFUSED}
        assert len(outcomes) == 7
        with producing(open_transport(kafka_broker, kafka=of_messages(1)), made) as others:
            send_all(others, batch(envelopes(1, first=7)), expected_outcomes=1)
        parts = collect(consumers, 1)
    assert joined(parts, "envelope")["sequence"].tolist() == [7]


def test_a_producer_that_was_fenced_says_so(kafka_broker: Broker) -> None:
    run_id = f"fenced-{time.time_ns()}"
    transport = open_transport(kafka_broker, run_id, kafka=of_messages(10))
    with declared(transport) as made, producing(transport, made) as producers:
        send_all(producers, batch(envelopes(10)), expected_outcomes=10)
        usurper = Producer(
            {
                "bootstrap.servers": kafka_broker.bootstrap_servers,
                "transactional.id": f"bench-{run_id}-0-0",
            }
        )
        usurper.init_transactions(20)
        assert eventually(lambda: producers.send(batch(envelopes(10, first=10))))
        found: list[Signal] = []
        assert eventually(lambda: found.extend(producers.signals()) or found)
        assert found[0].kind is SignalKind.LOST
        assert "fenced" in found[0].reason
        assert f"{kafka_broker.host}:{kafka_broker.port}" in found[0].reason
        assert set(settle(producers, 10).kinds) <= {OutcomeKind.UNKNOWN, OutcomeKind.REFUSED}


def test_a_whole_run_in_transactions_closes_its_accounts(kafka_broker: Broker) -> None:
    scenario = Scenario.model_validate(
        {
            "agents": 2,
            "producers": 4,
            "consumers": 2,
            "destinations": 2,
            "load": {"mode": "maximum", "messages": 2_000},
            "phases": {"warmup_seconds": 0.5, "drain_seconds": 30},
            "kafka": of_messages(70),
        }
    )
    found = run_load(make_plan(scenario, f"tx-{time.time_ns()}"), kafka_broker)
    assert not found.control.failures
    accounts = found.accounts()
    assert accounts.closes
    assert accounts.sent == accounts.received_once == 2_000
    assert accounts.lost == accounts.indeterminate == 0
    assert found.total("producer", "confirmed") == accounts.sent
    assert found.histogram("confirm_latency").count == accounts.sent
