"""One MQTT connection on a socket that never blocks: login, packets, keep-alive, goodbye; and what
its end means.

State and failures are read from its attributes, not raised. Nothing is read behind the broker's
welcome before `begin` has said who reads it: a broker that has kept a session sends at once.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench_spark.config.protocols import Mqtt
from bench_spark.core.clock import NowNs
from bench_spark.errors import (
    BenchError,
    BrokerRefused,
    BrokerUnreachable,
    ConfigurationError,
    LoginRefused,
)
from bench_spark.transports.base import TransportContext
from bench_spark.transports.batches import I64
from bench_spark.transports.mqtt import codec, packets
from bench_spark.transports.mqtt.codec import LONGEST_START_BYTES
from bench_spark.transports.mqtt.packets import BadPacket, Connack, Login, reason
from bench_spark.transports.sockets.buffers import ReadBuffer, RowBuffer, too_large
from bench_spark.transports.sockets.connection import (
    ConnectionLost,
    ForeignProtocol,
    SocketConnection,
    read_buffer,
)
from bench_spark.transports.sockets.loop import Gathering, Loop
from bench_spark.transports.sockets.opening import Connector, SocketAccess, access_to

_MALFORMED = {
    codec.LONG_LENGTH: "a length of more than four bytes",
    codec.BAD_QOS: "a message of QoS 3",
    codec.IDENTIFIER_0: "a message with packet identifier 0",
    codec.NO_PAYLOAD: "a message that ends before its payload",
    codec.NO_IDENTIFIER: "a packet without its identifier",
}


class PacketReader:
    """Reads what arrives on a connection once the broker has welcomed it, by a compiled decoder
    that writes rows and what is answered at once."""

    def __init__(self, state: I64, topics: I64, rows: RowBuffer) -> None:
        """`state`: see `codec`."""
        self._state = state
        # Single numbers come out of memory views at a fifth of what they cost out of arrays.
        self._numbers = state.data
        self._answers = state[codec.ANSWERS : codec.WINDOW].view(np.uint8).data
        self._topics = topics
        self._rows = rows
        self.on_answers: Callable[[memoryview], None] = lambda acks: None
        """Called with packets to be sent at once."""
        self.on_packet: Callable[[int, bytes], None] = lambda first_byte, body: None
        """Called with the first byte and the content of a packet that is not for this reader."""

    def parse(self, buffer: ReadBuffer, end: int, at_ns: int) -> int:
        """Decode what the buffer holds up to `end`; how many bytes are done with. Raises BadPacket.

        The rest is the beginning of something: it must come first in the next call's buffer.
        """
        at: int = 0
        rows = self._rows
        while True:
            before = rows.count
            at, rows.count, answered, found, why = codec.decode(
                buffer.array, at, end, at_ns, self._state, self._topics, rows.words, before
            )
            if found:
                self._collect(buffer.raw, found, before)
            if answered:
                self._answer(answered)
            if why == codec.MORE:
                return at
            if why == codec.FULL:
                rows.make_room(1)
            elif why == codec.FOREIGN:
                done = self._pass_on(buffer.raw, at, end)
                if done == at:
                    return at
                at = done
            elif why != codec.TOPIC or not self._find_topic(buffer.raw):
                raise self._malformed(why)

    def _answer(self, answered: int) -> None:
        """Send so many answers."""
        self.on_answers(self._answers[: answered * codec.ACK_BYTES])

    def _collect(self, raw: bytearray, found: int, before: int) -> None:
        """Take so many pieces of payloads out of the buffer; so many rows were there before."""

    def _find_topic(self, raw: bytearray) -> bool:
        """Whether the decoder can go on with a topic that is not in its table."""
        return False

    def _pass_on(self, raw: bytearray, at: int, end: int) -> int:
        """Pass a packet of another kind on; where it ends, or `at` where it is not all there."""
        found = packets.read_length(raw, at + 1, end)
        if found is None:
            return at
        length, body_at = found
        stop = body_at + length
        if stop - at > LONGEST_START_BYTES:
            raise BadPacket(f"a packet of kind 0x{raw[at]:02x} and {length} bytes")
        if stop > end:
            return at
        self.on_packet(raw[at], bytes(raw[body_at:stop]))
        return stop

    def _malformed(self, why: int) -> BadPacket:
        if why == codec.TOPIC:
            return BadPacket("a message of a topic that was not subscribed to")
        numbers = self._numbers
        error, size = numbers[codec.ERROR], numbers[codec.ERROR_BYTES]
        if error == codec.TOO_LARGE:
            return BadPacket(too_large(size, numbers[codec.MOST_BYTES]))
        if error == codec.LONG_START:
            return BadPacket(f"a message whose topic and properties have {size} bytes")
        return BadPacket(_MALFORMED[error])


class ConnectionRefused(Exception):
    """The broker's no to the login, by its reason code as in version 5."""

    def __init__(self, code: int, words: str = "") -> None:
        super().__init__(packets.reason(code) + (f": {words}" if words else ""))
        self.code = code


