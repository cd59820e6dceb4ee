"""One AMQP connection with one channel, on a socket that never blocks: login, frames, heartbeats,
goodbye; and what its end means.

Methods are encoded and decoded by `pika.spec`. State and failures are read from attributes, not
raised; failures are pika's exceptions.
"""

from __future__ import annotations

import functools
import logging
import platform
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pika
import pika.exceptions
import pika.frame
import pika.spec

import bench_spark
from bench_spark.core.clock import NowNs
from bench_spark.errors import (
    BenchError,
    BrokerRefused,
    BrokerUnreachable,
    LoginRefused,
    PreflightError,
)
from bench_spark.transports.amqp.frames import (
    HEARTBEAT_FRAME,
    BadFrame,
    FrameParser,
    FrameTerms,
    NoMessages,
    method_frame,
)
from bench_spark.transports.base import TransportContext
from bench_spark.transports.sockets.buffers import ReadBuffer
from bench_spark.transports.sockets.connection import SocketConnection, read_buffer
from bench_spark.transports.sockets.loop import Gathering, Loop
from bench_spark.transports.sockets.opening import Connector, SocketAccess, access_to

# Its codecs log critical things about ordinary ends, which have error texts of our own.
_PIKA_LOGGER = logging.getLogger("pika")
_PIKA_LOGGER.addHandler(logging.NullHandler())
_PIKA_LOGGER.setLevel(logging.CRITICAL + 1)

PASSING_CODES = frozenset({200, 320, 541})
"""By which a broker closes connections that did nothing wrong: farewell, forced, internal error."""
LOGIN_REFUSALS = frozenset({402, 403, 404, 530})
"""Reply codes by which brokers refuse a user or a vhost while a connection opens."""
ACCESS_REFUSED = 403
"""The reply code for a missing right, once logged in."""

CHANNEL = 1
"""Of every connection."""
_MOST_CHANNELS = 65535
_FRAME_MAX: int = pika.spec.FRAME_MAX_SIZE
_METHOD_FRAME = 1
_REPLY_SUCCESS = 200
_DEFAULT_USER = "guest"  # what AMQP clients present when told nothing
_CAPABILITIES = (
    "authentication_failure_close",
    "basic.nack",
    "connection.blocked",
    "consumer_cancel_notify",
    "exchange_exchange_bindings",
    "publisher_confirms",
)
"""What we understand, so that a broker may make use of it."""


class NotAmqp(pika.exceptions.AMQPConnectionError):  # type: ignore[misc]  # pika is untyped
    """The peer does not speak AMQP 0-9-1, by its first bytes or by what it offers."""


@dataclass(frozen=True)
class AmqpAccess(SocketAccess):
    """Where the broker is and who we are there."""

    virtual_host: str
    credentials: pika.PlainCredentials
    heartbeat_seconds: int
    connection_name: str

    def __repr__(self) -> str:
        return f"AmqpAccess({self.username}@{self.address}{self.virtual_host})"

    @property
    def username(self) -> str:
        return str(self.credentials.username)

    @property
    def client_properties(self) -> dict[str, Any]:
        return {
            "product": "bench-spark",
            "version": bench_spark.__version__,
            "platform": f"Python {platform.python_version()}",
            "connection_name": self.connection_name,
            "capabilities": dict.fromkeys(_CAPABILITIES, True),
            # Else Qpid Broker-J answers a mandatory message that reaches no queue by closing the
            # connection, if it is in a transaction, instead of returning it.
            "qpid.close_when_no_route": False,
        }


def access_for(context: TransportContext) -> AmqpAccess:
    broker, credentials = context.broker, context.credentials
    username = credentials.username or _DEFAULT_USER
    password = credentials.password.get_secret_value() if credentials.password else _DEFAULT_USER
    return AmqpAccess(
        **vars(access_to(context, broker.host, broker.port, broker.uses_tls)),
        virtual_host=broker.virtual_host,
        credentials=pika.PlainCredentials(username, password),
        heartbeat_seconds=context.scenario.amqp.heartbeat_seconds,
        connection_name=f"bench-spark {context.run_id}",
    )


