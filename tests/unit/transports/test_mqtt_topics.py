"""Topics, filters and clients by name, and what is refused before anything is opened."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from bench_spark.config.models import Scenario
from bench_spark.config.protocols import Mqtt
from bench_spark.errors import ConfigurationError
from bench_spark.transports.base import Destination, Lane
from bench_spark.transports.mqtt import topics
from bench_spark.transports.mqtt.topics import TopicNames


def scenario(**keys: Any) -> Scenario:
    return Scenario.model_validate(keys)


def names(**keys: Any) -> TopicNames:
    return TopicNames(Scenario.model_validate(keys), "run7")


def test_topics_are_the_runs_own_unless_named() -> None:
    assert names().topic(4) == "bench/run7/4"
    assert names(mqtt={"topic": "plant/%d/heat"}).topic(4) == "plant/4/heat"
    assert names(mqtt={"topic_filter": "plant/+/%d"}).subscription(4) == "plant/+/4"
    assert names(mqtt={"shared_group": "g"}).subscription(4) == "$share/g/bench/run7/4"


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, None),
        ({"consumers": 3}, "bench-run7"),
        ({"consumers": 3, "producers": 3, "destinations": 3}, None),
        ({"mqtt": {"shared_group": "mine"}}, "mine"),
    ],
)
def test_several_consumers_of_a_destination_form_a_group(
    keys: dict[str, Any], expected: str | None
) -> None:
    assert names(**keys).group == expected


@pytest.mark.parametrize(
    ("topic_filter", "topic", "expected"),
    [
        ("a/b", "a/b", True),
        ("a/b", "a/b/c", False),
        ("a/b/c", "a/b", False),
        ("a/+", "a/b", True),
        ("a/+", "a", False),
        ("a/+/c", "a/b/c", True),
        ("a/#", "a/b/c", True),
        ("a/#", "a", True),
        ("#", "a/b", True),
        ("#", "$SYS/x", False),
        ("+/x", "$SYS/x", False),
        ("$SYS/#", "$SYS/x", True),
        ("+", "", True),
        ("a//c", "a//c", True),
    ],
)
def test_filters_match_as_the_standard_says(topic_filter: str, topic: str, expected: bool) -> None:
    assert topics.matches(topic_filter, topic) is expected


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"qos": 3}, "mqtt.qos"),
        ({"qos": -1}, "mqtt.qos"),
        ({"topic": "a/#"}, "wildcard"),
        ({"topic": "a/+/b"}, "wildcard"),
        ({"topic": ""}, "1 to 65535 bytes"),
        ({"topic": "a\0b"}, "without NUL"),
        ({"topic": "ä" * 32768}, "1 to 65535 bytes"),
        ({"topic_filter": "a/#/b"}, "# as the last level"),
        ({"topic_filter": "a/b+"}, "a whole level"),
        ({"topic_filter": "$share/g/a"}, "shared_group"),
        ({"shared_group": "a/b"}, "without /"),
        ({"version": "3.1"}, "mqtt.version"),
        ({"in_flight": 65536}, "mqtt.in_flight"),
        ({"keep_alive_seconds": 65536}, "mqtt.keep_alive_seconds"),
    ],
)
def test_what_mqtt_cannot_say_is_refused_with_its_key(keys: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        scenario(mqtt=keys)


def test_the_version_may_be_written_as_a_number() -> None:
    assert scenario(mqtt={"version": 5}).mqtt.version == "5"


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"producers": 0}, "mqtt.topic: missing"),
        ({"mqtt": {"topic": "a/b", "topic_filter": "a/c"}}, "nothing would arrive"),
        ({"mqtt": {"topic": "a", "shared_group": "g" * 65530}}, "mqtt.topic_filter: has more"),
        ({"load": {"scope": "per_agent"}, "agents": 2, "mqtt": {"topic": "a"}}, "needs a %d"),
    ],
)
def test_what_no_broker_could_do_is_refused(keys: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        topics.refuse_impossible(scenario(**keys))


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"producers": 0, "mqtt": {"topic_filter": "plant/#"}},
        {"mqtt": {"topic": "a/b", "topic_filter": "a/+"}},
        {"consumers": 0},
    ],
)
def test_ordinary_scenarios_are_possible(keys: dict[str, Any]) -> None:
    topics.refuse_impossible(scenario(**keys))


def test_a_client_has_the_same_name_on_all_its_connections_and_none_twice() -> None:
    names = {
        topics.client_id(Mqtt(), "r1", role, member, attempt)
        for role in ("producer", "consumer")
        for member in range(3)
        for attempt in range(2)
    }
    assert len(names) == 12
    assert topics.client_id(Mqtt(client_id_prefix="plant"), "r1", "consumer", 0).startswith("plant")


@pytest.mark.parametrize(
    ("mqtt", "problem"),
    [
        ({"user_properties": {"a": "b"}}, r"version 3\.1\.1 has none; version: 5 has"),
        ({"version": 5, "user_properties": {"": "b"}}, "bytes of text without NUL"),
        ({"version": 5, "user_properties": {"a": "b\0"}}, "allowed: text without NUL"),
        ({"version": 5, "user_properties": {"a": ["b"]}}, "allowed: text, a number, true or false"),
        ({"version": 5, "user_properties": {"a": "b" * 65536}}, "at most 65536 bytes in all"),
    ],
)
def test_user_properties_that_no_message_can_have_are_refused(
    mqtt: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ValidationError, match=problem):
        scenario(mqtt=mqtt)


# -- topologies ------------------------------------------------------------------------------------


@pytest.mark.parametrize("consumers", [2, 5])
def test_in_a_fan_in_consumer_g_subscribes_to_all_topics_of_group_g(consumers: int) -> None:
    made = names(topology="fan-in", producers=8, consumers=consumers, destinations=5)
    for topic in range(5):
        assert made.topic(topic) == f"bench/run7/group-{topic % consumers}/topic-{topic}"
    for consumer in range(consumers):
        assert made.subscription(consumer) == f"bench/run7/group-{consumer}/+"


def test_in_a_fan_out_everybody_subscribes_to_everything() -> None:
    made = names(topology="fan-out", producers=3, consumers=4)
    assert [made.topic(one) for one in range(3)] == [
        f"bench/run7/group-0/topic-{one}" for one in range(3)
    ]
    assert {made.subscription(one) for one in range(4)} == {"bench/run7/group-0/+"}
    assert made.group is None


def test_in_a_round_robin_all_share_one_subscription() -> None:
    made = names(topology="round-robin", producers=3, consumers=4)
    assert made.subscription(0) == "$share/bench-run7/bench/run7/group-0/+"
    lane = Lane(3, (Destination(0), Destination(1), Destination(2)), subscriptions=(0,))
    assert made.consumer_lanes([lane]) == [Lane(3, (Destination(0),), subscriptions=(0,))]
    named = names(topology="round-robin", consumers=4, mqtt={"shared_group": "workers"})
    assert named.subscription(0) == "$share/workers/bench/run7/group-0/+"


@pytest.mark.parametrize("keys", [{}, {"topology": "straight-run", "producers": 3}])
def test_pairs_have_plain_topics(keys: dict[str, Any]) -> None:
    made = names(**keys)
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
        topics.refuse_impossible(Scenario.model_validate({"topology": topology, "mqtt": mqtt}))
