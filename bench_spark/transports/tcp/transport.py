"""The TCP transport: lanes that connect (all producers, and consumers of a server that sends), and
consumers that listen (`sockets/listening.py`)."""

from __future__ import annotations

import functools
import socket
import ssl
import sys
import time
from collections.abc import Sequence

from bench_spark.config.broker import Broker
from bench_spark.config.models import Scenario
from bench_spark.config.protocols import Tcp
from bench_spark.core.clock import NowNs
from bench_spark.errors import ConfigurationError
from bench_spark.transports.base import BrokerFacts, Consumers, Lane, TransportContext
from bench_spark.transports.batches import HEAD_ONLY, Batch, Outcomes, Part, Received, no_outcomes
from bench_spark.transports.sockets.connection import PlainConnection, PlainProtocol
from bench_spark.transports.sockets.dialling import dialled
from bench_spark.transports.sockets.lanes import OpenLane, ReceivingLanes, SendingLanes
from bench_spark.transports.sockets.listening import (
    AddressedTransport,
    ListeningConsumers,
    Places,
    refuse_impossible_addresses,
    server_tls,
)
from bench_spark.transports.sockets.loop import Loop
from bench_spark.transports.sockets.reopening import ReopeningRule
from bench_spark.transports.sockets.rows import Arrivals, ReadBuffer
from bench_spark.transports.tcp import KIND
from bench_spark.transports.tcp.framing import Parser, framing_of, parser_of, size_limit

NAME = "TCP"


def refuse_impossible(scenario: Scenario, broker: Broker) -> None:
    tcp = scenario.tcp
    listens = tcp.consumer == "listen"
    own = Places.of(broker, tcp.consumer_uri, scenario)
    keys = (f"broker {broker.name}: uri", "tcp.consumer_uri" if tcp.consumer_uri else "uri")
    refuse_impossible_addresses(scenario, own, listens=listens, keys=keys)
    if scenario.destinations > 1:
        raise ConfigurationError(
            f"destinations: {scenario.destinations} is too many: a TCP address is one destination, "
            "and messages do not say which they are for"
        )
    if listens and scenario.consumers and own.consumers.is_encrypted:
        server_tls(broker)
    if scenario.has_envelopes and scenario.producers:
        _refuse_envelopes(scenario)
    if not listens and own.is_one and scenario.producers:
        raise ConfigurationError(
            "tcp.consumer: connect needs tcp.consumer_uri: nobody would pass on what producers "
            "send to the same server"
        )


def _refuse_envelopes(scenario: Scenario) -> None:
    """Bodies that are made for measuring are binary, and of a known size."""
    tcp, body_bytes = scenario.tcp, scenario.message.largest_bytes
    if tcp.framing == "line":
        raise ConfigurationError(
            "tcp.framing: line needs messages that are text, with dataset or identity: the usual "
            "bodies are binary, and any of their bytes may be a line feed; use length"
        )
    most = size_limit(tcp)
    if most is not None and body_bytes > most:
        raise ConfigurationError(
            f"tcp.length_bytes: {tcp.length_bytes} is too few for message.bytes: {body_bytes}; "
            f"the most that it can say is {most}"
        )


class TcpConnection(PlainConnection):
    parser: Parser | None = None
    """What is made of that which arrives; without one it is of no interest."""

    def _parse(self, buffer: ReadBuffer, end: int) -> int:
        return end if self.parser is None else self.parser.parse(buffer, end, self.read_ns)


class SendingConnection(TcpConnection):
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


class ReceivingConnection(TcpConnection):
    """Of a server that sends at once: nothing is read before a consumer wants it."""

    def __init__(
        self, connected: socket.socket, loop: Loop, now_ns: NowNs, buffer: ReadBuffer
    ) -> None:
        super().__init__(connected, loop, now_ns, buffer)
        self.hold(True)


class TcpLane(OpenLane):
    connection: TcpConnection


