"""Lanes of the plane `pika`: pika keeps its connections and channels."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from bench_spark.transports.amqp.connection import AmqpConnection
from bench_spark.transports.amqp.lanes import Lanes, OpenLane
from bench_spark.transports.base import Lane


class PikaLane(OpenLane):
    connection: AmqpConnection

    def __init__(self, number: int, lane: Lane, connection: AmqpConnection, channel: Any) -> None:
        super().__init__(number, lane, connection)
        self.channel = channel


class PikaLanes(Lanes[PikaLane]):
    def _equipped(
        self, lanes: Sequence[Lane], connections: Sequence[AmqpConnection], channels: Sequence[Any]
    ) -> list[PikaLane]:
        made = [
            PikaLane(number, *parts)
            for number, parts in enumerate(zip(lanes, connections, channels, strict=True))
        ]
        for lane in made:
            lane.channel.add_on_close_callback(functools.partial(self._on_channel_end, lane))
        return made

    def _on_channel_end(self, lane: PikaLane, _channel: Any, reason: Exception) -> None:
        self._lose(lane, reason)
