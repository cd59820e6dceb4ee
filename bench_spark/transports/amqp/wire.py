"""The socket of a lane: what is left of a connection once pika has opened it.

Hands what arrives to the lane's parser, sends heartbeats, and closes channel and connection. Ends
are told in pika's exceptions, as those of control connections are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pika.exceptions
import pika.spec

from bench_spark.core.clock import NowNs
from bench_spark.transports.amqp.connection import Handover, lost
from bench_spark.transports.amqp.frames import HEARTBEAT_FRAME, method_frame
from bench_spark.transports.amqp.parsing import BadFrame, Parser
from bench_spark.transports.sockets.arrivals import ReadBuffer
from bench_spark.transports.sockets.gathering import Gathering
from bench_spark.transports.sockets.loop import Loop
from bench_spark.transports.sockets.wire import READ_BYTES, SocketWire, Unreadable

_REPLY_SUCCESS = 200


def read_buffer(frame_max: int) -> ReadBuffer:
    """Room for a read behind the beginning of a frame."""
    return ReadBuffer(READ_BYTES + frame_max)


class Wire(SocketWire):
    def __init__(
        self,
        handover: Handover,
        loop: Loop,
        now_ns: NowNs,
        buffer: ReadBuffer,
        make_parser: Callable[[Callable[[Any], None]], Parser],
        gathering: Gathering | None = None,
    ) -> None:
        super().__init__(
            handover.socket, loop, now_ns, buffer, gathering, handover.unread, handover.unsent
        )
        self._channel = handover.framing.channel
        self._parser = make_parser(self._on_any_method)
        self._is_channel_open = True
        self.on_method: Callable[[Any], None] = lambda method: None
        """Called with the methods that are not about the end of channel or connection."""
        loop.add(self)
        self.flush()
        self._start_beating(handover.heartbeat_seconds)

    def send_method(self, method: Any, channel: int | None = None) -> None:
        self.send(method_frame(self._channel if channel is None else channel, method))

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

    # -- the protocol ------------------------------------------------------------------------------

    def _parse(self, buffer: ReadBuffer, end: int) -> int:
        try:
            return self._parser.parse(buffer, end, self.read_ns)
        except BadFrame as error:
            raise Unreadable(str(error)) from error

    def _lost(self, why: str) -> Exception:
        failure: Exception = lost(why)
        return failure

    def _show_life(self, has_spoken: bool, has_heard: bool) -> None:
        if not has_spoken:
            self.send(HEARTBEAT_FRAME)

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
