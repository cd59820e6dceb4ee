"""One connection on a socket that never blocks: opening, reading, writing, signs of life, end.

`Connector` is what a protocol says of its connections, `SocketConnection` what they share: reads go
into one buffer of all lanes, writes never wait, and a broker that has fallen silent is noticed.
`PlainConnection` is for protocols without a login (HTTP, TCP). Logins of many connections run side
by side on one loop, so that hundreds open in the time of a few.

Under full load, where nobody waits for a single message, sockets are read less often (`Gathering`):
a broker writes a few messages at a time, and every wake-up for a few costs as much as one for many.
A lane that flows asks the system to be woken for `GATHERED_BYTES` only, and looks by itself when
`PERIOD_SECONDS` have passed without that: a third of the processor time per message, for a receive
time that is later by at most two periods. A load whose point is latency is never gathered.
"""

from __future__ import annotations

import ctypes
import functools
import os
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from bench_spark.config.models import Scenario
from bench_spark.core.clock import NowNs
from bench_spark.errors import BenchError, BrokerUnreachable
from bench_spark.transports.base import TransportContext
from bench_spark.transports.sockets.dialling import SocketAccess, client_tls, dialled
from bench_spark.transports.sockets.loop import BROKEN, Loop, Timer
from bench_spark.transports.sockets.rows import ReadBuffer

CLOSE_SECONDS = 3.0
"""How long to wait, while many connections are closed, for the next of them to be answered. What
was published and not read yet would be lost with a connection that is cut off: not too short."""
MOST_CLOSE_SECONDS = 60.0


class Connection(Protocol):
    """What lanes need of a connection, whoever moves the data on it."""

    failure: Exception | None
    """Why it ended, or could not open; None while it lives."""
    closed_by_broker: tuple[int, str] | None
    """The broker's code and text, if it closed the connection in order."""
    read_ns: int
    """When the bytes being decoded now were read."""
    on_end: Callable[[Exception], None]
    """Called when an open connection, or its channel, has ended."""

    @property
    def is_open(self) -> bool: ...

    @property
    def unsent_bytes(self) -> int:
        """What is still to be written to the socket."""

    def flush(self) -> bool:
        """Write what the socket takes now; whether all is written."""

    def hold(self, is_held: bool) -> None:
        """Leave what arrives in the socket, or read on."""

    def close(self) -> None:
        """Begin to close in order; `failure` is set once the broker has answered."""

    def abort(self, reason: str) -> None:
        """End at once, without a word to the broker."""


class Handshake(Connection, Protocol):
    """A connection whose login is under way."""

    on_open: Callable[[], None]
    on_open_error: Callable[[Exception], None]


ConnectionT = TypeVar("ConnectionT", bound=Handshake)
OpenedT = TypeVar("OpenedT")
OpenedT_co = TypeVar("OpenedT_co", covariant=True)


class Connector(Protocol[ConnectionT, OpenedT_co]):
    """How connections of one protocol are opened, and what their ends mean.

    `OpenedT_co` is what a lane is equipped from: a connection, or that and a channel on it.
    """

    @property
    def access(self) -> SocketAccess: ...

    @property
    def name(self) -> str:
        """The protocol's, for messages to people."""

    @property
    def first_request(self) -> str:
        """What follows the login, for messages to people."""

    def open_all(self, count: int, loop: Loop, now_ns: NowNs) -> Sequence[OpenedT_co]:
        """All of them, or an error that says why not; waits."""

    def log_in(self, lane: int, connected: socket.socket, loop: Loop, now_ns: NowNs) -> ConnectionT:
        """Begin the login of the lane of that number; does not wait."""

    def get_ready(
        self,
        connection: ConnectionT,
        loop: Loop,
        then: Callable[[OpenedT_co], None],
        on_end: Callable[[Exception], None],
    ) -> None:
        """What is between a login and a lane; `then` is called in a later turn of the loop."""

    def login_failure(self, connection: ConnectionT, failure: Exception) -> BenchError: ...

    def is_login_refused(self, connection: ConnectionT, failure: Exception) -> bool:
        """Whether the broker itself said so; a mere hang-up says nothing."""

    def describe_end(self, line: Connection, failure: Exception) -> str:
        """Why a connection ended, in one line and in the broker's words where it has any."""

    def may_pass(self, line: Connection, failure: Exception) -> bool:
        """Whether a new connection may fare better."""

    def refusal(self, line: Connection, failure: Exception | None, what: str) -> BenchError:
        """The error for a request (`what`) that the broker did not grant."""


