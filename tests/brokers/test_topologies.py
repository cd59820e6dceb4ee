"""Topologies on real brokers: every consumer gets what it should, and it is known beforehand."""

from __future__ import annotations

import secrets
from typing import Any

import pika
import pytest
from agents import Load, run_load
from confluent_kafka.admin import AdminClient
from contract import eventually
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from proxy import proxied

from bench_spark.config.broker import Broker
from bench_spark.config.models import Scenario
from bench_spark.plan import Plan, make_plan

AT_LEAST_ONCE: dict[str, Any] = {
    "amqp": {"confirms": 100, "ack": "manual"},
    "kafka": {"producer": {"acks": "all"}},
    "mqtt": {"qos": 1},
}
QUICK = {"warmup_seconds": 0.2, "measure_seconds": 0.6, "drain_seconds": 20}


@pytest.fixture(params=["rabbitmq", "qpid", "kafka", "mosquitto"])
def healthy_broker(request: pytest.FixtureRequest) -> Broker:
    found: Broker = request.getfixturevalue(f"{request.param}_broker")
    return found


@st.composite
def sizes(draw: st.DrawFn) -> dict[str, Any]:
    """A topology with few members, in one agent or two."""
    topology = draw(st.sampled_from(["fan-in", "fan-out", "straight-run", "round-robin"]))
    producers = draw(st.integers(1, 5))
    destinations = draw(st.integers(1, producers))
    consumers = draw(st.integers(1, destinations if topology == "fan-in" else 5))
    keys = {"producers": producers, "consumers": consumers, "destinations": destinations}
    if topology == "straight-run":
        keys = {"producers": producers}
    agents = draw(st.integers(1, 2 if min(keys.values()) > 1 else 1))
    return {"topology": topology, "agents": agents, **keys}


def plan_of(**keys: Any) -> Plan:
    load = {"rate_per_second": 50, "scope": "per_producer"}
    given_keys = AT_LEAST_ONCE | {"load": load, "phases": QUICK} | keys
    scenario = Scenario.model_validate({"name": "topology"} | given_keys)
    return make_plan(scenario, f"topology-{secrets.token_hex(4)}")


def assert_delivered(load: Load, expected: int | None) -> None:
    accounts = load.accounts()
    assert load.control.failures == []
    assert accounts.closes
    assert accounts.lost == accounts.indeterminate == accounts.left_in_broker == 0
    assert accounts.received_once == accounts.sent * load.plan.copies == expected
    assert load.total("consumer", "received") == expected
    assert load.total("consumer", "duplicates") == 0