class SubscriptionRefused(Exception):
    """The broker's no to a subscription."""

    def __init__(self, topic_filter: str, code: int, why: str) -> None:
        super().__init__(f"subscription to {topic_filter!r}: {why}")
        self.code = code


@dataclass(frozen=True)
class BrokerLimits:
    """Limits that the broker names at the login, in version 5 only."""

    in_flight: int = 65535
    packet_bytes: int | None = None
    qos: int = 2
    has_retain: bool = True
    has_wildcards: bool = True
    has_shared: bool | None = None
    """None: not said."""

    @classmethod
    def of(cls, properties: dict[int, Any], version: str) -> BrokerLimits:
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


class MqttConnection(SocketConnection):
    logs_in = True
    # Mosquitto leaves Nagle's algorithm on: it holds back small packets until we have acknowledged
    # the one before them, and the system takes up to 40 ms for that unless it is told, each time,
    # not to wait.
    acknowledges_quickly = True

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
        self.limits = BrokerLimits()
        self.has_session = False
        """Whether the broker has kept what an earlier connection asked for."""
        self.pings_answered = 0
        self.ends_session = False
        """Whether DISCONNECT is to end the session too."""
        self.on_packet: Callable[[int, bytes], None] = lambda first_byte, body: None
        """Called with packets that are neither messages, acknowledgements nor signs of life."""
        self.send(login.packet)

    def begin(self, reader: PacketReader) -> None:
        """From now on what arrives is read."""
        self._parse = reader.parse
        reader.on_packet = self._on_any_packet
        self.hold(False)
        self._loop.call_soon(self._read_on)

    def close(self) -> None:
        """Send DISCONNECT; the broker answers by closing the connection."""
        if not self._is_closing and self.failure is None:
            self._is_closing = True
            self.hold(False)
            self.send(packets.disconnect(self._version, self.ends_session))

    # -- the protocol ------------------------------------------------------------------------------

    def _read_on(self) -> None:
        if self.failure is None:
            rest_bytes = len(self._rest)
            self._buffer.raw[:rest_bytes] = self._rest
            self._decode(rest_bytes)
        if self.failure is None:
            # TLS may have decrypted more than was read.
            self.read()

    def _parse_first(self, buffer: ReadBuffer, end: int, at_ns: int) -> int:
        raw = buffer.raw
        if self._is_established:
            return 0
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
        self.has_session = answer.session_present
        self.limits = BrokerLimits.of(properties, self._version)
        seconds = properties.get(packets.SERVER_KEEP_ALIVE, self._keep_alive_seconds)
        self._start_beating(seconds)
        self.hold(True)
        self._established()

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

    def _show_life(self, has_written: bool, has_read: bool) -> None:
        # A broker sends nothing of its own accord: a lane that only publishes asks for an answer.
        if not has_written or not has_read:
            self.send(packets.PINGREQ)


NOT_AUTHORIZED = 0x87
LOGIN_REFUSALS = frozenset({0x85, 0x86, NOT_AUTHORIZED, 0x8A, 0x8C})
"""Reason codes by which brokers refuse a user, a password or a client."""
PASSING_CODES = frozenset({0x00, 0x88, 0x89, 0x8B, 0x8D, 0x98, 0x9F, 0xA0})
"""By which a broker refuses or ends connections that did nothing wrong: it is busy, shutting down,
administered, or has received nothing for too long."""


