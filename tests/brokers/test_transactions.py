"""Transactions of AMQP 0-9-1 on both sides, on both brokers."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from agents import run_load
from contract import (
    CLOCK,
    batch,
    collect,
    consuming,
    declared,
    envelopes,
    eventually,
    exchanging,
    joined,
    left_in,
    open_transport,
    producing,
    send_all,
)
from proxy import proxied

from bench_spark.agent.recorder import CONSUMER, PRODUCER
from bench_spark.config.broker import Broker
from bench_spark.config.models import Scenario
from bench_spark.plan import make_plan
from bench_spark.transports.base import Consumers, Destination, SignalKind
from bench_spark.transports.batches import OutcomeKind, nothing_received

# -- producers -------------------------------------------------------------------------------------


def test_a_commit_settles_all_messages_of_its_transaction(broker: Broker) -> None:
    transport = open_transport(broker, producers=2, amqp={"producer_transaction": 10})
    assert transport.capabilities.confirms
    with declared(transport) as made:
        with producing(transport, made, made) as producers:
            lanes = (np.arange(100) % 2).tolist()
            sent = envelopes(100, producer=lanes)
            before_ns = CLOCK.now_ns()
            settled = send_all(producers, batch(sent, lanes), expected_outcomes=100)
            assert producers.in_flight() == 0
        assert eventually(lambda: left_in(transport, made) == (100,))
    assert settled.kinds == [OutcomeKind.CONFIRMED] * 100
    assert np.array_equal(np.sort(settled.envelopes, order="sequence"), sent)
    for part in settled.parts:
        assert np.all(part.at_ns >= before_ns)
        # A lane's messages are settled ten at a time, all at one moment.
        for lane in np.unique(part.lane):
            assert np.count_nonzero(part.lane == lane) % 10 == 0


def test_a_lane_takes_no_more_than_one_transaction_until_it_is_committed(broker: Broker) -> None:
    transport = open_transport(broker, amqp={"producer_transaction": 10})
    with declared(transport) as made, producing(transport, made) as producers:
        whole = batch(envelopes(25))
        assert producers.send(whole) == 10
        assert producers.send(whole.starting_at(10)) == 0
        assert producers.in_flight() == 10
        seen = 0

        def is_committed() -> bool:
            nonlocal seen
            seen += len(producers.outcomes())
            return seen == 10

        assert eventually(is_committed)
        assert producers.send(whole.starting_at(10)) == 10


def test_an_open_transaction_is_invisible_until_it_is_committed(broker: Broker) -> None:
    transport = open_transport(broker, amqp={"producer_transaction": 10})
    with declared(transport) as made, producing(transport, made) as producers:
        assert producers.send(batch(envelopes(4))) == 4
        producers.flush(1.0)
        time.sleep(0.2)
        assert left_in(transport, made) == (0,)
        assert len(producers.outcomes()) == 0
        producers.commit()
        producers.commit()
        settled = send_all(producers, batch(envelopes(0)), expected_outcomes=4)
        assert settled.kinds == [OutcomeKind.CONFIRMED] * 4
        assert left_in(transport, made) == (4,)
        # The lane begins a transaction of its full size again.
        assert producers.send(batch(envelopes(20, first=4))) == 10


@pytest.mark.parametrize("body_bytes", [64, 150_000])
def test_transactions_larger_than_a_write_arrive_whole(broker: Broker, body_bytes: int) -> None:
    transport = open_transport(broker, amqp={"producer_transaction": 7})
    with exchanging(transport) as (producers, consumers):
        settled = send_all(
            producers, batch(envelopes(21), body_bytes=body_bytes), expected_outcomes=21
        )
        parts = collect(consumers, 21)
    assert settled.kinds == [OutcomeKind.CONFIRMED] * 21
    assert joined(parts, "envelope")["sequence"].tolist() == list(range(21))


def test_messages_that_reach_no_queue_are_returned_by_the_commit(broker: Broker) -> None:
    transport = open_transport(broker, amqp={"producer_transaction": 10, "mandatory": True})
    with declared(transport) as made:
        lanes = [made[0], Destination(1, "no-such-queue")]
        routes = (np.arange(40) % 2).tolist()
        with producing(transport, lanes) as producers:
            sent = batch(envelopes(40, producer=routes), route=routes)
            settled = send_all(producers, sent, expected_outcomes=40)
            assert producers.in_flight() == 0
    expected = [OutcomeKind.CONFIRMED, OutcomeKind.RETURNED]
    for kind, envelope in zip(settled.kinds, settled.envelopes, strict=True):
        assert kind == expected[envelope["producer"]]


def test_a_lost_lane_leaves_its_open_transaction_unknown_and_begins_a_new_one(
    broker: Broker,
) -> None:
    with proxied(broker) as (proxy, way):
        transport = open_transport(way, amqp={"producer_transaction": 10})
        with declared(transport) as made, producing(transport, made) as producers:
            assert producers.send(batch(envelopes(6))) == 6
            producers.flush(1.0)
            proxy.cut()
            signals: list[SignalKind] = []

            def is_back() -> bool:
                signals.extend(one.kind for one in producers.signals())
                return SignalKind.REOPENED in signals

            assert eventually(is_back)
            outcomes = producers.outcomes()
            assert outcomes.kind.tolist() == [OutcomeKind.UNKNOWN] * 6
            settled = send_all(producers, batch(envelopes(10, first=6)), expected_outcomes=10)
            assert settled.kinds == [OutcomeKind.CONFIRMED] * 10
            # What was never committed is not there.
            assert eventually(lambda: left_in(transport, made) == (10,))


# -- consumers -------------------------------------------------------------------------------------


def acknowledged_of(consumers: Consumers, wanted: int) -> bool:
    total = 0

    def is_reached() -> bool:
        nonlocal total
        consumers.receive(0)
        total += consumers.acknowledge(nothing_received())
        return total >= wanted

    return eventually(is_reached) and total == wanted


@pytest.mark.parametrize("ack_every", [1, 5])
def test_acknowledgements_count_when_they_are_committed(broker: Broker, ack_every: int) -> None:
    amqp = {"ack": "manual", "ack_every": ack_every, "consumer_transaction": 10}
    transport = open_transport(broker, amqp=amqp)
    with exchanging(transport) as (producers, consumers):
        send_all(producers, batch(envelopes(37)))
        parts = collect(consumers, 37, acknowledge=False)
        counted = sum(consumers.acknowledge(part) for part in parts)
        # Three whole transactions, and the idle rest in one of its own.
        assert acknowledged_of(consumers, 37 - counted)


def test_acknowledgements_that_were_not_committed_are_forgotten(broker: Broker) -> None:
    with proxied(broker) as (proxy, way):
        amqp = {"ack": "manual", "consumer_transaction": 10, "prefetch": 100}
        transport = open_transport(way, amqp=amqp)
        with declared(transport) as made, consuming(transport, made) as consumers:
            with producing(transport, made) as producers:
                send_all(producers, batch(envelopes(10)))
            parts = collect(consumers, 10, acknowledge=False)
            whole = parts[0]
            if len(parts) == 1:
                whole = whole.at(slice(4))
            consumers.acknowledge(whole)
            proxy.cut()
            again = collect(consumers, 10, acknowledge=True)
            assert joined(again, "redelivered").all()
            assert sorted(joined(again, "envelope")["sequence"].tolist()) == list(range(10))


def test_closing_commits_the_transaction_that_was_not_full(broker: Broker) -> None:
    amqp = {"ack": "manual", "ack_every": 5, "consumer_transaction": 100}
    transport = open_transport(broker, amqp=amqp)
    with declared(transport) as made:
        with producing(transport, made) as producers:
            send_all(producers, batch(envelopes(7)))
        with consuming(transport, made) as consumers:
            collect(consumers, 7, extra_seconds=0)
        assert eventually(lambda: left_in(transport, made) == (0,))


def test_the_prefetch_covers_a_transaction_unless_it_says_otherwise(broker: Broker) -> None:
    transport = open_transport(broker, amqp={"ack": "manual", "consumer_transaction": 500})
    with exchanging(transport) as (producers, consumers):
        send_all(producers, batch(envelopes(2000)))
        collect(consumers, 2000)


# -- whole runs ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "load",
    [
        {"rate_per_second": 1000},
        {"mode": "window", "in_flight": 25},
        {"mode": "maximum", "backlog_limit_bytes": 100_000},
    ],
    ids=["rate", "window", "maximum"],
)
def test_a_run_with_transactions_on_both_sides_accounts_for_every_message(
    broker: Broker, load: dict[str, Any]
) -> None:
    amqp = {
        "producer_transaction": 20,
        "ack": "manual",
        "consumer_transaction": 10,
    }
    scenario = Scenario.model_validate(
        {
            "producers": 2,
            "consumers": 2,
            # The last transaction of each producer is not full.
            "load": load | {"messages": 1_010},
            "amqp": amqp,
            "phases": {"warmup_seconds": 0.2, "drain_seconds": 20},
        }
    )
    run = run_load(make_plan(scenario, f"transactions-{time.time_ns()}"), broker)
    accounts = run.accounts()
    assert run.control.failures == []
    assert accounts.closes
    assert accounts.received_once == accounts.sent == 1_010
    assert run.total(PRODUCER, "confirmed") == accounts.sent
    assert run.histogram("confirm_latency").count == accounts.sent
    received = run.total_of_all_phases(CONSUMER, "received")
    assert 0.5 * received < run.total_of_all_phases(CONSUMER, "acked") <= received
