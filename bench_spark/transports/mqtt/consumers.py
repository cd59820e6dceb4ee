"""Consumers: messages are decoded into rows, acknowledgements written for many at once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np

from bench_spark.config.protocols import Mqtt
from bench_spark.core.kernels import warm_up
from bench_spark.errors import BenchError
from bench_spark.transports.base import Signal, SignalKind
from bench_spark.transports.batches import ENVELOPE_ONLY, I64, U8, Headers, Received
from bench_spark.transports.mqtt import codec, packets
from bench_spark.transports.mqtt.connection import (
    MqttConnection,
    MqttProtocol,
    PacketReader,
    SubscriptionRefused,
)
from bench_spark.transports.mqtt.packets import BadPacket
from bench_spark.transports.mqtt.topics import matches
from bench_spark.transports.sockets.buffers import NO_HEADERS, Arrivals, ReadBuffer, generation_mark
from bench_spark.transports.sockets.lanes import Receiver
from bench_spark.transports.sockets.loop import Loop
from bench_spark.transports.sockets.opening import OpenLane, close_gracefully, open_connections

DETACH_SECONDS = 5.0
"""How long to wait, at the end, for the next thing that the broker has for a lane."""
HIGHEST_QOS = 2

_SUBSCRIBE_ID, _UNSUBSCRIBE_ID = 1, 2
_MOST_ACKS = 4096
"""Written at once."""
_MOST_TOPICS = 10_000
"""A filter with wildcards may bring any number of topics."""
_FIRST_PLACES, _MOST_PLACES = 4, 4096


class Routes:
    """From a message's topic to its place among the filters; of several that match the first."""

    def __init__(self, filters: Sequence[str]) -> None:
        self._filters = [_without_group(one) for one in filters]
        self._known: dict[bytes, int | None] = {}
        self.table: I64 = _empty_table(_FIRST_PLACES)
        """For the decoder: the topics that were asked for last, each at the place of its hash."""

    def of(self, topic: bytes) -> int | None:
        if topic not in self._known:
            if len(self._known) >= _MOST_TOPICS:
                self._known.clear()
            self._known[topic] = self._match(topic.decode("utf-8", "replace"))
        route = self._known[topic]
        if route is not None and len(topic) <= codec.TOPIC_BYTES:
            self._remember(topic, route)
        return route

    def _match(self, name: str) -> int | None:
        places = (place for place, one in enumerate(self._filters) if matches(one, name))
        return next(places, None)

    def _remember(self, topic: bytes, route: int) -> None:
        if _put(self.table, topic, route) and len(self.table) < _MOST_PLACES:
            self.table = _empty_table(2 * len(self.table))
            for known, its_route in self._known.items():
                if its_route is not None and len(known) <= codec.TOPIC_BYTES:
                    _put(self.table, known, its_route)


def _empty_table(places: int) -> I64:
    table: I64 = np.zeros((places, codec.TOPIC_WORDS), np.int64)
    table[:, codec.TOPIC_ROUTE] = -1
    return table


def _put(table: I64, topic: bytes, route: int) -> bool:
    """Whether another topic had its place."""
    name = np.frombuffer(bytearray(topic), np.uint8)
    place = codec.topic_place(name, 0, len(name), len(table))
    was_taken = bool(table[place, codec.TOPIC_ROUTE] >= 0)
    table[place, : codec.TOPIC_NAME] = route, len(name)
    table[place, codec.TOPIC_NAME :].view(np.uint8)[: len(name)] = name
    return was_taken


def _without_group(topic_filter: str) -> str:
    return topic_filter.split("/", 2)[2] if topic_filter.startswith("$share/") else topic_filter


