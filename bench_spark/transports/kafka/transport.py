"""The Kafka transport: what an agent asks of a cluster, made of the modules beside this one."""

from __future__ import annotations

from collections.abc import Sequence

import confluent_kafka
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

from bench_spark.errors import BrokerRefused
from bench_spark.measure.clock import NowNs
from bench_spark.transports.base import (
    HEAD_ONLY,
    BrokerFacts,
    Destination,
    Lane,
    Part,
    TransportContext,
)
from bench_spark.transports.kafka.cluster import Cluster
from bench_spark.transports.kafka.consumers import KafkaConsumers
from bench_spark.transports.kafka.producers import KafkaProducers
from bench_spark.transports.kafka.release import ask_release
from bench_spark.transports.kafka.settings import (
    consumer_properties,
    group_of,
    producer_properties,
    topic_name,
    topic_pattern,
    topic_properties,
    wants_reports,
)


class KafkaTransport:
    """See `bench_spark.transports.base.Transport`. Making one connects to nothing."""

    def __init__(self, context: TransportContext) -> None:
        self._context = context
        self._scenario = context.scenario
        self._broker = context.broker
        self._group = group_of(context.run_id)

    @property
    def confirms(self) -> bool:
        return wants_reports(self._scenario)

    @property
    def _address(self) -> str:
        return f"{self._broker.host}:{self._broker.port}"

    def _cluster(self) -> Cluster:
        return Cluster(self._broker, self._context.credentials)

    def probe(self) -> BrokerFacts:
        with self._cluster() as cluster:
            brokers = cluster.brokers
        return BrokerFacts(
            product="Apache Kafka",
            version=ask_release(self._broker),
            platform=f"{brokers} broker" + ("s" if brokers > 1 else ""),
            capabilities=frozenset({"confirms", "keys", "consumer_groups"}),
            client_library=(
                f"confluent-kafka {confluent_kafka.version()} / "
                f"librdkafka {confluent_kafka.libversion()[0]}"
            ),
        )

    def declare(self, destinations: Sequence[Destination]) -> tuple[Destination, ...]:
        topic = self._scenario.kafka.topic
        names = {d.index: self._name(d) for d in destinations}
        with self._cluster() as cluster:
            created = cluster.create_topics(
                [
                    NewTopic(
                        name,
                        num_partitions=topic.partitions,
                        replication_factor=topic.replication_factor,
                        config=topic_properties(self._scenario),
                    )
                    for name in names.values()
                ]
            )
            found = [name for name in names.values() if name not in created]
            if found and topic.name is None:
                raise BrokerRefused(
                    f"{self._address}: topic {found[0]} is there already: is the run id in use?"
                )
            cluster.wait_for_leaders(
                {name: topic.partitions if name in created else 1 for name in names.values()}
            )
            if found:
                existing = cluster.partitions_of(found)
                cluster.start_group_at_end(
                    self._group, [place for places in existing.values() for place in places]
                )
        return tuple(
            Destination(d.index, names[d.index], declared=names[d.index] in created)
            for d in destinations
        )

    def _name(self, destination: Destination) -> str:
        return destination.name or topic_name(
            self._scenario, self._context.run_id, destination.index
        )

    def open_producers(self, lanes: Sequence[Lane], now_ns: NowNs) -> KafkaProducers:
        producers = KafkaProducers(
            lanes,
            producer_properties(self._context),
            keys=self._scenario.kafka.keys,
            confirms=self.confirms,
            address=self._address,
            now_ns=now_ns,
        )
        producers.connect(self._broker.connect_timeout_seconds)
        return producers

    def open_consumers(
        self, lanes: Sequence[Lane], now_ns: NowNs, want: frozenset[Part] = HEAD_ONLY
    ) -> KafkaConsumers:
        with self._cluster() as cluster:
            partitions = cluster.partitions_of(
                {self._name(d) for lane in lanes for d in lane.destinations}
            )
        members = -(-self._scenario.consumers // self._scenario.destinations)
        consumers = KafkaConsumers(
            lanes,
            consumer_properties(self._context),
            want=want,
            may_idle=[
                sum(len(partitions.get(self._name(d), ())) for d in lane.destinations) < members
                for lane in lanes
            ],
            address=self._address,
            now_ns=now_ns,
        )
        consumers.connect(self._broker.connect_timeout_seconds)
        return consumers

    def depths(self, destinations: Sequence[Destination]) -> tuple[int | None, ...]:
        """End of the log minus what the run's group has committed.

        Where nothing was committed, nothing was received: of a topic of our own that leaves all
        there is, of anybody else's it leaves a number we cannot know.
        """
        with self._cluster() as cluster:
            partitions = cluster.partitions_of(self._name(d) for d in destinations)
            every = [place for places in partitions.values() for place in places]
            if not every:
                return tuple(None for _ in destinations)
            keys = [(place.topic, place.partition) for place in every]
            first = dict(zip(keys, cluster.first_offsets(every), strict=True))
            end = dict(zip(keys, cluster.end_offsets(every), strict=True))
            committed = cluster.committed(self._group, every)

        def depth(destination: Destination) -> int | None:
            name = self._name(destination)
            places = [key for key in keys if key[0] == name]
            if not places or not (destination.declared or committed.keys() >= set(places)):
                return None
            return sum(end[key] - max(first[key], committed.get(key, 0)) for key in places)

        return tuple(depth(destination) for destination in destinations)

    def delete(self, destinations: Sequence[Destination]) -> None:
        """Delete the run's topics, and its group with the last of them: as long as topics of other
        agents are there, their owners may still ask the group how far they were read."""
        if not destinations:
            return
        ours = {self._name(d) for d in destinations}
        declared = [self._name(d) for d in destinations if d.declared]
        with self._cluster() as cluster:
            if declared:
                cluster.delete_topics(declared)
            is_of_this_run = topic_pattern(self._scenario, self._context.run_id).fullmatch
            if not any(is_of_this_run(name) for name in cluster.topic_names() - ours):
                cluster.delete_group(self._group)

    def close(self) -> None:
        """Nothing is held open between calls."""
