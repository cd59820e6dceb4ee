"""The Kafka transport: what an agent asks of a cluster, made of the modules beside this one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

from bench_spark.errors import BrokerRefused
from bench_spark.measure.clock import NowNs
from bench_spark.transports.base import (
    HEAD_ONLY,
    BrokerFacts,
    Destination,
    Lane,
    Part,
    Producers,
    TransportContext,
)
from bench_spark.transports.kafka.cluster import Cluster
from bench_spark.transports.kafka.columns import Position
from bench_spark.transports.kafka.confluent_consumer import ConfluentConsumer
from bench_spark.transports.kafka.consumers import KafkaConsumers
from bench_spark.transports.kafka.fast_producers import FastProducers
from bench_spark.transports.kafka.native_consumer import NativeConsumer
from bench_spark.transports.kafka.planes import chosen_plane
from bench_spark.transports.kafka.producers import KafkaProducers
from bench_spark.transports.kafka.release import ask_release
from bench_spark.transports.kafka.settings import (
    consumer_properties,
    group_of,
    producer_properties,
    starts_at_end,
    topic_name,
    topic_pattern,
    topic_properties,
    transactional_id,
    wants_reports,
)
from bench_spark.transports.kafka.transactional import TransactionalProducers

MOST_COUNTED_MESSAGES = 100_000
"""What transactions have left in topics is counted message by message up to here; beyond, by
offsets, which are a little more."""


class KafkaTransport:
    """See `bench_spark.transports.base.Transport`. Making one connects to nothing."""

    def __init__(self, context: TransportContext) -> None:
        self._context = context
        self._scenario = context.scenario
        self._broker = context.broker
        self._group = group_of(context.run_id)
        self._plane = chosen_plane(context.scenario.kafka)

    @property
    def confirms(self) -> bool:
        return bool(self._scenario.kafka.transaction_messages) or wants_reports(self._scenario)

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
            capabilities=frozenset({"confirms", "keys", "consumer_groups", "transactions"}),
            client_library=self._plane.client_library,
        )

    def declare(self, destinations: Sequence[Destination]) -> tuple[Destination, ...]:
        topic = self._scenario.kafka.topic
        names = {d.index: self._name(d) for d in destinations}
        with self._cluster() as cluster:
            # Looked for first: who may only use a topic need not have the right to create it.
            known = cluster.topic_names() if topic.name is not None else set()
            created = cluster.create_topics(
                [
                    NewTopic(
                        name,
                        num_partitions=topic.partitions,
                        replication_factor=topic.replication_factor,
                        config=topic_properties(self._scenario),
                    )
                    for name in names.values()
                    if name not in known
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
            if found and self._scenario.consumers:
                cluster.start_group_at_end(self._group, _all_of(cluster.partitions_of(found)))
        return tuple(
            Destination(d.index, names[d.index], declared=names[d.index] in created)
            for d in destinations
        )

    def find(self, destinations: Sequence[Destination]) -> tuple[Destination, ...]:
        names = [self._name(d) for d in destinations]
        with self._cluster() as cluster:
            existing = cluster.partitions_of(names)
            for name in names:
                if name not in existing:
                    raise BrokerRefused(
                        f"{self._address}: there is no topic {name} (kafka.topic.name), and a run "
                        "without producers makes none"
                    )
            if starts_at_end(self._scenario):
                cluster.start_group_at_end(self._group, _all_of(existing))
        return tuple(
            Destination(d.index, name) for d, name in zip(destinations, names, strict=True)
        )

    def _name(self, destination: Destination) -> str:
        return destination.name or topic_name(
            self._scenario, self._context.run_id, destination.index
        )

    def open_producers(self, lanes: Sequence[Lane], now_ns: NowNs) -> Producers:
        if self._scenario.kafka.transaction_messages:
            return self._open_transactional(lanes, now_ns)
        make_producers = FastProducers if self._plane.is_fast else KafkaProducers
        producers = make_producers(
            lanes,
            producer_properties(self._context),
            keys=self._scenario.kafka.keys,
            confirms=self.confirms,
            address=self._address,
            now_ns=now_ns,
            reconnect_seconds=self._scenario.reconnect_seconds,
        )
        producers.connect(self._broker.connect_timeout_seconds)
        return producers

    def _open_transactional(self, lanes: Sequence[Lane], now_ns: NowNs) -> TransactionalProducers:
        producers = TransactionalProducers(
            lanes,
            producer_properties(self._context),
            transactional_ids=[transactional_id(self._context, lane.member) for lane in lanes],
            messages=self._scenario.kafka.transaction_messages,
            keys=self._scenario.kafka.keys,
            address=self._address,
            now_ns=now_ns,
            reconnect_seconds=self._scenario.reconnect_seconds,
        )
        producers.connect()
        return producers

    def open_consumers(
        self, lanes: Sequence[Lane], now_ns: NowNs, want: frozenset[Part] = HEAD_ONLY
    ) -> KafkaConsumers:
        with self._cluster() as cluster:
            partitions = cluster.partitions_of(
                {self._name(d) for lane in lanes for d in lane.destinations}
            )
        is_fast = self._plane.is_fast and Part.HEADERS not in want
        members = -(-self._scenario.consumers // self._scenario.destinations)
        consumers = KafkaConsumers(
            lanes,
            consumer_properties(self._context),
            NativeConsumer if is_fast else ConfluentConsumer,
            want=want,
            only_consumes=self._scenario.only_consumes,
            may_idle=[
                sum(len(partitions.get(self._name(d), ())) for d in lane.destinations) < members
                for lane in lanes
            ],
            address=self._address,
            now_ns=now_ns,
            reconnect_seconds=self._scenario.reconnect_seconds,
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
            left = {key: end[key] - max(first[key], committed.get(key, 0)) for key in keys}
            if self._scenario.kafka.transaction_messages:
                left |= self._readable(cluster, {k: end[k] - n for k, n in left.items() if n}, left)

        def depth(destination: Destination) -> int | None:
            name = self._name(destination)
            places = [key for key in keys if key[0] == name]
            if not places or not (destination.declared or committed.keys() >= set(places)):
                return None
            return sum(left[key] for key in places)

        return tuple(depth(destination) for destination in destinations)

    def _readable(
        self, cluster: Cluster, starts: Mapping[Position, int], left: Mapping[Position, int]
    ) -> Mapping[Position, int]:
        """What consumers could still get; nothing new where it would take too long to find out."""
        if not starts or sum(left.values()) > MOST_COUNTED_MESSAGES:
            return {}
        isolation = str(consumer_properties(self._context)["isolation.level"])
        return cluster.count_readable(starts, isolation) or {}

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
            if self._scenario.consumers and not self._is_group_needed(cluster, ours):
                cluster.delete_group(self._group)

    def _is_group_needed(self, cluster: Cluster, ours: set[str]) -> bool:
        if self._scenario.only_consumes:
            return False  # nobody counts what is left in topics that others fill
        is_of_this_run = topic_pattern(self._scenario, self._context.run_id).fullmatch
        return any(is_of_this_run(name) for name in cluster.topic_names() - ours)

    def close(self) -> None:
        """Nothing is held open between calls."""


def _all_of(partitions_by_topic: Mapping[str, list[TopicPartition]]) -> list[TopicPartition]:
    return [place for places in partitions_by_topic.values() for place in places]
