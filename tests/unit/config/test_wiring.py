"""Who receives what: by the rules that the topologies are defined by, written down plainly."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from bench_spark.config.models import Scenario
from bench_spark.config.topologies import DEFAULT_SIZES, Wiring, wiring_for


def scenario(**keys: Any) -> Scenario:
    return Scenario.model_validate(keys)


def receivers(wiring: Wiring, producer: int) -> list[set[int]]:
    """Per copy of a message of this producer the consumers of which one gets it."""
    group = wiring.group_of_producer(producer)
    return [
        {
            consumer
            for consumer in range(wiring.consumers)
            if subscription in wiring.subscriptions_of_consumer(consumer)
        }
        for subscription in wiring.subscriptions_of_group(group)
    ]


@given(producers=st.integers(1, 60), consumers=st.integers(1, 30), topics=st.integers(1, 40))
def test_in_a_fan_in_consumer_g_receives_all_topics_whose_number_leaves_g(
    producers: int, consumers: int, topics: int
) -> None:
    wiring = wiring_for("fan-in", producers, consumers, topics)
    for producer in range(producers):
        topic = producer % topics
        assert receivers(wiring, producer) == [{topic % consumers}]
    for group in range(consumers):
        assert list(wiring.destinations_of_group(group)) == [
            topic for topic in range(topics) if topic % consumers == group
        ]


@given(producers=st.integers(1, 20), consumers=st.integers(1, 30), topics=st.integers(1, 20))
def test_in_a_fan_out_every_consumer_receives_every_message(
    producers: int, consumers: int, topics: int
) -> None:
    wiring = wiring_for("fan-out", producers, consumers, topics)
    for producer in range(producers):
        assert receivers(wiring, producer) == [{consumer} for consumer in range(consumers)]


@given(consumers=st.integers(1, 12), each=st.integers(1, 12))
def test_in_a_fan_out_with_several_subscriptions_a_consumer_receives_as_many_copies(
    consumers: int, each: int
) -> None:
    wiring = wiring_for("fan-out", 1, consumers, 1, each)
    assert wiring.copies == consumers * each
    assert sorted(map(min, receivers(wiring, 0))) == sorted(list(range(consumers)) * each)
    assert all(len(receiving) == 1 for receiving in receivers(wiring, 0))


def test_several_subscriptions_need_a_fan_out() -> None:
    with pytest.raises(ValidationError, match="3 needs topology fan-out"):
        scenario(subscriptions_per_consumer=3)


@given(pairs=st.integers(1, 50))
def test_in_a_straight_run_consumer_i_receives_from_producer_i(pairs: int) -> None:
    wiring = wiring_for("straight-run", pairs, pairs, pairs)
    assert wiring.is_plain
    for producer in range(pairs):
        assert receivers(wiring, producer) == [{producer}]


@given(producers=st.integers(1, 20), consumers=st.integers(1, 30), topics=st.integers(1, 20))
def test_in_a_round_robin_one_of_all_consumers_receives_a_message(
    producers: int, consumers: int, topics: int
) -> None:
    wiring = wiring_for("round-robin", producers, consumers, topics)
    for producer in range(producers):
        assert receivers(wiring, producer) == [set(range(consumers))]


@given(
    topology=st.sampled_from([None, "fan-in", "fan-out", "straight-run", "round-robin"]),
    producers=st.integers(1, 40),
    consumers=st.integers(1, 20),
    destinations=st.integers(1, 40),
)
def test_a_message_is_known_by_its_subscription_and_stream(
    topology: Any, producers: int, consumers: int, destinations: int
) -> None:
    wiring = wiring_for(topology, producers, consumers, destinations)
    streams = wiring.stream_of_producer
    for group in range(wiring.groups):
        members = list(wiring.producers_of_group(group))
        assert members == [p for p in range(producers) if wiring.group_of_producer(p) == group]
        assert [int(streams[producer]) for producer in members] == list(range(len(members)))
        assert len(members) <= wiring.streams


@pytest.mark.parametrize("topology", list(DEFAULT_SIZES))
def test_a_topology_has_sizes_of_its_own(topology: str) -> None:
    made, sizes = scenario(topology=topology), DEFAULT_SIZES[topology]
    assert (made.producers, made.consumers, made.destinations) == (
        sizes.producers,
        sizes.consumers,
        sizes.destinations,
    )


@pytest.mark.parametrize(
    ("keys", "sizes"),
    [
        ({}, (1, 1, 1)),
        ({"topology": "straight-run", "producers": 20}, (20, 20, 20)),
        ({"topology": "fan-in", "producers": 5}, (5, 5, 5)),
        ({"topology": "fan-in", "producers": 50}, (50, 10, 50)),
        ({"topology": "fan-in", "consumers": 200}, (1000, 200, 200)),
        ({"topology": "fan-in", "consumers": 3, "destinations": 7}, (1000, 3, 7)),
        ({"topology": "fan-out", "producers": 2}, (2, 1000, 2)),
        ({"topology": "round-robin", "producers": 4, "consumers": 8}, (4, 8, 4)),
        ({"topology": "fan-in", "topology_scale": 0.05}, (50, 1, 5)),
        ({"topology": "fan-out", "topology_scale": 0.01}, (1, 10, 1)),
        ({"topology": "straight-run", "topology_scale": 2.0}, (200, 200, 200)),
    ],
)
def test_sizes_that_are_given_shape_those_that_are_not(
    keys: dict[str, Any], sizes: tuple[int, int, int]
) -> None:
    made = scenario(**keys)
    assert (made.producers, made.consumers, made.destinations) == sizes


def test_sizes_that_were_not_given_follow_a_later_change_of_topology() -> None:
    written = scenario(topology="fan-in").model_dump(exclude_unset=True)
    assert written == {"topology": "fan-in"}
    assert Scenario.model_validate(written | {"topology": "fan-out"}).consumers == 1000


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"topology": "fan-in", "consumers": 5, "destinations": 3}, "consumers: 5 is too many"),
        ({"topology": "fan-out", "producers": 2, "destinations": 3}, "destinations: 3 is too many"),
        ({"topology": "straight-run", "producers": 3, "consumers": 2}, "consumers: topology strai"),
        ({"topology": "straight-run", "producers": 3, "destinations": 2}, "destinations: topology"),
        ({"topology": "round-robin", "consumers": 0}, "consumers: 0, but topology round-robin"),
        ({"topology": "fan-out", "producers": 0}, "producers: 0, but topology fan-out"),
        ({"topology": "fan-out", "load": {"mode": "window"}}, "load.mode: window does not go"),
        ({"topology": "fan-out", "metrics_by": "destination"}, "metrics_by: destination does not"),
        ({"topology": "fan-out", "amqp": {"queue": {"name": "q"}}}, "one name for 1000 queues"),
        ({"topology": "ring"}, "topology"),
        ({"topology_scale": 0.5}, "topology_scale: 0.5 scales the sizes"),
    ],
)
def test_what_a_topology_cannot_be_is_refused(keys: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        scenario(**keys)


def test_a_round_robin_has_one_queue_which_may_have_one_name() -> None:
    assert scenario(topology="round-robin", amqp={"queue": {"name": "q"}}).wiring.subscriptions == 1
