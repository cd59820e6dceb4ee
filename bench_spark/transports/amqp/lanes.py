"""AMQP's lanes: one connection and one channel each, opened by pika and used on their sockets."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bench_spark.config.protocols import Amqp
from bench_spark.core.clock import NowNs
from bench_spark.transports.amqp.connection import AmqpConnection, Handover
from bench_spark.transports.amqp.opening import Access
from bench_spark.transports.amqp.parsing import Parser
from bench_spark.transports.amqp.protocol import AmqpProtocol, OpenChannel
from bench_spark.transports.amqp.wire import Wire, read_buffer
from bench_spark.transports.base import Lane
from bench_spark.transports.sockets.arrivals import MOST_BYTES, ReadBuffer
from bench_spark.transports.sockets.gathering import Gathering
from bench_spark.transports.sockets.lanes import Lanes, OpenLane
from bench_spark.transports.sockets.reopening import ReopeningRule


@dataclass(frozen=True)
class LaneTerms:
    """What lanes are told in both roles."""

    access: Access
    amqp: Amqp
    lanes: Sequence[Lane]
    now_ns: NowNs
    rule: ReopeningRule | None = None
    most_bytes: int = MOST_BYTES
    """Of a body that arrives."""


class AmqpLane(OpenLane):
    connection: Wire
    handover: Handover


class AmqpLanes(Lanes[AmqpLane, AmqpConnection, OpenChannel]):
    _gathering: Gathering | None = None
    _buffer: ReadBuffer | None = None
    """What the sockets of all lanes are read into."""
    _buffer_frame_max = 0

    def __init__(self, terms: LaneTerms) -> None:
        self._amqp = terms.amqp
        super().__init__(AmqpProtocol(terms.access), terms.lanes, terms.now_ns, terms.rule)

    # -- what producers and consumers add ----------------------------------------------------------

    def _make_parser(self, lane: AmqpLane, on_method: Callable[[Any], None]) -> Parser:
        """What decodes that which arrives on a lane."""
        raise NotImplementedError

    def _on_method(self, lane: AmqpLane, method: Any) -> None:
        """The broker said something that is neither a message nor an end."""
        raise NotImplementedError

    # -- lanes -------------------------------------------------------------------------------------

    def _make_lane(self, number: int, lane: Lane) -> AmqpLane:
        return AmqpLane(number, lane)

    def _equip(self, lane: AmqpLane, opened: OpenChannel) -> None:
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
        frame_max = handover.framing.frame_max
        if self._buffer is None or frame_max > self._buffer_frame_max:
            self._buffer = read_buffer(frame_max)
            self._buffer_frame_max = frame_max
        return self._buffer
