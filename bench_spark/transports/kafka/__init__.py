"""Kafka, by librdkafka: messages through its C interface, all else through confluent-kafka.

settings.py          librdkafka's properties, of scenario and broker; refuses what it would not take
cluster.py           topics, offsets and groups: create, ask, delete, clean up
release.py           which Kafka this is
librdkafka.py        its functions by ctypes, whether it is the one we know, its errors and clients
kernels.py           compiled loops over its messages
message_block.py     messages laid out for it: bodies, keys, headers
message_reader.py    its messages and delivery reports as rows
client_pool.py       what producers and consumers share: clients, their health, the wakeup
producers.py         producers: batches in, outcomes out
transactions.py      producers with transactions, by confluent-kafka
consumers.py         consumers: members of the run's group, and their threads
consumer_clients.py  the clients of those members; share groups by confluent-kafka
transport.py         the Transport made of all these
"""

from __future__ import annotations

from bench_spark.config.broker import Broker
from bench_spark.config.models import Scenario
from bench_spark.transports.base import (
    Capabilities,
    SizeLimit,
    Transport,
    TransportContext,
    TransportKind,
)
from bench_spark.transports.batches import Part
from bench_spark.transports.leftovers import Sweeper


class _Kafka(TransportKind):
    files_per_connection = 10
    """Sockets to bootstrap server, broker and coordinator, and the pipes of librdkafka's threads:
    some 8 were counted with one broker."""

    def make(self, context: TransportContext) -> Transport:
        from bench_spark.transports.kafka.transport import KafkaTransport

        return KafkaTransport(context)

    def capabilities(self, scenario: Scenario) -> Capabilities:
        from bench_spark.transports.kafka.settings import wants_reports

        return Capabilities(
            confirms=bool(scenario.kafka.transaction_messages) or wants_reports(scenario),
            parts=frozenset(Part),
            topologies=True,
            counts_by_reader=True,
        )

    def check(self, scenario: Scenario, broker: Broker) -> None:
        from bench_spark.transports.kafka.settings import check_properties

        check_properties(scenario, broker)

    def size_limit(self, scenario: Scenario) -> SizeLimit:
        from bench_spark.transports.kafka.settings import size_limit

        return size_limit(scenario)

    def connections(self, scenario: Scenario, producers: int, consumers: int) -> int:
        """Clients of librdkafka."""
        from bench_spark.transports.kafka.producers import MOST_CLIENTS

        is_shared = not scenario.kafka.transaction_messages
        return (min(producers, MOST_CLIENTS) if is_shared else producers) + consumers

    def sweeper(self, context: TransportContext) -> Sweeper:
        from bench_spark.transports.kafka.cluster import KafkaSweeper

        return KafkaSweeper(context.broker, context.credentials)


KIND = _Kafka()