def close_gracefully(loop: Loop, connections: Sequence[Connection]) -> bool:
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


GATHERED_BYTES = 128 * 1024
FLOWING_BYTES = 8 * 1024
"""A read that brings less than this is of a lane that does not flow."""
PERIOD_SECONDS = 0.002
LEAST_BACKLOG_BYTES = 8 * GATHERED_BYTES

_CLOCK_MONOTONIC = 1
_NANOSECONDS = 1_000_000_000


def is_gathered(scenario: Scenario, *, acknowledges: bool) -> bool:
    """Only where sending waits for nothing that is still to be read: neither a window, nor an
    acknowledgement, nor a short backlog, nor a slow consumer."""
    load = scenario.load
    return (
        load.mode == "maximum"
        and load.backlog_limit_bytes >= LEAST_BACKLOG_BYTES
        and not acknowledges
        and not scenario.consumer.is_slow
    )


class Gatherable(Protocol):
    def read(self) -> None: ...

    def wake_at(self, waiting_bytes: int) -> None:
        """Be readable only once so many bytes have arrived."""


class Gathering:
    """For the lanes of one loop; itself a member of it, by a timer that can be waited for."""

    def __init__(self) -> None:
        self._timer = PeriodicTimer()
        self._flowing: set[Gatherable] = set()
        self._just_read: set[Gatherable] = set()

    def fileno(self) -> int:
        return self._timer.descriptor

    def after_read(self, lane: Gatherable, count: int) -> None:
        """A lane has read so many bytes."""
        if count >= FLOWING_BYTES:
            if lane not in self._flowing:
                self._flowing.add(lane)
                lane.wake_at(GATHERED_BYTES)
                self._timer.start(PERIOD_SECONDS)
            self._just_read.add(lane)
        elif lane in self._flowing:
            self.forget(lane)
            lane.wake_at(1)

    def is_flowing(self, lane: Gatherable) -> bool:
        return lane in self._flowing

    def forget(self, lane: Gatherable) -> None:
        self._flowing.discard(lane)
        self._just_read.discard(lane)
        if not self._flowing:
            self._timer.stop()

    def on_ready(self, events: int) -> None:
        """Look after the lanes that were not woken since the last time."""
        self._timer.clear()
        overdue = self._flowing - self._just_read
        self._just_read.clear()
        for lane in overdue:
            lane.read()

    def close(self) -> None:
        self._timer.close()


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _TimeSpec), ("first", _TimeSpec))


class PeriodicTimer:
    """Linux's timer with a descriptor, which Python has from 3.13 on."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.descriptor: int = self._libc.timerfd_create(
            _CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC
        )
        self._check(self.descriptor)
        self._is_running = False

    def start(self, period_seconds: float) -> None:
        if not self._is_running:
            self._set(int(period_seconds * _NANOSECONDS))

    def stop(self) -> None:
        if self._is_running:
            self._set(0)

    def clear(self) -> None:
        """Be silent until the next period ends."""
        try:
            os.read(self.descriptor, 8)
        except BlockingIOError:
            return  # stopped meanwhile

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def _set(self, period_ns: int) -> None:
        period = _TimeSpec(*divmod(period_ns, _NANOSECONDS))
        self._check(
            self._libc.timerfd_settime(
                self.descriptor, 0, ctypes.byref(_TimerSpec(period, period)), None
            )
        )
        self._is_running = period_ns > 0

    @staticmethod
    def _check(result: int) -> None:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))


READ_BYTES = 256 * 1024
"""Read at once: much, and yet little enough to stay in the processor's cache."""
READS_PER_TURN = 4
"""After these, other lanes get their turn; the socket stays readable."""
TLS_READS_PER_TURN = 16
"""TLS gives 16 KiB at a time."""
SILENT_BEATS = 4
"""Half periods without a byte from the broker after which it is given up."""
WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Unreadable(Exception):
    """The bytes that arrived are not of the protocol; the text says what they are instead."""


