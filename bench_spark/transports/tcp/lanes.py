"""Lanes that connect: all producers, and consumers of a server that sends."""

from __future__ import annotations

import socket
import ssl
import sys
from collections.abc import Sequence

from bench_spark.core.clock import NowNs
from bench_spark.scenario.tcp_section import Tcp
from bench_spark.transports.base import (
    Lane,
    Outcomes,
    Received,
    no_outcomes,
)
from bench_spark.transports.sockets.arrivals import Arrivals
from bench_spark.transports.sockets.lanes import OpenLane
from bench_spark.transports.sockets.loop import Loop
from bench_spark.transports.sockets.plain import PlainProtocol, PlainWire
from bench_spark.transports.sockets.receiving import ReceivingLanes
from bench_spark.transports.sockets.reopening import ReopeningRule
from bench_spark.transports.sockets.runs import ReadBuffer
from bench_spark.transports.sockets.sending import Load, SendingLanes
from bench_spark.transports.tcp.framing import framing_of
from bench_spark.transports.tcp.parsing import Parser, parser_of


class TcpWire(PlainWire):
    parser: Parser | None = None
    """What is made of that which arrives; without one it is of no interest."""

    def _parse(self, buffer: ReadBuffer, end: int) -> int:
        return end if self.parser is None else self.parser.parse(buffer, end, self.read_ns)


class SendingWire(TcpWire):
    """Says that it has sent all, and waits for the peer to say that it has read all."""

    _has_said_so = False

    def _hang_up_if_done(self) -> None:
        if self._unsent or self._has_said_so:
            return
        self._has_said_so = True
        if isinstance(self._socket, ssl.SSLSocket):
            super()._hang_up_if_done()
        else:
            self._socket.shutdown(socket.SHUT_WR)


class ReceivingWire(TcpWire):
    """Of a server that sends at once: nothing is read before a consumer wants it."""

    def __init__(
        self, connected: socket.socket, loop: Loop, now_ns: NowNs, buffer: ReadBuffer
    ) -> None:
        super().__init__(connected, loop, now_ns, buffer)
        self.hold(True)


class TcpLane(OpenLane):
    connection: TcpWire


class TcpProducers(SendingLanes[TcpLane, TcpWire, TcpWire]):
    def __init__(
        self,
        protocol: PlainProtocol[TcpWire],
        tcp: Tcp,
        lanes: Sequence[Lane],
        now_ns: NowNs,
        rule: ReopeningRule | None = None,
    ) -> None:
        self._framing = framing_of(tcp)
        super().__init__(protocol, lanes, now_ns, rule)
        try:
            self._begin_all("connecting")
        except BaseException:
            self.close()
            raise

    def _make_lane(self, number: int, lane: Lane) -> TcpLane:
        return TcpLane(number, lane)

    def _equip(self, lane: TcpLane, opened: TcpWire) -> None:
        lane.connection = opened

    def _begin(self, lane: TcpLane) -> None:
        """A connection that is open is ready."""

    def _allowed(self, lane: TcpLane) -> int:
        return 0 if lane.is_lost else sys.maxsize

    def _write(self, lane: TcpLane, load: Load) -> None:
        lane.connection.send(self._framing.data(load))

    def commit(self) -> None:
        """There are no transactions."""

    def in_flight(self) -> int:
        return 0

    def outcomes(self) -> Outcomes:
        """There are none; but the agent calls this when a full socket has room again."""
        self._pump()
        self._ring_if_more()
        return no_outcomes()


class TcpConsumers(ReceivingLanes[TcpLane, ReceivingWire, ReceivingWire]):
    """Connected to a server that sends."""

    def __init__(
        self,
        protocol: PlainProtocol[ReceivingWire],
        tcp: Tcp,
        lanes: Sequence[Lane],
        now_ns: NowNs,
        arrivals: Arrivals,
        rule: ReopeningRule | None = None,
    ) -> None:
        self._tcp = tcp
        self._arrivals = arrivals
        super().__init__(protocol, lanes, now_ns, rule)

    def _make_lane(self, number: int, lane: Lane) -> TcpLane:
        return TcpLane(number, lane)

    def _equip(self, lane: TcpLane, opened: ReceivingWire) -> None:
        lane.connection = opened
        opened.parser = parser_of(self._tcp, lane.number, self._arrivals)

    def _begin(self, lane: TcpLane) -> None:
        self._held -= {lane.number}
        lane.connection.hold(False)

    def attach(self) -> None:
        self._begin_all("connecting")
        self._ring_if_more()

    def detach(self) -> bool:
        """Nobody can be told to stop, so nobody knows what is still on its way."""
        return False

    def acknowledge(self, received: Received) -> int:
        """TCP has no word for it."""
        return 0
