"""Which queues stand behind a destination, and by which keys they are bound."""

from __future__ import annotations

from typing import Any

import pytest

from bench_spark.config.models import Scenario
from bench_spark.errors import ConfigurationError
from bench_spark.transports.amqp.topology import QueueLayout, layout_for, refuse_impossible
from bench_spark.transports.base import Destination, Lane


def layout(**keys: Any) -> QueueLayout:
    return layout_for(Scenario.model_validate(keys), "run7")


def bound_keys(made: QueueLayout, subscription: int) -> list[str]:
    queue = made.queue(subscription, is_declared=True)
    bindings = list(made.bindings(queue))
    assert {binding["queue"] for binding in bindings} == {queue.name}
    assert {binding["exchange"] for binding in bindings} == {made.amqp.exchange.name}
    return [binding["routing_key"] for binding in bindings]


def test_a_fan_in_has_a_queue_per_consumer_bound_to_the_keys_of_its_destinations() -> None:
    made = layout(topology="fan-in", producers=8, consumers=2, destinations=5)
    assert (made.amqp.exchange.name, made.amqp.exchange.type) == ("bench-run7", "direct")
    assert bound_keys(made, 0) == ["run7.topic-0", "run7.topic-2", "run7.topic-4"]
    assert bound_keys(made, 1) == ["run7.topic-1", "run7.topic-3"]
    [behind] = made.queues_behind([Destination(3, "run7.topic-3", declared=True)])
    assert behind == Destination(1, "bench-run7-1", declared=True)


def test_a_fan_out_has_a_queue_per_consumer_bound_once_to_a_fanout_exchange() -> None:
    made = layout(topology="fan-out", producers=3, consumers=4)
    assert made.amqp.exchange.type == "fanout"
    assert [bound_keys(made, number) for number in range(4)] == [[""]] * 4
    assert [one.index for one in made.queues_behind([Destination(0), Destination(2)])] == [
        0,
        1,
        2,
        3,
    ]


def test_a_round_robin_has_one_queue_for_everything() -> None:
    made = layout(topology="round-robin", producers=3, consumers=9, destinations=2)
    assert bound_keys(made, 0) == ["run7.topic-0", "run7.topic-1"]
    lanes = made.consumer_lanes([Lane(8, (Destination(0), Destination(1)), subscriptions=(0,))])
    assert [one.name for one in lanes[0].destinations] == ["bench-run7-0"]


@pytest.mark.parametrize("keys", [{}, {"topology": "straight-run", "producers": 2}])
def test_where_a_destination_is_a_queue_nothing_is_put_before_it(keys: dict[str, Any]) -> None:
    made = layout(**keys)
    assert made.amqp.exchange.name == ""
    queue = Destination(0, "bench-run7-0")
    assert list(made.bindings(queue)) == []
    assert made.queues_behind([queue]) == [queue]


def test_an_exchange_that_is_named_is_used() -> None:
    amqp = {"exchange": {"name": "mine", "type": "topic"}, "routing_key": "orders.%d"}
    made = layout(topology="fan-out", producers=2, consumers=2, amqp=amqp)
    assert made.amqp.exchange.name == "mine"
    assert bound_keys(made, 1) == ["orders.0", "orders.1"]


@pytest.mark.parametrize(
    ("topology", "amqp", "named"),
    [
        ("fan-out", {"queue": {"server_named": True}}, "amqp.queue.server_named"),
        ("fan-in", {"exchange": {"name": "e", "type": "headers"}}, "amqp.exchange.type: headers"),
        ("fan-in", {"exchange": {"name": "e", "type": "fanout"}}, "amqp.exchange.type: fanout"),
        ("fan-in", {"routing_key": "same"}, "amqp.routing_key"),
        ("round-robin", {"routing_key": "same"}, "amqp.routing_key"),
    ],
)
def test_what_would_spoil_a_topology_is_refused(
    topology: str, amqp: dict[str, Any], named: str
) -> None:
    scenario = Scenario.model_validate({"topology": topology, "amqp": amqp})
    with pytest.raises(ConfigurationError, match=f"^{named}"):
        refuse_impossible(scenario)


@pytest.mark.parametrize(
    ("topology", "amqp"),
    [
        ("straight-run", {"queue": {"server_named": True}}),
        ("fan-out", {"routing_key": "same"}),
        ("fan-out", {"exchange": {"name": "e", "type": "direct"}}),
        ("round-robin", {"exchange": {"name": "e", "type": "fanout"}}),
    ],
)
def test_what_a_topology_can_do_with_is_taken(topology: str, amqp: dict[str, Any]) -> None:
    refuse_impossible(Scenario.model_validate({"topology": topology, "amqp": amqp}))
