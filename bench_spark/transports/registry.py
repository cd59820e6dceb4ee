"""Which transport serves which kind of broker.

Transports are imported only when asked for, so that a run on one broker never loads the client
library of another. Others add theirs by an entry point of the group `bench_spark.transports` that
gives a function from TransportContext to Transport; broker files of kind `other` name it.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points

from bench_spark.errors import ConfigurationError
from bench_spark.scenario.broker import Broker
from bench_spark.scenario.models import Scenario
from bench_spark.transports.base import Transport, TransportContext

ENTRY_POINTS = "bench_spark.transports"

TransportFactory = Callable[[TransportContext], Transport]


def make_transport(context: TransportContext) -> Transport:
    """The transport for this broker. Connects to nothing yet."""
    return _factory(context.broker)(context)


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
    elif broker.kind == "mqtt":
        from bench_spark.transports.mqtt import naming as mqtt_naming

        mqtt_naming.refuse_impossible(scenario)
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
