"""Lanes of the plane `pika`: pika keeps its connections and channels."""

from __future__ import annotations

from typing import Any

from bench_spark.transports.amqp.connection import AmqpConnection
from bench_spark.transports.amqp.lanes import AmqpLanes
from bench_spark.transports.amqp.protocol import OpenChannel
from bench_spark.transports.base import Lane
from bench_spark.transports.sockets.lanes import OpenLane


class PikaLane(OpenLane):
    connection: AmqpConnection
    channel: Any


class PikaLanes(AmqpLanes[PikaLane]):
    def _make_lane(self, number: int, lane: Lane) -> PikaLane:
        return PikaLane(number, lane)

    def _equip(self, lane: PikaLane, opened: OpenChannel) -> None:
        lane.connection = connection = opened.connection
        lane.channel = channel = opened.channel
        channel.add_on_close_callback(
            lambda _, reason: self._lose(lane, connection, reason),
        )
