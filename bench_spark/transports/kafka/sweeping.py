"""Topics and consumer groups that killed runs have left behind."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from confluent_kafka import TopicPartition

from bench_spark.scenario.broker import Broker, Credentials
from bench_spark.transports.kafka.cluster import Cluster
from bench_spark.transports.leftovers import (
    WATCHED_SECONDS,
    Leftover,
    Wanted,
    run_of_numbered,
    run_of_whole,
    with_their_runs,
)


class KafkaSweeper:
    def __init__(self, broker: Broker, credentials: Credentials) -> None:
        self._broker = broker
        self._credentials = credentials

    def find(self, wanted: Wanted) -> list[Leftover]:
        with Cluster(self._broker, self._credentials) as cluster:
            topics = {
                name: run_id
                for name in sorted(cluster.topic_names())
                if (run_id := run_of_numbered(name)) is not None and wanted.takes(run_id)
            }
            found = [*_topics(cluster, topics), *_groups(cluster, set(topics.values()))]
        return with_their_runs(one for one in found if wanted.takes(one.run_id))

    def delete(self, leftovers: Sequence[Leftover]) -> None:
        with Cluster(self._broker, self._credentials) as cluster:
            topics = [one.name for one in leftovers if one.kind == "topic"]
            if topics:
                cluster.delete_topics(topics)
            for one in leftovers:
                if one.kind == "group":
                    cluster.delete_group(one.name)


def _topics(cluster: Cluster, runs: Mapping[str, str]) -> Iterable[Leftover]:
    if not runs:
        return
    before = _by_topic(cluster, runs, cluster.end_offsets)
    time.sleep(WATCHED_SECONDS)
    first = _by_topic(cluster, runs, cluster.first_offsets)
    for name, end in _by_topic(cluster, runs, cluster.end_offsets).items():
        messages = sum(end) - sum(first.get(name, end))
        yield Leftover(
            "topic",
            name,
            runs[name],
            f"{messages:,} message" + ("" if messages == 1 else "s"),
            "somebody who publishes to it" if end != before.get(name, end) else "",
        )


def _by_topic(
    cluster: Cluster, topics: Iterable[str], ask: Callable[[Sequence[TopicPartition]], list[int]]
) -> dict[str, list[int]]:
    """An offset of each topic partition."""
    partitions = cluster.partitions_of(topics)
    places = [place for each in partitions.values() for place in each]
    offsets = iter(ask(places) if places else [])
    return {name: [next(offsets) for _ in each] for name, each in partitions.items()}


def _groups(cluster: Cluster, runs: set[str]) -> Iterable[Leftover]:
    for name, is_idle in sorted(cluster.groups().items()):
        run_id = run_of_whole(name, runs)
        if run_id is not None:
            yield Leftover("group", name, run_id, used_by="" if is_idle else "its members")
