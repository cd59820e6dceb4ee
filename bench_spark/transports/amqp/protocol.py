"""How AMQP connections are opened, by pika, and what their ends mean."""

from __future__ import annotations

import functools
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from bench_spark.core.clock import NowNs
from bench_spark.errors import BenchError
from bench_spark.transports.amqp import connection as ends
from bench_spark.transports.amqp import opening
from bench_spark.transports.amqp.connection import AmqpConnection
from bench_spark.transports.amqp.opening import Access
from bench_spark.transports.sockets.line import Line
from bench_spark.transports.sockets.loop import Loop
from bench_spark.transports.sockets.opening import open_connections


class OpenChannel(NamedTuple):
    connection: AmqpConnection
    channel: Any
    """pika's."""


@dataclass(frozen=True)
class AmqpProtocol:
    access: Access
    name: str = "AMQP"
    first_request: str = "channel.open"

    def open_all(self, count: int, loop: Loop, now_ns: NowNs) -> list[OpenChannel]:
        access = self.access
        connections = open_connections(self, count, loop, now_ns, access.on_opened)
        channels = opening.open_channels(access, connections, loop)
        return list(map(OpenChannel, connections, channels))

    def log_in(
        self, lane: int, connected: socket.socket, loop: Loop, now_ns: NowNs
    ) -> AmqpConnection:
        return AmqpConnection(connected, loop, self.access.parameters, now_ns)

    def get_ready(
        self,
        connection: AmqpConnection,
        loop: Loop,
        then: Callable[[OpenChannel], None],
        on_end: Callable[[Exception], None],
    ) -> None:
        def is_open(channel: Any) -> None:
            # Not from inside pika's decoding: the connection may be taken away from it.
            loop.call_soon(functools.partial(then, OpenChannel(connection, channel)))

        channel = connection.channel(on_open_callback=is_open)
        channel.add_on_close_callback(lambda _, reason: on_end(reason))

    def login_failure(self, connection: AmqpConnection, failure: Exception) -> BenchError:
        return opening.login_failure(self.access, connection, failure)

    def is_login_refused(self, connection: AmqpConnection, failure: Exception) -> bool:
        return opening.is_login_refused(connection, failure)

    def describe_end(self, line: Line, failure: Exception) -> str:
        return ends.describe_end(line, failure)

    def may_pass(self, line: Line, failure: Exception) -> bool:
        return ends.may_pass(line, failure)

    def refusal(self, line: Line, failure: Exception | None, what: str) -> BenchError:
        return opening.refusal(self.access, line, failure, what)