@dataclass(frozen=True)
class MqttAccess(SocketAccess):
    """Where the broker is and who we are there."""

    username: str | None
    password: bytes | None

    def __repr__(self) -> str:
        return f"MqttAccess({self.username}@{self.address})"


def access_for(context: TransportContext) -> MqttAccess:
    broker, credentials = context.broker, context.credentials
    password = credentials.password
    if password and credentials.username is None:
        raise ConfigurationError(f"broker {broker.name}: username: missing; a password needs one")
    return MqttAccess(
        **vars(access_to(context, broker.host, broker.port, broker.uses_tls)),
        username=credentials.username,
        password=password.get_secret_value().encode() if password else None,
    )


def login_for(access: MqttAccess, mqtt: Mqtt, client_id: str) -> Login:
    return Login(
        version=mqtt.version,
        client_id=client_id,
        username=access.username,
        password=access.password,
        keep_alive_seconds=mqtt.keep_alive_seconds,
    )


class MqttProtocol(Connector[MqttConnection]):
    """For lanes of one role; each has a login of its own."""

    access: MqttAccess
    name = "MQTT"
    first_request = "CONNECT"

    def __init__(
        self, access: MqttAccess, logins: Sequence[Login], gathering: Gathering | None = None
    ) -> None:
        self.access = access
        self._logins = logins
        self.gathering = gathering
        self.buffer = read_buffer(LONGEST_START_BYTES)
        """What the sockets of all lanes are read into."""

    def log_in(
        self, lane: int, connected: socket.socket, loop: Loop, now_ns: NowNs
    ) -> MqttConnection:
        login = self._logins[lane]
        return MqttConnection(connected, loop, now_ns, self.buffer, login, self.gathering)

    def login_failure(self, connection: MqttConnection, failure: Exception) -> BenchError:
        access = self.access
        who = f"{access.address}: user {access.username!r}"
        if isinstance(failure, ConnectionRefused):
            kind = LoginRefused if failure.code in LOGIN_REFUSALS else BrokerRefused
            return kind(f"{who}: {failure}")
        if isinstance(failure, ForeignProtocol):
            return BrokerUnreachable(f"{access.address}: {failure}")
        return BrokerUnreachable(
            f"{access.address}: {self.describe_end(connection, failure)} at the login (wrong "
            "protocol version, user or password?)"
        )

    def is_login_refused(self, connection: MqttConnection, failure: Exception) -> bool:
        return isinstance(failure, ConnectionRefused) and failure.code not in PASSING_CODES

    def describe_end(self, connection: MqttConnection, failure: Exception) -> str:
        if connection.closed_by_broker is not None:
            code, words = connection.closed_by_broker
            said = reason(code)
            more = f": {words}" if words and words not in said else ""
            return f"connection closed by the broker: {said}{more}"
        if isinstance(failure, ConnectionLost):
            return f"connection lost: {failure}"
        return str(failure)

    def may_pass(self, connection: MqttConnection, failure: Exception) -> bool:
        if connection.closed_by_broker is not None:
            return connection.closed_by_broker[0] in PASSING_CODES
        return not isinstance(failure, SubscriptionRefused)

    def refusal(
        self, connection: MqttConnection, failure: Exception | None, what: str
    ) -> BenchError:
        address = self.access.address
        if isinstance(failure, SubscriptionRefused):
            if failure.code == NOT_AUTHORIZED:
                return LoginRefused(f"{address}: user {self.access.username!r}: {failure}")
            return BrokerRefused(f"{address}: {failure}")
        if failure is None:
            waited = f"no answer within {self.access.timeout_seconds:g} s"
            return BrokerUnreachable(f"{address}: {what}: {waited}")
        kind = BrokerUnreachable if connection.closed_by_broker is None else BrokerRefused
        return kind(f"{address}: {what}: {self.describe_end(connection, failure)}")
