"""Workload and driver files of the OpenMessaging Benchmark."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_spark.config.broker import Broker
from bench_spark.config.models import Scenario
from bench_spark.config.yaml_text import read_yaml
from bench_spark.errors import ConfigurationError
from bench_spark.importers.draft import Draft, files_of
from bench_spark.importers.omb import (
    ANY_DRIVER,
    KAFKA_DRIVER,
    RABBITMQ_DRIVER,
    WORKLOAD,
    import_omb,
)
from bench_spark.transports.kafka.settings import PROPERTY_NAMES
from bench_spark.transports.registry import refuse_impossible

SECRET = "s3cr3t"

KAFKA: dict[str, Any] = {
    "name": "Kafka all",
    "driverClass": "io.openmessaging.benchmark.driver.kafka.KafkaBenchmarkDriver",
    "replicationFactor": 3,
    "topicConfig": "min.insync.replicas=2\n",
    "commonConfig": "bootstrap.servers=one:9092,two:9092\n",
    "producerConfig": "acks=all\nlinger.ms=1\nbatch.size=131072\n",
    "consumerConfig": "auto.offset.reset=earliest\nenable.auto.commit=false\n",
    "reset": True,
}
RABBITMQ: dict[str, Any] = {
    "name": "RabbitMQ",
    "driverClass": "io.openmessaging.benchmark.driver.rabbitmq.RabbitMqBenchmarkDriver",
    "amqpUris": ["amqp://bob:s3cr3t@one.example.org", "amqp://two.example.org"],
    "messagePersistence": True,
    "queueType": "QUORUM",
    "producerCreationDelay": 100,
    "producerCreationBatchSize": 5,
    "consumerCreationDelay": 100,
    "consumerCreationBatchSize": 5,
}
WORK: dict[str, Any] = {
    "name": "10 topics / 1 kB",
    "topics": 10,
    "partitionsPerTopic": 4,
    "keyDistributor": "KEY_ROUND_ROBIN",
    "messageSize": 1024,
    "useRandomizedPayloads": True,
    "randomBytesRatio": 0.5,
    "randomizedPayloadPoolSize": 1000,
    "payloadFile": "payload/payload-1Kb.data",
    "subscriptionsPerTopic": 2,
    "producersPerTopic": 2,
    "consumerPerSubscription": 3,
    "producerRate": 50000,
    "consumerBacklogSizeGB": 1,
    "backlogDrainRatio": 0.9,
    "testDurationMinutes": 5,
    "warmupDurationMinutes": 2,
}


def imported(workload: dict[str, Any], driver: dict[str, Any]) -> Draft:
    return import_omb(workload, driver, PROPERTY_NAMES)


def read(draft: Draft) -> tuple[Scenario, Broker]:
    scenario, broker = files_of(draft, "test")
    return (
        Scenario.model_validate(read_yaml(scenario.text), strict=True),
        Broker.model_validate(read_yaml(broker.text), strict=True),
    )


@pytest.mark.parametrize(("driver", "keys"), [(KAFKA, KAFKA_DRIVER), (RABBITMQ, RABBITMQ_DRIVER)])
def test_every_key_sets_what_its_table_names_or_is_told(driver: Any, keys: Any) -> None:
    files = WORK | driver | {"name": "x"}
    assert set(files) == {key.name for key in (*WORKLOAD, *ANY_DRIVER, *keys)}
    login = {
        "commonConfig": "bootstrap.servers=one:9092\nsecurity.protocol=SASL_SSL\n"
        'sasl.jaas.config=Login required username="bob" password="s3cr3t";\n'
    }
    draft = imported(WORK, driver | (login if "commonConfig" in driver else {}))
    told = {remark.option for remark in draft.left_out}
    sets = {"": draft.scenario, "broker": draft.broker}
    for key in (*WORKLOAD, *ANY_DRIVER, *keys):
        if not key.keys:
            assert key.name in told
        for target in key.keys:
            file, _, dotted = target.rpartition(":")
            is_kafkas = "Kafka" in key.text and key.name != "driverClass"
            if (
                target == "topology"
                or key.name == "payloadFile"
                or (is_kafkas and driver is RABBITMQ)
            ):
                assert key.name in told
            else:
                assert sets[file].get(dotted) is not None, target


def test_a_workload_on_kafka_is_the_same_load() -> None:
    draft = imported(WORK, KAFKA)
    scenario, broker = read(draft)
    assert (scenario.producers, scenario.consumers, scenario.destinations) == (20, 30, 10)
    assert (scenario.load.mode, scenario.load.rate_per_second) == ("rate", 50_000)
    assert scenario.load.scope == "total"
    assert (scenario.phases.warmup_seconds, scenario.phases.measure_seconds) == (120, 300)
    assert scenario.kafka.topic.partitions == 4
    assert scenario.kafka.topic.properties == {"min.insync.replicas": 2}
    assert scenario.kafka.producer == {"acks": "all", "linger.ms": 1, "batch.size": 131072}
    assert broker.bootstrap_servers == "one:9092,two:9092"
    assert broker.name == "Kafka-all"
    assert draft.name == "10-topics-1-kB"
    refuse_impossible(scenario, broker)


def test_a_payload_file_is_sent_unchanged() -> None:
    scenario, broker = read(imported(WORK | {"useRandomizedPayloads": False}, KAFKA))
    assert (scenario.dataset.path, scenario.dataset.format) == (WORK["payloadFile"], "files")
    assert scenario.carrier == "header"
    refuse_impossible(scenario, broker)


def test_a_workload_on_rabbitmq_is_the_same_load() -> None:
    scenario, broker = read(imported(WORK, RABBITMQ))
    assert scenario.amqp.queue.arguments == {"x-queue-type": "quorum"}
    assert scenario.amqp.queue.durable
    assert scenario.amqp.persistent
    assert scenario.amqp.ack == "auto"
    assert (broker.uri, broker.username) == ("amqp://one.example.org/", "bob")
    refuse_impossible(scenario, broker)


def test_subscriptions_of_one_topic_are_a_fan_out() -> None:
    one = {"topics": 1, "consumerPerSubscription": 1, "subscriptionsPerTopic": 3}
    draft = imported(WORK | one, KAFKA)
    scenario, broker = read(draft)
    assert (scenario.topology, scenario.consumers) == ("fan-out", 3)
    assert "subscriptionsPerTopic" not in {remark.option for remark in draft.left_out}
    refuse_impossible(scenario, broker)


def test_subscriptions_that_cannot_be_are_told() -> None:
    draft = imported(WORK, KAFKA)
    assert read(draft)[0].topology is None
    assert "subscriptionsPerTopic" in {remark.option for remark in draft.left_out}


def test_no_rate_is_as_fast_as_possible() -> None:
    scenario, _ = read(imported(WORK | {"producerRate": 0}, KAFKA))
    assert scenario.load.mode == "maximum"


LOGIN = f"""\
bootstrap.servers=one:9092
security.protocol=SASL_SSL
sasl.mechanism=SCRAM-SHA-512
sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\
    username="bob" \\
    password="{SECRET}";