class SocketConnection:
    on_end: Callable[[Exception], None]

    def __init__(
        self,
        connected: socket.socket,
        loop: Loop,
        now_ns: NowNs,
        buffer: ReadBuffer,
        gathering: Gathering | None = None,
        unread: bytes = b"",
        unsent: bytes = b"",
    ) -> None:
        """`unread`, `unsent`: what an earlier owner of the socket has left."""
        self._socket = connected
        self._is_tls = isinstance(connected, ssl.SSLSocket)
        self._loop = loop
        self._now_ns = now_ns
        self._buffer = buffer
        self._gathering = gathering
        self._read_bytes = 0
        self._rest = unread
        """The beginning of a frame whose end was not read yet."""
        self._unsent = bytearray(unsent)
        self._watches_writing = False
        self._is_reading = False
        self._is_held = False
        self._is_closing = False
        self._has_written = self._has_read = True
        self._silent_beats = 0
        self._beat_seconds = 0.0
        self._beats: Timer | None = None
        self.read_ns: int = 0
        """When the bytes being decoded now were read."""
        self.failure: Exception | None = None
        self.closed_by_broker: tuple[int, str] | None = None
        self.on_end = lambda failure: None

    # -- what a protocol adds ----------------------------------------------------------------------

    def _parse(self, buffer: ReadBuffer, end: int) -> int:
        """Decode what the buffer holds up to `end`; how many bytes are done with. Raises
        Unreadable."""
        raise NotImplementedError

    def _lost(self, why: str) -> Exception:
        """The failure of a connection that ended without a reason given."""
        raise NotImplementedError

    def _show_life(self, has_written: bool, has_read: bool) -> None:
        """Send a sign of life, if that is due, by what has happened since the last call."""
        raise NotImplementedError

    # -- for the loop and the plane ----------------------------------------------------------------

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def is_open(self) -> bool:
        return self.failure is None and not self._is_closing

    @property
    def unsent_bytes(self) -> int:
        return len(self._unsent)

    def on_ready(self, events: int) -> None:
        # Reading is tried first, whatever the events: a hang-up often follows the broker's reason.
        if not self._is_held or events & BROKEN:
            self.read()
        if self._unsent:
            self.flush()

    def hold(self, is_held: bool) -> None:
        """Leave what arrives in the socket, or read on."""
        self._is_held = is_held
        self._has_read = True
        self._loop.watch_reading(self, not is_held)

    def send(self, data: bytes | memoryview) -> None:
        """Write what the socket takes now and keep the rest; what came earlier goes first."""
        if self.failure is not None:
            return
        written = 0
        if not self._unsent:
            self._has_written = True
            try:
                written = self._socket.send(data)
            except WOULD_BLOCK:
                pass
            except OSError as error:
                self._writing_failed(error)
                return
        if written < len(data):
            self._unsent += data[written:]
            self.flush()

    def flush(self) -> bool:
        """Write what the socket takes now; whether all is written. TLS takes little at a time."""
        while self._unsent:
            self._has_written = True
            try:
                written = self._socket.send(self._unsent)
            except WOULD_BLOCK:
                break
            except OSError as error:
                self._writing_failed(error)
                return True
            del self._unsent[:written]
        has_rest = bool(self._unsent)
        if has_rest != self._watches_writing:
            self._watches_writing = has_rest
            self._loop.watch_writing(self, has_rest)
        return not has_rest

    # -- reading -----------------------------------------------------------------------------------

    def read(self) -> None:
        """Decode what has arrived, as long as more is likely, in fairness to other lanes."""
        self._is_reading = True
        self._read_bytes = 0
        reads_left = TLS_READS_PER_TURN if self._is_tls else READS_PER_TURN
        while self._read_once() and self.failure is None and not self._is_held:
            reads_left -= 1
            if reads_left <= 0 and not self._holds_decrypted():
                break
        self._is_reading = False
        if self._gathering is not None and self.failure is None:
            self._gathering.after_read(self, self._read_bytes)

    def wake_at(self, waiting_bytes: int) -> None:
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, waiting_bytes)

    def _read_once(self) -> bool:
        """Whether there may be more to read at once."""
        rest_bytes = len(self._rest)
        self._buffer.raw[:rest_bytes] = self._rest
        count = self.receive_into(self._buffer.view[rest_bytes : rest_bytes + READ_BYTES])
        if not count:
            return False
        self._read_bytes += count
        self._decode(rest_bytes + count)
        return count == READ_BYTES or self._is_tls

    def receive_into(self, room: memoryview) -> int:
        """Read once; how many bytes, 0 where there was nothing or the connection has ended."""
        try:
            count = self._socket.recv_into(room)
        except WOULD_BLOCK:
            return 0
        except OSError as error:
            self._end(self._lost(error.strerror or str(error)))
            return 0
        self.read_ns = self._now_ns()
        if not count:
            self._end(self._lost("connection closed by the peer"))
            return 0
        self._has_read = True
        return count

    def _holds_decrypted(self) -> bool:
        """Whether TLS has bytes of which epoll does not know, because it has read them already."""
        return isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0

    def _decode(self, end: int) -> None:
        try:
            done = self._parse(self._buffer, end)
        except Unreadable as error:
            self._end(self._lost(f"the broker sent {error}"))
            return
        self._rest = bytes(self._buffer.view[done:end])

    def _writing_failed(self, error: OSError) -> None:
        self._unsent.clear()
        if not self._is_reading:
            # The broker may have sent its reason before it closed its end: read that first.
            self.read()
        self._end(self._lost(error.strerror or str(error)))

    # -- the end -----------------------------------------------------------------------------------

    def _end(self, failure: Exception) -> None:
        if self.failure is not None:
            return
        self.failure = failure
        if self._beats is not None:
            self._beats.cancel()
        if self._gathering is not None:
            self._gathering.forget(self)
        self._unsent.clear()
        self._loop.remove(self)
        self._socket.close()
        self.on_end(failure)

    # -- signs of life -----------------------------------------------------------------------------

    def _start_beating(self, period_seconds: float) -> None:
        """From now on speak often enough, and notice the broker's silence; 0: never."""
        self._beat_seconds = period_seconds / 2
        if period_seconds:
            self._beat()

    def _beat(self) -> None:
        """Twice per period."""
        # One that we do not listen to is not silent.
        has_read = self._has_read or self._is_held
        self._silent_beats = 0 if has_read else self._silent_beats + 1
        if self._silent_beats >= SILENT_BEATS:
            seconds = self._beat_seconds * SILENT_BEATS
            self._end(self._lost(f"no sign of life from the broker for {seconds:g} s"))
            return
        self._show_life(self._has_written, has_read)
        self._has_written = self._has_read = False
        self._beats = self._loop.call_later(self._beat_seconds, self._beat)