class AmqpConnection(SocketConnection):
    logs_in = True

    def __init__(
        self,
        connected: socket.socket,
        loop: Loop,
        now_ns: NowNs,
        buffer: ReadBuffer,
        access: AmqpAccess,
        gathering: Gathering | None = None,
    ) -> None:
        super().__init__(connected, loop, now_ns, buffer, gathering)
        self._access = access
        self._awaited: type[Any] | None = pika.spec.Connection.Start
        """What the broker has to say next in the login; None once it is done."""
        self.framing = FrameTerms(CHANNEL, _FRAME_MAX)
        self._parser = FrameParser(self.framing, NoMessages(), self.on_any_method)
        """Until `begin`."""
        self._then: Callable[[], None] | None = None
        self.is_channel_open = False
        self.server_properties: dict[str, Any] = {}
        self.blocked_reason: str | None = None
        """Why the broker does not want messages now."""
        self.on_method: Callable[[Any], None] = lambda method: None
        """Called with the methods that are not about the end of channel or connection."""
        self.send(pika.frame.ProtocolHeader().marshal())

    def open_channel(self, then: Callable[[], None] | None = None) -> None:
        """Ask for a channel; `then` is called in a later turn of the loop."""
        self._then = then
        self.send_method(pika.spec.Channel.Open())

    def begin(self, parser: FrameParser, on_method: Callable[[Any], None]) -> None:
        """From now on messages and their confirms may come. The parser passes all methods to
        `on_any_method`, which passes those on that are not about the connection itself."""
        self._parse = parser.parse
        self.on_method = on_method
        # TLS may have decrypted more than was read.
        self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if self.failure is None:
            self.read()

    def send_method(self, method: Any, channel: int | None = None) -> None:
        self.send(method_frame(self.framing.channel if channel is None else channel, method))

    def close_channel(self) -> None:
        self.send_method(pika.spec.Channel.Close(_REPLY_SUCCESS, "Goodbye", 0, 0))

    def close(self) -> None:
        """Close in order: the channel first, so that the broker reads what was published on it."""
        if self._is_closing or self.failure is not None:
            return
        self._is_closing = True
        if self.is_channel_open:
            self.close_channel()
        else:
            self._close_connection()

    def abort(self, reason: str) -> None:
        """End at once, without a word to the broker."""
        self._end(pika.exceptions.ConnectionClosedByClient(0, reason))

    # -- the protocol ------------------------------------------------------------------------------

    def _parse_first(self, buffer: ReadBuffer, end: int, at_ns: int) -> int:
        try:
            _check_first_bytes(buffer.raw)
        except NotAmqp as error:
            self._end(error)
            return end
        self._parse = self._parse_login
        return self._parse_login(buffer, end, at_ns)

    def _parse_login(self, buffer: ReadBuffer, end: int, at_ns: int) -> int:
        try:
            return self._parser.parse(buffer, end, at_ns)
        except BadFrame as error:
            if self._awaited is None:
                raise
            # Else it would count as a close at the login.
            self._end(pika.exceptions.InvalidFrameError(str(error)))
            return end

    def _lost(self, why: str) -> Exception:
        failure: Exception = lost(why)
        return failure

    def _show_life(self, has_written: bool, has_read: bool) -> None:
        if not has_written:
            self.send(HEARTBEAT_FRAME)

    def on_any_method(self, method: Any) -> None:
        spec = pika.spec
        if self.failure is not None:
            return
        if isinstance(method, spec.Connection.Close):
            self.closed_by_broker = (method.reply_code, method.reply_text)
            self.send_method(spec.Connection.CloseOk(), channel=0)
            self._end(pika.exceptions.ConnectionClosedByBroker(*self.closed_by_broker))
        elif self._awaited is not None:
            self._on_login_method(method)
        elif isinstance(method, spec.Channel.OpenOk):
            self.is_channel_open = True
            if self._then is not None:
                self._loop.call_soon(self._then)
        elif isinstance(method, spec.Channel.Close):
            self.is_channel_open = False
            self.send_method(spec.Channel.CloseOk())
            self._channel_ended(method)
        elif isinstance(method, spec.Channel.CloseOk):
            self.is_channel_open = False
            if self._is_closing:
                self._close_connection()
        elif isinstance(method, spec.Connection.CloseOk):
            self._end(pika.exceptions.ConnectionClosedByClient(_REPLY_SUCCESS, "Goodbye"))
        else:
            if isinstance(method, spec.Channel.Flow):
                self.send_method(spec.Channel.FlowOk(method.active))
            elif isinstance(method, spec.Connection.Blocked):
                self.blocked_reason = str(method.reason)
            elif isinstance(method, spec.Connection.Unblocked):
                self.blocked_reason = None
            self.on_method(method)

    # -- login -------------------------------------------------------------------------------------

    def _on_login_method(self, method: Any) -> None:
        spec = pika.spec.Connection
        if not isinstance(method, self._awaited or object):
            raise BadFrame(f"{method.NAME} in the middle of the login")
        if isinstance(method, spec.Start):
            self._start(method)
        elif isinstance(method, spec.Tune):
            self._tune(method)
        else:
            self._awaited = None
            self._start_beating(self._access.heartbeat_seconds)
            self._established()

    def _start(self, method: Any) -> None:
        version = (method.version_major, method.version_minor)
        if version != pika.spec.PROTOCOL_VERSION[:2]:
            self._end(pika.exceptions.ProtocolVersionMismatch(pika.frame.ProtocolHeader(), version))
            return
        self.server_properties = method.server_properties or {}
        self._awaited = pika.spec.Connection.Tune
        mechanism, response = self._access.credentials.response_for(method)
        if mechanism is None:
            self._end(pika.exceptions.AuthenticationError(self._access.credentials.TYPE))
            return
        self.send_method(
            pika.spec.Connection.StartOk(
                self._access.client_properties, mechanism, response, _locale(method.locales)
            ),
            channel=0,
        )

    def _tune(self, method: Any) -> None:
        if 0 < method.frame_max < pika.spec.FRAME_MIN_SIZE:
            self._end(
                NotAmqp(
                    f"offers frames of at most {method.frame_max} bytes (frame_max), and AMQP "
                    f"0-9-1 asks for {pika.spec.FRAME_MIN_SIZE} at least"
                )
            )
            return
        frame_max = min(method.frame_max or _FRAME_MAX, _FRAME_MAX)
        self.framing = FrameTerms(CHANNEL, frame_max)
        self._awaited = pika.spec.Connection.OpenOk
        channels = min(method.channel_max or _MOST_CHANNELS, _MOST_CHANNELS)
        spec, access = pika.spec.Connection, self._access
        self.send_method(spec.TuneOk(channels, frame_max, access.heartbeat_seconds), channel=0)
        self.send_method(spec.Open(access.virtual_host, insist=True), channel=0)

    # -- the ends of channel and connection --------------------------------------------------------

    def _channel_ended(self, method: Any) -> None:
        if self._is_closing:
            self._close_connection()
        else:
            self.on_end(pika.exceptions.ChannelClosedByBroker(method.reply_code, method.reply_text))

    def _close_connection(self) -> None:
        self.send_method(pika.spec.Connection.Close(_REPLY_SUCCESS, "Goodbye", 0, 0), channel=0)

    def _end(self, failure: Exception) -> None:
        if self._awaited is not None and isinstance(failure, pika.exceptions.StreamLostError):
            failure = self._meant_by(failure)
        super()._end(failure)

    def _meant_by(self, failure: Exception) -> Exception:
        """A broker may refuse a login by closing the connection: at which step shows why."""
        if self._awaited is pika.spec.Connection.Start:
            meant = pika.exceptions.IncompatibleProtocolError
        elif self._awaited is pika.spec.Connection.OpenOk:
            meant = pika.exceptions.ProbableAccessDeniedError
        elif self._awaited is pika.spec.Connection.Tune:
            meant = pika.exceptions.ProbableAuthenticationError
        else:
            return failure
        refused: Exception = meant(repr(failure))
        return refused


