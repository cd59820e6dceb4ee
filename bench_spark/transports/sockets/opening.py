"""From an address to open connections: name, TCP, TLS, login; what went wrong, in words for people.

At the start every wait has a deadline, and nothing is tried twice. Logins of many connections run
side by side on one loop, so that hundreds open in the time of a few.

Lanes that are lost later are opened again, with what the broker forgot restored. Many are lost
together, because they all lead to one broker: so they share pauses that grow with each failure, and
only a group of them is on its way at a time. Nothing in that blocks: names, TCP, TLS and declaring
are calls in the background, the rest happens on the loop.
"""

from __future__ import annotations

import functools
import queue
import socket
import ssl
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from bench_spark.config.broker import Tls
from bench_spark.core.clock import NowNs
from bench_spark.errors import BenchError, BrokerUnreachable, ConfigurationError
from bench_spark.process import Backoff, watched
from bench_spark.transports.base import (
    OPENED_TOGETHER,
    Destination,
    Lane,
    OpeningPace,
    TransportContext,
)
from bench_spark.transports.sockets.buffers import ReadBuffer
from bench_spark.transports.sockets.connection import ForeignProtocol, SocketConnection, read_buffer
from bench_spark.transports.sockets.loop import BackgroundCalls, Gathering, Loop, Timer

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


CALM_SECONDS = 10.0
"""After so long without a loss, pauses begin small again."""


class BeyondRestoring(Exception):
    """A destination is gone and cannot be had again; the text says which and why."""


@dataclass(frozen=True)
class ReopeningRule:
    seconds: float
    """For how long a lost lane is tried."""
    restore: Callable[[Sequence[Destination]], None] = lambda destinations: None
    """Declare again what the broker has forgotten; by default nothing can be. Blocks; raises
    BeyondRestoring, or a BenchError where trying again may help."""


@dataclass
class _Outage(Generic[ConnectionT]):
    """One lane from its loss until it is open again or given up."""

    lane: OpenLane[ConnectionT]
    first_reason: str
    last_reason: str
    connection: ConnectionT | None = None
    """The attempt that is on its way."""
    is_beginning: bool = False
    """The lane has its new connection and waits for the broker's answers."""
    is_over: bool = False
    timers: list[Timer] = field(default_factory=list)
    """Of the present step."""
    end_timer: Timer | None = None


_LoggedIn = list[tuple[_Outage[ConnectionT], ConnectionT]]


@dataclass(frozen=True)
class _Dialled:
    sockets: list[socket.socket]
    error: BenchError | None

    def close(self) -> None:
        for one in self.sockets:
            one.close()


