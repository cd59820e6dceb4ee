"""A way to a broker that can be cut and closed, so that no broker need be restarted for a test."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit, urlunsplit

from bench_spark.config.broker import Broker


class Proxy:
    """Forwards what comes to `port`, from one thread."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._lock = threading.Lock()
        self._listener: socket.socket | None = None
        self._peer: dict[socket.socket, socket.socket] = {}
        self._clients: list[socket.socket] = []
        self._is_closed = False
        self.accepted = 0
        self.is_mute = False
        """Takes connections and forwards nothing."""
        self._delivered: dict[socket.socket, int] = {}
        """By client: bytes that the broker has sent it."""
        self._deaf: set[socket.socket] = set()
        self.change: Callable[[int, bytes], bytes] = lambda connection, data: data
        """What a client gets, known by its number, in place of what the broker has sent it."""
        self._numbers: dict[socket.socket, int] = {}
        self.port = 0
        self.open()
        self._thread = threading.Thread(target=self._forward, daemon=True)
        self._thread.start()

    @property
    def connections(self) -> int:
        with self._lock:
            return len(self._clients)

    def open(self) -> None:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        listener.listen(128)
        with self._lock:
            self.port = listener.getsockname()[1]
            self._listener = listener

    def shut(self) -> None:
        """Refuse new connections."""
        with self._lock:
            if self._listener is not None:
                self._listener.close()
                self._listener = None

    def cut(self, *numbers: int) -> None:
        """Reset connections, by the order in which they came; all of them unless some are named."""
        with self._lock:
            for client in [self._clients[number] for number in numbers] or list(self._clients):
                self._drop(client)

    def lose_what_is_for_the_consumer(self) -> None:
        """From now on nothing that the broker sends reaches the client that got most of it so far,
        though its connection stays."""
        with self._lock:
            self._deaf.add(max(self._delivered, key=lambda client: self._delivered[client]))

    def close(self) -> None:
        self.shut()
        self.cut()
        self._is_closed = True
        self._thread.join(5)

    def _drop(self, one: socket.socket) -> None:
        other = self._peer.pop(one)
        del self._peer[other]
        for end in (one, other):
            if end in self._clients:
                self._clients.remove(end)
            with contextlib.suppress(OSError):
                # A reset, not a farewell: that is how a broken network looks.
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            end.close()

    def _forward(self) -> None:
        while not self._is_closed:
            with self._lock:
                watched = [] if self.is_mute else list(self._peer)
                if self._listener is not None:
                    watched.append(self._listener)
            try:
                ready = select.select(watched, [], [], 0.02)[0]
            except (OSError, ValueError):
                continue  # closed meanwhile
            with self._lock:
                for one in ready:
                    if one is self._listener:
                        self._accept(one)
                    elif one in self._peer:
                        self._pass_on(one)

    def _accept(self, listener: socket.socket) -> None:
        client = listener.accept()[0]
        self.accepted += 1
        try:
            server = socket.create_connection(self._target, timeout=5)
        except OSError:
            client.close()
            return
        for one in (client, server):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._peer |= {client: server, server: client}
        self._clients.append(client)
        self._numbers[client] = self.accepted

    def _pass_on(self, one: socket.socket) -> None:
        try:
            data = one.recv(256 * 1024)
            if data:
                other = self._peer[one]
                if other in self._clients:
                    self._delivered[other] = self._delivered.get(other, 0) + len(data)
                    data = self.change(self._numbers[other], data)
                if other not in self._deaf:
                    other.settimeout(5)
                    other.sendall(data)
                return
        except OSError:
            pass
        self._drop(one)


@contextlib.contextmanager
def proxied(broker: Broker) -> Iterator[tuple[Proxy, Broker]]:
    """A proxy before the broker, and the broker as it looks through it."""
    host, port = broker.address()
    proxy = Proxy(host, port)
    parts = urlsplit(broker.uri or "")
    login, at, _ = parts.netloc.rpartition("@")
    netloc = f"{login}{at}127.0.0.1:{proxy.port}"
    try:
        yield (
            proxy,
            Broker(name="proxied", kind=broker.kind, uri=urlunsplit(parts._replace(netloc=netloc))),
        )
    finally:
        proxy.close()
