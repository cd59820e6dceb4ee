"""One connection on a socket that never blocks: reading, writing, signs of life, end.

Reads go into one buffer of all connections, writes never wait, and a broker that has fallen silent
is noticed. State and failures are read from attributes, not raised.

`SocketConnection` as it is serves protocols without a login: it is open at once, and drops what
arrives. Protocols override what they do otherwise.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from typing import ClassVar

from bench_spark.core.clock import NowNs
from bench_spark.transports.sockets.buffers import ReadBuffer, Unreadable
from bench_spark.transports.sockets.loop import BROKEN, Gathering, Loop, Timer

READ_BYTES = 256 * 1024
"""Read at once: much, and yet little enough to stay in the processor's cache."""
LONGEST_REST_BYTES = 128 * 1024
"""Most that a parser may leave for the next read, unless its protocol says otherwise."""
READS_PER_TURN = 4
"""After these, other connections get their turn; the socket stays readable."""
TLS_READS_PER_TURN = 16
"""TLS gives 16 KiB at a time."""
SILENT_BEATS = 4
"""Half periods without a byte from the broker after which it is given up."""
WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class ConnectionLost(Exception):
    """It ended without a word; the text says how."""


class ForeignProtocol(Exception):
    """The peer does not speak what it should."""


def read_buffer(longest_rest_bytes: int = LONGEST_REST_BYTES) -> ReadBuffer:
    """Room for a read behind what the last one left."""
    return ReadBuffer(READ_BYTES + longest_rest_bytes)


Parse = Callable[[ReadBuffer, int, int], int]
"""Decodes what the buffer holds up to a place, which was read at that moment; how many bytes are
done with. Raises Unreadable."""


