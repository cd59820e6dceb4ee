"""Destinations that are addresses, for protocols in which either side may be the server.

A broker file names one address. Producers send to it. Consumers listen there too, unless the
scenario gives them an address of their own: then the file's is that of the system under test, and
theirs is where it sends what it has made of the messages. `%d` in a path stands for the
destination's number.

Consumers that listen have no lanes of their own: each incoming connection is given to one of the
consumers in turn. A peer that closes its connection is no loss: it may connect again.
"""

from __future__ import annotations

import socket
import ssl
import time
import urllib.parse
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from bench_spark.config.broker import Broker, port_of
from bench_spark.config.models import Scenario
from bench_spark.core.clock import NowNs
from bench_spark.errors import BrokerRefused, ConfigurationError
from bench_spark.transports.base import (
    Consumers,
    Destination,
    Signal,
    Subscription,
    TransportContext,
)
from bench_spark.transports.batches import Received, nothing_received
from bench_spark.transports.sockets.buffers import Arrivals, ReadBuffer
from bench_spark.transports.sockets.connection import WOULD_BLOCK, SocketConnection, read_buffer
from bench_spark.transports.sockets.loop import Loop
from bench_spark.transports.sockets.opening import (
    CLOSE_SECONDS,
    ReopeningRule,
    SocketAccess,
    access_to,
)

WAITING_CONNECTIONS = 4096
QUIET_SECONDS = 0.1
"""At the end: nothing has come for so long, so nothing is on its way."""
DETACH_SECONDS = 5.0


