"""Which transport serves which kind of broker.

Transports are imported only when asked for, so that a run on one broker never loads the client
library of another. Others add theirs by an entry point of the group `bench_spark.transports` that
gives a function from TransportContext to Transport; broker files of kind `other` name it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from importlib.metadata import entry_points
from typing import Any, NamedTuple

from bench_spark.config.broker import Broker
from bench_spark.config.delivery import with_delivery
from bench_spark.config.ends import Ends, scenario_at
from bench_spark.config.models import Scenario
from bench_spark.config.sections import LARGEST_BODY_BYTES, PROTOCOLS
from bench_spark.errors import ConfigurationError
from bench_spark.transports.base import Part, Transport, TransportContext, Wired

ENTRY_POINTS = "bench_spark.transports"

_PARTS = {
    "amqp": frozenset({Part.BODY, Part.HEADERS}),
    "kafka": frozenset(Part),
    "http": frozenset({Part.BODY, Part.HEADERS}),
    "tcp": frozenset({Part.BODY}),
    "loopback": frozenset(Part),
}

TransportFactory = Callable[[TransportContext], Transport]


def make_transport(context: TransportContext) -> Transport:
    """The transport for this broker. Connects to nothing yet."""
    transport = _factory(context.broker)(context)
    if not context.scenario.wiring.is_plain and not isinstance(transport, Wired):
        raise ConfigurationError(
            f"topology: kind {context.broker.kind} cannot do {context.scenario.topology}"
        )
    return transport


def fitted(scenario: Scenario, broker: Broker) -> Scenario:
    """The scenario as it runs on this broker: with the protocol's keys that `delivery` stands for.
    Raises ConfigurationError for what the protocol can never do, from the files alone."""
    scenario = with_delivery(scenario, broker.kind)
    refuse_impossible(scenario, broker)
    return scenario


def fitted_to(scenario: Scenario, ends: Ends) -> Scenario:
    """The scenario as it runs on these brokers, each end checked as `fitted` does."""
    if not ends.are_apart:
        return fitted(scenario, ends.ingress[0].broker)
    confirms: dict[str, bool] = {}
    own: dict[str, list[Any]] = {"ingress": [*scenario.ingress], "egress": [*scenario.egress]}
    for end in ends.every:
        kind = end.broker.kind
        try:
            part = fitted(scenario_at(scenario, end), end.broker)
        except ConfigurationError as error:
            raise ConfigurationError(f"{end.label}: {error}") from None
        if scenario.delivery is not None and kind in PROTOCOLS:
            section = own[end.role][end.place]
            own[end.role][end.place] = section.model_copy(update={kind: getattr(part, kind)})
        if end.role == "ingress":
            context = TransportContext("check", part, end.broker, end.credentials)
            with closing(make_transport(context)) as transport:
                confirms[end.label] = transport.confirms
    if len(set(confirms.values())) > 1:
        silent = next(label for label, has_answer in confirms.items() if not has_answer)
        raise ConfigurationError(
            f"ingress: {silent} confirms no message, but others do; let all of them confirm "
            "(amqp.confirms, kafka.producer.acks, mqtt.qos; or delivery: at_least_once), or none"
        )
    return scenario.model_copy(update=own)


def parts_of(broker: Broker, scenario: Scenario) -> frozenset[Part]:
    """What messages have in this protocol, besides being messages: what may be sent along with a
    body, and what is handed over where it is asked for. Somebody else's transport says so by an
    attribute `parts`; without it, bodies are all it has."""
    if broker.kind == "mqtt":
        has_headers = scenario.mqtt.version == "5"
        return frozenset({Part.BODY, Part.HEADERS}) if has_headers else frozenset({Part.BODY})
    if broker.kind == "other":
        return frozenset(getattr(_factory(broker), "parts", {Part.BODY}))
    return _PARTS[broker.kind]


class SizeLimit(NamedTuple):
    """The largest body that can be sent, and what says so; and bytes that none may contain."""

    most_bytes: int
    reason: str
    forbidden: bytes = b""


def size_limit(scenario: Scenario, broker: Broker) -> SizeLimit:
    """As far as it is known without asking the broker."""
    if broker.kind == "kafka":
        from bench_spark.transports import kafka

        limit = kafka.size_limit(scenario)
        if limit is not None:
            return SizeLimit(*limit)
    if broker.kind == "tcp":
        from bench_spark.transports.tcp import framing

        most_bytes = framing.size_limit(scenario.tcp)
        if most_bytes is not None and most_bytes < LARGEST_BODY_BYTES:
            return SizeLimit(most_bytes, f"tcp.length_bytes: {scenario.tcp.length_bytes}")
        forbidden = framing.LINE_END if scenario.tcp.framing == "line" else b""
        return SizeLimit(LARGEST_BODY_BYTES, "bench-spark", forbidden)
    return SizeLimit(LARGEST_BODY_BYTES, "bench-spark")


def connections_of(scenario: Scenario, broker: Broker, producers: int, consumers: int) -> int:
    """How many connections so many lanes of one agent have."""
    if broker.kind == "loopback":
        return 0
    if broker.kind == "kafka":
        from bench_spark.transports import kafka

        return kafka.clients_of(scenario, producers, consumers)
    return producers + consumers


def files_of_connection(broker: Broker) -> int:
    """How many files each of them keeps open, at most."""
    if broker.kind == "kafka":
        from bench_spark.transports import kafka

        return kafka.FILES_OF_CLIENT
    return 1


def refuse_impossible(scenario: Scenario, broker: Broker) -> None:
    """Raise ConfigurationError for what this protocol can never do, from the files alone."""
    if broker.kind == "amqp":
        from bench_spark.transports.amqp import naming, policies

        naming.refuse_impossible(scenario)
        policies.refuse_impossible(scenario, broker)
    elif broker.kind == "loopback":
        from bench_spark.transports import loopback

        loopback.refuse_impossible(scenario)
    elif broker.kind == "kafka":
        from bench_spark.transports import kafka

        kafka.check_properties(scenario, broker)
    elif broker.kind == "http":
        from bench_spark.transports.http import transport as http

        http.refuse_impossible(scenario, broker)
    elif broker.kind == "tcp":
        from bench_spark.transports.tcp import transport as tcp

        tcp.refuse_impossible(scenario, broker)
    elif broker.kind == "mqtt":
        from bench_spark.transports.mqtt import topics

        topics.refuse_impossible(scenario)
    else:
        _factory(broker)


def _factory(broker: Broker) -> TransportFactory:
    if broker.kind == "amqp":
        from bench_spark.transports.amqp.transport import AmqpTransport

        return AmqpTransport
    if broker.kind == "kafka":
        from bench_spark.transports.kafka import KafkaTransport

        return KafkaTransport
    if broker.kind == "mqtt":
        from bench_spark.transports.mqtt.transport import MqttTransport

        return MqttTransport
    if broker.kind == "http":
        from bench_spark.transports.http.transport import HttpTransport

        return HttpTransport
    if broker.kind == "tcp":
        from bench_spark.transports.tcp.transport import TcpTransport

        return TcpTransport
    if broker.kind == "loopback":
        from bench_spark.transports.loopback import LoopbackTransport

        return LoopbackTransport
    for entry_point in entry_points(group=ENTRY_POINTS, name=broker.transport or ""):
        factory: TransportFactory = entry_point.load()
        return factory
    installed = sorted(one.name for one in entry_points(group=ENTRY_POINTS))
    raise ConfigurationError(
        f"broker {broker.name}: transport: {broker.transport} is not installed; installed: "
        f"{', '.join(installed) or 'none'}"
    )