ssl.truststore.location=/etc/trust.jks
ssl.truststore.password={SECRET}
reconnect.backoff.ms=100
"""


def test_a_login_is_taken_without_its_password() -> None:
    draft = imported(WORK, KAFKA | {"commonConfig": LOGIN})
    _, broker = read(draft)
    assert broker.username == "bob"
    assert broker.password_env == "BENCH_10_TOPICS_1_KB_PASSWORD"
    assert broker.sasl_mechanism == "SCRAM-SHA-512"
    assert broker.tls is not None
    assert broker.properties == {"reconnect.backoff.ms": 100}
    told = {remark.option for remark in draft.left_out}
    assert told >= {
        "commonConfig ssl.truststore.location",
        "commonConfig ssl.truststore.password",
    }
    assert SECRET not in repr(draft)
    assert not any(SECRET in file.text for file in files_of(draft, "test"))


def test_properties_that_only_java_knows_are_told() -> None:
    producer = "buffer.memory=1\nsome.thing=2\nacks=1\nkey.serializer=x.Y\nsasl.mechanism=PLAIN\n"
    draft = imported(WORK, KAFKA | {"producerConfig": producer})
    assert read(draft)[0].kafka.producer == {"acks": 1}
    assert {r.option for r in draft.left_out if r.option.startswith("producerConfig")} == {
        "producerConfig buffer.memory",
        "producerConfig some.thing",
        "producerConfig sasl.mechanism",
    }


@pytest.mark.parametrize(
    ("workload", "driver", "problem"),
    [
        ({"topcs": 1}, KAFKA, "workload: topcs: unknown key; did you mean topics?"),
        ({"topics": "ten"}, KAFKA, "workload: topics: 'ten' is not allowed"),
        ({"topics": 1}, KAFKA | {"replicationFacter": 1}, "did you mean replicationFactor?"),
        ({"topics": 1}, {"driverClass": "x.PulsarBenchmarkDriver"}, "supported: KafkaBench"),
        ({"topics": 1}, {}, "driverClass: missing"),
        ({"topics": 1}, KAFKA | {"commonConfig": ""}, "bootstrap.servers: missing"),
        ({"topics": 1}, RABBITMQ | {"amqpUris": []}, "amqpUris"),
        ({"topics": 1}, RABBITMQ | {"queueType": "LAZY"}, "queueType"),
        ({"topics": 1, "producersPerTopic": 0, "subscriptionsPerTopic": 0}, KAFKA, "nobody would"),
    ],
)
def test_what_cannot_be_taken_is_refused_by_name(workload: Any, driver: Any, problem: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        imported(workload, driver)
    assert problem in str(refusal.value)


@given(st.sets(st.sampled_from(sorted(WORK))), st.sampled_from([KAFKA, RABBITMQ]))
def test_any_keys_together_make_valid_files(keys: set[str], driver: dict[str, Any]) -> None:
    read(imported({key: WORK[key] for key in keys}, driver))