class SocketConnection:
    logs_in: ClassVar[bool] = False
    """Whether it is open only once the protocol calls `_established`."""
    acknowledges_quickly: ClassVar[bool] = False
    """Whether the system is told, after each read, to acknowledge it without delay."""

    def __init__(
        self,
        connected: socket.socket,
        loop: Loop,
        now_ns: NowNs,
        buffer: ReadBuffer,
        gathering: Gathering | None = None,
    ) -> None:
        self._socket = connected
        self._is_tls = isinstance(connected, ssl.SSLSocket)
        self._reads_per_turn = TLS_READS_PER_TURN if self._is_tls else READS_PER_TURN
        self._loop = loop
        self._now_ns = now_ns
        self._buffer = buffer
        self._gathering = gathering
        self._parse: Parse = self._parse_first
        self._rest = b""
        """The beginning of a frame whose end was not read yet."""
        self.unsent = bytearray()
        """What is still to be written to the socket."""
        self._watches_writing = False
        self._is_established = False
        self._is_reading = False
        self._is_held = False
        self._is_closing = False
        self._hangs_up = False
        """Whether closing means to hang up once all is written."""
        self._has_written = self._has_read = True
        self._silent_beats = 0
        self._beat_seconds = 0.0
        self._beats: Timer | None = None
        self.read_ns: int = 0
        """When the bytes being decoded now were read."""
        self.failure: Exception | None = None
        """Why it ended, or could not open; None while it lives."""
        self.closed_by_broker: tuple[int, str] | None = None
        """The broker's code and text, if it closed the connection in order."""
        self.on_open: Callable[[], None] = lambda: None
        self.on_open_error: Callable[[Exception], None] = lambda failure: None
        self.on_end: Callable[[Exception], None] = lambda failure: None
        """Called when an open connection, or its channel, has ended."""
        loop.add(self)
        if not self.logs_in:
            # Not before the maker of this connection has set its callbacks.
            loop.call_soon(self._established)

    # -- what a protocol may do otherwise ----------------------------------------------------------

    def _parse_first(self, buffer: ReadBuffer, end: int, at_ns: int) -> int:
        """Parse what arrives until something else is put in place of this."""
        return end

    def _lost(self, why: str) -> Exception:
        """The failure of a connection that ended without a reason given."""
        return ConnectionLost(why)

    def _show_life(self, has_written: bool, has_read: bool) -> None:
        """Send a sign of life, if that is due, by what has happened since the last call."""

    def close(self) -> None:
        """Begin to close in order: write what is left, then hang up. `failure` is set at the
        end."""
        if self._is_closing or self.failure is not None:
            return
        self._is_closing = self._hangs_up = True
        self.hold(False)
        self._hang_up_if_done()

    def _hang_up_if_done(self) -> None:
        if not self.unsent:
            self._end(ConnectionLost("closed by us"))

    def abort(self, reason: str) -> None:
        """End at once, without a word to the broker."""
        self._end(ConnectionLost(reason))

    # -- for the loop and the lanes ----------------------------------------------------------------

    def _established(self) -> None:
        if self.failure is None:
            self._is_established = True
            self.on_open()

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def is_open(self) -> bool:
        is_established = self._is_established or not self.logs_in
        return is_established and self.failure is None and not self._is_closing

    def on_ready(self, events: int) -> None:
        # Reading is tried first, whatever the events: a hang-up often follows the broker's reason.
        if not self._is_held or events & BROKEN:
            self.read()
        if self.unsent:
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
        if not self.unsent:
            self._has_written = True
            try:
                written = self._socket.send(data)
            except WOULD_BLOCK:
                pass
            except OSError as error:
                self._writing_failed(error)
                return
        if written < len(data):
            self.unsent += data[written:]
            self.flush()

    def flush(self) -> bool:
        """Write what the socket takes now; whether all is written. TLS takes little at a time."""
        while self.unsent:
            self._has_written = True
            try:
                written = self._socket.send(self.unsent)
            except WOULD_BLOCK:
                break
            except OSError as error:
                self._writing_failed(error)
                return True
            del self.unsent[:written]
        has_rest = bool(self.unsent)
        if has_rest != self._watches_writing:
            self._watches_writing = has_rest
            self._loop.watch_writing(self, has_rest)
        if self._hangs_up and self.failure is None:
            self._hang_up_if_done()
        return not has_rest

    # -- reading -----------------------------------------------------------------------------------

    def read(self) -> None:
        """Decode what has arrived, as long as more is likely, in fairness to other connections."""
        self._is_reading = True
        buffer, read_bytes, reads_left = self._buffer, 0, self._reads_per_turn
        while reads_left > 0 or self._holds_decrypted():
            reads_left -= 1
            room, rest_bytes = buffer.view, len(self._rest)
            if rest_bytes:
                buffer.raw[:rest_bytes] = self._rest
                room = room[rest_bytes:]
            try:
                count = self._socket.recv_into(room, READ_BYTES)
            except WOULD_BLOCK:
                break
            except OSError as error:
                self._end(self._lost(error.strerror or str(error)))
                break
            self.read_ns = self._now_ns()
            if not count:
                self._end(self._lost("connection closed by the peer"))
                break
            self._has_read = True
            if self.acknowledges_quickly:
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
            read_bytes += count
            self._decode(rest_bytes + count)
            if self.failure is not None or self._is_held:
                break
            if count < READ_BYTES and not self._is_tls:
                break  # there was no more
        self._is_reading = False
        if self._gathering is not None and self.failure is None:
            self._gathering.after_read(self, read_bytes)

    def wake_at(self, waiting_bytes: int) -> None:
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, waiting_bytes)

    def _holds_decrypted(self) -> bool:
        """Whether TLS has bytes of which epoll does not know, because it has read them already."""
        return isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0

    def _decode(self, end: int) -> None:
        try:
            done = self._parse(self._buffer, end, self.read_ns)
        except Unreadable as error:
            self._end(self._lost(f"the broker sent {error}"))
            return
        self._rest = bytes(self._buffer.view[done:end]) if done < end else b""

    def _writing_failed(self, error: OSError) -> None:
        self.unsent.clear()
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
        self.unsent.clear()
        self._loop.remove(self)
        self._socket.close()
        self.on_end(failure)
        if not self._is_established:
            self.on_open_error(failure)

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
