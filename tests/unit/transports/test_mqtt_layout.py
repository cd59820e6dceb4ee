"""Topics and filters of the topologies, by the rules of the metrics specification."""

from __future__ import annotations

from typing import Any

import pytest

from bench_spark.errors import ConfigurationError
from bench_spark.scenario.models import Scenario
from bench_spark.transports.base import Destination, Lane
from bench_spark.transports.mqtt.layout import Layout, refuse_impossible


def layout(**keys: Any) -> Layout:
    return Layout(Scenario.model_validate(keys), "run7")


@pytest.mark.parametrize("consumers", [2, 5])
def test_in_a_fan_in_consumer_g_subscribes_to_all_topics_of_group_g(consumers: int) -> None:
    made = layout(topology="fan-in", producers=8, consumers=consumers, destinations=5)
    for topic in range(5):
        assert made.topic(topic) == f"bench/run7/group-{topic % consumers}/topic-{topic}"
    for consumer in range(consumers):
        assert made.subscription(consumer) == f"bench/run7/group-{consumer}/+"


def test_in_a_fan_out_everybody_subscribes_to_everything() -> None:
    made = layout(topology="fan-out", producers=3, consumers=4)
    assert [made.topic(one) for one in range(3)] == [
        f"bench/run7/group-0/topic-{one}" for one in range(3)
    ]
    assert {made.subscription(one) for one in range(4)} == {"bench/run7/group-0/+"}
    assert made.group is None


def test_in_a_round_robin_all_share_one_subscription() -> None:
    made = layout(topology="round-robin", producers=3, consumers=4)
    assert made.subscription(0) == "$share/bench-run7/bench/run7/group-0/+"
    lane = Lane(3, (Destination(0), Destination(1), Destination(2)), subscriptions=(0,))
    assert made.consumer_lanes([lane]) == [Lane(3, (Destination(0),), subscriptions=(0,))]
    named = layout(topology="round-robin", consumers=4, mqtt={"shared_group": "workers"})
    assert named.subscription(0) == "$share/workers/bench/run7/group-0/+"


@pytest.mark.parametrize("keys", [{}, {"topology": "straight-run", "producers": 3}])
def test_pairs_have_plain_topics(keys: dict[str, Any]) -> None:
    made = layout(**keys)
    assert made.topic(2) == made.subscription(2) == "bench/run7/2"


@pytest.mark.parametrize(
    ("topology", "mqtt", "named"),
    [
        ("fan-in", {"topic": "a/%d"}, "mqtt.topic"),
        ("round-robin", {"topic_filter": "a/%d"}, "mqtt.topic_filter"),
        ("fan-out", {"shared_group": "g"}, "mqtt.shared_group"),
    ],
)
def test_names_that_a_topology_has_of_its_own_are_not_to_be_given(
    topology: str, mqtt: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"^{named}: does not go with topology"):
        refuse_impossible(Scenario.model_validate({"topology": topology, "mqtt": mqtt}))
