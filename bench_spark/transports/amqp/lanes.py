"""AMQP's lanes: one connection and one channel each."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bench_spark.config.protocols import Amqp
from bench_spark.core.clock import NowNs
from bench_spark.transports.amqp.connection import Access, AmqpConnection, AmqpProtocol
from bench_spark.transports.amqp.frames import Framing, Parser
from bench_spark.transports.base import Lane
from bench_spark.transports.sockets.connection import Gathering
from bench_spark.transports.sockets.lanes import Lanes, OpenLane
from bench_spark.transports.sockets.reopening import ReopeningRule
from bench_spark.transports.sockets.rows import MOST_BYTES


@dataclass(frozen=True)
class LaneTerms:
    """What lanes of both roles are made from."""

    access: Access
    amqp: Amqp
    lanes: Sequence[Lane]
    now_ns: NowNs
    rule: ReopeningRule | None = None
    most_bytes: int = MOST_BYTES
    """Of a body that arrives."""


class AmqpLane(OpenLane):
    connection: AmqpConnection


class AmqpLanes(Lanes[AmqpLane, AmqpConnection, AmqpConnection]):
    def __init__(self, terms: LaneTerms, gathering: Gathering | None = None) -> None:
        self._amqp = terms.amqp
        protocol = AmqpProtocol(terms.access, gathering)
        super().__init__(protocol, terms.lanes, terms.now_ns, terms.rule)

    # -- what producers and consumers add ----------------------------------------------------------

    def _make_parser(
        self, lane: AmqpLane, framing: Framing, on_method: Callable[[Any], None]
    ) -> Parser:
        """What decodes that which arrives on a lane."""
        raise NotImplementedError

    def _on_method(self, lane: AmqpLane, method: Any) -> None:
        """The broker said something that is neither a message nor an end."""
        raise NotImplementedError

    # -- lanes -------------------------------------------------------------------------------------

    def _make_lane(self, number: int, lane: Lane) -> AmqpLane:
        return AmqpLane(number, lane)

    def _equip(self, lane: AmqpLane, opened: AmqpConnection) -> None:
        lane.connection = opened
        opened.begin(
            functools.partial(self._make_parser, lane), functools.partial(self._on_method, lane)
        )
