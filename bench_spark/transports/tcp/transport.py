"""The TCP transport: puts addresses, framing and lanes together."""

from __future__ import annotations

import functools
import socket
import time
from collections.abc import Sequence

from bench_spark.core.clock import NowNs
from bench_spark.errors import ConfigurationError
from bench_spark.scenario.broker import Broker
from bench_spark.scenario.models import Scenario
from bench_spark.transports.base import (
    HEAD_ONLY,
    BrokerFacts,
    Consumers,
    Lane,
    Part,
    TransportContext,
)
from bench_spark.transports.sockets import places
from bench_spark.transports.sockets.addressed import AddressedTransport
from bench_spark.transports.sockets.arrivals import Arrivals
from bench_spark.transports.sockets.dialling import dialled
from bench_spark.transports.sockets.listening import ListeningConsumers, server_tls
from bench_spark.transports.sockets.loop import Loop
from bench_spark.transports.sockets.places import Places
from bench_spark.transports.sockets.plain import PlainProtocol
from bench_spark.transports.sockets.runs import ReadBuffer
from bench_spark.transports.tcp.framing import size_limit
from bench_spark.transports.tcp.lanes import (
    ReceivingWire,
    SendingWire,
    TcpConsumers,
    TcpProducers,
    TcpWire,
)
from bench_spark.transports.tcp.parsing import parser_of

NAME = "TCP"


def refuse_impossible(scenario: Scenario, broker: Broker) -> None:
    tcp = scenario.tcp
    listens = tcp.consumer == "listen"
    own = Places.of(broker, tcp.consumer_uri, scenario)
    keys = (f"broker {broker.name}: uri", "tcp.consumer_uri" if tcp.consumer_uri else "uri")
    places.refuse_impossible(scenario, own, listens=listens, keys=keys)
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


class TcpTransport(AddressedTransport):
    confirms = False

    def __init__(self, context: TransportContext) -> None:
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
        make_wire = TcpWire if self._places.is_one else SendingWire
        protocol: PlainProtocol[TcpWire] = PlainProtocol(NAME, self._access(place), make_wire)
        return TcpProducers(protocol, self._tcp, lanes, now_ns, self._rule)

    def open_consumers(
        self, lanes: Sequence[Lane], now_ns: NowNs, want: frozenset[Part] = HEAD_ONLY
    ) -> Consumers:
        if not self._listens:
            protocol = PlainProtocol(NAME, self._access(self._places.consumers), ReceivingWire)
            arrivals = Arrivals(want, self._scenario.most_arriving_bytes)
            return TcpConsumers(protocol, self._tcp, lanes, now_ns, arrivals, self._rule)
        arrivals = Arrivals(want, self._scenario.most_arriving_bytes)
        consumers = ListeningConsumers(
            self._doors.hand_over(),
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
    ) -> TcpWire:
        wire = TcpWire(connected, loop, now_ns, buffer)
        wire.parser = parser_of(self._tcp, number % lanes, arrivals)
        return wire
