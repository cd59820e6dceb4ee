"""From an address to open connections: name, TCP, TLS, login; what went wrong, in words for people.

Every wait has a deadline; there are no retries here (reopening.py has them). Logins of many
connections run side by side on one loop, so that hundreds open in the time of a few.
"""

from __future__ import annotations

import functools
import queue
import socket
import ssl
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from bench_spark.config.broker import Tls
from bench_spark.core.clock import NowNs
from bench_spark.errors import BenchError, BrokerUnreachable, ConfigurationError
from bench_spark.process import watched
from bench_spark.transports.base import Lane, OpeningPace, TransportContext
from bench_spark.transports.sockets.buffers import ReadBuffer
from bench_spark.transports.sockets.connection import ForeignProtocol, SocketConnection, read_buffer
from bench_spark.transports.sockets.loop import Gathering, Loop

CLOSE_SECONDS = 3.0
"""How long to wait, while many connections are closed, for the next of them to be answered. What
was published and not read yet would be lost with a connection that is cut off: not too short."""
MOST_CLOSE_SECONDS = 60.0

_ADDRESS_INFO = tuple[Any, ...]


@dataclass(frozen=True)
class SocketAccess:
    """Where a broker is, and how it is connected to; made once per transport."""

    host: str
    port: int
    timeout_seconds: float
    tls_context: ssl.SSLContext | None
    tls_name: str
    pace: OpeningPace
    """How fast connections may be opened."""
    on_opened: Callable[[int], None]
    """Called with how many more lanes are open."""

    @property
    def address(self) -> str:
        """Host and port, for messages to people."""
        return f"{self.host}:{self.port}"


def access_to(context: TransportContext, host: str, port: int, is_tls: bool) -> SocketAccess:
    broker = context.broker
    return SocketAccess(
        host=host,
        port=port,
        timeout_seconds=broker.connect_timeout_seconds,
        tls_context=_tls_context(broker.tls or Tls()) if is_tls else None,
        tls_name=broker.tls.server_name if broker.tls and broker.tls.server_name else host,
        pace=context.pace,
        on_opened=context.on_opened,
    )


def dialled(access: SocketAccess, count: int, deadline: float) -> Iterator[socket.socket]:
    """Sockets, connected and encrypted where asked for, that never block; made one by one."""
    addresses = _resolve(access, deadline)
    for _ in range(count):
        yield _connect(access, addresses, deadline)


def _resolve(access: SocketAccess, deadline: float) -> list[_ADDRESS_INFO]:
    """Addresses of the host. In a thread: the system's resolver has no timeout of its own."""
    answers: queue.SimpleQueue[list[_ADDRESS_INFO] | OSError] = queue.SimpleQueue()

    def ask() -> None:
        try:
            found = socket.getaddrinfo(access.host, access.port, type=socket.SOCK_STREAM)
            answers.put(list(found))
        except OSError as error:
            answers.put(error)

    threading.Thread(target=watched(ask), name="resolve", daemon=True).start()
    try:
        answer = answers.get(timeout=max(0.01, deadline - time.monotonic()))
    except queue.Empty:
        raise _no_answer(access, "name not resolved") from None
    if isinstance(answer, OSError):
        raise BrokerUnreachable(f"{access.address}: {_reason(answer)}") from answer
    return answer


def _connect(
    access: SocketAccess, addresses: Sequence[_ADDRESS_INFO], deadline: float
) -> socket.socket:
    failure: OSError | None = None
    for family, kind, protocol, _, address in addresses:
        candidate = socket.socket(family, kind, protocol)
        try:
            candidate.settimeout(max(0.01, deadline - time.monotonic()))
            candidate.connect(address)
            candidate.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if access.tls_context is not None:
                candidate = access.tls_context.wrap_socket(
                    candidate, server_hostname=access.tls_name
                )
            candidate.setblocking(False)
            return candidate
        except OSError as error:
            candidate.close()
            failure = error
    if isinstance(failure, TimeoutError):
        raise _no_answer(access, "no answer") from failure
    tls = "TLS: " if isinstance(failure, ssl.SSLError) else ""
    raise BrokerUnreachable(f"{access.address}: {tls}{_reason(failure)}") from failure


def _no_answer(access: SocketAccess, what: str) -> BrokerUnreachable:
    return BrokerUnreachable(f"{access.address}: {what} within {access.timeout_seconds:g} s")


def _reason(error: OSError | None) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    return (error.strerror if error else None) or str(error)


def _tls_context(tls: Tls) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
        if tls.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if tls.certificate_file:
            context.load_cert_chain(tls.certificate_file, tls.key_file)
    except (OSError, ssl.SSLError) as error:
        files = ", ".join(filter(None, (tls.ca_file, tls.certificate_file, tls.key_file)))
        raise ConfigurationError(f"tls: cannot load {files}: {_reason(error)}") from error
    return context


# -- what a protocol says of its connections -------------------------------------------------------


ConnectionT = TypeVar("ConnectionT", bound=SocketConnection)


