"""What becomes of AMQP messages: acknowledged, confirmed, returned, refused; and of lanes that end,
block or fill up."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
from amqp_from_outside import unique
from contract import (
    PATIENCE_SECONDS,
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

from bench_spark.brokers import BrokerStatus
from bench_spark.brokers.rabbitmq import installed_programs
from bench_spark.config.broker import Broker
from bench_spark.errors import (
    BrokerRefused,
)
from bench_spark.transports.base import Consumers, Destination, Producers, Signal, SignalKind
from bench_spark.transports.batches import Batch, OutcomeKind, Received, nothing_received


def wait_for_signal(side: Producers | Consumers, kind: SignalKind) -> Signal:
    seen: list[Signal] = []

    def arrived() -> bool:
        seen.extend(side.signals())
        return bool(seen)

    assert eventually(arrived)
    assert [one.kind for one in seen] == [kind]
    return seen[0]


# -- acknowledging ---------------------------------------------------------------------------------


def test_acknowledged_messages_are_gone_and_others_come_back_redelivered(broker: Broker) -> None:
    transport = open_transport(broker, amqp={"ack": "manual"})
    with declared(transport) as made:
        with producing(transport, made) as producers:
            send_all(producers, batch(envelopes(10)))
        with consuming(transport, made) as consumers:
            parts = collect(consumers, 10, acknowledge=False)
            assert sum(consumers.acknowledge(part) for part in parts) == 10
        assert eventually(lambda: left_in(transport, made) == (0,))
        with producing(transport, made) as producers:
            send_all(producers, batch(envelopes(6)))
        with consuming(transport, made) as consumers:
            collect(consumers, 6, acknowledge=False)
        assert eventually(lambda: left_in(transport, made) == (6,))
        with consuming(transport, made) as consumers:
            again = collect(consumers, 6)
        assert joined(again, "redelivered").all()
        assert joined(again, "envelope")["sequence"].tolist() == list(range(6))


def test_acknowledgements_in_groups_leave_nothing_behind(broker: Broker) -> None:
    transport = open_transport(broker, amqp={"ack": "manual", "ack_every": 10})
    with exchanging(transport) as (producers, consumers):
        send_all(producers, batch(envelopes(25)))
        received = 0
        acknowledged = 0
        while received < 25:
            part = consumers.receive(1.0)
            received += len(part)
            acknowledged += consumers.acknowledge(part)
        assert acknowledged == 20

        # The last five are no full group; they are acknowledged once the lane has been idle.
        def all_acknowledged() -> bool:
            nonlocal acknowledged
            consumers.receive(0)
            acknowledged += consumers.acknowledge(nothing_received())
            return acknowledged == 25

        assert eventually(all_acknowledged)


def test_closing_acknowledges_the_group_that_was_not_full(broker: Broker) -> None:
    transport = open_transport(broker, amqp={"ack": "manual", "ack_every": 100})
    with declared(transport) as made:
        with producing(transport, made) as producers:
            send_all(producers, batch(envelopes(7)))
        with consuming(transport, made) as consumers:
            collect(consumers, 7, extra_seconds=0)
        assert eventually(lambda: left_in(transport, made) == (0,))


def test_no_more_than_the_prefetch_is_delivered_unacknowledged(broker: Broker) -> None:
    transport = open_transport(broker, amqp={"ack": "manual", "prefetch": 5})
    with exchanging(transport) as (producers, consumers):
        send_all(producers, batch(envelopes(12)))
        first = collect(consumers, 5, acknowledge=False)
        for part in first:
            consumers.acknowledge(part)
        collect(consumers, 7)


# -- outcomes --------------------------------------------------------------------------------------


def test_no_more_than_the_limit_is_ever_unconfirmed(broker: Broker) -> None:
    transport = open_transport(broker, amqp={"confirms": 10})
    with declared(transport) as made, producing(transport, made) as producers:
        assert producers.send(batch(envelopes(100))) == 10
        assert producers.in_flight() == 10
        assert producers.send(batch(envelopes(1))) == 0


@pytest.mark.parametrize("body_bytes", [8, 200])
def test_unroutable_messages_are_returned_not_confirmed(broker: Broker, body_bytes: int) -> None:
    transport = open_transport(
        broker, amqp={"confirms": 100, "mandatory": True, "routing_key": "no-such-queue"}
    )
    made = envelopes(20)
    with declared(transport) as destinations, producing(transport, destinations) as producers:
        settled = send_all(producers, batch(made, body_bytes=body_bytes), expected_outcomes=20)
        assert producers.in_flight() == 0
    assert settled.kinds == [OutcomeKind.RETURNED] * 20
    assert np.array_equal(np.sort(settled.envelopes, order="sequence"), made)


def test_returned_and_confirmed_messages_are_told_apart(broker: Broker) -> None:
    transport = open_transport(broker, amqp={"confirms": 100, "mandatory": True})
    with declared(transport) as made:
        lanes = [made[0], Destination(1, "no-such-queue")]
        routes = (np.arange(40) % 2).tolist()
        with producing(transport, lanes) as producers:
            sent = batch(envelopes(40, producer=routes), route=routes)
            settled = send_all(producers, sent, expected_outcomes=40)
    expected = [OutcomeKind.CONFIRMED, OutcomeKind.RETURNED]
    for kind, envelope in zip(settled.kinds, settled.envelopes, strict=True):
        assert kind == expected[envelope["producer"]]


def test_returns_are_reported_without_confirms_too(broker: Broker) -> None:
    transport = open_transport(broker, amqp={"mandatory": True, "routing_key": "no-such-queue"})
    made = envelopes(5)
    with declared(transport) as destinations, producing(transport, destinations) as producers:
        settled = send_all(producers, batch(made), expected_outcomes=5)
    assert settled.kinds == [OutcomeKind.RETURNED] * 5
    assert np.array_equal(settled.envelopes, made)


def test_messages_that_a_full_queue_rejects_are_refused(rabbitmq_broker: Broker) -> None:
    arguments = {"x-max-length": 5, "x-overflow": "reject-publish"}
    transport = open_transport(
        rabbitmq_broker, amqp={"confirms": 1, "queue": {"arguments": arguments}}
    )
    with declared(transport) as made:
        with producing(transport, made) as producers:
            settled = send_all(producers, batch(envelopes(12)), expected_outcomes=12)
        assert eventually(lambda: left_in(transport, made) == (5,))
    assert settled.kinds.count(OutcomeKind.CONFIRMED) == 5
    assert settled.kinds.count(OutcomeKind.REFUSED) == 7


# -- lanes that end, block or fill up --------------------------------------------------------------


def test_a_channel_closed_by_the_broker_is_lost_with_its_code_and_its_messages_unknown(
    broker: Broker,
) -> None:
    name = unique("vanishing")
    transport = open_transport(broker, amqp={"confirms": 50, "exchange": {"name": name}})
    made = transport.declare([Destination(0)])
    with producing(transport, made) as producers:
        transport.delete(made)
        sent = envelopes(10)
        assert producers.send(batch(sent)) == 10
        signalled = wait_for_signal(producers, SignalKind.LOST)
        assert "404" in signalled.reason
        outcomes = producers.outcomes()
        assert set(outcomes.kind.tolist()) == {OutcomeKind.UNKNOWN}
        assert np.array_equal(outcomes.envelope, sent)
        assert producers.send(batch(envelopes(1))) == 0
        assert producers.in_flight() == 0


def test_a_consumer_whose_queue_is_deleted_is_lost(rabbitmq_broker: Broker) -> None:
    transport = open_transport(rabbitmq_broker)
    made = transport.declare([Destination(0)])
    with consuming(transport, made) as consumers:
        transport.delete(made)
        signalled = wait_for_signal(consumers, SignalKind.LOST)
    assert made[0].name is not None
    assert made[0].name in signalled.reason
    assert "cancelled" in signalled.reason


def test_consuming_from_a_queue_that_does_not_exist_is_refused(broker: Broker) -> None:
    transport = open_transport(broker)
    missing = [Destination(0, "no-such-queue")]
    with pytest.raises(BrokerRefused, match="404"), consuming(transport, missing):
        pass


def test_messages_in_flight_when_the_lane_closes_have_an_unknown_outcome(
    rabbitmq: BrokerStatus,
) -> None:
    transport = open_transport(rabbitmq.broker, amqp={"confirms": 50})
    with declared(transport) as made, producing(transport, made) as producers:
        with frozen(rabbitmq):
            assert producers.send(batch(envelopes(3))) == 3
            producers.close()
        outcomes = producers.outcomes()
    assert outcomes.kind.tolist() == [OutcomeKind.UNKNOWN] * 3


def test_a_full_socket_refuses_and_loses_nothing(rabbitmq: BrokerStatus) -> None:
    transport = open_transport(rabbitmq.broker)
    total = 2000
    whole = batch(envelopes(total), body_bytes=20_000)
    with exchanging(transport) as (producers, consumers):
        with frozen(rabbitmq):
            accepted = producers.send(whole)
            assert 0 < accepted < total
            assert producers.send(whole.starting_at(accepted)) == 0
            assert not select.select([producers.descriptor], [], [], 0)[0]
        # A refused send that may succeed again makes the descriptor readable.
        assert select.select([producers.descriptor], [], [], PATIENCE_SECONDS)[0]
        parts = collect_while_sending(producers, consumers, whole.starting_at(accepted), total)
    assert np.array_equal(joined(parts, "envelope")["sequence"], np.arange(total))


def collect_while_sending(
    producers: Producers, consumers: Consumers, rest: Batch, total: int
) -> list[Received]:
    parts: list[Received] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while sum(len(part) for part in parts) < total:
        assert time.monotonic() < deadline
        rest = rest.starting_at(producers.send(rest)) if len(rest) else rest
        producers.signals()
        receive_into(parts, consumers, 0, acknowledge=False)
    return parts


@contextmanager
def frozen(status: BrokerStatus) -> Iterator[None]:
    assert status.pid is not None
    os.kill(status.pid, signal.SIGSTOP)
    try:
        assert eventually(lambda: is_stopped(status.pid))
        yield
    finally:
        os.kill(status.pid, signal.SIGCONT)


def is_stopped(pid: int) -> bool:
    """Whether every thread has stopped: the signal reaches them one after the other."""
    states = [
        task.joinpath("stat").read_text().rpartition(")")[2].split()[0]
        for task in Path(f"/proc/{pid}/task").iterdir()
    ]
    return set(states) == {"T"}


@pytest.mark.fault(case=8)
def test_a_blocked_connection_is_signalled_and_refuses_until_unblocked(
    rabbitmq: BrokerStatus,
) -> None:
    transport = open_transport(rabbitmq.broker)
    with exchanging(transport) as (producers, consumers):
        try:
            limit_memory(rabbitmq, "1")
            # RabbitMQ tells a connection that it is blocked when it next publishes.
            assert producers.send(batch(envelopes(1))) == 1
            blocked = wait_for_signal(producers, SignalKind.BLOCKED)
            assert "memory" in blocked.reason
            assert producers.send(batch(envelopes(1))) == 0
        finally:
            limit_memory(rabbitmq, "2GB")
        unblocked = wait_for_signal(producers, SignalKind.UNBLOCKED)
        assert unblocked.at_ns > blocked.at_ns
        send_all(producers, batch(envelopes(4, first=1)))
        collect(consumers, 5)


def limit_memory(status: BrokerStatus, limit: str) -> None:
    control = installed_programs()[0].with_name("rabbitmqctl")
    node = f"bench-spark-{status.ports['amqp']}@localhost"
    subprocess.run(
        [control, "-q", "-n", node, "set_vm_memory_high_watermark", "absolute", limit],
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(status.directory),
            "ERL_EPMD_PORT": str(status.ports["epmd"]),
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
        },
        check=True,
        capture_output=True,
    )


def test_idle_lanes_are_kept_alive_by_heartbeats(
    rabbitmq_broker: Broker, qpid_broker: Broker
) -> None:
    """On both brokers, which are idle together."""
    with ExitStack() as stack:
        idle: dict[str, tuple[Producers, Consumers]] = {}

        def stay_idle() -> None:
            for way, (producers, consumers) in idle.items():
                consumers.receive(0.02)
                assert (way, producers.signals(), consumers.signals()) == (way, [], [])

        for broker in (rabbitmq_broker, qpid_broker):
            transport = open_transport(broker, amqp={"heartbeat_seconds": 1})
            idle[broker.name] = stack.enter_context(exchanging(transport))
            stay_idle()
        idle_until = time.monotonic() + 4
        while time.monotonic() < idle_until:
            stay_idle()
        for producers, consumers in idle.values():
            send_all(producers, batch(envelopes(3)))
            collect(consumers, 3)


def test_many_lanes_open_and_carry_messages(broker: Broker) -> None:
    transport = open_transport(broker, producers=100, consumers=100)
    lanes = (np.arange(1000) % 100).tolist()
    with exchanging(transport, producer_lanes=100, consumer_lanes=100) as (producers, consumers):
        send_all(producers, batch(envelopes(1000, producer=lanes), lanes))
        parts = collect(consumers, 1000)
    assert np.array_equal(np.sort(joined(parts, "envelope")["sequence"]), np.arange(1000))


def test_under_full_load_the_last_messages_do_not_wait_for_more(broker: Broker) -> None:
    transport = open_transport(broker, load={"mode": "maximum"})
    whole = batch(envelopes(5000), body_bytes=1000)
    with exchanging(transport) as (producers, consumers):
        parts = collect_while_sending(producers, consumers, whole, 5000)
        for number in range(3):
            send_all(producers, batch(envelopes(1, first=5000 + number), body_bytes=1000))
            assert select.select([consumers.descriptor], [], [], PATIENCE_SECONDS)[0]
            parts += collect(consumers, 1, extra_seconds=0)
    assert np.array_equal(joined(parts, "envelope")["sequence"], np.arange(5003))
