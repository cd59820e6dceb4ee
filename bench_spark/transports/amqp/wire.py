"""The socket of a lane of the fast plane: what is left of a connection once pika has opened it.

Reads into one buffer that all lanes share and hands the bytes to the lane's parser, writes without
ever waiting, keeps the connection alive, and says goodbye. Ends are told in pika's exceptions, so
that both planes report them alike.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from typing import Any

import pika.exceptions
import pika.spec

from bench_spark.measure.clock import NowNs
from bench_spark.transports.amqp.connection import WOULD_BLOCK, Handover, lost
from bench_spark.transports.amqp.deliveries import LONGEST_ALIKE_BYTES
from bench_spark.transports.amqp.frames import HEARTBEAT_FRAME, method_frame
from bench_spark.transports.amqp.gathering import Gathering
from bench_spark.transports.amqp.loop import BROKEN, Loop, Timer
from bench_spark.transports.amqp.parsing import BadFrame, Parser
from bench_spark.transports.amqp.runs import ReadBuffer

READ_BYTES = 256 * 1024
"""Read at once: much, and yet little enough to stay in the processor's cache."""
READS_PER_TURN = 4
"""After these, other lanes get their turn; the socket stays readable."""
TLS_READS_PER_TURN = 16
"""TLS gives 16 KiB at a time."""
SILENT_BEATS = 4
"""Half heartbeats without a byte from the broker after which it is given up."""

_REPLY_SUCCESS = 200


def read_buffer(frame_max: int) -> ReadBuffer:
    """Room for a read behind the beginning of a frame or of a message decoded as one row."""
    return ReadBuffer(READ_BYTES + max(frame_max, LONGEST_ALIKE_BYTES))


