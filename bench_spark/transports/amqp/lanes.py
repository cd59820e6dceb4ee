"""AMQP's lanes: one connection and one channel each."""

from __future__ import annotations

from collections.abc import Sequence

from bench_spark.measure.clock import NowNs
from bench_spark.transports.amqp.connection import AmqpConnection
from bench_spark.transports.amqp.opening import Access
from bench_spark.transports.amqp.protocol import AmqpProtocol, OpenChannel
from bench_spark.transports.base import Lane
from bench_spark.transports.sockets.lanes import Lanes, LaneT
from bench_spark.transports.sockets.reopening import ReopeningRule


class AmqpLanes(Lanes[LaneT, AmqpConnection, OpenChannel]):
    def __init__(
        self,
        access: Access,
        lanes: Sequence[Lane],
        now_ns: NowNs,
        rule: ReopeningRule | None = None,
    ) -> None:
        super().__init__(AmqpProtocol(access), lanes, now_ns, rule)
