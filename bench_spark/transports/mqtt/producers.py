"""Producers: messages are built once, stamped per batch, and written as they lie; what became of
them is known from the broker's acknowledgements."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence

import numpy as np

from bench_spark.config.protocols import Mqtt
from bench_spark.core.envelope import empty_envelopes, word_rows_of
from bench_spark.core.kernels import warm_up
from bench_spark.errors import BrokerRefused
from bench_spark.transports.batches import I64, U16, Batch, Headers
from bench_spark.transports.mqtt import codec
from bench_spark.transports.mqtt.connection import MqttConnection, PacketReader
from bench_spark.transports.mqtt.packets import (
    KIND_BITS,
    PUBLISH,
    BadPacket,
    publish_start,
    user_properties,
)
from bench_spark.transports.mqtt.topics import message_headers
from bench_spark.transports.sockets.buffers import OutcomeRows, ReadBuffer
from bench_spark.transports.sockets.lanes import Sender
from bench_spark.transports.sockets.messages import (
    NO_IDENTIFIERS,
    Template,
    TemplateBlock,
    Templates,
    bodies_of,
    is_alike,
    runs_by_route,
    shared_and_own_payloads,
)
from bench_spark.transports.sockets.opening import OpenLane

MOST_STARTS = 4096
"""Beginnings of messages that are kept, by the size of the payload."""
_NO_TOPICS: I64 = np.zeros((0, 0), np.int64)


class PublishPackets:
    """Messages for one topic."""

    def __init__(
        self, version: str, topic: str, qos: int, retain: bool, headers: Headers | None = None
    ) -> None:
        """`headers`: those that all have; one of a message's own of that name wins."""
        self._version = version
        self._topic = topic
        self._qos = qos
        self._retain = retain
        self._headers = headers or {}
        self._properties = user_properties(self._headers)
        self._starts: dict[int, tuple[bytes, int]] = {}

    def start(self, payload_bytes: int, properties: bytes | None = None) -> tuple[bytes, int]:
        """All before the payload, and where in it the packet identifier is."""
        own = self._properties if properties is None else properties
        return publish_start(
            self._version, self._topic, self._qos, self._retain, payload_bytes, own
        )

    def message(self, payload: bytes, identifier: int = 0) -> bytes:
        return b"".join(self.pieces(payload, identifier))

    def pieces(
        self, payload: bytes, identifier: int = 0, headers: Headers | None = None
    ) -> tuple[bytes, bytes]:
        """A message, to be joined with others."""
        if headers:
            own = user_properties({**self._headers, **headers})
            start, identifier_at = self.start(len(payload), own)
        else:
            start, identifier_at = self._start_of(len(payload))
        if self._qos:
            number = identifier.to_bytes(2)
            start = start[:identifier_at] + number + start[identifier_at + 2 :]
        return start, payload

    def _start_of(self, payload_bytes: int) -> tuple[bytes, int]:
        found = self._starts.get(payload_bytes)
        if found is None:
            if len(self._starts) >= MOST_STARTS:
                self._starts.clear()
            found = self._starts[payload_bytes] = self.start(payload_bytes)
        return found


def _template(packets: PublishPackets, payload: bytes, envelope_bytes: int) -> Template:
    start, identifier_at = packets.start(envelope_bytes + len(payload))
    message = start + bytes(envelope_bytes) + payload
    return Template(message, len(start), envelope_bytes, identifier_at=identifier_at)


class PacketWriter:
    """Messages as bytes; lanes that publish to the same topic share templates."""

    def __init__(self) -> None:
        self._templates = Templates(_template)
        self._block = TemplateBlock()

    def data(
        self, packets: Sequence[PublishPackets], batch: Batch, identifiers: U16
    ) -> bytes | memoryview:
        """The bytes of these messages; `packets` by route. Good until the next call."""
        if not is_alike(batch):
            return _one_by_one(packets, batch, identifiers)
        if len(packets) == 1:
            return self._alike(packets[0], batch, identifiers)
        return b"".join(
            self._alike(packets[route], batch.part(first, end), identifiers[first:end]).tobytes()
            for route, first, end in runs_by_route(batch)
        )

    def _alike(self, packets: PublishPackets, batch: Batch, identifiers: U16) -> memoryview:
        payload, payloads = shared_and_own_payloads(batch.payload)
        template = self._templates.of(packets, payload, batch.envelope_bytes)
        return self._block.messages(template, batch.envelope_words, payloads, identifiers)


def _one_by_one(packets: Sequence[PublishPackets], batch: Batch, identifiers: U16) -> bytes:
    """Messages that differ in more than their envelopes."""
    numbers = identifiers.tolist() if len(identifiers) else itertools.repeat(0)
    headers = itertools.repeat(None) if batch.headers is None else batch.headers
    # Two columns may have no end, so the shortest one decides.
    return b"".join(
        itertools.chain.from_iterable(
            packets[route].pieces(body, number, own)
            for body, route, number, own in zip(
                bodies_of(batch), batch.route.tolist(), numbers, headers, strict=False
            )
        )
    )


