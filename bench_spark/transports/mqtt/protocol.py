"""How MQTT connections are opened, and what their ends mean."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass

from bench_spark.core.clock import NowNs
from bench_spark.errors import (
    BenchError,
    BrokerRefused,
    BrokerUnreachable,
    ConfigurationError,
    LoginRefused,
)
from bench_spark.transports.base import TransportContext
from bench_spark.transports.mqtt.packets import Login, reason
from bench_spark.transports.mqtt.wire import (
    ConnectionLost,
    ConnectionRefused,
    ForeignProtocol,
    MqttWire,
    SubscriptionRefused,
    read_buffer,
)
from bench_spark.transports.sockets.dialling import SocketAccess, tls_context, tls_name
from bench_spark.transports.sockets.gathering import Gathering
from bench_spark.transports.sockets.line import Line
from bench_spark.transports.sockets.loop import Loop
from bench_spark.transports.sockets.opening import ReadyAtLogin
from bench_spark.transports.sockets.runs import ReadBuffer

NOT_AUTHORIZED = 0x87
LOGIN_REFUSALS = frozenset({0x85, 0x86, NOT_AUTHORIZED, 0x8A, 0x8C})
"""Reason codes by which brokers refuse a user, a password or a client."""
PASSING_CODES = frozenset({0x00, 0x88, 0x89, 0x8B, 0x8D, 0x98, 0x9F, 0xA0})
"""By which a broker turns away or ends connections that did nothing wrong: it is busy, shutting
down, administered, or has heard nothing for too long."""


@dataclass(frozen=True)
class Access(SocketAccess):
    """Where the broker is and who we are there."""

    username: str | None
    password: bytes | None

    def __repr__(self) -> str:
        return f"Access({self.username}@{self.address})"


def access_for(context: TransportContext) -> Access:
    broker, credentials = context.broker, context.credentials
    password = credentials.password
    if password and credentials.username is None:
        raise ConfigurationError(f"broker {broker.name}: username: missing; a password needs one")
    return Access(
        host=broker.host,
        port=broker.port,
        timeout_seconds=broker.connect_timeout_seconds,
        username=credentials.username,
        password=password.get_secret_value().encode() if password else None,
        tls_context=tls_context(broker),
        tls_name=tls_name(broker),
        pace=context.pace,
        on_opened=context.on_opened,
    )


class MqttProtocol(ReadyAtLogin[MqttWire]):
    """For lanes of one role; each has a login of its own."""

    name = "MQTT"
    first_request = "CONNECT"

    def __init__(
        self, access: Access, logins: Sequence[Login], gathering: Gathering | None = None
    ) -> None:
        self.access = access
        self._logins = logins
        self._gathering = gathering
        self.buffer: ReadBuffer = read_buffer()
        """What the sockets of all lanes are read into."""

    def log_in(self, lane: int, connected: socket.socket, loop: Loop, now_ns: NowNs) -> MqttWire:
        login = self._logins[lane]
        return MqttWire(connected, loop, now_ns, self.buffer, login, self._gathering)

    def login_failure(self, connection: MqttWire, failure: Exception) -> BenchError:
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

    def is_login_refused(self, connection: MqttWire, failure: Exception) -> bool:
        return isinstance(failure, ConnectionRefused) and failure.code not in PASSING_CODES

    def describe_end(self, line: Line, failure: Exception) -> str:
        if line.closed_by_broker is not None:
            code, words = line.closed_by_broker
            said = reason(code)
            more = f": {words}" if words and words not in said else ""
            return f"connection closed by the broker: {said}{more}"
        if isinstance(failure, ConnectionLost):
            return f"connection lost: {failure}"
        return str(failure)

    def may_pass(self, line: Line, failure: Exception) -> bool:
        if line.closed_by_broker is not None:
            return line.closed_by_broker[0] in PASSING_CODES
        return not isinstance(failure, SubscriptionRefused)

    def refusal(self, line: Line, failure: Exception | None, what: str) -> BenchError:
        address = self.access.address
        if isinstance(failure, SubscriptionRefused):
            if failure.code == NOT_AUTHORIZED:
                return LoginRefused(f"{address}: user {self.access.username!r}: {failure}")
            return BrokerRefused(f"{address}: {failure}")
        if failure is None:
            waited = f"no answer within {self.access.timeout_seconds:g} s"
            return BrokerUnreachable(f"{address}: {what}: {waited}")
        kind = BrokerUnreachable if line.closed_by_broker is None else BrokerRefused
        return kind(f"{address}: {what}: {self.describe_end(line, failure)}")