class PublishReader(PacketReader):
    """Reads messages of one lane into rows.

    At QoS 2 a message that comes again before its identifier was released is one that was received
    already: it is acknowledged again and not given on.
    """

    def __init__(
        self, version: str, lane: int, routes: Routes, arrivals: Arrivals, generation: int = 0
    ) -> None:
        self._routes = routes
        self._arrivals = arrivals
        self._body: list[bytes] = []
        self._properties = b""
        """Of the message whose payload comes."""
        wants_pieces = arrivals.wants_bodies or arrivals.wants_headers
        piece_words = codec.MOST_PIECES * codec.PIECE_WORDS if wants_pieces else 0
        state: I64 = np.zeros(codec.PIECES + piece_words, np.int64)
        state[codec.LANE] = lane
        state[codec.TAG_MARK] = generation_mark(generation)
        state[codec.MOST_BYTES] = arrivals.most_bytes
        state[codec.NEXT_ROUTE] = -1
        state[codec.HAS_PROPERTIES] = version == "5"
        state[codec.IS_CONSUMER] = True
        self._pieces: I64 = state[codec.PIECES :].reshape(-1, codec.PIECE_WORDS)
        super().__init__(state, routes.table, arrivals)
        self.on_repeats: Callable[[int], None] = lambda count: None
        """Called with the number of messages that were received before and are not given on."""

    def take_over(self, before: PublishReader) -> None:
        """The broker has kept the session of an earlier connection."""
        unreleased = slice(codec.UNRELEASED, codec.PIECES)
        self._state[unreleased] = before._state[unreleased]

    def _answer(self, answered: int) -> None:
        super()._answer(answered)
        if repeats := self._numbers[codec.REPEATS]:
            self._numbers[codec.REPEATS] = 0
            self.on_repeats(repeats)

    def _find_topic(self, raw: bytearray) -> bool:
        topic = bytes(raw[self._numbers[codec.TOPIC_AT] : self._numbers[codec.TOPIC_END]])
        route = self._routes.of(topic)
        self._topics = self._routes.table  # which may have grown
        self._numbers[codec.NEXT_ROUTE] = -1 if route is None else route
        return route is not None

    def _collect(self, raw: bytearray, found: int, before: int) -> None:
        arrivals, complete = self._arrivals, before
        for start, stop, properties_at, ends in self._pieces[:found].tolist():
            if properties_at >= 0:
                self._properties = bytes(raw[properties_at:start])
            if arrivals.wants_bodies:
                self._body.append(bytes(raw[start:stop]))
            if ends == codec.GOES_ON:
                continue
            if ends == codec.ENDS_MESSAGE:
                if arrivals.wants_headers:
                    arrivals.headers.append(self._headers(complete))
                if arrivals.wants_bodies:
                    body = self._body
                    arrivals.bodies.append(body[0] if len(body) == 1 else b"".join(body))
                complete += 1
            self._body.clear()

    def _headers(self, complete: int) -> Headers:
        """Of a message behind so many that are complete."""
        if not self._properties:
            return NO_HEADERS
        try:
            return packets.read_user_properties(self._properties) or NO_HEADERS
        except BadPacket:
            self._arrivals.count = complete  # no rows of messages that are none
            raise