def listen_at(host: str, port: int) -> socket.socket:
    """Several agents of one machine may share a port: the system divides who connects."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        made = socket.create_server(
            (host, port), family=family, backlog=WAITING_CONNECTIONS, reuse_port=port != 0
        )
    except OSError as error:
        why = error.strerror or str(error)
        raise BrokerRefused(f"{host}:{port}: cannot listen here: {why}") from error
    made.setblocking(False)
    return made


def server_tls(broker: Broker) -> ssl.SSLContext:
    """For who listens: the broker file's certificate is then the server's own."""
    tls = broker.tls
    if tls is None or tls.certificate_file is None:
        raise ConfigurationError(
            f"broker {broker.name}: tls.certificate_file: missing; consumers that listen with TLS "
            "need a certificate of their own"
        )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=tls.ca_file)
    if tls.ca_file and not tls.insecure:
        context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_cert_chain(tls.certificate_file, tls.key_file)
    except (OSError, ssl.SSLError) as error:
        files = ", ".join(filter(None, (tls.certificate_file, tls.key_file)))
        raise ConfigurationError(f"tls: cannot load {files}: {error}") from error
    # Nobody comes back to resume. A peer that has not read its tickets when it closes would make
    # the kernel reset the connection, and what it had sent last would be lost with it.
    context.num_tickets = 0
    return context


MakePeer = Callable[[socket.socket, Loop, NowNs, ReadBuffer, int], SocketConnection]
"""A connection for the peer of that number."""


class ListeningConsumers(Consumers):
    """See `bench_spark.transports.base.Consumers`."""

    def __init__(
        self,
        listener: socket.socket,
        tls_context: ssl.SSLContext | None,
        arrivals: Arrivals,
        now_ns: NowNs,
        make_peer: MakePeer,
        lanes_of_peer: Callable[[int], Collection[int]],
    ) -> None:
        self._listener = listener
        self._tls_context = tls_context
        self._arrivals = arrivals
        self._now_ns = now_ns
        self._make_peer = make_peer
        self._lanes_of_peer = lanes_of_peer
        self._loop = Loop()
        self._buffer = read_buffer()
        self._peers: dict[int, SocketConnection] = {}
        """Those that are connected, by number."""
        self._held: frozenset[int] = frozenset()
        self._accepted = 0

    @property
    def descriptor(self) -> int:
        return self._loop.descriptor

    def attach(self) -> None:
        self._loop.add(self)

    # -- who connects ------------------------------------------------------------------------------

    def fileno(self) -> int:
        return self._listener.fileno()

    def on_ready(self, events: int) -> None:
        """Accept all connections that wait."""
        while True:
            try:
                connected, _ = self._listener.accept()
            except WOULD_BLOCK:
                return
            except ConnectionError:
                continue  # gone again
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connected.setblocking(False)
            if self._tls_context is not None:
                # Its handshake is part of the first reads.
                connected = self._tls_context.wrap_socket(
                    connected, server_side=True, do_handshake_on_connect=False
                )
            self._welcome(connected)

    def _welcome(self, connected: socket.socket) -> None:
        number = self._accepted
        self._accepted += 1
        peer = self._make_peer(connected, self._loop, self._now_ns, self._buffer, number)
        self._peers[number] = peer
        peer.on_end = lambda failure: self._forget(number)
        if self._is_held(number):
            peer.hold(True)
        else:
            peer.read()

    def _forget(self, number: int) -> None:
        self._peers.pop(number, None)

    def hold(self, lanes: Collection[int]) -> None:
        self._held = frozenset(lanes)
        for number, peer in list(self._peers.items()):
            peer.hold(self._is_held(number))

    def _is_held(self, number: int) -> bool:
        return bool(self._held) and self._held.issuperset(self._lanes_of_peer(number))

    # -- receiving ---------------------------------------------------------------------------------

    def receive(self, timeout_seconds: float) -> Received:
        if self._loop.is_closed:
            return nothing_received()
        self._loop.pump()
        if not self._arrivals and timeout_seconds > 0:
            self._loop.run_until(lambda: self._arrivals, timeout_seconds)
        return self._arrivals.take()

    def acknowledge(self, received: Received) -> int:
        """A peer has had its answer when the message was read, if the protocol has any."""
        return 0

    def detach(self) -> bool:
        """Accept no more connections, and read until nothing comes."""
        self._loop.remove(self)
        deadline = time.monotonic() + DETACH_SECONDS
        is_quiet = False
        while not is_quiet and time.monotonic() < deadline:
            is_quiet = not self._reads_within(QUIET_SECONDS)
        self._wake_if_more()
        return is_quiet

    def _reads_within(self, seconds: float) -> bool:
        before = self._newest_read_ns()
        return self._loop.run_until(lambda: self._newest_read_ns() != before, seconds)

    def _newest_read_ns(self) -> int:
        return max((peer.read_ns for peer in self._peers.values()), default=0)

    def signals(self) -> list[Signal]:
        self._loop.pump()
        self._wake_if_more()
        return []

    def _wake_if_more(self) -> None:
        if self._arrivals:
            self._loop.wake()

    def close(self) -> None:
        if self._loop.is_closed:
            return
        self._loop.remove(self)
        self._listener.close()
        peers = list(self._peers.values())
        for peer in peers:
            peer.close()
        self._loop.run_down(lambda: len(self._peers), CLOSE_SECONDS, CLOSE_SECONDS)
        for peer in peers:
            peer.abort("the run has ended")
        self._loop.close()


NUMBER_MARK = "%d"


@dataclass(frozen=True)
class Place:
    """An address, by its URI."""

    uri: str
    is_encrypted: bool

    @classmethod
    def by_scheme(cls, uri: str) -> Place:
        return cls(uri, urllib.parse.urlsplit(uri).scheme.endswith("s"))

    @property
    def _parts(self) -> urllib.parse.SplitResult:
        return urllib.parse.urlsplit(self.uri)

    @property
    def host(self) -> str:
        return self._parts.hostname or "localhost"

    @property
    def port(self) -> int:
        return port_of(self._parts)

    @property
    def host_and_port(self) -> str:
        """Without a login, as it is in the URI."""
        return self._parts.netloc.rpartition("@")[2]

    @property
    def path(self) -> str:
        return self._parts.path or "/"

    @property
    def target(self) -> str:
        """Path and query."""
        query = self._parts.query
        return f"{self.path}?{query}" if query else self.path

    @property
    def name(self) -> str:
        """The URI without a login."""
        return self._parts._replace(netloc=self.host_and_port).geturl()

    def numbered(self, index: int) -> Place:
        return replace(self, uri=self.uri.replace(NUMBER_MARK, str(index)))

    def at_port(self, port: int) -> Place:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return replace(self, uri=self._parts._replace(netloc=f"{host}:{port}").geturl())


@dataclass(frozen=True)
class Places:
    """Of one transport."""

    producers: Place
    consumers: Place
    is_one: bool
    """Whether producers send to our own consumers."""

    @classmethod
    def of(cls, broker: Broker, consumer_uri: str | None, scenario: Scenario) -> Places:
        is_one = consumer_uri is None and scenario.consumers > 0
        named = Place(broker.uri or "", broker.uses_tls)
        return cls(named, Place.by_scheme(consumer_uri) if consumer_uri else named, is_one)

    def sent_to(self, index: int, name: str | None) -> Place:
        """Where producers send what is for the destination of that number and name."""
        if self.is_one and name:
            return replace(self.producers, uri=name)
        return self.producers.numbered(index)


class Listener:
    """The listening socket of a transport, from when its port must be known until it is used."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._socket: socket.socket | None = None

    @property
    def is_any_port(self) -> bool:
        return self._place.port == 0

    def bound(self) -> Place:
        """The place, with the port that it turned out to have."""
        if self._socket is None:
            self._socket = listen_at(self._place.host, self._place.port)
        return self._place.at_port(self._socket.getsockname()[1])

    def hand_over(self) -> socket.socket:
        """To whoever listens from now on, and closes it."""
        self.bound()
        found, self._socket = self._socket, None
        assert found is not None
        return found

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def refuse_impossible_addresses(
    scenario: Scenario, places: Places, *, listens: bool, keys: tuple[str, str]
) -> None:
    """What no agent could do with these addresses; `keys` of producers' and consumers' address."""
    if not listens and places.producers.port == 0 and scenario.producers:
        raise ConfigurationError(f"{keys[0]}: port 0 is for consumers that listen")
    is_alone = scenario.agents == 1
    if listens and scenario.consumers and places.consumers.port == 0 and not is_alone:
        raise ConfigurationError(
            f"{keys[1]}: port 0 needs agents: 1: nobody could tell the system under test which "
            "port each of several agents got"
        )


