"""Samplers on the broker's own machine: `bench-spark sample` there, and the monitor's end here.

Either side may have opened it; the side that accepted it challenges first. Both prove that they
know the token, which itself never crosses the network. Then the monitor asks and the sampler
answers, one frame each. Frames are small, and one that is not ends the connection.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal

from bench_spark.agent.protocol import (
    CHALLENGE_BYTES,
    FrameReader,
    Handshake,
    Message,
    WireError,
    WrongToken,
    encode_frame,
)
from bench_spark.monitor.reading import Reading, ResourceSampler, SourceUnreadable
from bench_spark.process import Backoff, watched

Role = Literal["monitor", "sampler"]

MOST_FRAME_BYTES = 256 * 1024
HANDSHAKE_SECONDS = 5.0

_RECEIVE_BYTES = 65536


class PeerError(Exception):
    """The connection is of no further use; the text says why."""


class SamplerPeer:
    def __init__(
        self, connection: socket.socket, token: str, role: Role, *, accepted: bool
    ) -> None:
        """Takes over the connection; it is closed if the other side cannot prove itself."""
        self._socket = connection
        other = "sampler" if role == "monitor" else "monitor"
        self._handshake = Handshake(token, role, other)
        self._reader = FrameReader(MOST_FRAME_BYTES, 0)
        self._waiting: list[Message] = []
        try:
            connection.settimeout(HANDSHAKE_SECONDS)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if accepted:
                self._challenge()
            else:
                self._join()
        except OSError as error:
            self.close()
            raise PeerError(f"it does not answer ({type(error).__name__})") from None
        except WrongToken:
            self.close()
            raise PeerError("it does not know the token") from None
        except WireError:
            self.close()
            raise PeerError("it does not speak this protocol") from None
        except PeerError:
            self.close()
            raise

    def send(self, message: Message) -> None:
        try:
            self._socket.sendall(encode_frame(message))
        except OSError as error:
            raise PeerError(f"the connection ended ({type(error).__name__})") from None

    def receive(self, wanted: str, timeout_seconds: float) -> Message:
        """The next message, which must be of this type."""
        deadline = time.monotonic() + timeout_seconds
        while not self._waiting:
            try:
                self._socket.settimeout(max(0.001, deadline - time.monotonic()))
                data = self._socket.recv(_RECEIVE_BYTES)
                if not data:
                    raise PeerError("the connection ended")
                self._waiting += [message for message, _ in self._reader.feed(data)]
            except OSError as error:
                raise PeerError(f"it does not answer ({type(error).__name__})") from None
            except WireError as error:
                raise PeerError(f"it does not speak this protocol ({error})") from None
        message = self._waiting.pop(0)
        if message["type"] != wanted:
            raise PeerError("it does not speak this protocol")
        return message

    def close(self) -> None:
        self._socket.close()

    def _challenge(self) -> None:
        self._socket.sendall(self._handshake.challenge)
        self.send(self._handshake.welcome(self.receive("hello", HANDSHAKE_SECONDS)))

    def _join(self) -> None:
        theirs = b""
        while len(theirs) < CHALLENGE_BYTES:
            more = self._socket.recv(CHALLENGE_BYTES - len(theirs))
            if not more:
                raise PeerError("the connection ended")
            theirs += more
        self.send(self._handshake.hello(theirs))
        try:
            welcome = self.receive("welcome", HANDSHAKE_SECONDS)
        except PeerError as error:
            raise PeerError(f"login refused; is the token the same there? ({error})") from None
        self._handshake.verify(welcome)


RETRY_SECONDS = 1.0
MOST_CONNECTIONS = 8
"""Served at a time; a stranger holds a place for some seconds at most."""
IDLE_SECONDS = 120.0
"""A monitor asks every second; one that is silent for so long may be gone without a word."""

Address = tuple[str, int]
Say = Callable[[str], None]


# -- the monitor's end -----------------------------------------------------------------------------


class RemoteSampler(ResourceSampler):
    """Calls a sampler that listens, and calls again when the connection was lost."""

    def __init__(self, address: Address, token: str, timeout_seconds: float) -> None:
        self._address = address
        self._token = token
        self._timeout_seconds = timeout_seconds
        self._peer: SamplerPeer | None = None

    def read(self) -> Reading:
        was_open = self._peer is not None
        try:
            peer = self._peer = self._peer or self._connect()
            return _ask(peer, self._timeout_seconds)
        except PeerError as error:
            self.close()
            if was_open:
                return self.read()
            raise SourceUnreadable(f"the sampler at {_shown(self._address)}: {error}") from None

    def close(self) -> None:
        if self._peer is not None:
            self._peer.close()
            self._peer = None

    def _connect(self) -> SamplerPeer:
        try:
            connection = socket.create_connection(self._address, self._timeout_seconds)
        except OSError as error:
            raise PeerError(error.strerror or type(error).__name__) from None
        return SamplerPeer(connection, self._token, "monitor", accepted=False)


class CalledSampler(ResourceSampler):
    """Waits for a sampler that calls; the newest that proves itself is the one asked."""

    def __init__(self, address: Address, token: str, timeout_seconds: float) -> None:
        self._address = address
        self._token = token
        self._timeout_seconds = timeout_seconds
        self._lock = threading.Lock()
        self._peer: SamplerPeer | None = None
        self._server: socket.socket | None = None
        self._places = threading.Semaphore(MOST_CONNECTIONS)
        self._problem = f"no sampler has called at {_shown(address)}"
        try:
            self._server = _listen(address)
        except OSError as error:
            self._problem = f"cannot listen at {_shown(address)}: {error.strerror}"
            return
        threading.Thread(target=watched(self._accept), name="sampler-calls", daemon=True).start()

    def read(self) -> Reading:
        with self._lock:
            peer = self._peer
        if peer is None:
            raise SourceUnreadable(self._problem)
        try:
            return _ask(peer, self._timeout_seconds)
        except PeerError as error:
            peer.close()
            with self._lock:
                self._peer = None if self._peer is peer else self._peer
            raise SourceUnreadable(f"the sampler that called: {error}") from None

    def close(self) -> None:
        if self._server is not None:
            _close_listener(self._server)
        with self._lock:
            if self._peer is not None:
                self._peer.close()

    def _accept(self) -> None:
        assert self._server is not None
        for connection, _ in _callers(self._server, self._places):
            # In a thread: a stranger that says nothing must not keep the sampler waiting.
            threading.Thread(
                target=watched(self._welcome),
                args=(connection,),
                name="sampler-called",
                daemon=True,
            ).start()

    def _welcome(self, connection: socket.socket) -> None:
        try:
            peer = SamplerPeer(connection, self._token, "monitor", accepted=True)
        except PeerError as error:
            self._problem = f"whoever called at {_shown(self._address)}: {error}"
            return
        finally:
            self._places.release()
        with self._lock:
            before, self._peer = self._peer, peer
        if before is not None:
            before.close()


def _ask(peer: SamplerPeer, timeout_seconds: float) -> Reading:
    peer.send({"type": "sample"})
    message = peer.receive("reading", timeout_seconds)
    if (problem := message.get("problem")) is not None:
        raise SourceUnreadable(str(problem)[:300])
    return Reading.from_message(message)


# -- the sampler's end -----------------------------------------------------------------------------


class SamplerServer:
    """Listens, and answers callers that know the token."""

    def __init__(self, address: Address, token: str, sampler: ResourceSampler, say: Say) -> None:
        """Raises OSError where it cannot listen."""
        self._server = _listen(address)
        self._token = token
        self._sampler = _Shared(sampler)
        self._say = say
        self._places = threading.Semaphore(MOST_CONNECTIONS)

    @property
    def port(self) -> int:
        return int(self._server.getsockname()[1])

    def serve(self) -> None:
        """Until `close`."""
        for connection, caller in _callers(self._server, self._places):
            threading.Thread(
                target=self._answer, args=(connection, _shown(caller[:2])), daemon=True
            ).start()

    def close(self) -> None:
        _close_listener(self._server)

    def _answer(self, connection: socket.socket, caller: str) -> None:
        try:
            peer = SamplerPeer(connection, self._token, "sampler", accepted=True)
            self._say(f"{caller} asks for samples")
            _answer_until_end(peer, self._sampler)
        except PeerError as error:
            self._say(f"{caller}: {error}")
        finally:
            connection.close()
            self._places.release()


def call_and_answer(
    address: Address, token: str, sampler: ResourceSampler, say: Say, has_ended: threading.Event
) -> None:
    """Call a monitor again and again (it is there while a run goes on) and answer what it asks."""
    said = None
    backoff = Backoff(RETRY_SECONDS, RETRY_SECONDS)
    while not has_ended.is_set():
        try:
            connection = socket.create_connection(address, RETRY_SECONDS * 5)
            peer = SamplerPeer(connection, token, "sampler", accepted=False)
            say(f"{_shown(address)} asks for samples")
            said = None
            _answer_until_end(peer, sampler)
        except (OSError, PeerError) as error:
            text = f"{_shown(address)}: {getattr(error, 'strerror', None) or error}"
            if text != said:
                say(f"{text}; trying again")
            said = text
        has_ended.wait(backoff.next_seconds())


def _answer_until_end(peer: SamplerPeer, sampler: ResourceSampler) -> None:
    try:
        while True:
            peer.receive("sample", IDLE_SECONDS)
            try:
                message = sampler.read().as_message()
            except SourceUnreadable as error:
                message = {"type": "reading", "problem": str(error)}
            peer.send(message)
    finally:
        peer.close()


class _Shared(ResourceSampler):
    """One sampler for several connections, one at a time."""

    def __init__(self, sampler: ResourceSampler) -> None:
        self._sampler = sampler
        self._lock = threading.Lock()

    def read(self) -> Reading:
        with self._lock:
            return self._sampler.read()

    def close(self) -> None:
        self._sampler.close()


def _listen(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    return socket.create_server(address, family=family)


def _callers(
    server: socket.socket, places: threading.Semaphore
) -> Iterator[tuple[socket.socket, Any]]:
    """Callers, until the listener is closed; each has taken a place, to be given back.
    A caller who finds none free is refused."""
    while True:
        try:
            connection, caller = server.accept()
        except OSError:
            return  # closed
        if places.acquire(blocking=False):
            yield connection, caller
        else:
            connection.close()


def _close_listener(server: socket.socket) -> None:
    """Closing alone would not wake a thread that waits in `accept`."""
    with contextlib.suppress(OSError):
        server.shutdown(socket.SHUT_RDWR)
    server.close()


def _shown(address: Address) -> str:
    return f"{address[0]}:{address[1]}"
