"""The Kafka transport: what an agent asks of a cluster, made of the modules beside this one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

from bench_spark.config.problems import plural
from bench_spark.core.clock import NowNs
from bench_spark.errors import BrokerRefused, BrokerUnreachable
from bench_spark.transports.base import (
    BrokerFacts,
    Destination,
    Lane,
    Producers,
    Subscription,
    TransportContext,
)
from bench_spark.transports.batches import ENVELOPE_ONLY, Part
from bench_spark.transports.kafka import KIND
from bench_spark.transports.kafka.cluster import Cluster, Left, Logs, summed
from bench_spark.transports.kafka.consumer_clients import (
    ConsumerClient,
    ConsumerTerms,
    MemberTerms,
    ShareClient,
)
from bench_spark.transports.kafka.consumers import KafkaConsumers
from bench_spark.transports.kafka.librdkafka import client_library, require_interface
from bench_spark.transports.kafka.message_block import KeyRule, common_headers
from bench_spark.transports.kafka.message_reader import Position
from bench_spark.transports.kafka.producers import KafkaProducers, ProducerTerms
from bench_spark.transports.kafka.release import ask_release
from bench_spark.transports.kafka.settings import (
    consumer_properties,
    group_of,
    producer_properties,
    share_properties,
    starts_at_end,
    topic_name,
    topic_partitions,
    topic_pattern,
    topic_properties,
    transactional_id,
)
from bench_spark.transports.kafka.transactions import TransactionalProducers

MOST_COUNTED_MESSAGES = 100_000
"""What transactions have left in topics is counted message by message up to here; beyond, by
offsets, which are a little more."""


class KafkaTransport:
    """See `bench_spark.transports.base.Transport`. Making one connects to nothing."""

    def __init__(self, context: TransportContext) -> None:
        self.capabilities = KIND.capabilities(context.scenario)
        self._context = context
        self._scenario = context.scenario
        self._broker = context.broker
        self._wiring = context.scenario.wiring
        self._group = group_of(context.run_id)

    def _group_of(self, subscription: int) -> str:
        return group_of(self._context.run_id, subscription if self._wiring.copies > 1 else None)

    def _groups(self, destinations: Iterable[Destination]) -> list[str]:
        """The groups that read these topics."""
        wiring = self._wiring
        found = {wiring.group_of_destination(one.index) for one in destinations}
        subscriptions = (one for group in found for one in wiring.subscriptions_of_group(group))
        return list(dict.fromkeys(map(self._group_of, subscriptions)))

    @property
    def _address(self) -> str:
        return f"{self._broker.host}:{self._broker.port}"

    def _cluster(self) -> Cluster:
        return Cluster(self._broker, self._context.credentials)

    def probe(self) -> BrokerFacts:
        require_interface()
        with self._cluster() as cluster:
            brokers = cluster.brokers
        topic = self._scenario.kafka.topic
        if topic.name is None and topic.replication_factor > brokers:
            raise BrokerRefused(
                f"{self._address}: kafka.topic.replication_factor: {topic.replication_factor} "
                f"copies need as many brokers, and the cluster has {brokers}"
            )
        return BrokerFacts(
            product="Apache Kafka",
            version=ask_release(self._context),
            platform=plural(brokers, "broker"),
            capabilities=frozenset({"confirms", "keys", "consumer_groups", "transactions"}),
            client_library=client_library(),
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
                        num_partitions=topic_partitions(self._scenario),
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
                {
                    name: topic_partitions(self._scenario) if name in created else 1
                    for name in names.values()
                }
            )
            if found and self._scenario.consumers:
                places = _all_of(cluster.partitions_of(found))
                for group in self._groups(destinations):
                    cluster.start_group_at_end(group, places)
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
        require_interface()
        producers = KafkaProducers(lanes, self._producer_terms(now_ns))
        producers.connect(self._broker.connect_timeout_seconds)
        self._context.on_opened(len(lanes))
        return producers

    def _open_transactional(self, lanes: Sequence[Lane], now_ns: NowNs) -> TransactionalProducers:
        producers = TransactionalProducers(
            lanes,
            self._producer_terms(now_ns),
            transactional_ids=[transactional_id(self._context, lane.member) for lane in lanes],
            messages=self._scenario.kafka.transaction_messages,
        )
        producers.connect()
        self._context.on_opened(len(lanes))
        return producers

    def _producer_terms(self, now_ns: NowNs) -> ProducerTerms:
        return ProducerTerms(
            producer_properties(self._context),
            self._address,
            now_ns,
            self._scenario.reconnect_seconds,
            confirms=self.capabilities.confirms,
            keys=KeyRule.of(self._scenario.kafka),
            headers=common_headers(self._scenario.kafka),
        )

    def open_consumers(
        self, lanes: Sequence[Lane], now_ns: NowNs, want: frozenset[Part] = ENVELOPE_ONLY
    ) -> KafkaConsumers:
        require_interface()
        with self._cluster() as cluster:
            partitions = cluster.partitions_of(
                {self._name(d) for lane in lanes for d in lane.destinations}
            )
            if self._is_shared:
                for group in dict.fromkeys(self._group_of(lane.subscription) for lane in lanes):
                    cluster.begin_share_group(group)
        members = self._wiring.consumers_per_subscription
        properties = share_properties if self._is_shared else consumer_properties

        def terms_of(lane: Lane) -> MemberTerms:
            group = self._group_of(lane.subscription)
            held = sum(len(partitions.get(self._name(d), ())) for d in lane.destinations)
            may_idle = self._is_shared or held < members
            return MemberTerms(lane, properties(self._context, group), may_idle)

        consumers = KafkaConsumers(
            [terms_of(lane) for lane in lanes],
            ConsumerTerms(
                ShareClient if self._is_shared else ConsumerClient,
                want,
                self._address,
                now_ns,
                self._scenario.reconnect_seconds,
                holds_back=self._scenario.only_consumes,
                gathers=self._scenario.only_consumes and not self._scenario.message.timestamped,
            ),
        )
        context = self._context
        consumers.connect(self._broker.connect_timeout_seconds, context.pace, context.on_opened)
        return consumers

    @property
    def _is_shared(self) -> bool:
        return self._scenario.kafka.group == "share"

    def backlog(self, subscriptions: Sequence[Subscription]) -> tuple[int | None, ...]:
        """End of the log minus what the run's group has committed; unknown for a share group."""
        if self._is_shared:
            return tuple(None for _ in subscriptions)
        with self._cluster() as cluster:
            every = {one.index: one for each in subscriptions for one in each.destinations}
            logs = self._logs(cluster, list(every.values()))
            left_by_group = {
                group: self._left(cluster, logs, group)
                for group in dict.fromkeys(self._group_of(one.index) for one in subscriptions)
            }

        def of(subscription: Subscription) -> int | None:
            left = left_by_group[self._group_of(subscription.index)]
            return summed(
                left.in_topic(self._name(one), one.declared) for one in subscription.destinations
            )

        return tuple(map(of, subscriptions))

    def _logs(self, cluster: Cluster, destinations: Sequence[Destination]) -> Logs:
        partitions = cluster.partitions_of(self._name(one) for one in destinations)
        places = _all_of(partitions)
        if not places:
            return Logs([], {}, {})
        keys = [(place.topic, place.partition) for place in places]
        return Logs(
            places,
            first=dict(zip(keys, cluster.first_offsets(places), strict=True)),
            end=dict(zip(keys, cluster.end_offsets(places), strict=True)),
        )

    def _left(self, cluster: Cluster, logs: Logs, group: str) -> Left:
        """What a group has not read of these logs."""
        if not logs.places:
            return Left({}, frozenset())
        committed = cluster.committed(group, logs.places)
        left = logs.behind(committed)
        if self._scenario.kafka.transaction_messages:
            starts = {key: logs.end[key] - count for key, count in left.items() if count}
            left = {**left, **self._readable(cluster, starts, left)}
        return Left(left, frozenset(committed))

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
                for group in self._groups(destinations):
                    if self._is_shared:
                        self._forget_share_group(cluster, group)
                    else:
                        cluster.delete_group(group)

    def _forget_share_group(self, cluster: Cluster, group: str) -> None:
        """Where its topics have just been deleted, Kafka 4.3 now and then never answers a request
        to delete a share group, nor anything after it on that connection. The next connection's
        request is answered at once."""
        try:
            cluster.forget_share_group(group)
        except BrokerUnreachable:
            with self._cluster() as another:
                another.forget_share_group(group)

    def _is_group_needed(self, cluster: Cluster, ours: set[str]) -> bool:
        if self._scenario.only_consumes:
            return False  # nobody counts what is left in topics that others fill
        is_of_this_run = topic_pattern(self._scenario, self._context.run_id).fullmatch
        return any(is_of_this_run(name) for name in cluster.topic_names() - ours)

    def close(self) -> None:
        """Nothing is held open between calls."""


def _all_of(partitions_by_topic: Mapping[str, list[TopicPartition]]) -> list[TopicPartition]:
    return [place for places in partitions_by_topic.values() for place in places]
