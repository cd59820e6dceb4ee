"""The TCP transport: lanes that connect (all producers, and consumers of a server that sends), and
consumers that listen (`sockets/listening.py`)."""

from __future__ import annotations

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
from bench_spark.transports.base import BrokerFacts, Consumers, Lane, Producers, TransportContext
from bench_spark.transports.batches import ENVELOPE_ONLY, Batch, Part
from bench_spark.transports.sockets.buffers import Arrivals, OutcomeRows, ReadBuffer
from bench_spark.transports.sockets.connection import SocketConnection
from bench_spark.transports.sockets.lanes import Receiver, Sender, SocketConsumers, SocketProducers
from bench_spark.transports.sockets.listening import (
    AddressedTransport,
    Places,
    refuse_impossible_addresses,
    server_tls,
)
from bench_spark.transports.sockets.loop import Loop
from bench_spark.transports.sockets.opening import OpenLane, PlainProtocol, dialled
from bench_spark.transports.tcp import KIND
from bench_spark.transports.tcp.framing import StreamParser, framing_of, parser_of, size_limit

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


class TcpConnection(SocketConnection):
    awaits_peer = False
    """Whether closing says that all was sent, and waits for the peer to say that it has read it."""
    _has_said_so = False

    def begin(self, parser: StreamParser) -> None:
        """From now on what arrives is of interest."""
        self._parse = parser.parse

    def _hang_up_if_done(self) -> None:
        if not self.awaits_peer or isinstance(self._socket, ssl.SSLSocket):
            super()._hang_up_if_done()
        elif not self.unsent and not self._has_said_so:
            self._has_said_so = True
            self._socket.shutdown(socket.SHUT_WR)


def held_connection(
    connected: socket.socket, loop: Loop, now_ns: NowNs, buffer: ReadBuffer
) -> TcpConnection:
    """To a server that may send at once: nothing is read before a consumer wants it."""
    connection = TcpConnection(connected, loop, now_ns, buffer)
    connection.hold(True)
    return connection


class TcpSender(Sender[TcpConnection]):
    decoded: OutcomeRows

    def __init__(self, tcp: Tcp, *, awaits_peer: bool) -> None:
        self.decoded = OutcomeRows()
        """There are never any; but the agent asks for them when a full socket has room again."""
        self._framing = framing_of(tcp)
        self._awaits_peer = awaits_peer

    def equip(self, lane: OpenLane[TcpConnection]) -> None:
        lane.connection.awaits_peer = self._awaits_peer

    def room(self, lane: OpenLane[TcpConnection]) -> int:
        return 0 if lane.is_lost else sys.maxsize

    def write(self, lane: OpenLane[TcpConnection], batch: Batch) -> None:
        lane.connection.send(self._framing.data(batch))


class TcpReceiver(Receiver[TcpConnection]):
    """For consumers that are connected to a server that sends."""

    def __init__(self, tcp: Tcp, arrivals: Arrivals) -> None:
        self.decoded = arrivals
        self._tcp = tcp

    def equip(self, lane: OpenLane[TcpConnection]) -> None:
        lane.connection.begin(parser_of(self._tcp, lane.number, self.decoded))

    def begin(self, lane: OpenLane[TcpConnection]) -> None:
        self.lanes.held -= {lane.number}
        lane.connection.hold(False)

    def detach(self) -> bool:
        """The protocol has no command to stop the peer, so what is still on its way is unknown."""
        return False


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

    def open_producers(self, lanes: Sequence[Lane], now_ns: NowNs) -> Producers:
        first = lanes[0].destinations[0]
        access = self._access(self._places.sent_to(first.index, first.name))
        # Our own consumers cannot be waited for: whoever would read for them waits here.
        sender = TcpSender(self._tcp, awaits_peer=not self._places.is_one)
        protocol = PlainProtocol(NAME, access, TcpConnection)
        return SocketProducers(sender, protocol, lanes, now_ns, self._rule)

    def open_consumers(
        self, lanes: Sequence[Lane], now_ns: NowNs, want: frozenset[Part] = ENVELOPE_ONLY
    ) -> Consumers:
        arrivals = Arrivals(want, self._scenario.most_arriving_bytes)
        if not self._listens:
            protocol = PlainProtocol(NAME, self._access(self._places.consumers), held_connection)
            receiver = TcpReceiver(self._tcp, arrivals)
            return SocketConsumers(receiver, protocol, lanes, now_ns, self._rule)
        count = len(lanes)

        def make_peer(
            connected: socket.socket, loop: Loop, now_ns: NowNs, buffer: ReadBuffer, number: int
        ) -> TcpConnection:
            connection = TcpConnection(connected, loop, now_ns, buffer)
            connection.begin(parser_of(self._tcp, number % count, arrivals))
            return connection

        return self._listening_consumers(
            count, arrivals, now_ns, make_peer, lambda number: {number % count}
        )
