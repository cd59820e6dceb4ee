"""Connections without a login: open as soon as they are connected, over when either side hangs up.

For protocols that begin with data (HTTP, TCP).
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TypeVar

from bench_spark.core.clock import NowNs
from bench_spark.errors import BenchError, BrokerUnreachable
from bench_spark.transports.base import TransportContext
from bench_spark.transports.sockets.arrivals import ReadBuffer
from bench_spark.transports.sockets.dialling import SocketAccess, client_tls
from bench_spark.transports.sockets.line import Line
from bench_spark.transports.sockets.loop import Loop
from bench_spark.transports.sockets.opening import ReadyAtLogin
from bench_spark.transports.sockets.wire import READ_BYTES, SocketWire

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


class PlainWire(SocketWire):
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
        # Not before whoever made this has said whom to tell.
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

    def _show_life(self, has_spoken: bool, has_heard: bool) -> None:
        """There is nothing that could be said."""


WireT = TypeVar("WireT", bound=PlainWire)


class PlainProtocol(ReadyAtLogin[WireT]):
    """See `Protocolled`."""

    first_request = "connecting"

    def __init__(
        self,
        name: str,
        access: SocketAccess,
        make_wire: Callable[[socket.socket, Loop, NowNs, ReadBuffer], WireT],
    ) -> None:
        self.name = name
        self.access = access
        self._make_wire = make_wire
        self.buffer = read_buffer()
        """What the sockets of all lanes are read into."""

    def log_in(self, lane: int, connected: socket.socket, loop: Loop, now_ns: NowNs) -> WireT:
        return self._make_wire(connected, loop, now_ns, self.buffer)

    def login_failure(self, connection: WireT, failure: Exception) -> BenchError:
        return BrokerUnreachable(f"{self.access.address}: {self.describe_end(connection, failure)}")

    def is_login_refused(self, connection: WireT, failure: Exception) -> bool:
        return False

    def describe_end(self, line: Line, failure: Exception) -> str:
        return f"connection lost: {failure}"

    def may_pass(self, line: Line, failure: Exception) -> bool:
        return not isinstance(failure, ForeignProtocol)

    def refusal(self, line: Line, failure: Exception | None, what: str) -> BenchError:
        said = "no answer" if failure is None else self.describe_end(line, failure)
        return BrokerUnreachable(f"{self.access.address}: {what}: {said}")