class Reopener(Generic[ConnectionT]):
    def __init__(
        self,
        protocol: Connector[ConnectionT],
        rule: ReopeningRule,
        loop: Loop,
        now_ns: NowNs,
        begin: Callable[[OpenLane[ConnectionT], ConnectionT], None],
        give_up: Callable[[OpenLane[ConnectionT], str], None],
    ) -> None:
        """`begin` gives the lane its new connection and asks the broker for what is still
        missing; `done` is to be called when that has been answered, or `failed`."""
        self._protocol = protocol
        self._access = protocol.access
        self._rule = rule
        self._loop = loop
        self._now_ns = now_ns
        self._begin = begin
        self._give_up = give_up
        self._calls = BackgroundCalls(loop)
        self._backoff = Backoff()
        self._outages: dict[int, _Outage[ConnectionT]] = {}
        self._waiting: deque[_Outage[ConnectionT]] = deque()
        self._logged_in: _LoggedIn[ConnectionT] = []
        """Waiting for what the broker forgot to be restored."""
        self._is_restoring = False
        self._are_there: set[int] = set()
        """Destinations known to be there: restored, and no connection has failed since."""
        self._doubts = 0
        self._on_the_way = 0
        self._next_dial: Timer | None = None
        self._must_pause = False
        self._last_loss_seconds = 0.0

    def is_beginning(self, lane: OpenLane[ConnectionT]) -> bool:
        outage = self._outages.get(lane.number)
        return outage is not None and outage.is_beginning

    def add(self, lane: OpenLane[ConnectionT], why: str) -> None:
        """The lane is lost."""
        now_seconds = time.monotonic()
        if now_seconds - self._last_loss_seconds > CALM_SECONDS and not self._outages:
            self._backoff.reset()
        self._last_loss_seconds = now_seconds
        outage: _Outage[ConnectionT] = _Outage(lane, why, why)
        outage.end_timer = self._loop.call_later(
            self._rule.seconds, functools.partial(self._time_is_up, outage)
        )
        self._outages[lane.number] = outage
        self._doubt()
        self._waiting.append(outage)
        self._must_pause = True
        self._dial_later()

    def done(self, lane: OpenLane[ConnectionT]) -> None:
        outage = self._outages[lane.number]
        self._leave_the_way(outage)
        self._end(outage)
        self._dial_later()

    def failed(self, lane: OpenLane[ConnectionT], why: str, is_final: bool) -> None:
        """What the lane asked for when it began again was not granted."""
        self._failed(self._outages[lane.number], why, is_final)

    def close(self) -> None:
        self._calls.close()
        for outage in list(self._outages.values()):
            self._hang_up(outage)
            self._end(outage)
        self._waiting.clear()
        if self._next_dial is not None:
            self._next_dial.cancel()

    # -- dialling ----------------------------------------------------------------------------------

    def _dial_later(self) -> None:
        if self._next_dial is not None or not self._waiting or self._on_the_way >= OPENED_TOGETHER:
            return
        pause = self._backoff.next_seconds() if self._must_pause else 0.0
        self._must_pause = False
        self._next_dial = self._loop.call_later(pause, self._dial)

    def _dial(self) -> None:
        self._next_dial = None
        group: list[_Outage[ConnectionT]] = []
        while self._waiting and self._on_the_way < OPENED_TOGETHER:
            outage = self._waiting.popleft()
            if not outage.is_over:
                group.append(outage)
                self._on_the_way += 1
        if group:
            self._calls.run(
                functools.partial(_dial_all, self._access, len(group)),
                functools.partial(self._dialled, group),
                _Dialled.close,
            )

    def _dialled(self, group: Sequence[_Outage[ConnectionT]], answered: _Dialled) -> None:
        sockets = iter(answered.sockets)
        for outage in group:
            connected = next(sockets, None)
            if outage.is_over:
                self._on_the_way -= 1
                if connected is not None:
                    connected.close()
            elif connected is not None:
                self._log_in(outage, connected)
            else:
                self._try_again(outage, str(answered.error))
        self._dial_later()

    # -- logging in --------------------------------------------------------------------------------

    def _log_in(self, outage: _Outage[ConnectionT], connected: socket.socket) -> None:
        connection = self._protocol.log_in(outage.lane.number, connected, self._loop, self._now_ns)
        outage.connection = connection
        connection.on_open = functools.partial(self._is_logged_in, outage, connection)
        connection.on_open_error = functools.partial(self._login_failed, outage, connection)
        self._limit(outage, f"accepted the connection, but gave no answer in {self._protocol.name}")

    def _login_failed(
        self, outage: _Outage[ConnectionT], connection: ConnectionT, failure: Exception
    ) -> None:
        if outage.connection is connection:
            why = str(self._protocol.login_failure(connection, failure))
            self._failed(outage, why, self._protocol.is_login_refused(connection, failure))

    def _is_logged_in(self, outage: _Outage[ConnectionT], connection: ConnectionT) -> None:
        connection.on_end = functools.partial(self._attempt_ended, outage, connection)
        self._unlimit(outage)
        self._logged_in.append((outage, connection))
        self._restore()

    def _attempt_ended(
        self, outage: _Outage[ConnectionT], connection: ConnectionT, failure: Exception
    ) -> None:
        if outage.connection is connection and not outage.is_beginning:
            why = self._protocol.describe_end(connection, failure)
            self._failed(outage, why, not self._protocol.may_pass(connection, failure))

    # -- restoring what the broker forgot ----------------------------------------------------------

    def _restore(self) -> None:
        if self._is_restoring or not self._logged_in:
            return
        group, self._logged_in = self._logged_in, []
        missing = {
            one.index: one
            for outage, _ in group
            for one in outage.lane.lane.destinations
            if one.index not in self._are_there
        }
        if not missing:
            self._get_ready_all(group, None)
            return
        self._is_restoring = True
        self._calls.run(
            functools.partial(_outcome_of, self._rule.restore, list(missing.values())),
            functools.partial(self._restored, group, missing.keys(), self._doubts),
        )

    def _restored(
        self,
        group: _LoggedIn[ConnectionT],
        destinations: Iterable[int],
        doubts_before: int,
        error: BenchError | BeyondRestoring | None,
    ) -> None:
        self._is_restoring = False
        if error is None and self._doubts == doubts_before:
            self._are_there.update(destinations)
        self._get_ready_all(group, error)
        self._restore()

    def _doubt(self) -> None:
        """A connection failed: the broker may have restarted and forgotten once more."""
        self._are_there.clear()
        self._doubts += 1

    def _get_ready_all(
        self, group: _LoggedIn[ConnectionT], error: BenchError | BeyondRestoring | None
    ) -> None:
        for outage, connection in group:
            if outage.connection is not connection:
                continue  # lost again meanwhile
            if error is None:
                self._get_ready(outage, connection)
            else:
                self._failed(outage, str(error), isinstance(error, BeyondRestoring))

    # -- beginning again ---------------------------------------------------------------------------

    def _get_ready(self, outage: _Outage[ConnectionT], connection: ConnectionT) -> None:
        self._limit(outage, f"no answer to {self._protocol.first_request} and what follows it")
        self._protocol.get_ready(
            connection,
            self._loop,
            functools.partial(self._begin_again, outage, connection),
            functools.partial(self._attempt_ended, outage, connection),
        )

    def _begin_again(
        self, outage: _Outage[ConnectionT], connection: ConnectionT, opened: ConnectionT
    ) -> None:
        if outage.connection is connection:
            outage.is_beginning = True
            self._begin(outage.lane, opened)

    # -- how attempts end --------------------------------------------------------------------------

    def _limit(self, outage: _Outage[ConnectionT], what: str) -> None:
        self._unlimit(outage)
        seconds = self._access.timeout_seconds
        why = f"{self._access.address}: {what} within {seconds:g} s"
        outage.timers.append(
            self._loop.call_later(seconds, functools.partial(self._failed, outage, why, False))
        )

    @staticmethod
    def _unlimit(outage: _Outage[ConnectionT]) -> None:
        for timer in outage.timers:
            timer.cancel()
        outage.timers.clear()

    def _failed(self, outage: _Outage[ConnectionT], why: str, is_final: bool) -> None:
        if outage.is_over:
            return
        self._hang_up(outage)
        if is_final:
            self._leave_the_way(outage)
            self._end(outage)
            self._give_up(outage.lane, f"{outage.first_reason}; not reopened: {why}")
        else:
            self._try_again(outage, why)
        self._dial_later()

    def _try_again(self, outage: _Outage[ConnectionT], why: str) -> None:
        self._leave_the_way(outage)
        self._doubt()
        outage.last_reason = why
        self._waiting.append(outage)
        self._must_pause = True

    def _time_is_up(self, outage: _Outage[ConnectionT]) -> None:
        if outage.is_over:
            return
        is_on_the_way = outage.connection is not None
        self._hang_up(outage)
        if is_on_the_way:
            self._leave_the_way(outage)
        self._end(outage)
        self._give_up(
            outage.lane,
            f"{outage.first_reason}; not reopened within {self._rule.seconds:g} s: "
            f"{outage.last_reason}",
        )
        self._dial_later()

    def _hang_up(self, outage: _Outage[ConnectionT]) -> None:
        """End the attempt that is on its way, whoever owns its socket by now."""
        self._unlimit(outage)
        connection, outage.connection = outage.connection, None
        ending = outage.lane.connection if outage.is_beginning else connection
        outage.is_beginning = False
        if ending is not None:
            ending.abort("the lane could not be reopened this time")

    def _leave_the_way(self, outage: _Outage[ConnectionT]) -> None:
        self._unlimit(outage)
        self._on_the_way -= 1

    def _end(self, outage: _Outage[ConnectionT]) -> None:
        outage.is_over = True
        outage.is_beginning = False
        outage.connection = None
        if outage.end_timer is not None:
            outage.end_timer.cancel()
        del self._outages[outage.lane.number]


def _dial_all(access: SocketAccess, count: int) -> _Dialled:
    sockets: list[socket.socket] = []
    try:
        for connected in dialled(access, count, time.monotonic() + access.timeout_seconds):
            sockets.append(connected)
    except BenchError as error:
        return _Dialled(sockets, error)
    except OSError as error:  # no descriptor left, for instance
        return _Dialled(sockets, BrokerUnreachable(f"{access.address}: {error.strerror or error}"))
    return _Dialled(sockets, None)


def _outcome_of(
    restore: Callable[[Sequence[Destination]], None], destinations: Sequence[Destination]
) -> BenchError | BeyondRestoring | None:
    try:
        restore(destinations)
    except (BenchError, BeyondRestoring) as error:
        return error
    return None
