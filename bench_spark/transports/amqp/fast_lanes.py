"""Lanes of the plane `fast`: pika has opened the connections, the plane owns their sockets."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from bench_spark.transports.amqp.connection import AmqpConnection, Handover
from bench_spark.transports.amqp.gathering import Gathering
from bench_spark.transports.amqp.lanes import Lanes, OpenLane
from bench_spark.transports.amqp.parsing import Parser
from bench_spark.transports.amqp.runs import ReadBuffer
from bench_spark.transports.amqp.wire import Wire, read_buffer
from bench_spark.transports.base import Lane


class FastLane(OpenLane):
    connection: Wire

    def __init__(self, number: int, lane: Lane, handover: Handover, wire: Wire) -> None:
        super().__init__(number, lane, wire)
        self.handover = handover


class FastLanes(Lanes[FastLane]):
    _gathering: Gathering | None = None

    def _equipped(
        self, lanes: Sequence[Lane], connections: Sequence[AmqpConnection], channels: Sequence[Any]
    ) -> list[FastLane]:
        # Nothing is read between these steps, so nothing can arrive for pika any more.
        handovers = [
            connection.hand_over(channel)
            for connection, channel in zip(connections, channels, strict=True)
        ]
        buffer = read_buffer(max((one.frame_max for one in handovers), default=0))
        made = [
            self._equip(number, lane, handover, buffer)
            for number, (lane, handover) in enumerate(zip(lanes, handovers, strict=True))
        ]
        for one in made:
            # TLS may have decrypted more than pika has read.
            self._loop.call_soon(one.connection.read)
        return made

    def _equip(self, number: int, lane: Lane, handover: Handover, buffer: ReadBuffer) -> FastLane:
        make_parser = functools.partial(self._make_parser, number, lane, handover)
        wire = Wire(handover, self._loop, self._now_ns, buffer, make_parser, self._gathering)
        made = FastLane(number, lane, handover, wire)
        wire.on_method = functools.partial(self._on_method, made)
        return made

    def _make_parser(
        self, number: int, lane: Lane, handover: Handover, on_method: Callable[[Any], None]
    ) -> Parser:
        """What decodes that which arrives on a lane."""
        raise NotImplementedError

    def _on_method(self, lane: FastLane, method: Any) -> None:
        """The broker said something that is neither a message nor an end."""
        raise NotImplementedError
