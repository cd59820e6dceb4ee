"""One MQTT connection on a socket that never blocks: login, packets, keep-alive, goodbye.

State and failures are read from its attributes, not raised. Nothing is read behind the broker's
welcome before `begin` has said who receives it: a broker that has kept a session sends at once.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench_spark.core.clock import NowNs
from bench_spark.transports.mqtt import packets
from bench_spark.transports.mqtt.packets import BadPacket, Connack, Login
from bench_spark.transports.mqtt.parsing import LONGEST_START_BYTES, Parser
from bench_spark.transports.sockets.gathering import Gathering
from bench_spark.transports.sockets.loop import Loop
from bench_spark.transports.sockets.runs import ReadBuffer
from bench_spark.transports.sockets.wire import READ_BYTES, SocketWire, Unreadable

MakeParser = Callable[[Callable[[int, bytes], None]], Parser]


class ConnectionLost(Exception):
    """It ended without a word; the text says how."""


class ConnectionRefused(Exception):
    """The broker's no to the login, by its reason code as in version 5."""

    def __init__(self, code: int, words: str = "") -> None:
        super().__init__(packets.reason(code) + (f": {words}" if words else ""))
        self.code = code


class ForeignProtocol(Exception):
    """The peer's first bytes are not MQTT."""


class SubscriptionRefused(Exception):
    """The broker's no to a subscription."""

    def __init__(self, topic_filter: str, code: int, why: str) -> None:
        super().__init__(f"subscription to {topic_filter!r}: {why}")
        self.code = code


@dataclass(frozen=True)
class Limits:
    """What the broker said at the login that it allows; without version 5 it says nothing."""

    in_flight: int = 65535
    packet_bytes: int | None = None
    qos: int = 2
    has_retain: bool = True
    has_wildcards: bool = True
    has_shared: bool | None = None
    """None: not said."""

    @classmethod
    def of(cls, properties: dict[int, Any], version: str) -> Limits:
        if version != "5":
            return cls()
        return cls(
            in_flight=properties.get(packets.RECEIVE_MAXIMUM, 65535),
            packet_bytes=properties.get(packets.MAXIMUM_PACKET_SIZE),
            qos=properties.get(packets.MAXIMUM_QOS, 2),
            has_retain=bool(properties.get(packets.RETAIN_AVAILABLE, 1)),
            has_wildcards=bool(properties.get(packets.WILDCARD_AVAILABLE, 1)),
            has_shared=bool(properties.get(packets.SHARED_AVAILABLE, 1)),
        )


def read_buffer() -> ReadBuffer:
    """Room for a read behind the beginning of a packet."""
    return ReadBuffer(READ_BYTES + LONGEST_START_BYTES)


class MqttWire(SocketWire):
    on_open: Callable[[], None]
    on_open_error: Callable[[Exception], None]

    def __init__(
        self,
        connected: socket.socket,
        loop: Loop,
        now_ns: NowNs,
        buffer: ReadBuffer,
        login: Login,
        gathering: Gathering | None = None,
    ) -> None:
        super().__init__(connected, loop, now_ns, buffer, gathering)
        self._version = login.version
        self._keep_alive_seconds = login.keep_alive_seconds
        self._parser: Parser | None = None
        self._is_welcome = False
        self.limits = Limits()
        self.has_session = False
        """Whether the broker has kept what an earlier connection asked for."""
        self.pings_answered = 0
        self.ends_session = False
        """Whether the goodbye is for good."""
        self.on_open = lambda: None
        self.on_open_error = lambda failure: None
        self.on_packet: Callable[[int, bytes], None] = lambda first_byte, body: None
        """Called with packets that are neither messages, acknowledgements nor signs of life."""
        loop.add(self)
        self.send(login.packet)

    @property
    def is_open(self) -> bool:
        return self._is_welcome and super().is_open

    def begin(self, make_parser: MakeParser) -> None:
        """From now on what arrives is received."""
        self._parser = make_parser(self._on_any_packet)
        self.hold(False)
        self._loop.call_soon(self._read_on)

    def close(self) -> None:
        """Say goodbye; the broker answers by hanging up."""
        if not self._is_closing and self.failure is None:
            self._is_closing = True
            self.hold(False)
            self.send(packets.disconnect(self._version, self.ends_session))

    def abort(self, reason: str) -> None:
        """End at once, without a word to the broker."""
        self._end(ConnectionLost(reason))

    def receive_into(self, room: memoryview) -> int:
        count = super().receive_into(room)
        if count:
            # Mosquitto leaves Nagle's algorithm on: it holds back small packets until we have
            # acknowledged the one before them, and the system takes up to 40 ms for that unless
            # it is told, each time, not to wait.
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        return count

    @property
    def may_read_ahead(self) -> bool:
        is_at_packet = self._parser is not None and not self._parser.is_inside_message
        return is_at_packet and super().may_read_ahead

    # -- the protocol ------------------------------------------------------------------------------

    def _read_on(self) -> None:
        if self.failure is None:
            rest_bytes = len(self._rest)
            self._buffer.raw[:rest_bytes] = self._rest
            self._decode(rest_bytes)
        if self.failure is None:
            # TLS may have decrypted more than was read.
            self.read()

    def _parse(self, buffer: ReadBuffer, end: int) -> int:
        try:
            if self._parser is not None:
                return self._parser.parse(buffer, end, self.read_ns)
            return 0 if self._is_welcome else self._hear_welcome(buffer.raw, end)
        except BadPacket as error:
            raise Unreadable(str(error)) from error

    def _hear_welcome(self, raw: bytearray, end: int) -> int:
        if raw[0] != packets.CONNACK:
            self._end(ForeignProtocol("answers, but not in MQTT"))
            return end
        found = packets.read_length(raw, 1, end)
        if found is None or sum(found) > end:
            return 0
        length, at = found
        self._welcome(packets.read_connack(bytes(raw[at : at + length])))
        return at + length

    def _welcome(self, answer: Connack) -> None:
        properties = dict(answer.properties)
        if answer.code:
            words = str(properties.get(packets.REASON_STRING, ""))
            self._end(ConnectionRefused(answer.code, words))
            return
        self._is_welcome = True
        self.has_session = answer.session_present
        self.limits = Limits.of(properties, self._version)
        seconds = properties.get(packets.SERVER_KEEP_ALIVE, self._keep_alive_seconds)
        self._start_beating(seconds)
        self.hold(True)
        self.on_open()

    def _on_any_packet(self, first_byte: int, body: bytes) -> None:
        kind = first_byte & packets.KIND_BITS
        if kind == packets.PINGRESP:
            self.pings_answered += 1
            return
        if kind == packets.DISCONNECT:
            code, words = packets.read_disconnect(body)
            self.closed_by_broker = (code, words or packets.REASONS.get(code, ""))
            self._end(ConnectionLost(f"closed by the broker: {packets.reason(code)}"))
        elif first_byte in (packets.SUBACK, packets.UNSUBACK):
            self.on_packet(first_byte, body)
        else:
            raise BadPacket(f"a packet of kind 0x{first_byte:02x}, which is not for clients")

    def _lost(self, why: str) -> Exception:
        return ConnectionLost(why)

    def _end(self, failure: Exception) -> None:
        was_open, is_new = self._is_welcome, self.failure is None
        super()._end(failure)
        if is_new and not was_open:
            self.on_open_error(failure)

    def _show_life(self, has_spoken: bool, has_heard: bool) -> None:
        # A broker says nothing by itself: whoever only publishes must ask to hear from it.
        if not has_spoken or not has_heard:
            self.send(packets.PINGREQ)