def open_connections(
    protocol: Connector[ConnectionT, OpenedT],
    count: int,
    loop: Loop,
    now_ns: NowNs = time.monotonic_ns,
    on_opened: Callable[[int], None] | None = None,
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
            if on_opened is not None:
                on_opened(group_end - group_start)
    except BaseException:
        for connection in connections:
            connection.abort("another connection could not be opened")
        raise
    return connections


class ReadyAtLogin(Generic[ConnectionT]):
    """How connections are opened of protocols in which nothing is between a login and a lane."""

    def open_all(
        self: Connector[ConnectionT, ConnectionT], count: int, loop: Loop, now_ns: NowNs
    ) -> list[ConnectionT]:
        return open_connections(self, count, loop, now_ns, self.access.on_opened)

    def get_ready(
        self,
        connection: ConnectionT,
        loop: Loop,
        then: Callable[[ConnectionT], None],
        on_end: Callable[[Exception], None],
    ) -> None:
        loop.call_soon(functools.partial(then, connection))


def _await_logins(
    protocol: Connector[ConnectionT, OpenedT],
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


LONGEST_REST_BYTES = 128 * 1024
"""Most that a parser may leave for the next read."""


class ConnectionLost(Exception):
    """It ended without a word; the text says how."""


class ForeignProtocol(Exception):
    """The peer does not speak what it should."""


def access_to(context: TransportContext, host: str, port: int, is_tls: bool) -> SocketAccess:
    broker = context.broker
    name = broker.tls.server_name if broker.tls and broker.tls.server_name else host
    return SocketAccess(
        host=host,
        port=port,
        timeout_seconds=broker.connect_timeout_seconds,
        tls_context=client_tls(broker) if is_tls else None,
        tls_name=name,
        pace=context.pace,
        on_opened=context.on_opened,
    )


def read_buffer() -> ReadBuffer:
    """Room for a read behind what the last one left."""
    return ReadBuffer(READ_BYTES + LONGEST_REST_BYTES)


class PlainConnection(SocketConnection):
    on_open: Callable[[], None]
    on_open_error: Callable[[Exception], None]

    def __init__(
        self, connected: socket.socket, loop: Loop, now_ns: NowNs, buffer: ReadBuffer
    ) -> None:
        super().__init__(connected, loop, now_ns, buffer)
        self.on_open = lambda: None
        self.on_open_error = lambda failure: None
        self._has_told = False
        loop.add(self)
        # Not before the maker of this connection has set its callbacks.
        loop.call_soon(self._tell_that_it_is_open)

    def _tell_that_it_is_open(self) -> None:
        if self.failure is None:
            self._has_told = True
            self.on_open()

    def close(self) -> None:
        """Write what is left, then hang up."""
        if self._is_closing or self.failure is not None:
            return
        self._is_closing = True
        self.hold(False)
        self._hang_up_if_done()

    def abort(self, reason: str) -> None:
        self._end(ConnectionLost(reason))

    def flush(self) -> bool:
        is_all_written = super().flush()
        if self._is_closing and self.failure is None:
            self._hang_up_if_done()
        return is_all_written

    def _hang_up_if_done(self) -> None:
        if not self._unsent:
            self._end(ConnectionLost("closed by us"))

    def _end(self, failure: Exception) -> None:
        is_new = self.failure is None
        super()._end(failure)
        if is_new and not self._has_told:
            self.on_open_error(failure)

    def _lost(self, why: str) -> Exception:
        return ConnectionLost(why)

    def _show_life(self, has_written: bool, has_read: bool) -> None:
        """There is nothing that could be said."""


PlainT = TypeVar("PlainT", bound=PlainConnection)


class PlainProtocol(ReadyAtLogin[PlainT]):
    """See `Connector`."""

    first_request = "connecting"

    def __init__(
        self,
        name: str,
        access: SocketAccess,
        make_connection: Callable[[socket.socket, Loop, NowNs, ReadBuffer], PlainT],
    ) -> None:
        self.name = name
        self.access = access
        self._make_connection = make_connection
        self.buffer = read_buffer()
        """What the sockets of all lanes are read into."""

    def log_in(self, lane: int, connected: socket.socket, loop: Loop, now_ns: NowNs) -> PlainT:
        return self._make_connection(connected, loop, now_ns, self.buffer)

    def login_failure(self, connection: PlainT, failure: Exception) -> BenchError:
        return BrokerUnreachable(f"{self.access.address}: {self.describe_end(connection, failure)}")

    def is_login_refused(self, connection: PlainT, failure: Exception) -> bool:
        return False

    def describe_end(self, line: Connection, failure: Exception) -> str:
        return f"connection lost: {failure}"

    def may_pass(self, line: Connection, failure: Exception) -> bool:
        return not isinstance(failure, ForeignProtocol)

    def refusal(self, line: Connection, failure: Exception | None, what: str) -> BenchError:
        said = "no answer" if failure is None else self.describe_end(line, failure)
        return BrokerUnreachable(f"{self.access.address}: {what}: {said}")
