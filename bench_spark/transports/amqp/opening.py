"""Who we are at the broker, and open channels; what went wrong, in words for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pika
import pika.exceptions

import bench_spark
from bench_spark.errors import (
    BenchError,
    BrokerRefused,
    BrokerUnreachable,
    LoginRefused,
    PreflightError,
)
from bench_spark.transports.amqp.connection import (
    AmqpConnection,
    ForeignProtocol,
    describe_end,
)
from bench_spark.transports.base import TransportContext
from bench_spark.transports.sockets.dialling import SocketAccess, tls_context, tls_name
from bench_spark.transports.sockets.line import Line
from bench_spark.transports.sockets.loop import Loop

LOGIN_REFUSALS = frozenset({402, 403, 404, 530})
"""Reply codes by which brokers refuse a user or a vhost while a connection opens."""
ACCESS_REFUSED = 403
"""The reply code for a missing right, once logged in."""

_DEFAULT_USER = "guest"  # what AMQP clients present when told nothing


@dataclass(frozen=True)
class Access(SocketAccess):
    """Where the broker is and who we are there."""

    virtual_host: str
    username: str
    parameters: pika.ConnectionParameters

    def __repr__(self) -> str:
        return f"Access({self.username}@{self.address}{self.virtual_host})"


def access_for(context: TransportContext) -> Access:
    broker, credentials = context.broker, context.credentials
    username = credentials.username or _DEFAULT_USER
    password = credentials.password.get_secret_value() if credentials.password else _DEFAULT_USER
    return Access(
        host=broker.host,
        port=broker.port,
        timeout_seconds=broker.connect_timeout_seconds,
        virtual_host=broker.virtual_host,
        username=username,
        parameters=pika.ConnectionParameters(
            host=broker.host,
            port=broker.port,
            virtual_host=broker.virtual_host,
            credentials=pika.PlainCredentials(username, password, erase_on_connect=True),
            heartbeat=context.scenario.amqp.heartbeat_seconds,
            client_properties={
                "product": "bench-spark",
                "version": bench_spark.__version__,
                "connection_name": f"bench-spark {context.run_id}",
                # Else Qpid Broker-J answers a mandatory message that reaches no queue by closing
                # the connection, if it is in a transaction, instead of returning it.
                "qpid.close_when_no_route": False,
            },
        ),
        tls_context=tls_context(broker),
        tls_name=tls_name(broker),
        pace=context.pace,
        on_opened=context.on_opened,
    )


def open_channels(access: Access, connections: Sequence[AmqpConnection], loop: Loop) -> list[Any]:
    """One pika channel on each connection."""
    channels = [connection.channel(on_open_callback=_ignore) for connection in connections]

    def count_opening() -> int:
        return sum(channel.is_opening for channel in channels)

    loop.run_down(count_opening, access.timeout_seconds)
    for connection, channel in zip(connections, channels, strict=True):
        if not channel.is_open:
            raise refusal(access, connection, connection.failure, "channel.open")
    return channels


def _ignore(_channel: Any) -> None:
    """pika insists on a callback; the loop watches the channel's state instead."""


def is_login_refused(connection: Line, failure: Exception) -> bool:
    """Whether the broker itself said that user or vhost are wrong; a mere hang-up says nothing."""
    if connection.closed_by_broker is not None:
        return connection.closed_by_broker[0] in LOGIN_REFUSALS
    return isinstance(failure, pika.exceptions.AuthenticationError)


def login_failure(access: Access, connection: AmqpConnection, failure: Exception) -> PreflightError:
    who = f"{access.address}: user {access.username!r}, vhost {access.virtual_host!r}"
    if connection.closed_by_broker is not None:
        code, text = connection.closed_by_broker
        kind = LoginRefused if code in LOGIN_REFUSALS else BrokerRefused
        return kind(f"{who}: {code} {text}")
    if isinstance(failure, pika.exceptions.AuthenticationError):
        return LoginRefused(f"{who}: the broker does not offer login by user and password (PLAIN)")
    if isinstance(failure, pika.exceptions.ProbableAuthenticationError):
        return LoginRefused(f"{who}: the broker hung up at the login (wrong user or password?)")
    if isinstance(failure, pika.exceptions.ProbableAccessDeniedError):
        return LoginRefused(f"{who}: the broker hung up at the vhost (missing, or no right to it?)")
    if isinstance(failure, ForeignProtocol):
        return BrokerUnreachable(f"{access.address}: {failure.args[0]}")
    if isinstance(
        failure,
        pika.exceptions.IncompatibleProtocolError | pika.exceptions.ProtocolVersionMismatch,
    ):
        return BrokerUnreachable(f"{access.address}: does not speak AMQP 0-9-1")
    return BrokerUnreachable(f"{access.address}: {describe_end(connection, failure)}")


def refusal(
    access: Access,
    connection: Line,
    failure: Exception | None,
    what: str,
    waited_seconds: float | None = None,
) -> BenchError:
    """The error for a request (`what`) that the broker did not grant.

    `waited_seconds` is how long an answer was waited for, if not as long as for a connection.
    """
    if failure is None and connection.closed_by_broker is None:
        waited_seconds = access.timeout_seconds if waited_seconds is None else waited_seconds
        return BrokerUnreachable(f"{access.address}: {what}: no answer within {waited_seconds:g} s")
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


def broker_answer(connection: Line, failure: Exception | None) -> tuple[int, str] | None:
    """The broker's reply code and text behind a failure, if the broker said anything."""
    if connection.closed_by_broker is not None:
        return connection.closed_by_broker
    if isinstance(failure, pika.exceptions.ChannelClosedByBroker):
        return failure.reply_code, failure.reply_text
    return None