class Connector(ABC, Generic[ConnectionT]):
    """How connections of one protocol are opened, and what their ends mean."""

    access: SocketAccess
    name: str
    """The protocol's, for messages to people."""
    first_request = "connecting"
    """What follows the login, for messages to people."""
    gathering: Gathering | None = None
    """That of all connections, if they are read less often."""

    @abstractmethod
    def log_in(self, lane: int, connected: socket.socket, loop: Loop, now_ns: NowNs) -> ConnectionT:
        """Begin the login of the lane of that number; does not wait."""

    def ready_all(self, connections: Sequence[ConnectionT], loop: Loop) -> None:
        """Do what is between a login and a lane for all of these, or raise; waits."""

    def get_ready(
        self,
        connection: ConnectionT,
        loop: Loop,
        then: Callable[[ConnectionT], None],
        on_end: Callable[[Exception], None],
    ) -> None:
        """The same for one, without waiting; `then` is called in a later turn of the loop."""
        loop.call_soon(functools.partial(then, connection))

    def login_failure(self, connection: ConnectionT, failure: Exception) -> BenchError:
        return BrokerUnreachable(f"{self.access.address}: {self.describe_end(connection, failure)}")

    def is_login_refused(self, connection: ConnectionT, failure: Exception) -> bool:
        """Whether the broker itself said so; a mere hang-up says nothing."""
        return False

    def describe_end(self, connection: ConnectionT, failure: Exception) -> str:
        """Why a connection ended, in one line and in the broker's words where it has any."""
        return f"connection lost: {failure}"

    def may_pass(self, connection: ConnectionT, failure: Exception) -> bool:
        """Whether a new connection may fare better."""
        return not isinstance(failure, ForeignProtocol)

    def refusal(self, connection: ConnectionT, failure: Exception | None, what: str) -> BenchError:
        """The error for a request (`what`) that the broker did not grant."""
        said = "no answer" if failure is None else self.describe_end(connection, failure)
        return BrokerUnreachable(f"{self.access.address}: {what}: {said}")


class OpenLane(Generic[ConnectionT]):
    """A lane with its present connection."""

    connection: ConnectionT

    def __init__(self, number: int, lane: Lane) -> None:
        self.number = number
        self.lane = lane
        self.generation = 0
        """Which of its connections this is."""
        self.is_lost = False
        """Nothing can be sent or received now; it may be on its way back."""
        self.end: Exception | None = None
        self.unanswered = 0
        """Requests to be answered by the broker before the lane can be used."""


def open_connections(
    protocol: Connector[ConnectionT],
    count: int,
    loop: Loop,
    now_ns: NowNs = time.monotonic_ns,
    on_opened: Callable[[int], None] = lambda connections: None,
) -> list[ConnectionT]:
    """All of them, logged in; or none, and the error says why."""
    connections: list[ConnectionT] = []
    access = protocol.access
    try:
        while len(connections) < count:
            group_start = len(connections)
            group_end = group_start + access.pace.take(count - group_start)
            deadline = time.monotonic() + access.timeout_seconds
            for connected in dialled(access, group_end - group_start, deadline):
                connections.append(protocol.log_in(len(connections), connected, loop, now_ns))
            _await_logins(protocol, connections[group_start:], loop, deadline)
            on_opened(group_end - group_start)
    except BaseException:
        for connection in connections:
            connection.abort("another connection could not be opened")
        raise
    return connections


def _await_logins(
    protocol: Connector[ConnectionT],
    group: Sequence[ConnectionT],
    loop: Loop,
    deadline: float,
) -> None:
    def all_settled() -> bool:
        return all(one.is_open or one.failure is not None for one in group)

    loop.run_until(all_settled, max(0.0, deadline - time.monotonic()))
    for connection in group:
        if connection.failure is not None:
            raise protocol.login_failure(connection, connection.failure)
        if not connection.is_open:
            access = protocol.access
            raise BrokerUnreachable(
                f"{access.address}: accepted the connection, but gave no answer in {protocol.name} "
                f"within {access.timeout_seconds:g} s"
            )


def close_gracefully(loop: Loop, connections: Sequence[SocketConnection]) -> bool:
    """Close all of them in order, side by side; one that gets no answer is cut off. Whether all
    were answered: what was sent on the others may never have been read."""
    for connection in connections:
        if connection.is_open:
            connection.close()

    def count_open() -> int:
        return sum(one.failure is None for one in connections)

    have_all_answered = loop.run_down(count_open, CLOSE_SECONDS, MOST_CLOSE_SECONDS)
    for connection in connections:
        connection.abort("the broker did not answer the close")
    return have_all_answered


class PlainProtocol(Connector[ConnectionT]):
    """A protocol without a login, such as HTTP and TCP; see `Connector`."""

    def __init__(
        self,
        name: str,
        access: SocketAccess,
        make_connection: Callable[[socket.socket, Loop, NowNs, ReadBuffer], ConnectionT],
    ) -> None:
        self.name = name
        self.access = access
        self._make_connection = make_connection
        self.buffer = read_buffer()
        """What the sockets of all lanes are read into."""

    def log_in(self, lane: int, connected: socket.socket, loop: Loop, now_ns: NowNs) -> ConnectionT:
        return self._make_connection(connected, loop, now_ns, self.buffer)