class InFlight(PacketReader):
    """Messages of one lane that are not acknowledged, by packet identifier; reads their
    acknowledgements.

    Identifiers run from 1 to the number of messages that may be in flight. One that is free again
    goes to the end of the line, and comes up when all others before it have been used.
    """

    def __init__(self, lane: int, limit: int, outcomes: OutcomeRows) -> None:
        """`limit`: most messages in flight; 0 without acknowledgements."""
        self._limit = limit
        self._outcomes = outcomes
        state: I64 = np.zeros(codec.WINDOW + (limit + 1) * codec.SLOT_WORDS, np.int64)
        state[codec.LANE], state[codec.LIMIT] = lane, limit
        slots = state[codec.WINDOW :].reshape(-1, codec.SLOT_WORDS)
        slots[:limit, codec.FREE] = np.arange(1, limit + 1)
        super().__init__(state, _NO_TOPICS, outcomes)
        self._identifiers: U16 = np.zeros(limit, np.uint16)
        self._is_full = False
        self._enough = max(1, limit // 4)

    def __len__(self) -> int:
        open_messages: int = self._numbers[codec.OPEN]
        return open_messages

    @property
    def room(self) -> int:
        """How many more may be sent now. Once the limit was reached, none until a quarter of it is
        free: a message for every acknowledgement would cost both sides as much as many at a
        time."""
        if not self._limit:
            return sys.maxsize
        room: int = self._limit - self._numbers[codec.OPEN]
        return 0 if self._is_full and room < self._enough else room

    def sent(self, envelopes: I64) -> U16:
        """The identifiers to send these messages with, whose envelopes are given as words; none
        where there are no acknowledgements. Good until the next call."""
        if not self._limit:
            return NO_IDENTIFIERS
        count = len(envelopes)
        free = self._limit - self._numbers[codec.OPEN]
        if count > free:
            raise ValueError(f"{count} messages, and {free} identifiers")
        codec.take_identifiers(envelopes, self._state, self._identifiers)
        self._is_full = count == free
        return self._identifiers[:count]

    def abandon(self, at_ns: int) -> None:
        """The lane is gone: what became of the messages in flight will never be known."""
        outcomes = self._outcomes
        outcomes.make_room(len(self))
        outcomes.count = codec.abandon_all(at_ns, self._state, outcomes.words, outcomes.count)

    def _pass_on(self, raw: bytearray, at: int, end: int) -> int:
        if raw[at] & KIND_BITS == PUBLISH:
            raise BadPacket("a message to somebody who has not subscribed to any")
        return super()._pass_on(raw, at, end)


class MqttSender(Sender[MqttConnection]):
    decoded: OutcomeRows
    request = "CONNECT"

    def __init__(self, mqtt: Mqtt, message_bytes: int) -> None:
        """`message_bytes`: of the largest body."""
        self.decoded = OutcomeRows()
        self._mqtt = mqtt
        self._message_bytes = message_bytes
        self._writer = PacketWriter()
        self._topics: dict[str, PublishPackets] = {}
        self._packets: dict[int, list[PublishPackets]] = {}
        """By lane, then by route."""
        self._in_flight: dict[int, InFlight] = {}
        """By lane: of its present connection."""

    def equip(self, lane: OpenLane[MqttConnection]) -> None:
        connection, mqtt = lane.connection, self._mqtt
        self._packets[lane.number] = [
            self._packets_for(one.name or "") for one in lane.lane.destinations
        ]
        limit = min(mqtt.in_flight, connection.limits.in_flight) if mqtt.qos else 0
        in_flight = self._in_flight[lane.number] = InFlight(lane.number, limit, self.decoded)
        in_flight.on_answers = connection.send
        connection.begin(in_flight)

    def _packets_for(self, topic: str) -> PublishPackets:
        if topic not in self._topics:
            mqtt = self._mqtt
            self._topics[topic] = PublishPackets(
                mqtt.version, topic, mqtt.qos, mqtt.retain, message_headers(mqtt)
            )
        return self._topics[topic]

    def begin(self, lane: OpenLane[MqttConnection]) -> None:
        limit = lane.connection.limits.packet_bytes
        if limit is None or lane.generation:
            return
        size = self._message_bytes
        for packets in self._packets[lane.number]:
            needed = len(packets.start(size)[0]) + size
            if needed > limit:
                raise BrokerRefused(
                    f"{self.lanes.protocol.access.address}: message.bytes: {size} makes packets of "
                    f"{needed} bytes, and the broker takes at most {limit}"
                )

    def abandon(self, lane: OpenLane[MqttConnection]) -> None:
        self._in_flight[lane.number].abandon(self.lanes.now_ns())

    def room(self, lane: OpenLane[MqttConnection]) -> int:
        return 0 if lane.is_lost else self._in_flight[lane.number].room

    def write(self, lane: OpenLane[MqttConnection], batch: Batch) -> None:
        number = lane.number
        # Noted before it is written: a write that fails abandons what was noted.
        identifiers = self._in_flight[number].sent(batch.envelope_words)
        lane.connection.send(self._writer.data(self._packets[number], batch, identifiers))

    def in_flight(self) -> int:
        return sum(map(len, self._in_flight.values()))


@warm_up
def _compile() -> None:
    in_flight = InFlight(0, 1, OutcomeRows())
    in_flight.sent(word_rows_of(empty_envelopes(1)))
    in_flight.parse(ReadBuffer(1), 0, 0)
    in_flight.abandon(0)
