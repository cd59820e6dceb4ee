"""The driver's end of the links: one listening socket, one thread, one run.

Every connection must answer a challenge with the run's token before anything it says is looked at,
and within 5 s. Connections that have not may be as many as there are agents, and some; one more
makes the oldest of them go, so that a crowd of them keeps no agent out.
What agents say is handed to a `LinkHandler` in this thread only, so that it needs no locks; other
threads reach it through `call`.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from bench_spark.agent.protocol import (
    FrameReader,
    Handshake,
    Message,
    encode_frame,
)
from bench_spark.core.clock import Clock, boot_id
from bench_spark.errors import EnvironmentNotReady
from bench_spark.process import watched

HANDSHAKE_SECONDS = 5.0
"""How long a connection may take to authenticate."""
MOST_OTHER_STRANGERS = 16
"""Connections that have not authenticated, beside one for each agent."""
_STRANGER_HEADER_BYTES = 4096
_RECEIVE_BYTES = 1 << 20
_TURN_SECONDS = 0.05


class LinkHandler(Protocol):
    def on_joined(self, agent: int, attempt: int) -> None: ...

    def on_message(self, agent: int, message: Message, payload: bytes) -> None: ...

    def on_left(self, agent: int) -> None: ...

    def on_time(self) -> None:
        """Called some twenty times a second."""


@dataclass(eq=False)
class _Peer:
    socket: socket.socket
    handshake: Handshake
    deadline: float
    reader: FrameReader
    agent: int | None = None
    outgoing: bytearray = field(default_factory=bytearray)


def _listener(address: tuple[str, int]) -> socket.socket:
    try:
        return socket.create_server(address, backlog=1024)
    except OSError as error:
        host, port = address
        raise EnvironmentNotReady(
            f"the collector cannot listen on {host}, port {port}: {error.strerror}"
        ) from error


class CollectorServer:
    def __init__(self, address: tuple[str, int], token: str, agents: int, clock: Clock) -> None:
        """`address`: where to listen; port 0 is any free one. Raises EnvironmentNotReady."""
        self._token = token
        self._agents = agents
        self._clock = clock
        self._listener = _listener(address)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._wake_out, self._wake_in = os.pipe()
        os.set_blocking(self._wake_out, False)
        self._peers: set[_Peer] = set()
        self._by_agent: dict[int, _Peer] = {}
        self._calls: deque[Callable[[], None]] = deque()
        self._closing = False
        self._handler: LinkHandler | None = None
        self._thread = threading.Thread(target=watched(self._work), name="collector", daemon=True)

    def start(self, handler: LinkHandler) -> None:
        self._handler = handler
        self._thread.start()

    def call(self, function: Callable[[], None]) -> None:
        """Run a function in the server's thread, where the handler lives."""
        self._calls.append(function)
        with contextlib.suppress(OSError):
            os.write(self._wake_in, b"!")

    def send(self, agent: int, message: Message) -> None:
        """Only from the server's own thread (that is, from the handler)."""
        peer = self._by_agent.get(agent)
        if peer is not None:
            peer.outgoing += encode_frame(message)
            self._flush(peer)

    def close(self) -> None:
        self._closing = True
        self.call(lambda: None)
        if self._thread.is_alive():
            self._thread.join(5.0)
        self._listener.close()
        for end in (self._wake_out, self._wake_in):
            with contextlib.suppress(OSError):
                os.close(end)

    # -- the server's thread ---------------------------------------------------------------------

    def _work(self) -> None:
        try:
            self._serve_until_closed()
        except BaseException:
            # Agents end when their connection does; nothing else would end them.
            for peer in self._peers:
                peer.socket.close()
            raise

    def _serve_until_closed(self) -> None:
        assert self._handler is not None
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_out, selectors.EVENT_READ)
        while not self._closing:
            for key, events in self._selector.select(_TURN_SECONDS):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj == self._wake_out:
                    os.read(self._wake_out, 4096)
                else:
                    self._serve(key.data, events)
            while self._calls:
                self._calls.popleft()()
            self._hang_up_on_silent_strangers()
            self._handler.on_time()
        for peer in list(self._peers):
            self._drop(peer)

    def _accept(self) -> None:
        # Whoever called may have gone already, or descriptors have run out: nobody comes in then.
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            self._make_room()
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer = _Peer(
                socket=connection,
                handshake=Handshake(self._token, "driver", "agent"),
                deadline=time.monotonic() + HANDSHAKE_SECONDS,
                reader=FrameReader(_STRANGER_HEADER_BYTES, 0),
            )
            self._peers.add(peer)
            self._selector.register(connection, selectors.EVENT_READ, peer)
            peer.outgoing += peer.handshake.challenge
            self._flush(peer)

    def _make_room(self) -> None:
        """Hang up on the oldest connection that has not authenticated, where there are too many.

        Turning the newest away instead would let whoever connects first keep all agents out.
        """
        strangers = [peer for peer in self._peers if peer.agent is None]
        if len(strangers) >= self._agents + MOST_OTHER_STRANGERS:
            self._drop(min(strangers, key=lambda peer: peer.deadline))

    def _serve(self, peer: _Peer, events: int) -> None:
        if peer not in self._peers:
            return  # It had to make room in this very turn.
        if events & selectors.EVENT_WRITE:
            self._flush(peer)
        if not events & selectors.EVENT_READ or peer not in self._peers:
            return
        try:
            data = peer.socket.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(peer)
            return
        heard_ns = self._clock.now_ns()
        try:
            for message, payload in peer.reader.feed(data):
                self._take(peer, message, payload, heard_ns)
                if peer not in self._peers:
                    return
        except Exception:
            # Not our protocol, or a broken agent: nothing more can be learnt from it. Whatever it
            # was, it must not end the thread that all other agents depend on.
            self._drop(peer)

    def _take(self, peer: _Peer, message: Message, payload: bytes, heard_ns: int) -> None:
        assert self._handler is not None
        if peer.agent is None:
            self._welcome(peer, message)
        elif message["type"] == "ping":
            pong = {"type": "pong", "asked": message["asked"], "answered": heard_ns}
            self.send(peer.agent, pong)
        else:
            self._handler.on_message(peer.agent, message, payload)

    def _welcome(self, peer: _Peer, hello: Message) -> None:
        agent = hello.get("agent")
        if (
            hello["type"] != "hello"
            or not isinstance(agent, int)
            or not 0 <= agent < self._agents
            or agent in self._by_agent
        ):
            self._drop(peer)
            return
        welcome = peer.handshake.welcome(hello)  # or whoever reads from it drops it
        peer.agent = agent
        peer.reader = FrameReader()
        self._by_agent[agent] = peer
        welcome |= {"anchor_ns": self._clock.anchor_ns, "boot_id": boot_id()}
        self.send(agent, welcome)
        assert self._handler is not None
        self._handler.on_joined(agent, int(hello.get("attempt", 0)))

    def _flush(self, peer: _Peer) -> None:
        try:
            while peer.outgoing:
                sent = peer.socket.send(peer.outgoing)
                del peer.outgoing[:sent]
        except BlockingIOError:
            pass  # The rest goes out when the socket is writable again.
        except OSError:
            self._drop(peer)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.outgoing else 0)
        self._selector.modify(peer.socket, events, peer)

    def _drop(self, peer: _Peer) -> None:
        if peer not in self._peers:
            return
        self._peers.discard(peer)
        self._selector.unregister(peer.socket)
        peer.socket.close()
        if peer.agent is not None:
            del self._by_agent[peer.agent]
            assert self._handler is not None
            self._handler.on_left(peer.agent)

    def _hang_up_on_silent_strangers(self) -> None:
        now = time.monotonic()
        for peer in [p for p in self._peers if p.agent is None and now > p.deadline]:
            self._drop(peer)
