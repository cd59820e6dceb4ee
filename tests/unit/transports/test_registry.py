"""Which transport serves which broker, and what is loaded for it."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from typing import Any, cast

import pytest

from bench_spark.config.broker import Broker, Credentials
from bench_spark.config.models import Scenario
from bench_spark.errors import ConfigurationError
from bench_spark.transports import registry
from bench_spark.transports.base import (
    Capabilities,
    Transport,
    TransportContext,
    TransportKind,
)

OTHER = Broker(name="mine", kind="other", transport="stomp", uri="stomp://127.0.0.1")
BROKERS = {
    "AmqpTransport": Broker(kind="amqp", uri="amqp://127.0.0.1"),
    "KafkaTransport": Broker(kind="kafka", bootstrap_servers="127.0.0.1:9092"),
    "MqttTransport": Broker(kind="mqtt", uri="mqtt://127.0.0.1"),
    "LoopbackTransport": Broker(kind="loopback"),
}


def context(broker: Broker) -> TransportContext:
    return TransportContext("run", Scenario(), broker, Credentials())


@pytest.mark.parametrize("expected", BROKERS)
def test_each_kind_has_its_transport(expected: str) -> None:
    assert type(registry.make_transport(context(BROKERS[expected]))).__name__ == expected


@pytest.mark.parametrize("name", BROKERS)
def test_an_ordinary_scenario_is_possible_everywhere(name: str) -> None:
    registry.refuse_impossible(Scenario(), BROKERS[name])


def test_a_transport_that_is_not_installed_is_named() -> None:
    with pytest.raises(ConfigurationError, match="broker mine: transport: stomp is not installed"):
        registry.refuse_impossible(Scenario(), OTHER)
    with pytest.raises(ConfigurationError, match="not installed"):
        registry.make_transport(context(OTHER))


def test_what_a_protocol_can_never_do_is_refused() -> None:
    scenario = Scenario.model_validate({"amqp": {"queue": {"arguments": {"x-rate": 0.5}}}})
    with pytest.raises(ConfigurationError, match="x-rate"):
        registry.refuse_impossible(scenario, BROKERS["AmqpTransport"])
    registry.refuse_impossible(scenario, BROKERS["KafkaTransport"])


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("AmqpTransport", "amqp.queue.name"),
        ("KafkaTransport", "kafka.topic.name"),
        ("MqttTransport", "mqtt.topic"),
        ("LoopbackTransport", "producers: 0"),
    ],
)
def test_only_consuming_needs_something_that_is_there_already(name: str, key: str) -> None:
    with pytest.raises(ConfigurationError, match=key):
        registry.refuse_impossible(Scenario(producers=0), BROKERS[name])
    registry.refuse_impossible(Scenario(consumers=0), BROKERS[name])


class ThirdParty:
    def __init__(self, context: TransportContext) -> None:
        self.context = context


def test_others_add_a_transport_by_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    offered = metadata.EntryPoint("stomp", f"{__name__}:ThirdParty", registry.ENTRY_POINTS)

    def installed(**wanted: Any) -> list[metadata.EntryPoint]:
        return [offered] if offered.matches(**wanted) else []

    monkeypatch.setattr(registry, "entry_points", installed)
    registry.refuse_impossible(Scenario(), OTHER)
    made: Any = registry.make_transport(context(OTHER))
    assert isinstance(made, ThirdParty)
    assert made.context.run_id == "run"
    assert made.capabilities == Capabilities(), "it says nothing of itself"


class ThirdKind(TransportKind):
    def make(self, context: TransportContext) -> Transport:
        made: Any = ThirdParty(context)
        return cast(Transport, made)

    def check(self, scenario: Scenario, broker: Broker) -> None:
        if scenario.producers > 3:
            raise ConfigurationError("producers: three at most")


THIRD_KIND = ThirdKind()


def test_or_by_one_that_says_more_of_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    offered = metadata.EntryPoint("stomp", f"{__name__}:THIRD_KIND", registry.ENTRY_POINTS)
    monkeypatch.setattr(registry, "entry_points", lambda **wanted: [offered])
    assert isinstance(registry.make_transport(context(OTHER)), ThirdParty)
    with pytest.raises(ConfigurationError, match="three at most"):
        registry.refuse_impossible(Scenario(producers=4), OTHER)


@pytest.mark.parametrize(
    ("keys", "refusal"),
    [
        ({"topology": "fan-out"}, "topology: kind other cannot do fan-out"),
        (
            {"consumer": {"processing_us": 5}},
            "consumer: consumers of kind other cannot be slowed down",
        ),
    ],
)
def test_what_a_transport_does_not_say_it_can_do_is_refused(
    monkeypatch: pytest.MonkeyPatch, keys: dict[str, Any], refusal: str
) -> None:
    offered = metadata.EntryPoint("stomp", f"{__name__}:ThirdParty", registry.ENTRY_POINTS)
    monkeypatch.setattr(registry, "entry_points", lambda **wanted: [offered])
    with pytest.raises(ConfigurationError, match=refusal):
        registry.refuse_impossible(Scenario.model_validate(keys), OTHER)


def test_no_client_library_is_loaded_before_it_is_needed() -> None:
    program = (
        "import sys; import bench_spark.transports.registry;"
        "print({'pika', 'confluent_kafka'} & set(sys.modules))"
    )
    printed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert printed.stdout.strip() == "set()"


@pytest.mark.parametrize(
    ("broker", "keys", "connections", "files"),
    [
        ({"kind": "amqp", "uri": "amqp://h/"}, {}, 1010, 1),
        ({"kind": "kafka", "bootstrap_servers": "h"}, {}, 14, 10),
        (
            {"kind": "kafka", "bootstrap_servers": "h"},
            {"kafka": {"transaction_messages": 5}},
            1010,
            10,
        ),
        ({"kind": "loopback"}, {}, 0, 1),
    ],
)
def test_lanes_are_so_many_connections_with_so_many_files(
    broker: dict[str, Any], keys: dict[str, Any], connections: int, files: int
) -> None:
    where = Broker.model_validate(broker)
    kind = registry.kind_of(where)
    assert kind.connections(Scenario.model_validate(keys), 1000, 10) == connections
    assert kind.files_per_connection == files
