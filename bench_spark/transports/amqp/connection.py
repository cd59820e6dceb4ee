"""pika's protocol engine on our own non-blocking socket.

pika's ready-made connections each want to own the waiting, and BlockingConnection waits inside
every call. A load generator has thousands of connections and one thread, so this adapter leaves
waiting to `loop.Loop`: bytes that arrive are handed to pika, bytes that pika wants to send are
collected and written when `flush` is called or the socket has room.

Lanes take the open connection away from pika with `hand_over`: messages are no business of pika's.

Nothing here opens sockets (opening.py) or knows queues (topology.py) and messages (wire.py).
"""

from __future__ import annotations

import logging
import socket
import ssl
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pika.connection
import pika.exceptions

from bench_spark.core.clock import NowNs
from bench_spark.transports.amqp.frames import Framing
from bench_spark.transports.sockets.line import Line
from bench_spark.transports.sockets.loop import BROKEN, Loop, Timer
from bench_spark.transports.sockets.wire import WOULD_BLOCK

# pika logs every lost connection with a traceback, and says critical things about ordinary ends.
# Its exceptions reach us anyway and are told in our own words.
_PIKA_LOGGER = logging.getLogger("pika")
_PIKA_LOGGER.addHandler(logging.NullHandler())
_PIKA_LOGGER.setLevel(logging.CRITICAL + 1)

READ_BYTES = 16 * 1024
"""pika copies what is left of a read after each frame, so bigger reads cost more per message."""
READS_PER_TURN = 8
"""After these, other lanes get their turn; the socket stays readable."""

_METHOD_FRAME = 1
PASSING_CODES = frozenset({200, 320, 541})
"""By which a broker closes connections that did nothing wrong: farewell, forced, internal error."""


class ForeignProtocol(pika.exceptions.AMQPConnectionError):  # type: ignore[misc]  # pika is untyped
    """The peer does not speak AMQP 0-9-1, by its first bytes or by what it offers."""


@dataclass(frozen=True)
class Handover:
    """An open connection without its engine."""

    socket: socket.socket
    framing: Framing
    heartbeat_seconds: int
    unread: bytes
    """Bytes that were read and are not decoded: the beginning of a frame."""
    unsent: bytes
    blocked_reason: str | None
    """Why the broker does not want messages now."""