class TcpProducers(SendingLanes[TcpLane, TcpConnection, TcpConnection]):
    def __init__(
        self,
        protocol: PlainProtocol[TcpConnection],
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

    def _equip(self, lane: TcpLane, opened: TcpConnection) -> None:
        lane.connection = opened

    def _begin(self, lane: TcpLane) -> None:
        """A connection that is open is ready."""

    def _allowed(self, lane: TcpLane) -> int:
        return 0 if lane.is_lost else sys.maxsize

    def _write(self, lane: TcpLane, batch: Batch) -> None:
        lane.connection.send(self._framing.data(batch))

    def commit(self) -> None:
        """There are no transactions."""

    def in_flight(self) -> int:
        return 0

    def outcomes(self) -> Outcomes:
        """There are none; but the agent calls this when a full socket has room again."""
        self._pump()
        self._wake_if_more()
        return no_outcomes()


class TcpConsumers(ReceivingLanes[TcpLane, ReceivingConnection, ReceivingConnection]):
    """Connected to a server that sends."""

    def __init__(
        self,
        protocol: PlainProtocol[ReceivingConnection],
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

    def _equip(self, lane: TcpLane, opened: ReceivingConnection) -> None:
        lane.connection = opened
        opened.parser = parser_of(self._tcp, lane.number, self._arrivals)

    def _begin(self, lane: TcpLane) -> None:
        self._held -= {lane.number}
        lane.connection.hold(False)

    def attach(self) -> None:
        self._begin_all("connecting")
        self._wake_if_more()

    def detach(self) -> bool:
        """The protocol has no command to stop the peer, so what is still on its way is unknown."""
        return False

    def acknowledge(self, received: Received) -> int:
        """TCP has no word for it."""
        return 0


class TcpTransport(AddressedTransport):
    def __init__(self, context: TransportContext) -> None:
        self.capabilities = KIND.capabilities(context.scenario)
        self._tcp = context.scenario.tcp
        super().__init__(context, self._tcp.consumer_uri, listens=self._tcp.consumer == "listen")

    def probe(self) -> BrokerFacts:
        """Whether those that we connect to are there. What they speak only they know."""
        dialled_to = []
        if self._scenario.producers and not (self._places.is_one and self._listens):
            dialled_to.append(self._places.producers)
        if self._scenario.consumers and not self._listens:
            dialled_to.append(self._places.consumers)
        for place in dialled_to:
            access = self._access(place)
            for one in dialled(access, 1, time.monotonic() + access.timeout_seconds):
                one.close()
        return BrokerFacts(
            product="TCP peer",
            version="unknown",
            platform=f"framing by {self._tcp.framing}",
            client_library="bench-spark's own TCP",
        )

    def open_producers(self, lanes: Sequence[Lane], now_ns: NowNs) -> TcpProducers:
        first = lanes[0].destinations[0]
        place = self._places.sent_to(first.index, first.name)
        # Our own consumers cannot be waited for: whoever would read for them waits here.
        make_connection = TcpConnection if self._places.is_one else SendingConnection
        protocol: PlainProtocol[TcpConnection] = PlainProtocol(
            NAME, self._access(place), make_connection
        )
        return TcpProducers(protocol, self._tcp, lanes, now_ns, self._rule)

    def open_consumers(
        self, lanes: Sequence[Lane], now_ns: NowNs, want: frozenset[Part] = HEAD_ONLY
    ) -> Consumers:
        if not self._listens:
            protocol = PlainProtocol(
                NAME, self._access(self._places.consumers), ReceivingConnection
            )
            arrivals = Arrivals(want, self._scenario.most_arriving_bytes)
            return TcpConsumers(protocol, self._tcp, lanes, now_ns, arrivals, self._rule)
        arrivals = Arrivals(want, self._scenario.most_arriving_bytes)
        consumers = ListeningConsumers(
            self._listener.hand_over(),
            server_tls(self._context.broker) if self._places.consumers.is_encrypted else None,
            arrivals,
            now_ns,
            functools.partial(self._welcome, len(lanes), arrivals),
            lambda number: {number % len(lanes)},
        )
        self._context.on_opened(len(lanes))
        return consumers

    def _welcome(
        self,
        lanes: int,
        arrivals: Arrivals,
        connected: socket.socket,
        loop: Loop,
        now_ns: NowNs,
        buffer: ReadBuffer,
        number: int,
    ) -> TcpConnection:
        connection = TcpConnection(connected, loop, now_ns, buffer)
        connection.parser = parser_of(self._tcp, number % lanes, arrivals)
        return connection
