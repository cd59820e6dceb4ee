"""Every key of the OpenMessaging Benchmark's workload files and of two of its drivers.

As in `perftest_flags`: the scenario's keys that each decides, and what differs; or why there is no
counterpart.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OmbKey:
    name: str
    keys: tuple[str, ...]
    """Of the scenario, `broker:` before those of the broker file. Empty: no counterpart."""
    text: str = ""


def _mapped(name: str, keys: str, text: str = "") -> OmbKey:
    return OmbKey(name, tuple(keys.split()), text)


def _absent(name: str, reason: str) -> OmbKey:
    return OmbKey(name, (), reason)


_PAYLOADS = "bodies are random bytes or zeros (message.padding)"
_BACKLOG = (
    "a backlog is made by two runs: one with `consumers: 0` and `keep_destinations: true`, "
    "then one that consumes"
)
_CREATION = "not needed; `connections_per_second` limits how fast connections are opened"

WORKLOAD = (
    _mapped("name", "name", "also the file's name"),
    _mapped("topics", "destinations producers consumers"),
    _mapped("partitionsPerTopic", "kafka.topic.partitions", "Kafka; RabbitMQ has none"),
    _mapped(
        *("keyDistributor", "kafka.keys"),
        "Kafka. NO_KEY is `none`; the others are `sequence`: a key per message, so that messages "
        "go to all partitions",
    ),
    _mapped("messageSize", "message.bytes", "from 32 bytes on, losses are accounted for"),
    _mapped("useRandomizedPayloads", "message.padding"),
    _mapped("randomBytesRatio", "message.padding", "0 is `zero`, anything above is `random`"),
    _mapped(
        *("subscriptionsPerTopic", "consumers topology"),
        "several of one topic, a consumer each, are `topology: fan-out`; otherwise one is taken",
    ),
    _mapped("producersPerTopic", "producers", "times the topics"),
    _mapped("consumerPerSubscription", "consumers", "times the topics"),
    _mapped(
        *("producerRate", "load.mode load.rate_per_second"),
        "of all producers together. 0, which looks for the highest rate, becomes load.mode "
        "maximum; [search-rate](studies/rate.md) searches for it",
    ),
    _mapped("testDurationMinutes", "phases.measure_seconds"),
    _mapped("warmupDurationMinutes", "phases.warmup_seconds", "without it 60 s, as there"),
    _absent("payloadFile", _PAYLOADS),
    _absent("randomizedPayloadPoolSize", _PAYLOADS),
    _absent("consumerBacklogSizeGB", _BACKLOG),
    _absent("backlogDrainRatio", _BACKLOG),
)

ANY_DRIVER = (
    _mapped("name", "broker:name"),
    _mapped("driverClass", "broker:kind", "Kafka's and RabbitMQ's; others are refused"),
)

KAFKA_DRIVER = (
    _mapped("replicationFactor", "kafka.topic.replication_factor"),
    _mapped("topicConfig", "kafka.topic.properties"),
    _mapped(
        *("commonConfig", "broker:bootstrap_servers broker:username broker:password_env"),
        "also broker:sasl_mechanism, broker:tls; what else librdkafka knows is broker:properties",
    ),
    _mapped("producerConfig", "kafka.producer", "properties that librdkafka has"),
    _mapped("consumerConfig", "kafka.consumer", "properties that librdkafka has"),
    _absent("reset", "topics of others are never deleted"),
)

RABBITMQ_DRIVER = (
    _mapped(
        *("amqpUris", "broker:uri broker:username broker:password_env"),
        "the first one; a broker file has one address",
    ),
    _mapped("messagePersistence", "amqp.persistent"),
    _mapped("queueType", "amqp.queue.arguments", "x-queue-type"),
    _absent("producerCreationDelay", _CREATION),
    _absent("producerCreationBatchSize", _CREATION),
    _absent("consumerCreationDelay", _CREATION),
    _absent("consumerCreationBatchSize", _CREATION),
)
