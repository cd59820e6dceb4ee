"""One word for what may happen to a message, in every protocol's own keys."""

from __future__ import annotations

from typing import Any

import pytest

from bench_spark.config.delivery import (
    DEFAULT_CONFIRMS,
    DEFAULT_TRANSACTION_MESSAGES,
    with_delivery,
)
from bench_spark.config.models import Scenario
from bench_spark.errors import ConfigurationError


def fitted(kind: str, delivery: str | None, **keys: Any) -> Scenario:
    return with_delivery(Scenario.model_validate({"delivery": delivery, **keys}), kind)


def test_at_most_once_asks_for_no_answer() -> None:
    amqp = fitted("amqp", "at_most_once").amqp
    assert (amqp.confirms, amqp.ack) == (0, "auto")
    assert fitted("kafka", "at_most_once").kafka.producer == {"acks": "0"}


def test_at_least_once_waits_for_both_sides() -> None:
    amqp = fitted("amqp", "at_least_once").amqp
    assert (amqp.confirms, amqp.ack) == (DEFAULT_CONFIRMS, "manual")
    assert fitted("kafka", "at_least_once").kafka.producer == {"acks": "all"}


def test_exactly_once_is_transactions_in_kafka_and_too_much_for_amqp() -> None:
    kafka = fitted("kafka", "exactly_once").kafka
    assert kafka.transaction_messages == DEFAULT_TRANSACTION_MESSAGES
    assert kafka.producer == {"acks": "all", "enable.idempotence": True}
    assert kafka.consumer == {"isolation.level": "read_committed"}
    with pytest.raises(ConfigurationError, match=r"^delivery: exactly_once is more than AMQP"):
        fitted("amqp", "exactly_once")


def test_keys_that_agree_are_kept_and_others_left_alone() -> None:
    amqp = fitted("amqp", "at_least_once", amqp={"confirms": 7, "ack_every": 5}).amqp
    assert (amqp.confirms, amqp.ack, amqp.ack_every) == (7, "manual", 5)
    committed = fitted("amqp", "at_least_once", amqp={"producer_transaction": 10}).amqp
    assert (committed.confirms, committed.producer_transaction) == (0, 10)
    given = {"producer": {"request.required.acks": -1, "linger.ms": 1}}
    kafka = fitted("kafka", "at_least_once", kafka=given).kafka
    assert kafka.producer == {"request.required.acks": "all", "linger.ms": 1}
    transactions = fitted("kafka", "exactly_once", kafka={"transaction_messages": 9}).kafka
    assert transactions.transaction_messages == 9


@pytest.mark.parametrize(
    ("delivery", "qos"), [("at_most_once", 0), ("at_least_once", 1), ("exactly_once", 2)]
)
def test_in_mqtt_each_word_is_a_quality_of_service(delivery: str, qos: int) -> None:
    assert fitted("mqtt", delivery).mqtt.qos == qos
    assert fitted("mqtt", delivery, mqtt={"qos": qos}).mqtt.qos == qos
    with pytest.raises(ConfigurationError, match=r"^mqtt\.qos: \d contradicts delivery"):
        fitted("mqtt", delivery, mqtt={"qos": (qos + 1) % 3})


@pytest.mark.parametrize("kind", ["amqp", "kafka", "loopback", "mqtt"])
def test_no_word_changes_nothing(kind: str) -> None:
    scenario = Scenario()
    assert with_delivery(scenario, kind) is scenario


@pytest.mark.parametrize(
    ("kind", "delivery"),
    [("amqp", "at_least_once"), ("kafka", "at_most_once"), ("kafka", "exactly_once")],
)
def test_what_was_put_in_means_the_same_again(kind: str, delivery: str) -> None:
    once = fitted(kind, delivery, topology="fan-in")
    assert with_delivery(once, kind) == once
    assert once.producers == 1000, "sizes stay those of the topology"


def test_only_the_section_of_the_broker_in_use_is_looked_at() -> None:
    keys = {"amqp": {"ack": "manual"}, "kafka": {"producer": {"acks": 0}}}
    assert fitted("kafka", "at_most_once", **keys).amqp.ack == "manual"


@pytest.mark.parametrize(
    ("kind", "delivery", "section", "named"),
    [
        ("amqp", "at_most_once", {"confirms": 5}, "amqp.confirms: 5"),
        ("amqp", "at_most_once", {"producer_transaction": 5}, "amqp.producer_transaction: 5"),
        ("amqp", "at_most_once", {"ack": "manual"}, "amqp.ack: manual"),
        ("amqp", "at_least_once", {"confirms": 0}, "amqp.confirms: 0"),
        ("amqp", "at_least_once", {"ack": "auto"}, "amqp.ack: auto"),
        ("kafka", "at_most_once", {"producer": {"acks": "all"}}, "kafka.producer.acks: all"),
        (
            "kafka",
            "at_most_once",
            {"producer": {"enable.idempotence": True}},
            "kafka.producer.enable.idempotence: true",
        ),
        ("kafka", "at_most_once", {"transaction_messages": 5}, "kafka.transaction_messages: 5"),
        ("kafka", "at_least_once", {"producer": {"acks": 1}}, "kafka.producer.acks: 1"),
        (
            "kafka",
            "at_least_once",
            {"producer": {"request.required.acks": 0}},
            "kafka.producer.request.required.acks: 0",
        ),
        ("kafka", "at_least_once", {"transaction_messages": 5}, "kafka.transaction_messages: 5"),
        ("kafka", "exactly_once", {"transaction_messages": 0}, "kafka.transaction_messages: 0"),
        (
            "kafka",
            "exactly_once",
            {"producer": {"enable.idempotence": False}},
            "kafka.producer.enable.idempotence: false",
        ),
        (
            "kafka",
            "exactly_once",
            {"consumer": {"isolation.level": "read_uncommitted"}},
            "kafka.consumer.isolation.level: read_uncommitted",
        ),
    ],
)
def test_a_key_that_says_otherwise_is_refused_by_name(
    kind: str, delivery: str, section: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        fitted(kind, delivery, **{kind: section})
    assert str(refusal.value).startswith(f"{named} contradicts delivery: {delivery}")
