"""Kafka's settings: what is passed on, what is refused, and that nothing is contacted for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from bench_spark.config.broker import Broker, Credentials, Tls
from bench_spark.config.loader import load_scenario
from bench_spark.config.models import Scenario
from bench_spark.errors import ConfigurationError
from bench_spark.transports.base import TransportContext
from bench_spark.transports.kafka.settings import (
    PROPERTY_NAMES,
    admin_properties,
    check_properties,
    consumer_properties,
    producer_properties,
    size_limit,
    topic_name,
    topic_pattern,
    topic_properties,
    transactional_id,
)
from bench_spark.transports.kafka.transport import KafkaTransport

NOBODY = Broker(name="nobody", kind="kafka", bootstrap_servers="127.0.0.1:1")


def context(broker: Broker = NOBODY, **scenario: Any) -> TransportContext:
    return TransportContext("run-1", Scenario.model_validate(scenario), broker, Credentials())


def test_a_scenarios_properties_reach_the_clients_and_override_the_defaults() -> None:
    given = context(
        kafka={
            "producer": {"linger.ms": 0.5, "queue.buffering.max.messages": 10},
            "consumer": {"enable.auto.commit": True},
        }
    )
    producer = producer_properties(given)
    assert producer["linger.ms"] == "0.5"
    assert producer["queue.buffering.max.messages"] == "10"
    assert producer["bootstrap.servers"] == "127.0.0.1:1"
    consumer = consumer_properties(given)
    assert consumer["enable.auto.commit"] == "true"
    assert consumer["group.id"] == "bench-run-1"


@pytest.mark.parametrize("asked", ["fast", "confluent"])
def test_a_data_plane_cannot_be_chosen_any_more(asked: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        load_scenario("steady", [f"kafka.plane={asked}"])
    said = str(raised.value)
    assert said.startswith(f"--set kafka.plane={asked}: kafka.plane: there is one data plane now")
    assert "librdkafka's own interface moves all messages" in said


def test_librdkafkas_own_defaults_are_left_alone() -> None:
    producer = producer_properties(context())
    assert producer.keys().isdisjoint({"acks", "linger.ms", "batch.size", "compression.type"})


@pytest.mark.parametrize(
    ("producer", "confirms"),
    [
        ({}, True),
        ({"acks": 1}, True),
        ({"acks": "all"}, True),
        ({"acks": -1}, True),
        ({"acks": 0}, False),
        ({"acks": "0"}, False),
        ({"request.required.acks": 0}, False),
        ({"delivery.report.only.error": True}, False),
    ],
)
def test_only_a_report_by_the_broker_is_a_confirmation(
    producer: dict[str, Any], confirms: bool
) -> None:
    given = context(kafka={"producer": producer})
    assert KafkaTransport(given).capabilities.confirms is confirms
    assert producer_properties(given).get("delivery.report.only.error", False) is not confirms


@pytest.mark.parametrize(
    ("tls", "username", "protocol"),
    [
        (None, None, None),
        (None, "anna", "SASL_PLAINTEXT"),
        (Tls(), None, "SSL"),
        (Tls(), "anna", "SASL_SSL"),
    ],
)
def test_login_and_tls_choose_the_security_protocol(
    tls: Tls | None, username: str | None, protocol: str | None
) -> None:
    broker = NOBODY.model_copy(update={"tls": tls, "sasl_mechanism": "SCRAM-SHA-512"})
    properties = admin_properties(broker, Credentials(username=username, password="opensesame"))
    assert properties.get("security.protocol") == protocol
    if username:
        assert properties["sasl.mechanism"] == "SCRAM-SHA-512"
        assert properties["sasl.password"] == "opensesame"


def test_tls_files_are_passed_on_and_insecure_accepts_any_certificate() -> None:
    files = Tls(ca_file="ca.pem", certificate_file="me.pem", key_file="me.key", insecure=True)
    properties = admin_properties(NOBODY.model_copy(update={"tls": files}), Credentials())
    assert properties["ssl.ca.location"] == "ca.pem"
    assert properties["ssl.certificate.location"] == "me.pem"
    assert properties["ssl.key.location"] == "me.key"
    assert properties["enable.ssl.certificate.verification"] == "false"


def test_bodies_beyond_the_default_limits_are_let_through_on_every_side() -> None:
    small, large = context(), context(message={"bytes": 80_000_000})
    assert "message.max.bytes" not in producer_properties(small)
    assert topic_properties(small.scenario) == {}
    assert int(producer_properties(large)["message.max.bytes"]) > 80_000_000
    assert int(topic_properties(large.scenario)["max.message.bytes"]) > 80_000_000
    assert int(consumer_properties(large)["receive.message.max.bytes"]) > 80_000_000


def test_headers_have_room_beside_the_largest_body() -> None:
    body_bytes, header_bytes = 990_000, 20_000
    kafka: dict[str, Any] = {"headers": {"h": "x" * header_bytes}}
    given = {"message": {"bytes": body_bytes}, "kafka": kafka}
    properties = producer_properties(context(**given))
    assert int(properties["message.max.bytes"]) > body_bytes + header_bytes
    assert int(topic_properties(context(**given).scenario)["max.message.bytes"]) > body_bytes
    kafka["producer"] = {"message.max.bytes": 100_000}
    limit = size_limit(context(**given).scenario)
    assert limit is not None
    assert 0 < limit[0] < 100_000 - header_bytes


@pytest.mark.parametrize(
    ("headers", "problem"),
    [
        ({"": "x"}, "printable text of 1 to 255 characters"),
        ({"a" * 256: "x"}, "printable text of 1 to 255 characters"),
        ({"a\0b": "x"}, "printable text of 1 to 255 characters"),
        ({"a": ["x"]}, "allowed: text, a number, true or false"),
        ({"a": "x" * 40_000, "b": "ü" * 20_000}, "at most 65536 bytes in all"),
        ({str(n): "x" for n in range(101)}, "at most 100"),
    ],
)
def test_headers_that_no_message_should_have_are_refused(
    headers: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ValidationError, match=problem):
        Scenario.model_validate({"kafka": {"headers": headers}})


def test_topics_are_named_after_the_run_unless_the_scenario_names_them() -> None:
    own = Scenario()
    assert topic_name(own, "run-1", 3) == "bench-run-1-3"
    assert topic_pattern(own, "run-1").fullmatch("bench-run-1-12")
    assert not topic_pattern(own, "run-1").fullmatch("bench-run-11-2")
    given = Scenario.model_validate({"kafka": {"topic": {"name": "orders.%d"}}})
    assert topic_name(given, "run-1", 3) == "orders.3"
    assert topic_pattern(given, "run-1").fullmatch("orders.3")
    assert not topic_pattern(given, "run-1").fullmatch("ordersx3")


@pytest.mark.parametrize(
    ("kafka", "message"),
    [
        ({"producer": {"linger.mss": 5}}, r"kafka.producer.linger.mss: .*did you mean linger.ms\?"),
        ({"consumer": {"sesion.timeout.ms": 1}}, r"did you mean session.timeout.ms\?"),
        ({"producer": {"zzz": 1}}, r"kafka.producer.zzz: no such property$"),
        ({"producer": {"batch.size": "big"}}, r"kafka.producer.batch.size: Invalid value"),
        ({"producer": {"fetch.min.bytes": 1}}, r"fetch.min.bytes: does nothing in a producer"),
        ({"consumer": {"linger.ms": 1}}, r"kafka.consumer.linger.ms: does nothing in a consumer"),
        ({"consumer": {"group.id": "mine"}}, r"kafka.consumer.group.id: every run has"),
        ({"producer": {"transactional.id": "t"}}, r"transactional.id: .*transaction_messages"),
        ({"producer": {"enable.idempotence": True, "acks": 1}}, r"kafka.producer: .*`acks` must"),
        (
            {"transaction_messages": 5, "producer": {"acks": 1}},
            r"kafka.transaction_messages: 5 does not go with kafka.producer: .*`acks` must",
        ),
        (
            {"transaction_messages": 5, "producer": {"enable.idempotence": False}},
            r"does not go with kafka.producer: .*enable.idempotence=true",
        ),
        ({"transaction_messages": 5, "producer": {"acks": "all"}}, None),
        ({"producer": {"enable.idempotence": True, "acks": "all"}}, None),
        ({"producer": {"delivery.report.only.error": 3}}, None),
    ],
)
def test_properties_that_librdkafka_would_refuse_or_ignore_are_refused_by_name(
    kafka: dict[str, Any], message: str | None
) -> None:
    scenario = Scenario.model_validate({"kafka": kafka})
    if message is None:
        check_properties(scenario, NOBODY)
    else:
        with pytest.raises(ConfigurationError, match=message):
            check_properties(scenario, NOBODY)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"load": {"mode": "window", "in_flight": 9}}, "10 is above load.in_flight, which is 9"),
        ({"load": {"mode": "window", "in_flight": 10}}, None),
        (
            {"load": {"mode": "maximum", "backlog_limit_bytes": 19_999}, "producers": 2},
            "10 with producers: 2 makes 20 messages of open transactions, more than the 19 that",
        ),
        ({"load": {"mode": "maximum", "backlog_limit_bytes": 20_000}, "producers": 2}, None),
        (
            {
                "load": {"mode": "maximum", "backlog_limit_bytes": 1, "messages": 5},
                "consumers": 0,
            },
            None,
        ),
        ({}, None),
    ],
)
def test_a_load_that_could_never_fill_a_transaction_is_refused(
    keys: dict[str, Any], message: str | None
) -> None:
    scenario = Scenario.model_validate(keys | {"kafka": {"transaction_messages": 10}})
    if message is None:
        check_properties(scenario, NOBODY)
    else:
        with pytest.raises(ConfigurationError, match=message):
            check_properties(scenario, NOBODY)


def test_transactions_are_confirmed_by_their_commit_and_read_when_committed() -> None:
    given = context(kafka={"transaction_messages": 10})
    assert KafkaTransport(given).capabilities.confirms
    assert producer_properties(given)["delivery.report.only.error"] is True
    assert consumer_properties(given)["isolation.level"] == "read_committed"
    other = {"transaction_messages": 10, "consumer": {"isolation.level": "read_uncommitted"}}
    assert consumer_properties(context(kafka=other))["isolation.level"] == "read_uncommitted"
    assert transactional_id(given, 3) == "bench-run-1-3-0"
    assert transactional_id(replace(given, attempt=1), 3) == "bench-run-1-3-1"


@pytest.mark.parametrize(
    ("broker", "message"),
    [
        ({"properties": {"soket.timeout.ms": 1}}, "did you mean socket.timeout.ms"),
        ({"properties": {"bootstrap.servers": "x:1"}}, "bootstrap_servers say where"),
        ({"properties": {"fetch.min.bytes": 1}}, None),
        ({"tls": {"server_name": "other"}}, "tls.server_name"),
        ({"username": "anna"}, "username: needs password_env"),
        ({"username": "anna", "password_env": "PASSWORD"}, None),
    ],
)
def test_a_broker_files_properties_are_checked_too(
    broker: dict[str, Any], message: str | None
) -> None:
    checked = Broker.model_validate(
        {"name": "b", "kind": "kafka", "bootstrap_servers": "127.0.0.1:1"} | broker
    )
    if message is None:
        check_properties(Scenario(), checked)
    else:
        with pytest.raises(ConfigurationError, match=message):
            check_properties(Scenario(), checked)


def test_a_secret_that_is_not_accepted_is_not_repeated() -> None:
    properties = {"security.protocol": "SSL", "ssl.key.pem": "opensesame"}
    broker = NOBODY.model_copy(update={"properties": properties})
    with pytest.raises(ConfigurationError) as raised:
        check_properties(Scenario(), broker)
    assert "ssl.key.pem" in str(raised.value)
    assert "opensesame" not in str(raised.value)


def test_every_suggested_name_is_one_that_librdkafka_knows() -> None:
    for name in sorted(PROPERTY_NAMES - {"plugin.library.paths"}):
        scenario = Scenario.model_construct(
            kafka=Scenario().kafka.model_copy(update={"producer": {name: "?"}})
        )
        try:
            check_properties(scenario, NOBODY)
        except ConfigurationError as refused:
            assert "no such property" not in str(refused), name  # noqa: PT017


def test_checking_and_making_a_transport_print_nothing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    KafkaTransport(context())
    check_properties(Scenario(), NOBODY)
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""
