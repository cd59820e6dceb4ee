"""MQTT 3.1.1 and 5: Mosquitto, RabbitMQ with its plugin and others, on `transports/sockets`.

packets.py         control packets as bytes (pure)
codec.py           compiled loops: messages and acknowledgements decoded, acknowledgements written
topics.py          topics, filters, client identifiers; what MQTT can never do (pure)
connection.py      the socket of a lane: login, keep-alive, DISCONNECT, and why it ended
producers.py       messages to publish, and what became of them
consumers.py       messages received, and their acknowledgements
transport.py       the Transport made of all these; the probe, and what killed runs have left
"""

from __future__ import annotations

from bench_spark.config.broker import Broker
from bench_spark.config.models import Scenario
from bench_spark.transports.base import Capabilities, Transport, TransportContext, TransportKind
from bench_spark.transports.batches import Part
from bench_spark.transports.leftovers import Sweeper


class _Mqtt(TransportKind):
    def make(self, context: TransportContext) -> Transport:
        from bench_spark.transports.mqtt.transport import MqttTransport

        return MqttTransport(context)

    def capabilities(self, scenario: Scenario) -> Capabilities:
        has_headers = scenario.mqtt.version == "5"
        return Capabilities(
            confirms=scenario.mqtt.qos > 0,
            parts=frozenset({Part.BODY, Part.HEADERS}) if has_headers else frozenset({Part.BODY}),
            topologies=True,
            pausable=True,
        )

    def check(self, scenario: Scenario, broker: Broker) -> None:
        from bench_spark.transports.mqtt import topics

        topics.refuse_impossible(scenario)

    def sweeper(self, context: TransportContext) -> Sweeper:
        from bench_spark.transports.mqtt.transport import MqttSweeper

        return MqttSweeper(context)


KIND = _Mqtt()
