"""AMQP's lanes: one connection and one channel each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench_spark.core.clock import NowNs
from bench_spark.scenario.amqp_section import Amqp
from bench_spark.transports.amqp.connection import AmqpConnection
from bench_spark.transports.amqp.opening import Access
from bench_spark.transports.amqp.protocol import AmqpProtocol, OpenChannel
from bench_spark.transports.base import Lane
from bench_spark.transports.sockets.arrivals import MOST_BYTES
from bench_spark.transports.sockets.lanes import Lanes, LaneT
from bench_spark.transports.sockets.reopening import ReopeningRule


@dataclass(frozen=True)
class LaneTerms:
    """What lanes are told, on every plane and in both roles."""

    access: Access
    amqp: Amqp
    lanes: Sequence[Lane]
    now_ns: NowNs
    rule: ReopeningRule | None = None
    most_bytes: int = MOST_BYTES
    """Of a body that arrives."""


class AmqpLanes(Lanes[LaneT, AmqpConnection, OpenChannel]):
    def __init__(self, terms: LaneTerms) -> None:
        super().__init__(AmqpProtocol(terms.access), terms.lanes, terms.now_ns, terms.rule)