@given(keys=sizes())
@settings(
    max_examples=2, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_healthy_broker_delivers_exactly_what_the_plan_expects(
    healthy_broker: Broker, keys: dict[str, Any]
) -> None:
    plan = plan_of(**keys)
    load = run_load(plan, healthy_broker)
    assert_delivered(load, plan.expected_deliveries)


def test_a_maximum_load_expects_all_copies_of_what_it_has_sent(healthy_broker: Broker) -> None:
    load = {"mode": "maximum", "messages": 300, "backlog_limit_bytes": 20_000}
    plan = plan_of(topology="fan-out", producers=2, consumers=4, load=load)
    done = run_load(plan, healthy_broker)
    assert_delivered(done, 300 * 4)


def open_channel(broker: Broker) -> tuple[pika.BlockingConnection, Any]:
    connection = pika.BlockingConnection(pika.URLParameters(broker.uri))
    return connection, connection.channel()


def test_one_consumer_receives_the_copies_of_all_its_queues(broker: Broker) -> None:
    load = {"mode": "maximum", "messages": 300}
    plan = plan_of(
        topology="fan-out", producers=1, subscriptions_per_consumer=5, consumers=1, load=load
    )
    done = run_load(plan, broker)
    assert_delivered(done, 300 * 5)


def test_what_one_consumer_of_a_fan_out_never_got_is_lost_there_and_nowhere_else(
    rabbitmq_broker: Broker,
) -> None:
    # Without a warm-up every message counts, also those that are stolen from a slow machine.
    phases = {"warmup_seconds": 0, "measure_seconds": 4, "drain_seconds": 2}
    plan = plan_of(
        topology="fan-out", producers=2, consumers=3, phases=phases, amqp={"prefetch": 1}
    )
    stolen: list[bytes] = []

    def steal_from_one(_: Load) -> None:
        connection, channel = open_channel(rabbitmq_broker)
        channel.basic_qos(prefetch_count=5)
        for method, _, body in channel.consume(f"bench-{plan.run_id}-1", inactivity_timeout=4.0):
            assert method is not None, "the load ended before the thief had enough"
            stolen.append(body)
            if len(stolen) == 5:
                channel.basic_ack(method.delivery_tag, multiple=True)
                break
        channel.cancel()
        connection.close()

    load = run_load(plan, rabbitmq_broker, steal_from_one)
    accounts = load.accounts()
    assert load.control.failures == []
    assert (accounts.sent, accounts.copies) == (400, 3)
    assert (accounts.lost, accounts.received_once) == (5, 1195)
    assert accounts.closes


@pytest.mark.parametrize(
    ("broker", "topology"),
    [("rabbitmq", "fan-out"), ("rabbitmq", "round-robin"), ("qpid", "fan-in")],
    indirect=["broker"],
)
def test_a_topology_survives_the_loss_of_all_connections(broker: Broker, topology: str) -> None:
    phases = {"warmup_seconds": 0.2, "measure_seconds": 2, "drain_seconds": 10}
    keys = {"topology": topology, "producers": 4, "consumers": 3, "destinations": 4}
    with proxied(broker) as (proxy, way):
        load = run_load(plan_of(**keys, phases=phases), way, lambda _: proxy.cut())
    accounts = load.accounts()
    assert load.control.failures == []
    assert accounts.closes
    assert accounts.lost == 0, "what was confirmed arrives"
    assert load.total_of_all_phases("producer", "reconnects") == 4
    assert load.total_of_all_phases("consumer", "reconnects") == 3


@pytest.mark.parametrize(
    ("healthy_broker", "topology"),
    [
        *(("rabbitmq", "fan-in"), ("rabbitmq", "fan-out")),
        *(("qpid", "round-robin"), ("kafka", "fan-out")),
    ],
    indirect=["healthy_broker"],
)
def test_a_topology_leaves_nothing_behind(healthy_broker: Broker, topology: str) -> None:
    plan = plan_of(topology=topology, agents=2, producers=4, consumers=3, destinations=4)
    assert not run_load(plan, healthy_broker).control.failures
    if healthy_broker.kind == "kafka":
        admin = AdminClient({"bootstrap.servers": healthy_broker.bootstrap_servers})

        def left() -> list[str]:
            return [name for name in admin.list_topics(timeout=60).topics if plan.run_id in name]

        # A broker learns a moment later than its controller that a topic is no more.
        assert eventually(lambda: not left())
        groups = admin.list_consumer_groups().result().valid
        assert not [one.group_id for one in groups if plan.run_id in one.group_id]
        return
    for kind, name in [("exchange", f"bench-{plan.run_id}")] + [
        ("queue", f"bench-{plan.run_id}-{number}") for number in range(4)
    ]:
        connection, channel = open_channel(healthy_broker)
        settings = {"exchange_type": "direct"} if kind == "exchange" else {}
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="404"):
            getattr(channel, f"{kind}_declare")(name, passive=True, **settings)
        connection.close()


def test_every_consumer_of_a_round_robin_gets_its_share(healthy_broker: Broker) -> None:
    """Each of many consumers is one of the group, however few the destinations."""
    plan = plan_of(topology="round-robin", agents=3, producers=6, consumers=6, destinations=2)
    load = run_load(plan, healthy_broker)
    assert_delivered(load, plan.expected_deliveries)
    received = [load.total("consumer", "received", agent=number) for number in range(3)]
    assert all(received), "two consumers in each agent"