class AmqpConnection(pika.connection.Connection):  # type: ignore[misc]  # pika is untyped
    """One connection; state and failures are read from its attributes, not raised."""

    _frame_buffer: bytes  # pika's: what was read and is not decoded yet

    def __init__(
        self,
        connected: socket.socket,
        loop: Loop,
        parameters: pika.ConnectionParameters,
        now_ns: NowNs = time.monotonic_ns,
    ) -> None:
        self._socket = connected
        self._loop = loop
        self._now_ns = now_ns
        self._outbound = bytearray()
        self._watches_writing = False
        self._is_disconnecting = False
        self._is_held = False
        self._excuses_silence = False
        self._heard_first_byte = False
        self.read_ns = 0
        """When the bytes being decoded now were read."""
        self.failure: Exception | None = None
        self.closed_by_broker: tuple[int, str] | None = None
        self._blocked_reason: str | None = None
        self.advertised_capabilities: dict[str, Any] = {}
        self.on_open: Callable[[], None] = lambda: None
        self.on_open_error: Callable[[Exception], None] = lambda failure: None
        self.on_end: Callable[[Exception], None] = lambda failure: None
        loop.add(self)
        super().__init__(
            parameters,
            on_open_callback=AmqpConnection._opened_now,
            on_open_error_callback=AmqpConnection._ended_now,
            on_close_callback=AmqpConnection._ended_now,
        )

    # -- for the loop and its users ----------------------------------------------------------------

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def unsent_bytes(self) -> int:
        return len(self._outbound)

    def on_ready(self, events: int) -> None:
        # Reading is tried first, whatever the events: a hang-up often follows the broker's reason.
        if not self._is_held or events & BROKEN:
            self._read()
        if self._outbound:
            self.flush()

    def hold(self, is_held: bool) -> None:
        """Leave what arrives in the socket, or read on."""
        self._is_held = is_held
        self._loop.watch_reading(self, not is_held)
        if is_held and not self._excuses_silence:
            self._excuse_silence()

    def _excuse_silence(self) -> None:
        """pika counts bytes to notice a silent broker; one that we do not listen to is not."""
        self._excuses_silence = self._is_held and self.failure is None and self.params.heartbeat > 0
        if self._excuses_silence:
            self.bytes_received += 1
            self._loop.call_later(self.params.heartbeat / 4, self._excuse_silence)

    def flush(self) -> bool:
        """Write what the socket takes now; whether all is written."""
        while self._outbound:
            try:
                written = self._socket.send(self._outbound)
            except WOULD_BLOCK:
                break
            except OSError as error:
                self._writing_failed(error)
                return True
            del self._outbound[:written]
        has_rest = bool(self._outbound)
        if has_rest != self._watches_writing:
            self._watches_writing = has_rest
            self._loop.watch_writing(self, has_rest)
        return not has_rest

    def abort(self, reason: str) -> None:
        """End at once, without a word to the broker."""
        if self.failure is None:
            self._stream_ended(pika.exceptions.ConnectionClosedByClient(0, reason))

    def hand_over(self, channel: Any) -> Handover:
        """Give away the open connection with its one channel; pika's engine is dead afterwards.

        Bytes that arrived for pika and were not decoded, and bytes that it wanted to send, go with
        it. Its timers end here.
        """
        self._remove_heartbeat()
        unread = bytes(self._frame_buffer)
        self._frame_buffer = b""
        unsent = bytes(self._outbound)
        self._outbound.clear()
        self._watches_writing = False
        self._loop.remove(self)
        return Handover(
            socket=self._socket,
            framing=Framing(channel.channel_number, self.params.frame_max),
            heartbeat_seconds=self.params.heartbeat,
            unread=unread,
            unsent=unsent,
            blocked_reason=self._blocked_reason,
        )

    # -- reading -----------------------------------------------------------------------------------

    def _read(self) -> None:
        reads_left = READS_PER_TURN
        while not self._is_disconnecting:
            try:
                data = self._socket.recv(READ_BYTES)
            except WOULD_BLOCK:
                return
            except OSError as error:
                self._stream_ended(lost(error.strerror or str(error)))
                return
            if not data:
                self._stream_ended(lost("connection closed by the peer"))
                return
            self.read_ns = self._now_ns()
            self._decode(data)
            reads_left -= 1
            # What TLS has decrypted already is invisible to epoll: it must be read now.
            if reads_left <= 0 and not self._has_decrypted_bytes():
                return

    def _has_decrypted_bytes(self) -> bool:
        return isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0

    def _decode(self, data: bytes) -> None:
        try:
            if not self._heard_first_byte:
                self._heard_first_byte = True
                _check_first_bytes(data)
            self._on_data_available(data)
        except (pika.exceptions.AMQPError, struct.error, IndexError) as error:
            self._terminate_stream(error)

    def _writing_failed(self, error: OSError) -> None:
        # The broker may have told its reason before it stopped listening: read that first.
        self._outbound.clear()
        self._read()
        if self.failure is None and not self._is_disconnecting:
            self._stream_ended(lost(error.strerror or str(error)))

    def _stream_ended(self, error: Exception) -> None:
        # Once pika has begun to disconnect, the end of the stream is the expected answer and pika
        # already holds the true reason.
        self._release()
        self._on_stream_terminated(None if self._is_disconnecting else error)

    def _release(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.remove(self)
            self._socket.close()
        self._outbound.clear()

    # -- what pika asks of an adapter --------------------------------------------------------------

    def _adapter_connect_stream(self) -> None:
        self._on_stream_connected()

    def _adapter_disconnect_stream(self) -> None:
        if not self._is_disconnecting:
            self._is_disconnecting = True
            self.flush()
            self._loop.call_soon(self._disconnect)

    def _disconnect(self) -> None:
        if self.failure is None:
            self._release()
            self._on_stream_terminated(None)

    def _adapter_emit_data(self, data: bytes) -> None:
        if not self._outbound:
            self._loop.call_soon(self.flush)
        self._outbound += data

    def _adapter_call_later(self, delay: float, callback: Callable[[], object]) -> Timer:
        return self._loop.call_later(delay, callback)

    def _adapter_remove_timeout(self, timer: Timer) -> None:
        timer.cancel()

    def _adapter_add_callback_threadsafe(self, callback: Callable[[], object]) -> None:
        self._loop.call_soon(callback)

    # -- what pika tells ---------------------------------------------------------------------------

    def _on_connection_tune(self, method_frame: Any) -> None:
        offered = method_frame.method.frame_max
        if 0 < offered < pika.spec.FRAME_MIN_SIZE:
            raise ForeignProtocol(
                f"offers frames of at most {offered} bytes (frame_max), and AMQP 0-9-1 asks for "
                f"{pika.spec.FRAME_MIN_SIZE} at least"
            )
        super()._on_connection_tune(method_frame)

    def _on_connection_close_from_broker(self, method_frame: Any) -> None:
        method = method_frame.method
        self.closed_by_broker = (method.reply_code, method.reply_text)
        super()._on_connection_close_from_broker(method_frame)

    def _opened_now(self) -> None:
        # pika asks for confirms only where the broker advertises them, and Qpid Broker-J has them
        # without saying so. Asking on the wire is the only way to know.
        self.advertised_capabilities = dict(self.server_capabilities)
        self.server_capabilities.update({"publisher_confirms": True, "basic.nack": True})
        self.add_on_connection_blocked_callback(AmqpConnection._blocked_now)
        self.add_on_connection_unblocked_callback(AmqpConnection._unblocked_now)
        self.on_open()

    def _blocked_now(self, frame: Any) -> None:
        self._blocked_reason = str(frame.method.reason)

    def _unblocked_now(self, _frame: Any) -> None:
        self._blocked_reason = None

    def _ended_now(self, failure: Exception) -> None:
        was_open = self._opened
        self.failure = failure
        if was_open:
            self.on_end(failure)
        else:
            self.on_open_error(failure)


def _check_first_bytes(data: bytes) -> None:
    if data[:4] == b"AMQP":
        offered = "-".join(str(number) for number in data[5:8])
        raise ForeignProtocol(f"speaks AMQP {offered}, not 0-9-1")
    if data[0] != _METHOD_FRAME:
        raise ForeignProtocol("answers, but not in AMQP")


def lost(why: str) -> pika.exceptions.StreamLostError:
    return pika.exceptions.StreamLostError(why)


def describe_end(connection: Line, failure: Exception) -> str:
    """Why a connection or channel ended, in one line and in the broker's words where it has any."""
    if connection.closed_by_broker is not None:
        code, text = connection.closed_by_broker
        return f"connection closed by the broker: {code} {text}"
    if isinstance(failure, pika.exceptions.ChannelClosedByBroker):
        return f"channel closed by the broker: {failure.reply_code} {failure.reply_text}"
    if isinstance(failure, pika.exceptions.StreamLostError):
        return f"connection lost: {failure.args[0]}"
    if isinstance(failure, pika.exceptions.AMQPHeartbeatTimeout):
        return f"connection lost: {failure.args[0]}"
    return f"connection lost: {type(failure).__name__}: {failure}"


def may_pass(connection: Line, failure: Exception) -> bool:
    """Whether a new connection may fare better: this one was lost or the broker went away.

    A channel that was closed, or a connection closed because of what was done on it, would end the
    same way again.
    """
    if connection.closed_by_broker is not None:
        return connection.closed_by_broker[0] in PASSING_CODES
    return not isinstance(failure, pika.exceptions.ChannelClosed)