class Wire:
    def __init__(
        self,
        handover: Handover,
        loop: Loop,
        now_ns: NowNs,
        buffer: ReadBuffer,
        make_parser: Callable[[Callable[[Any], None]], Parser],
        gathering: Gathering | None = None,
    ) -> None:
        self._socket = handover.socket
        self._is_tls = isinstance(handover.socket, ssl.SSLSocket)
        self._channel = handover.channel
        self._loop = loop
        self._now_ns = now_ns
        self._buffer = buffer
        self._parser = make_parser(self._on_any_method)
        self._gathering = gathering
        self._read_bytes = 0
        self._rest = handover.unread
        """The beginning of a frame whose end was not read yet."""
        self._unsent = bytearray(handover.unsent)
        self._watches_writing = False
        self._is_reading = False
        self._is_held = False
        self._is_closing = False
        self._is_channel_open = True
        self._has_spoken = self._has_heard = True
        self._silent_beats = 0
        self._heartbeat_seconds = handover.heartbeat_seconds
        self._heartbeat: Timer | None = None
        self.read_ns = 0
        """When the bytes being decoded now were read."""
        self.failure: Exception | None = None
        self.closed_by_broker: tuple[int, str] | None = None
        self.on_end: Callable[[Exception], None] = lambda failure: None
        self.on_method: Callable[[Any], None] = lambda method: None
        """Called with the methods that are not about the end of channel or connection."""
        loop.add(self)
        self.flush()
        if self._heartbeat_seconds:
            self._beat()

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
        self._has_heard = True
        self._loop.watch_reading(self, not is_held)

    def send(self, data: bytes | memoryview) -> None:
        """Write what the socket takes now and keep the rest; what came earlier goes first."""
        if self.failure is not None:
            return
        written = 0
        if not self._unsent:
            self._has_spoken = True
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

    def send_method(self, method: Any, channel: int | None = None) -> None:
        self.send(method_frame(self._channel if channel is None else channel, method))

    def flush(self) -> bool:
        """Write what the socket takes now; whether all is written. TLS takes little at a time."""
        while self._unsent:
            self._has_spoken = True
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

    def close(self) -> None:
        """Say goodbye: the channel first, so that all that was published on it is dealt with."""
        if self._is_closing or self.failure is not None:
            return
        self._is_closing = True
        if self._is_channel_open:
            self.send_method(pika.spec.Channel.Close(_REPLY_SUCCESS, "Goodbye", 0, 0))
        else:
            self._close_connection()

    def abort(self, reason: str) -> None:
        """End at once, without a word to the broker."""
        self._end(pika.exceptions.ConnectionClosedByClient(0, reason))

    # -- reading -----------------------------------------------------------------------------------

    def read(self) -> None:
        """Decode what has arrived, as long as more is likely, in fairness to other lanes."""
        self._is_reading = True
        self._read_bytes = 0
        reads_left = TLS_READS_PER_TURN if self._is_tls else READS_PER_TURN
        while self._read_once() and self.failure is None:
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
        try:
            count = self._read_behind_rest(rest_bytes)
        except WOULD_BLOCK:
            return False
        except OSError as error:
            self._end(lost(error.strerror or str(error)))
            return False
        self.read_ns = self._now_ns()
        if not count:
            self._end(lost("connection closed by the peer"))
            return False
        self._has_heard = True
        self._read_bytes += count
        self._decode(rest_bytes + count)
        return count == READ_BYTES or self._is_tls

    def _read_behind_rest(self, rest_bytes: int) -> int:
        self._buffer.raw[:rest_bytes] = self._rest
        return self._socket.recv_into(self._buffer.view[rest_bytes:], READ_BYTES)

    def _holds_decrypted(self) -> bool:
        """Whether TLS has bytes of which epoll does not know, because it has read them already."""
        return isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0

    def _decode(self, end: int) -> None:
        try:
            done = self._parser.parse(self._buffer, end, self.read_ns)
        except BadFrame as error:
            self._end(lost(f"the broker sent {error}"))
            return
        self._rest = bytes(self._buffer.view[done:end])

    def _writing_failed(self, error: OSError) -> None:
        self._unsent.clear()
        if not self._is_reading:
            # The broker may have told its reason before it stopped listening: read that first.
            self.read()
        self._end(lost(error.strerror or str(error)))

    # -- the ends of channel and connection --------------------------------------------------------

    def _on_any_method(self, method: Any) -> None:
        spec = pika.spec
        if isinstance(method, spec.Channel.Close):
            self._is_channel_open = False
            self.send_method(spec.Channel.CloseOk())
            self._channel_ended(method)
        elif isinstance(method, spec.Channel.CloseOk):
            self._is_channel_open = False
            self._close_connection()
        elif isinstance(method, spec.Connection.Close):
            self.closed_by_broker = (method.reply_code, method.reply_text)
            self.send_method(spec.Connection.CloseOk(), channel=0)
            self._end(pika.exceptions.ConnectionClosedByBroker(*self.closed_by_broker))
        elif isinstance(method, spec.Connection.CloseOk):
            self._end(pika.exceptions.ConnectionClosedByClient(_REPLY_SUCCESS, "Goodbye"))
        else:
            if isinstance(method, spec.Channel.Flow):
                self.send_method(spec.Channel.FlowOk(method.active))
            self.on_method(method)

    def _channel_ended(self, method: Any) -> None:
        if self._is_closing:
            self._close_connection()
        else:
            self.on_end(pika.exceptions.ChannelClosedByBroker(method.reply_code, method.reply_text))

    def _close_connection(self) -> None:
        self.send_method(pika.spec.Connection.Close(_REPLY_SUCCESS, "Goodbye", 0, 0), channel=0)

    def _end(self, failure: Exception) -> None:
        if self.failure is not None:
            return
        self.failure = failure
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        if self._gathering is not None:
            self._gathering.forget(self)
        self._unsent.clear()
        self._loop.remove(self)
        self._socket.close()
        self.on_end(failure)

    # -- heartbeats --------------------------------------------------------------------------------

    def _beat(self) -> None:
        """Twice per heartbeat: speak if nothing else was said, and notice the broker's silence."""
        # One that we do not listen to is not silent.
        has_heard = self._has_heard or self._is_held
        self._silent_beats = 0 if has_heard else self._silent_beats + 1
        if self._silent_beats >= SILENT_BEATS:
            seconds = self._heartbeat_seconds * SILENT_BEATS / 2
            self._end(lost(f"no sign of life from the broker for {seconds:g} s"))
            return
        if not self._has_spoken:
            self.send(HEARTBEAT_FRAME)
        self._has_spoken = self._has_heard = False
        self._heartbeat = self._loop.call_later(self._heartbeat_seconds / 2, self._beat)
