"""Publishing in batches: packets are built once, stamped per batch, and written as they lie."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from bench_spark.core.clock import NowNs
from bench_spark.errors import BrokerRefused
from bench_spark.scenario.mqtt_section import Mqtt
from bench_spark.transports.base import U16, Lane, Outcomes, joined_outcomes
from bench_spark.transports.mqtt.acks import ack_packets
from bench_spark.transports.mqtt.naming import message_headers
from bench_spark.transports.mqtt.packets import PUBREL
from bench_spark.transports.mqtt.parsing import Parser
from bench_spark.transports.mqtt.protocol import MqttProtocol
from bench_spark.transports.mqtt.publishing import Blocks, PublishPackets
from bench_spark.transports.mqtt.settlement import Settlement
from bench_spark.transports.mqtt.wire import MqttWire
from bench_spark.transports.sockets.lanes import OpenLane
from bench_spark.transports.sockets.reopening import ReopeningRule
from bench_spark.transports.sockets.sending import Load, SendingLanes


class ProducerLane(OpenLane):
    connection: MqttWire
    settlement: Settlement
    packets: list[PublishPackets]
    """By route."""


class MqttProducers(SendingLanes[ProducerLane, MqttWire, MqttWire]):
    def __init__(
        self,
        protocol: MqttProtocol,
        mqtt: Mqtt,
        message_bytes: int,
        lanes: Sequence[Lane],
        now_ns: NowNs,
        rule: ReopeningRule | None = None,
    ) -> None:
        self._mqtt = mqtt
        self._settled: list[Outcomes] = []
        self._packets: dict[str, PublishPackets] = {}
        self._blocks = Blocks()
        super().__init__(protocol, lanes, now_ns, rule)
        try:
            self._refuse_what_is_not_allowed(message_bytes)
            self._begin_all("CONNECT")
        except BaseException:
            self.close()
            raise

    # -- lanes -------------------------------------------------------------------------------------

    def _make_lane(self, number: int, lane: Lane) -> ProducerLane:
        made = ProducerLane(number, lane)
        made.packets = [self._packets_for(one.name or "") for one in lane.destinations]
        return made

    def _packets_for(self, topic: str) -> PublishPackets:
        if topic not in self._packets:
            mqtt = self._mqtt
            self._packets[topic] = PublishPackets(
                mqtt.version, topic, mqtt.qos, mqtt.retain, message_headers(mqtt)
            )
        return self._packets[topic]

    def _equip(self, lane: ProducerLane, opened: MqttWire) -> None:
        lane.connection = opened
        in_flight = min(self._mqtt.in_flight, opened.limits.in_flight) if self._mqtt.qos else 0
        lane.settlement = settlement = Settlement(
            lane.number, in_flight, self._settled, functools.partial(_release, opened)
        )
        opened.begin(functools.partial(Parser, self._mqtt.version, settlement))

    def _begin(self, lane: ProducerLane) -> None:
        """A connection that is open is ready."""

    def _refuse_what_is_not_allowed(self, message_bytes: int) -> None:
        for lane in self._opened:
            limit = lane.connection.limits.packet_bytes
            for packets in lane.packets:
                needed = len(packets.start(message_bytes)[0]) + message_bytes
                if limit is not None and needed > limit:
                    raise BrokerRefused(
                        f"{self._protocol.access.address}: message.bytes: {message_bytes} makes "
                        f"packets of {needed} bytes, and the broker takes at most {limit}"
                    )

    def _abandon(self, lane: ProducerLane) -> None:
        lane.settlement.abandon(self._now_ns())

    # -- sending -----------------------------------------------------------------------------------

    def _allowed(self, lane: ProducerLane) -> int:
        return 0 if lane.is_lost else lane.settlement.room

    def _write(self, lane: ProducerLane, load: Load) -> None:
        # Noted before it is written: a write that fails abandons what was noted.
        identifiers = lane.settlement.sent(load.heads)
        lane.connection.send(self._blocks.data(lane.packets, load, identifiers))

    # -- for the agent -----------------------------------------------------------------------------

    def commit(self) -> None:
        """There are no transactions."""

    def in_flight(self) -> int:
        return sum(lane.settlement.in_flight for lane in self._opened)

    def outcomes(self) -> Outcomes:
        self._pump()
        settled = joined_outcomes(self._settled)
        self._settled.clear()
        self._ring_if_more()
        return settled

    def _has_news(self) -> bool:
        return bool(self._settled)


def _release(wire: MqttWire, identifiers: U16) -> None:
    wire.send(ack_packets(PUBREL, identifiers))
