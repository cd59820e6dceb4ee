"""What a consumer group has not read, from offsets."""

from __future__ import annotations

from typing import Any

import pytest

from bench_spark.config.models import Scenario
from bench_spark.transports.kafka.cluster import Left, Logs, summed
from bench_spark.transports.kafka.settings import group_of, topic_partitions

LOGS = Logs([], first={("t", 0): 0, ("t", 1): 10, ("u", 0): 0}, end={("t", 0): 7, ("t", 1): 15})


def test_what_is_left_lies_between_the_commit_and_the_end() -> None:
    assert LOGS.behind({("t", 0): 5}) == {("t", 0): 2, ("t", 1): 5}
    assert LOGS.behind({("t", 0): 7, ("t", 1): 15}) == {("t", 0): 0, ("t", 1): 0}


def test_a_topic_of_others_that_was_never_read_leaves_an_unknown_number() -> None:
    left = Left({("t", 0): 2, ("t", 1): 5}, committed=frozenset({("t", 0)}))
    assert left.in_topic("t", is_ours=True) == 7
    assert left.in_topic("t", is_ours=False) is None
    assert left.in_topic("gone", is_ours=True) is None
    read = Left({("t", 0): 2}, committed=frozenset({("t", 0)}))
    assert read.in_topic("t", is_ours=False) == 2


@pytest.mark.parametrize(("counts", "total"), [([1, 2], 3), ([], 0), ([1, None], None)])
def test_a_sum_is_unknown_if_a_part_is(counts: list[int | None], total: int | None) -> None:
    assert summed(counts) == total


def test_copies_are_read_by_groups_of_their_own() -> None:
    assert group_of("run7") == "bench-run7"
    assert group_of("run7", 3) == "bench-run7-3"


@pytest.mark.parametrize(
    ("keys", "partitions"),
    [
        ({}, 1),
        ({"topology": "round-robin"}, 10),
        ({"topology": "round-robin", "producers": 3, "consumers": 7}, 3),
        ({"topology": "round-robin", "kafka": {"topic": {"partitions": 2}}}, 2),
        ({"topology": "fan-in"}, 1),
    ],
)
def test_a_round_robin_has_a_partition_for_every_consumer(
    keys: dict[str, Any], partitions: int
) -> None:
    assert topic_partitions(Scenario.model_validate(keys)) == partitions
