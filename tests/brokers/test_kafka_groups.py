"""Kafka beyond the defaults: the new protocol of groups, share groups, keys that differ."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from agents import Load, run_load
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from bench_spark.config.broker import Broker
from bench_spark.config.models import Scenario
from bench_spark.errors import ConfigurationError
from bench_spark.plan import make_plan
from bench_spark.transports.registry import fitted

PHASES = {"warmup_seconds": 0.3, "measure_seconds": 1, "drain_seconds": 10}
RATE = 1000


def load_on(broker: Broker, run_id: str, **keys: Any) -> Load:
    keys = {"load": {"rate_per_second": RATE}, "phases": PHASES, **keys}
    scenario = fitted(Scenario.model_validate(keys), broker)
    load = run_load(make_plan(scenario, run_id), broker)
    assert not load.control.failures
    return load


def test_groups_of_the_new_protocol_receive_every_message_once(kafka_broker: Broker) -> None:
    load = load_on(
        kafka_broker,
        "kip-848",
        consumers=2,
        kafka={
            "topic": {"partitions": 4},
            "consumer": {"group.protocol": "consumer"},
        },
    )
    accounts = load.accounts()
    assert accounts.sent == accounts.received_once == RATE
    assert load.total_of_all_phases("consumer", "duplicates") == 0
    assert accounts.left_in_broker == 0


def test_members_of_a_share_group_divide_one_topic_partition(kafka_broker: Broker) -> None:
    load = load_on(kafka_broker, "kip-932", consumers=3, destinations=1, kafka={"group": "share"})
    accounts = load.accounts()
    assert accounts.sent == accounts.received_once == RATE
    admin = AdminClient({"bootstrap.servers": kafka_broker.bootstrap_servers})
    assert not [one.id for one in admin.list_groups(timeout=60) if "kip-932" in one.id]


def test_a_share_group_is_refused_where_it_cannot_be_held_back(kafka_broker: Broker) -> None:
    scenario = Scenario.model_validate(
        {"producers": 0, "kafka": {"group": "share", "topic": {"name": "t"}}}
    )
    with pytest.raises(ConfigurationError, match=r"kafka\.group: share needs producers"):
        fitted(scenario, kafka_broker)


def test_zipf_keys_reach_the_topic(kafka_broker: Broker) -> None:
    load_on(
        kafka_broker,
        "zipf-keys",
        consumers=0,
        kafka={"topic": {"name": "zipf-keys"}, "keys": "zipf", "key_count": 50},
        keep_destinations=True,
        load={"messages": 2000, "rate_per_second": 5000},
    )
    reader = Consumer(
        {
            "bootstrap.servers": kafka_broker.bootstrap_servers,
            "group.id": "zipf-reader",
            "auto.offset.reset": "earliest",
        }
    )
    reader.subscribe(["zipf-keys"])
    keys: Counter[bytes] = Counter()
    while keys.total() < 2000:
        keys.update(one.key() for one in reader.consume(2000, 10))
    reader.close()
    assert keys.keys() <= {b"%d" % number for number in range(50)}
    assert [key for key, _ in keys.most_common(2)] == [b"0", b"1"]
