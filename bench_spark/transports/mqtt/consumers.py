"""Consuming in batches: messages are decoded by column, acknowledgements written by block."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from bench_spark.core.clock import NowNs
from bench_spark.errors import BenchError
from bench_spark.scenario.mqtt_section import Mqtt
from bench_spark.transports.base import U16, Lane, Part, Received, Signal, SignalKind
from bench_spark.transports.mqtt import packets
from bench_spark.transports.mqtt.acks import ack_packets
from bench_spark.transports.mqtt.deliveries import Deliveries, Unreleased
from bench_spark.transports.mqtt.naming import matches
from bench_spark.transports.mqtt.parsing import Parser
from bench_spark.transports.mqtt.protocol import MqttProtocol
from bench_spark.transports.mqtt.together import Together
from bench_spark.transports.mqtt.tokens import identifiers_of
from bench_spark.transports.mqtt.wire import MqttWire, SubscriptionRefused
from bench_spark.transports.sockets import generations
from bench_spark.transports.sockets.arrivals import MOST_BYTES, Arrivals
from bench_spark.transports.sockets.crowd import Crowd
from bench_spark.transports.sockets.gathering import Gathering
from bench_spark.transports.sockets.generations import U64
from bench_spark.transports.sockets.grouping import by_lane, is_of_one_lane
from bench_spark.transports.sockets.lanes import OpenLane
from bench_spark.transports.sockets.line import close_gracefully
from bench_spark.transports.sockets.loop import Loop
from bench_spark.transports.sockets.opening import open_connections
from bench_spark.transports.sockets.receiving import ReceivingLanes
from bench_spark.transports.sockets.reopening import ReopeningRule

DETACH_SECONDS = 5.0
"""How long to wait, at the end, for the next thing that the broker has for a lane."""

_SUBSCRIBE_ID, _UNSUBSCRIBE_ID = 1, 2
HIGHEST_QOS = 2


class ConsumerLane(OpenLane):
    connection: MqttWire
    unreleased: Unreleased
    filters: tuple[str, ...]
    """By route, with the group."""
    route_of: Callable[[bytes], int | None]


class MqttConsumers(ReceivingLanes[ConsumerLane, MqttWire, MqttWire]):
    def __init__(
        self,
        protocol: MqttProtocol,
        mqtt: Mqtt,
        lanes: Sequence[Lane],
        subscription_of: Callable[[int], str],
        now_ns: NowNs,
        want: frozenset[Part],
        *,
        gathering: Gathering | None = None,
        rule: ReopeningRule | None = None,
        empties_queue: bool = True,
        forgetting: MqttProtocol | None = None,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        """`subscription_of` a destination's number. `empties_queue`: whether what the broker still
        has for a lane is fetched when it detaches. `forgetting`: the same clients without sessions,
        by which those that the broker keeps are ended."""
        self._mqtt = mqtt
        self._subscription_of = subscription_of
        self._gathering = gathering
        self._arrivals = Arrivals(want, most_bytes)
        self._acknowledged_unreported = 0
        self._empties_queue = empties_queue and mqtt.qos > 0
        self._forgetting = forgetting
        self._together = Together(self._arrivals, [self._filters_of(lane) for lane in lanes])
        self._crowd: Crowd | None = None
        if not (self._arrivals.wants_bodies or self._arrivals.wants_headers):
            self._crowd = Crowd(protocol.buffer, self._together.decode)
        try:
            super().__init__(protocol, lanes, now_ns, rule)
        except BaseException:
            self._close_gathering()
            raise
        if gathering is not None:
            self._loop.add(gathering)
        self._loop.first_servant = self._crowd

    # -- lanes -------------------------------------------------------------------------------------

    def _make_lane(self, number: int, lane: Lane) -> ConsumerLane:
        made = ConsumerLane(number, lane)
        made.filters = self._filters_of(lane)
        made.route_of = _router(made.filters)
        made.unreleased = Unreleased()
        return made

    def _filters_of(self, lane: Lane) -> tuple[str, ...]:
        return tuple(self._subscription_of(one.index) for one in lane.destinations)

    def _equip(self, lane: ConsumerLane, opened: MqttWire) -> None:
        lane.connection = opened
        opened.ends_session = True
        if not opened.has_session:
            lane.unreleased = Unreleased()
        opened.on_packet = functools.partial(self._on_packet, lane)
        token_mark = generations.mark(lane.generation)
        receiver = Deliveries(
            lane.number,
            lane.route_of,
            self._arrivals,
            lane.unreleased,
            functools.partial(_send_acks, opened, packets.PUBCOMP),
            functools.partial(self._drop_repeats, lane),
            token_mark,
            functools.partial(self._together.learn, lane.number),
        )
        keeps_bodies = self._arrivals.wants_bodies
        opened.begin(
            functools.partial(
                Parser,
                self._mqtt.version,
                receiver,
                keeps_bodies=keeps_bodies,
                most_bytes=self._arrivals.most_bytes,
            )
        )
        self._together.mark(lane.number, token_mark)
        if self._crowd is not None:
            opened.join(self._crowd, lane.number)

    def _drop_repeats(self, lane: ConsumerLane, identifiers: U16) -> None:
        _send_acks(lane.connection, packets.PUBREC, identifiers)
        self._signals.append(
            Signal(
                SignalKind.REPEATS_DROPPED,
                lane.connection.read_ns,
                lane.number,
                count=len(identifiers),
            )
        )

    def _begin(self, lane: ConsumerLane) -> None:
        lane.unanswered += 1
        mqtt = self._mqtt
        lane.connection.send(packets.subscribe(mqtt.version, _SUBSCRIBE_ID, lane.filters, mqtt.qos))

    def _on_packet(self, lane: ConsumerLane, kind: int, body: bytes) -> None:
        identifier, codes = packets.read_suback(self._mqtt.version, body)
        if kind == packets.UNSUBACK:
            self._answered(lane)
        elif identifier == _SUBSCRIBE_ID and len(codes) == len(lane.filters):
            refused = self._refused(lane, codes)
            if refused is None:
                self._answered(lane)
            else:
                self._lose(lane, lane.connection, refused)
        else:
            raise packets.BadPacket("a SUBACK for something that was not asked")

    def _refused(self, lane: ConsumerLane, codes: bytes) -> SubscriptionRefused | None:
        for wanted, code in zip(lane.filters, codes, strict=True):
            if code >= packets.FAILED:
                return SubscriptionRefused(wanted, code, f"refused: {packets.reason(code)}")
            if code > HIGHEST_QOS:
                why = f"the broker answers with code {code}, which is neither a QoS nor a refusal"
                return SubscriptionRefused(wanted, code, why)
            if code < self._mqtt.qos:
                granted = f"the broker grants QoS {code}, and mqtt.qos is {self._mqtt.qos}"
                return SubscriptionRefused(wanted, code, granted)
        return None

    # -- for the agent -----------------------------------------------------------------------------

    def attach(self) -> None:
        self._begin_all("SUBSCRIBE")
        self._ring_if_more()

    def acknowledge(self, received: Received) -> int:
        """Also reports what was acknowledged when the lanes detached."""
        acknowledged, self._acknowledged_unreported = self._acknowledged_unreported, 0
        if not self._mqtt.qos or self._is_closing or not len(received):
            return acknowledged
        if is_of_one_lane(received.lane):
            return acknowledged + self._acknowledge_on(int(received.lane[0]), received.tag)
        groups = by_lane(received.lane)
        tokens = received.tag[groups.order]
        for number, start, end in groups:
            acknowledged += self._acknowledge_on(number, tokens[start:end])
        return acknowledged

    def _acknowledge_on(self, number: int, tokens: U64) -> int:
        lane = self._opened[number]
        if lane.is_lost:
            return 0
        own = generations.own_tags(tokens, lane.generation)
        at_least_once, exactly_once = identifiers_of(own, 1), identifiers_of(own, 2)
        if len(at_least_once):
            _send_acks(lane.connection, packets.PUBACK, at_least_once)
        if len(exactly_once):
            _send_acks(lane.connection, packets.PUBREC, exactly_once)
        return len(at_least_once) + len(exactly_once)

    # -- the end of deliveries ---------------------------------------------------------------------

    def detach(self) -> bool:
        self.hold(())
        lanes = [lane for lane in self._opened if not lane.is_lost and lane.connection.is_open]
        for lane in lanes:
            lane.unanswered += 1
            lane.connection.send(
                packets.unsubscribe(self._mqtt.version, _UNSUBSCRIBE_ID, lane.filters)
            )
        have_all_answered = self._loop.run_down(
            lambda: sum(lane.unanswered for lane in lanes if not lane.is_lost), DETACH_SECONDS
        )
        if self._empties_queue:
            self._empty_queues()
        self._ring_if_more()
        return have_all_answered

    def _empty_queues(self) -> None:
        """Acknowledge what has arrived, so that the broker sends the rest of what it has for these
        lanes: it would forget that with the session."""
        fetched = [self._arrivals.take().kept()]
        while len(fetched[-1]):
            self._acknowledged_unreported += self.acknowledge(fetched[-1])
            # Behind the acknowledgement, so answered behind what it lets the broker send.
            self._await_answer_to_ping()
            fetched.append(self._arrivals.take().kept())
        for part in fetched[:-1]:
            part.rows["tag"] = 0
            self._arrivals.add_run(part)

    def _await_answer_to_ping(self) -> None:
        lanes = [lane for lane in self._opened if not lane.is_lost and lane.connection.is_open]
        before = {lane.number: lane.connection.pings_answered for lane in lanes}
        for lane in lanes:
            lane.connection.send(packets.PINGREQ)
        self._loop.run_down(
            lambda: sum(
                lane.connection.pings_answered == before[lane.number]
                for lane in lanes
                if lane.connection.is_open
            ),
            DETACH_SECONDS,
        )

    def close(self) -> None:
        was_open = not self._is_closing
        super().close()
        self._close_gathering()
        if was_open and self._forgetting is not None:
            _end_sessions(self._forgetting, len(self._opened))

    def _close_gathering(self) -> None:
        if self._gathering is not None:
            self._gathering.close()


def _end_sessions(protocol: MqttProtocol, count: int) -> None:
    """Version 3.1.1 knows one way: connect once more, as somebody who wants no session."""
    loop = Loop()
    try:
        close_gracefully(loop, open_connections(protocol, count, loop))
    except BenchError:
        pass  # the broker is gone, and all was measured: its sessions are its own affair now
    finally:
        loop.close()


def _send_acks(wire: MqttWire, kind: int, identifiers: U16) -> None:
    wire.send(ack_packets(kind, identifiers))


def _router(filters: Sequence[str]) -> Callable[[bytes], int | None]:
    """From a message's topic to its place among the filters; of several that match the first."""
    plain = [_without_group(one) for one in filters]
    known: dict[bytes, int | None] = {}

    def route_of(topic: bytes) -> int | None:
        if topic not in known:
            name = topic.decode("utf-8", "replace")
            places = (place for place, one in enumerate(plain) if matches(one, name))
            if len(known) >= _MOST_TOPICS:
                known.clear()
            known[topic] = next(places, None)
        return known[topic]

    return route_of


_MOST_TOPICS = 10_000
"""A filter with wildcards may bring any number of topics."""


def _without_group(topic_filter: str) -> str:
    return topic_filter.split("/", 2)[2] if topic_filter.startswith("$share/") else topic_filter