def _locale(offered: Any) -> str:
    text = offered.decode() if isinstance(offered, bytes) else str(offered)
    return text.split()[0] if text.split() else "en_US"


def _check_first_bytes(data: bytearray) -> None:
    if data[:4] == b"AMQP":
        offered = "-".join(str(number) for number in data[5:8])
        raise NotAmqp(f"speaks AMQP {offered}, not 0-9-1")
    if data[0] != _METHOD_FRAME:
        raise NotAmqp("answers, but not in AMQP")


def lost(why: str) -> pika.exceptions.StreamLostError:
    return pika.exceptions.StreamLostError(why)


# -- how connections are opened, and what their ends mean ------------------------------------------


class AmqpProtocol(Connector[AmqpConnection]):
    access: AmqpAccess
    name = "AMQP"
    first_request = "channel.open"

    def __init__(self, access: AmqpAccess, gathering: Gathering | None = None) -> None:
        self.access = access
        self.gathering = gathering
        self._buffer = read_buffer(_FRAME_MAX)
        """What the sockets of all lanes are read into."""

    def ready_all(self, connections: Sequence[AmqpConnection], loop: Loop) -> None:
        for connection in connections:
            connection.open_channel()

        def count_opening() -> int:
            return sum(one.is_open and not one.is_channel_open for one in connections)

        loop.run_down(count_opening, self.access.timeout_seconds)
        for connection in connections:
            if not connection.is_channel_open:
                raise self.refusal(connection, connection.failure, "channel.open")

    def log_in(
        self, lane: int, connected: socket.socket, loop: Loop, now_ns: NowNs
    ) -> AmqpConnection:
        access, gathering = self.access, self.gathering
        return AmqpConnection(connected, loop, now_ns, self._buffer, access, gathering)

    def get_ready(
        self,
        connection: AmqpConnection,
        loop: Loop,
        then: Callable[[AmqpConnection], None],
        on_end: Callable[[Exception], None],
    ) -> None:
        connection.on_end = on_end
        connection.open_channel(functools.partial(then, connection))

    def login_failure(self, connection: AmqpConnection, failure: Exception) -> PreflightError:
        access = self.access
        who = f"{access.address}: user {access.username!r}, vhost {access.virtual_host!r}"
        if connection.closed_by_broker is not None:
            code, text = connection.closed_by_broker
            kind = LoginRefused if code in LOGIN_REFUSALS else BrokerRefused
            return kind(f"{who}: {code} {text}")
        if isinstance(failure, pika.exceptions.AuthenticationError):
            return LoginRefused(
                f"{who}: the broker does not offer login by user and password (PLAIN)"
            )
        if isinstance(failure, pika.exceptions.ProbableAuthenticationError):
            return LoginRefused(
                f"{who}: the broker closed the connection at the login (wrong user or password?)"
            )
        if isinstance(failure, pika.exceptions.ProbableAccessDeniedError):
            return LoginRefused(
                f"{who}: the broker closed the connection at the vhost (missing, or no right to "
                "it?)"
            )
        if isinstance(failure, NotAmqp):
            return BrokerUnreachable(f"{access.address}: {failure.args[0]}")
        if isinstance(
            failure,
            pika.exceptions.IncompatibleProtocolError | pika.exceptions.ProtocolVersionMismatch,
        ):
            return BrokerUnreachable(f"{access.address}: does not speak AMQP 0-9-1")
        return BrokerUnreachable(f"{access.address}: {self.describe_end(connection, failure)}")

    def is_login_refused(self, connection: AmqpConnection, failure: Exception) -> bool:
        """Whether the broker itself said that user or vhost are wrong; a mere hang-up says
        nothing."""
        if connection.closed_by_broker is not None:
            return connection.closed_by_broker[0] in LOGIN_REFUSALS
        return isinstance(failure, pika.exceptions.AuthenticationError)

    def describe_end(self, connection: AmqpConnection, failure: Exception) -> str:
        return describe_end(connection, failure)

    def may_pass(self, connection: AmqpConnection, failure: Exception) -> bool:
        """Whether a new connection may fare better: this one was lost or the broker went away.

        A channel that was closed, or a connection closed because of what was done on it, would end
        the same way again.
        """
        if connection.closed_by_broker is not None:
            return connection.closed_by_broker[0] in PASSING_CODES
        return not isinstance(failure, pika.exceptions.ChannelClosed)

    def refusal(
        self,
        connection: AmqpConnection,
        failure: Exception | None,
        what: str,
        waited_seconds: float | None = None,
    ) -> BenchError:
        """`waited_seconds` is how long an answer was waited for, if not as long as for a
        connection."""
        access = self.access
        if failure is None and connection.closed_by_broker is None:
            seconds = access.timeout_seconds if waited_seconds is None else waited_seconds
            return BrokerUnreachable(f"{access.address}: {what}: no answer within {seconds:g} s")
        answer = broker_answer(connection, failure)
        if answer is None:
            why = describe_end(connection, failure) if failure else "no answer"
            return BrokerUnreachable(f"{access.address}: {what}: {why}")
        code, text = answer
        if code == ACCESS_REFUSED:
            return LoginRefused(
                f"{access.address}: user {access.username!r}, vhost {access.virtual_host!r}: "
                f"{what}: {code} {text}"
            )
        return BrokerRefused(f"{access.address}: {what}: {code} {text}")


def describe_end(connection: AmqpConnection, failure: Exception) -> str:
    """Why a connection or channel ended, in one line and in the broker's words where it has any."""
    if connection.closed_by_broker is not None:
        code, text = connection.closed_by_broker
        return f"connection closed by the broker: {code} {text}"
    if isinstance(failure, pika.exceptions.ChannelClosedByBroker):
        return f"channel closed by the broker: {failure.reply_code} {failure.reply_text}"
    if isinstance(failure, pika.exceptions.StreamLostError):
        return f"connection lost: {failure.args[0]}"
    return f"connection lost: {type(failure).__name__}: {failure}"


def broker_answer(connection: AmqpConnection, failure: Exception | None) -> tuple[int, str] | None:
    """The broker's reply code and text behind a failure, if the broker said anything."""
    if connection.closed_by_broker is not None:
        return connection.closed_by_broker
    if isinstance(failure, pika.exceptions.ChannelClosedByBroker):
        return failure.reply_code, failure.reply_text
    return None
