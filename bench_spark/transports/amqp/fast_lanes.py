"""Lanes of the plane `fast`: pika has opened the connections, the plane owns their sockets."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from bench_spark.transports.amqp.connection import Handover
from bench_spark.transports.amqp.lanes import AmqpLanes
from bench_spark.transports.amqp.parsing import Parser
from bench_spark.transports.amqp.protocol import OpenChannel
from bench_spark.transports.amqp.wire import Wire, read_buffer
from bench_spark.transports.base import Lane
from bench_spark.transports.sockets.gathering import Gathering
from bench_spark.transports.sockets.lanes import OpenLane
from bench_spark.transports.sockets.runs import ReadBuffer


class FastLane(OpenLane):
    connection: Wire
    handover: Handover


class FastLanes(AmqpLanes[FastLane]):
    _gathering: Gathering | None = None
    _buffer: ReadBuffer | None = None
    """What the sockets of all lanes are read into."""
    _buffer_frame_max = 0

    def _make_lane(self, number: int, lane: Lane) -> FastLane:
        return FastLane(number, lane)

    def _equip(self, lane: FastLane, opened: OpenChannel) -> None:
        handover = opened.connection.hand_over(opened.channel)
        lane.handover = handover
        lane.connection = Wire(
            handover,
            self._loop,
            self._now_ns,
            self._buffer_for(handover),
            functools.partial(self._make_parser, lane),
            self._gathering,
        )
        lane.connection.on_method = functools.partial(self._on_method, lane)
        # TLS may have decrypted more than pika has read.
        self._loop.call_soon(lane.connection.read)

    def _buffer_for(self, handover: Handover) -> ReadBuffer:
        if self._buffer is None or handover.frame_max > self._buffer_frame_max:
            self._buffer = read_buffer(handover.frame_max)
            self._buffer_frame_max = handover.frame_max
        return self._buffer

    def _make_parser(self, lane: FastLane, on_method: Callable[[Any], None]) -> Parser:
        """What decodes that which arrives on a lane."""
        raise NotImplementedError

    def _on_method(self, lane: FastLane, method: Any) -> None:
        """The broker said something that is neither a message nor an end."""
        raise NotImplementedError
