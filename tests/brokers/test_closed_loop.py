"""The throughput design: a closed loop that is filled first and sampled at its consumers.

On both AMQP brokers, with everything that can be asked of it: queues named by the
broker that go with their consumer, transactions, `immediate`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from agents import Load, run_load
from contract import (
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
    receive_into,
    send_all,
)

from bench_spark.agent.recorder import CONSUMER, PRODUCER
from bench_spark.agent.sampler import seconds_of
from bench_spark.config.broker import Broker
from bench_spark.config.models import Scenario
from bench_spark.driver.accounts import samples_of
from bench_spark.errors import EXIT_PREFLIGHT, BrokerRefused
from bench_spark.plan import make_plan
from bench_spark.transports.batches import OutcomeKind, Received


def closed_loop(pairs: int = 1, in_flight: int = 50, **amqp: Any) -> Scenario:
    return Scenario.model_validate(
        {
            "producers": pairs,
            "consumers": pairs,
            "destinations": pairs,
            "message": {"bytes": 64, "padding": "zero"},
            "load": {"mode": "window", "in_flight": in_flight, "prefill": True},
            "sampling": {"samples": 10, "threshold_seconds": 0.005},
            "phases": {"warmup_seconds": 0, "measure_seconds": 30, "drain_seconds": 10},
            "amqp": {"queue": {"server_named": True, "auto_delete": True}, **amqp},
        }
    )


def run(scenario: Scenario, broker: Broker) -> Load:
    return run_load(make_plan(scenario, "closed-loop"), broker)


def sample_counts(load: Load) -> list[int]:
    found = samples_of(load.plan, load.control)
    assert found is not None
    [only] = found
    assert np.all(seconds_of(only.samples) > 0.005)
    return np.bincount(only.samples["pair"]).tolist()


@pytest.mark.parametrize(
    ("broker", "amqp"),
    [
        ("rabbitmq", {}),
        ("rabbitmq", {"ack": "manual", "ack_every": 5, "confirms": 20}),
        ("qpid", {"mandatory": True, "persistent": True}),
        ("qpid", {"producer_transaction": 20, "ack": "manual", "consumer_transaction": 10}),
    ],
    ids=["plain", "acknowledged", "mandatory", "transacted"],
    indirect=["broker"],
)
def test_pairs_on_queues_named_by_the_broker_have_their_samples(
    broker: Broker, amqp: dict[str, Any]
) -> None:
    load = run(closed_loop(pairs=2, **amqp), broker)
    assert load.control.failures == []
    assert sample_counts(load) == [10, 10]
    names = [name for name, _ in load.control.destinations.values()]
    assert len(set(names)) == 2
    assert not any(name.startswith("bench-") for name in names)
    sent = load.total(PRODUCER, "sent")
    assert sent == load.total(CONSUMER, "received") > 2 * 2 * 50
    accounts = load.accounts()
    assert accounts.closes
    assert accounts.received_once == sent


def test_a_window_larger_than_any_buffer_is_filled_before_it_is_consumed(broker: Broker) -> None:
    load = run(closed_loop(in_flight=10_000), broker)
    assert load.control.failures == []
    assert sample_counts(load) == [10]
    accounts = load.accounts()
    assert accounts.closes
    assert accounts.received_once == accounts.sent > 20_000


# -- immediate -------------------------------------------------------------------------------------


def test_rabbitmq_has_no_immediate_and_its_own_answer_is_told(rabbitmq_broker: Broker) -> None:
    transport = open_transport(rabbitmq_broker, amqp={"immediate": True})
    with pytest.raises(BrokerRefused, match=r"amqp\.immediate.*RabbitMQ 3.*540 NOT_IMPLEMENTED"):
        transport.probe()
    transport.close()


def test_a_run_with_immediate_is_refused_before_it_declares_anything(
    rabbitmq_broker: Broker,
) -> None:
    load = run(closed_loop(immediate=True), rabbitmq_broker)
    [failure] = load.control.failures
    assert failure.kind == "BrokerRefused"
    assert BrokerRefused.exit_code == EXIT_PREFLIGHT
    assert load.control.destinations == {}
    assert load.control.start_at_ns is None


@pytest.mark.parametrize("confirms", [0, 100])
def test_an_immediate_message_is_either_delivered_or_returned(
    qpid_broker: Broker, confirms: int
) -> None:
    """Qpid Broker-J returns many even where a consumer waits: it gives its own threads no time."""
    transport = open_transport(qpid_broker, amqp={"immediate": True, "confirms": confirms})
    transport.probe()
    received: list[int] = []
    returned: list[int] = []
    with exchanging(transport) as (producers, consumers):

        def are_all_back(sent: int) -> bool:
            parts: list[Received] = []
            receive_into(parts, consumers, 0.01, acknowledge=True)
            received.extend(joined(parts, "envelope")["sequence"].tolist() if parts else [])
            outcomes = producers.outcomes()
            is_returned = outcomes.kind == OutcomeKind.RETURNED
            returned.extend(outcomes.envelope["sequence"][is_returned].tolist())
            return len(received) + len(returned) >= sent

        sent = 0
        # A hundred, and on a busy machine as many more as it takes for one to be delivered.
        while sent < 100 or (not received and sent < 10_000):
            assert producers.send(batch(envelopes(1, first=sent))) == 1
            sent += 1
            assert eventually(partial(are_all_back, sent))
        collect(consumers, 0)
    assert sorted(received + returned) == list(range(sent))
    assert received


@pytest.mark.parametrize("confirms", [0, 100])
def test_immediate_messages_that_nobody_can_take_come_back(
    qpid_broker: Broker, confirms: int
) -> None:
    transport = open_transport(qpid_broker, amqp={"immediate": True, "confirms": confirms})
    with declared(transport) as made:
        with producing(transport, made) as producers:
            settled = send_all(producers, batch(envelopes(5)), expected_outcomes=5)
        assert settled.kinds == [OutcomeKind.RETURNED] * 5
        assert settled.envelopes["sequence"].tolist() == list(range(5))
        assert eventually(lambda: left_in(transport, made) == (0,))
        with consuming(transport, made) as consumers:
            collect(consumers, 0)


@pytest.mark.parametrize("transaction", [0, 20])
def test_a_closed_loop_with_immediate_has_its_consumer_there_first(
    qpid_broker: Broker, transaction: int
) -> None:
    scenario = closed_loop(immediate=True, producer_transaction=transaction)
    load = run(scenario, qpid_broker)
    assert load.control.failures == []
    assert sample_counts(load) == [10]
    accounts = load.accounts()
    assert accounts.closes
    assert accounts.received_once > 0
    returned = load.total(PRODUCER, "returned")
    assert accounts.sent == accounts.received_once + returned