class MqttReceiver(Receiver[MqttConnection]):
    request = "SUBSCRIBE"

    def __init__(
        self,
        mqtt: Mqtt,
        subscription_of: Callable[[int], str],
        arrivals: Arrivals,
        *,
        empties_queue: bool = True,
        forgetting: MqttProtocol | None = None,
    ) -> None:
        """`subscription_of` a destination's number. `empties_queue`: whether what the broker still
        has for a lane is fetched when it detaches. `forgetting`: the same clients without sessions,
        by which those that the broker keeps are ended."""
        self.decoded = arrivals
        self.acknowledges = mqtt.qos > 0
        self._mqtt = mqtt
        self._subscription_of = subscription_of
        self._empties_queue = empties_queue and mqtt.qos > 0
        self._forgetting = forgetting
        self._routes: dict[tuple[str, ...], Routes] = {}
        """By filters: lanes that subscribe to the same share what they learn."""
        self._readers: dict[int, PublishReader] = {}
        """By lane: of its present or last connection."""
        self._acks: U8 = np.zeros(_MOST_ACKS * codec.ACK_BYTES, np.uint8)

    def _filters(self, lane: OpenLane[MqttConnection]) -> tuple[str, ...]:
        """By route, with the group."""
        return tuple(self._subscription_of(one.index) for one in lane.lane.destinations)

    def equip(self, lane: OpenLane[MqttConnection]) -> None:
        connection, number = lane.connection, lane.number
        connection.ends_session = True
        connection.on_packet = functools.partial(self._on_packet, lane)
        filters = self._filters(lane)
        routes = self._routes.setdefault(filters, Routes(filters))
        reader = PublishReader(self._mqtt.version, number, routes, self.decoded, lane.generation)
        reader.on_answers = connection.send
        reader.on_repeats = functools.partial(self._note_repeats, lane)
        if number in self._readers and connection.has_session:
            reader.take_over(self._readers[number])
        self._readers[number] = reader
        connection.begin(reader)

    def _note_repeats(self, lane: OpenLane[MqttConnection], count: int) -> None:
        at_ns = lane.connection.read_ns
        self.lanes.signals.append(
            Signal(SignalKind.REPEATS_DROPPED, at_ns, lane.number, count=count)
        )

    def begin(self, lane: OpenLane[MqttConnection]) -> None:
        lane.unanswered += 1
        mqtt, filters = self._mqtt, self._filters(lane)
        lane.connection.send(packets.subscribe(mqtt.version, _SUBSCRIBE_ID, filters, mqtt.qos))

    def _on_packet(self, lane: OpenLane[MqttConnection], kind: int, body: bytes) -> None:
        identifier, codes = packets.read_suback(self._mqtt.version, body)
        filters = self._filters(lane)
        if kind == packets.UNSUBACK:
            self.lanes.answered(lane)
        elif identifier == _SUBSCRIBE_ID and len(codes) == len(filters):
            refused = self._refused(filters, codes)
            if refused is None:
                self.lanes.answered(lane)
            else:
                self.lanes.lose(lane, refused)
        else:
            raise packets.BadPacket("a SUBACK for something that was not asked")

    def _refused(self, filters: Sequence[str], codes: bytes) -> SubscriptionRefused | None:
        for wanted, code in zip(filters, codes, strict=True):
            if code >= packets.FAILED:
                return SubscriptionRefused(wanted, code, f"refused: {packets.reason(code)}")
            if code > HIGHEST_QOS:
                why = f"the broker answers with code {code}, which is neither a QoS nor a refusal"
                return SubscriptionRefused(wanted, code, why)
            if code < self._mqtt.qos:
                granted = f"the broker grants QoS {code}, and mqtt.qos is {self._mqtt.qos}"
                return SubscriptionRefused(wanted, code, granted)
        return None

    def acknowledge(self, received: Received) -> int:
        rows, acknowledged, at = received.rows, 0, 0
        while at < len(rows):
            # A read brings messages of one lane, so those of a lane are mostly side by side.
            at, number, written = codec.encode_acks(rows, at, self.lanes.generations, self._acks)
            lane = self.lanes.open[number]
            if written and not lane.is_lost:
                lane.connection.send(self._acks[:written].data)
                acknowledged += written // codec.ACK_BYTES
        return acknowledged

    # -- the end of deliveries ---------------------------------------------------------------------

    def detach(self) -> bool:
        self.lanes.hold(())
        have_all_answered = self.lanes.ask_all(self._unsubscribe, DETACH_SECONDS)
        if self._empties_queue:
            self._empty_queues()
        return have_all_answered

    def _unsubscribe(self, lane: OpenLane[MqttConnection]) -> None:
        lane.unanswered += 1
        version, filters = self._mqtt.version, self._filters(lane)
        lane.connection.send(packets.unsubscribe(version, _UNSUBSCRIBE_ID, filters))

    def _empty_queues(self) -> None:
        """Acknowledge what has arrived, so that the broker sends the rest of what it has for these
        lanes: it would forget that with the session."""
        fetched = [self.decoded.take().kept()]
        while len(fetched[-1]):
            self.unreported += self.acknowledge(fetched[-1])
            # Behind the acknowledgement, so answered behind what it lets the broker send.
            self._await_answer_to_ping()
            fetched.append(self.decoded.take().kept())
        for part in fetched[:-1]:
            part.rows["tag"] = 0
            self.decoded.add_run(part)

    def _await_answer_to_ping(self) -> None:
        lanes = [one for one in self.lanes.open if not one.is_lost and one.connection.is_open]
        before = {lane.number: lane.connection.pings_answered for lane in lanes}
        for lane in lanes:
            lane.connection.send(packets.PINGREQ)
        self.lanes.loop.run_down(
            lambda: sum(
                lane.connection.pings_answered == before[lane.number]
                for lane in lanes
                if lane.connection.is_open
            ),
            DETACH_SECONDS,
        )

    def after_close(self) -> None:
        if self._forgetting is not None:
            _end_sessions(self._forgetting, len(self.lanes.open))


def _end_sessions(protocol: MqttProtocol, count: int) -> None:
    """Version 3.1.1 knows one way: connect once more, as somebody who wants no session."""
    loop = Loop()
    try:
        connections = open_connections(protocol, count, loop)
        close_gracefully(loop, connections)
    except BenchError:
        pass  # the broker is gone, and all was measured: its sessions are its own affair now
    finally:
        loop.close()


@warm_up
def _compile() -> None:
    arrivals = Arrivals(ENVELOPE_ONLY)
    PublishReader("5", 0, Routes(["topic"]), arrivals).parse(ReadBuffer(1), 0, 0)
    codec.encode_acks(arrivals.rows[:1], 0, np.zeros(1, np.int64), np.zeros(8, np.uint8))
