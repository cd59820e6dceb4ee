"""Consumers that wait for others to connect and send.

A listener has no lanes of its own: whoever connects is given to one of the consumers in turn. That
a peer hangs up is its own business, and no loss: it may come again.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Collection

from bench_spark.config.broker import Broker
from bench_spark.core.clock import NowNs
from bench_spark.errors import BrokerRefused, ConfigurationError
from bench_spark.transports.base import Consumers, Signal
from bench_spark.transports.batches import Received, nothing_received
from bench_spark.transports.sockets.arrivals import Arrivals, ReadBuffer
from bench_spark.transports.sockets.line import GOODBYE_SECONDS
from bench_spark.transports.sockets.loop import Loop
from bench_spark.transports.sockets.plain import PlainWire, read_buffer
from bench_spark.transports.sockets.wire import WOULD_BLOCK

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


MakePeer = Callable[[socket.socket, Loop, NowNs, ReadBuffer, int], PlainWire]
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
        self._peers: dict[int, PlainWire] = {}
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
        """Somebody has connected."""
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
        self._pump()
        if not self._arrivals and timeout_seconds > 0:
            self._loop.run_until(lambda: self._arrivals, timeout_seconds)
        return self._arrivals.take()

    def _pump(self) -> None:
        self._loop.silence()
        self._loop.pump()

    def acknowledge(self, received: Received) -> int:
        """A peer has had its answer when the message was read, if the protocol has any."""
        return 0

    def detach(self) -> bool:
        """Take nobody in any more, and read until nothing comes."""
        self._loop.remove(self)
        deadline = time.monotonic() + DETACH_SECONDS
        is_quiet = False
        while not is_quiet and time.monotonic() < deadline:
            is_quiet = not self._hears_within(QUIET_SECONDS)
        self._ring_if_more()
        return is_quiet

    def _hears_within(self, seconds: float) -> bool:
        before = self._newest_read_ns()
        return self._loop.run_until(lambda: self._newest_read_ns() != before, seconds)

    def _newest_read_ns(self) -> int:
        return max((peer.read_ns for peer in self._peers.values()), default=0)

    def signals(self) -> list[Signal]:
        if not self._loop.is_closed:
            self._pump()
            self._ring_if_more()
        return []

    def _ring_if_more(self) -> None:
        if self._arrivals:
            self._loop.ring()

    def close(self) -> None:
        if self._loop.is_closed:
            return
        self._loop.remove(self)
        self._listener.close()
        peers = list(self._peers.values())
        for peer in peers:
            peer.close()
        self._loop.run_down(lambda: len(self._peers), GOODBYE_SECONDS, GOODBYE_SECONDS)
        for peer in peers:
            peer.abort("the run has ended")
        self._loop.close()
