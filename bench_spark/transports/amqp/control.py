"""One short-lived connection for requests that wait for their answer.

AMQP answers most refusals by closing the channel, Qpid Broker-J some by closing the connection; the
next request then gets a new one, so that looking for something that does not exist is an ordinary
question here.
"""

from __future__ import annotations

from typing import Any

import pika.spec

from bench_spark.errors import BenchError
from bench_spark.transports.amqp.connection import PASSING_CODES, AmqpConnection
from bench_spark.transports.amqp.opening import (
    Access,
    broker_answer,
    open_channels,
    refusal,
)
from bench_spark.transports.amqp.protocol import AmqpProtocol
from bench_spark.transports.sockets.line import close_gracefully
from bench_spark.transports.sockets.loop import Loop
from bench_spark.transports.sockets.opening import open_connections

NOT_FOUND = 404
PRECONDITION_FAILED = 406


class Refused(Exception):
    """The broker's no to one request; `error` is what to raise if nobody expected it."""

    def __init__(self, code: int, error: BenchError) -> None:
        super().__init__(str(error))
        self.code = code
        self.error = error

    @property
    def is_passing(self) -> bool:
        """Whether it says something about the broker's state, and not about the request."""
        return self.code in PASSING_CODES


class Control:
    """One connection for questions; a context manager."""

    def __init__(self, access: Access, patience_seconds: float | None = None) -> None:
        """`patience_seconds`: how long an answer may take, if not as long as a connection."""
        self._access = access
        self._patience_seconds = patience_seconds or access.timeout_seconds
        self._loop = Loop()
        self._connection: AmqpConnection | None = None
        self._channel: Any = None
        self._channel_end: Exception | None = None

    def __enter__(self) -> Control:
        try:
            self._open()
        except BaseException:
            self._loop.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        close_gracefully(self._loop, [self._connection] if self._connection else [])
        self._loop.close()

    @property
    def connection(self) -> AmqpConnection:
        if self._connection is None or self._connection.failure is not None:
            self._connection = open_connections(AmqpProtocol(self._access), 1, self._loop)[0]
            self._channel = None
        return self._connection

    def ask(self, method: str, what: str, **arguments: Any) -> Any:
        """Call that method of pika's channel and return the broker's answer.

        `what` names the request in errors. Raises Refused where the broker said no, and a
        PreflightError where it said nothing.
        """
        channel = self._open()
        connection = self.connection
        answers: list[Any] = []
        getattr(channel, method)(callback=answers.append, **arguments)
        self._loop.run_until(lambda: answers or not channel.is_open, self._patience_seconds)
        if answers:
            return answers[0].method
        waited_seconds = self._patience_seconds
        error = refusal(self._access, connection, self._channel_end, what, waited_seconds)
        answer = broker_answer(connection, self._channel_end)
        if answer is None:
            raise error
        raise Refused(answer[0], error)

    def exists(self, method: str, what: str, **arguments: Any) -> Any | None:
        """The answer to a passive question; None where there is no such thing."""
        try:
            return self.ask(method, what, passive=True, **arguments)
        except Refused as refused:
            if refused.code == NOT_FOUND:
                return None
            raise

    def publish(self, routing_key: str, *, immediate: bool) -> None:
        """Send an empty message to the default exchange; only what is asked next tells how that
        was received."""
        self._open()._send_method(
            pika.spec.Basic.Publish(routing_key=routing_key, immediate=immediate),
            (pika.spec.BasicProperties(), b""),
        )

    def leave_channel(self) -> None:
        """What is asked next is asked on another channel: modes of a channel exclude each other."""
        self._channel = None

    def _open(self) -> Any:
        connection = self.connection
        if self._channel is None or not self._channel.is_open:
            self._channel_end = None
            [self._channel] = open_channels(self._access, [connection], self._loop)
            self._channel.add_on_close_callback(self._on_channel_end)
        return self._channel

    def _on_channel_end(self, _channel: Any, reason: Exception) -> None:
        self._channel_end = reason