class AddressedTransport:
    def __init__(self, context: TransportContext, consumer_uri: str | None, listens: bool) -> None:
        """`listens`: whether consumers are connected to, and do not connect themselves."""
        self._context = context
        self._scenario = context.scenario
        self._listens = listens
        self._places = Places.of(context.broker, consumer_uri, context.scenario)
        self._listener = Listener(self._places.consumers)
        seconds = context.scenario.reconnect_seconds
        self._rule = ReopeningRule(seconds) if seconds else None

    def declare(self, destinations: Sequence[Destination]) -> tuple[Destination, ...]:
        """An address needs no making; one at any free port is known once it is listened at."""
        place = self._places.producers
        is_own = self._listens and self._scenario.consumers > 0
        if is_own:
            place = self._listener.bound() if self._listener.is_any_port else self._places.consumers
        return tuple(
            replace(one, name=place.numbered(one.index).name, declared=is_own)
            for one in destinations
        )

    def find(self, destinations: Sequence[Destination]) -> tuple[Destination, ...]:
        return self.declare(destinations)

    def backlog(self, subscriptions: Sequence[Subscription]) -> tuple[int | None, ...]:
        """An address keeps nothing: what did not arrive is lost."""
        return tuple(0 for _ in subscriptions)

    def delete(self, destinations: Sequence[Destination]) -> None:
        self._listener.close()

    def close(self) -> None:
        self._listener.close()

    def _access(self, place: Place) -> SocketAccess:
        return access_to(self._context, place.host, place.port, place.is_encrypted)

    def _listening_consumers(
        self,
        lanes: int,
        arrivals: Arrivals,
        now_ns: NowNs,
        make_peer: MakePeer,
        lanes_of_peer: Callable[[int], Collection[int]],
    ) -> ListeningConsumers:
        """For so many lanes."""
        is_encrypted = self._places.consumers.is_encrypted
        consumers = ListeningConsumers(
            self._listener.hand_over(),
            server_tls(self._context.broker) if is_encrypted else None,
            arrivals,
            now_ns,
            make_peer,
            lanes_of_peer,
        )
        self._context.on_opened(lanes)
        return consumers
