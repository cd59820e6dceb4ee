"""What messages have in common that differ in packet identifier and payload only. Pure."""

from __future__ import annotations

from bench_spark.core.envelope import ENVELOPE_BYTES, Envelopes, empty_envelopes, envelope_bytes
from bench_spark.transports.base import U8, Headers
from bench_spark.transports.mqtt.packets import length_bytes
from bench_spark.transports.mqtt.parsing import Message, qos_of
from bench_spark.transports.sockets.arrivals import NO_HEADERS
from bench_spark.transports.sockets.runs import Constant, RowShape

Likeness = tuple[int, bytes, bytes, int]
"""A message's first byte, topic, properties and size."""


def likeness_of(message: Message) -> Likeness:
    return message.first_byte, message.topic, message.properties, message.size


class Alike:
    """What messages have in common, and where in their packets they differ."""

    def __init__(self, likeness: Likeness, route: int, headers: Headers = NO_HEADERS) -> None:
        first_byte, topic, properties, self.payload_bytes = likeness
        self.route = route
        self.headers = headers
        self.qos = qos_of(first_byte)
        name = len(topic).to_bytes(2) + topic
        identifier_bytes = 2 if self.qos else 0
        length = len(name) + identifier_bytes + len(properties) + self.payload_bytes
        self.start = start = bytes([first_byte]) + length_bytes(length) + name
        self.identifier_at = len(start)
        properties_at = self.identifier_at + identifier_bytes
        self.payload_at = properties_at + len(properties)
        constants: list[Constant] = [(0, start)]
        if properties:
            constants.append((properties_at, properties))
        self.shape = RowShape(self.payload_at + self.payload_bytes, constants)

    def heads(self, rows: U8) -> Envelopes:
        heads = empty_envelopes(len(rows))
        columns = rows[:, self.payload_at : self.payload_at + ENVELOPE_BYTES]
        envelope_bytes(heads)[:, : columns.shape[1]] = columns
        return heads
