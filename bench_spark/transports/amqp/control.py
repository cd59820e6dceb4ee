"""One short-lived connection for requests that wait for their answer; and what a broker can do.

AMQP answers most refusals by closing the channel, Qpid Broker-J some by closing the connection; the
next request then gets a new one, so that looking for something that does not exist is an ordinary
question here. AMQP brokers differ, so `probe` asks them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pika
import pika.spec

from bench_spark.config.protocols import Amqp
from bench_spark.errors import BenchError, BrokerRefused
from bench_spark.transports.amqp.connection import (
    PASSING_CODES,
    AmqpAccess,
    AmqpConnection,
    AmqpProtocol,
    broker_answer,
)
from bench_spark.transports.amqp.frames import header_frame, method_frame
from bench_spark.transports.base import BrokerFacts
from bench_spark.transports.sockets.loop import Loop
from bench_spark.transports.sockets.opening import close_gracefully, open_connections

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


class ControlConnection:
    """One connection for questions; a context manager."""

    def __init__(self, access: AmqpAccess, patience_seconds: float | None = None) -> None:
        """`patience_seconds`: how long an answer may take, if not as long as a connection."""
        self._protocol = AmqpProtocol(access)
        self._patience_seconds = patience_seconds or access.timeout_seconds
        self._loop = Loop()
        self._connection: AmqpConnection | None = None
        self._channel_end: Exception | None = None
        self._answers: list[Any] = []

    def __enter__(self) -> ControlConnection:
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
            [self._connection] = open_connections(self._protocol, 1, self._loop)
            self._connection.on_method = self._answers.append
            self._connection.on_end = self._on_channel_end
        return self._connection

    def ask(self, request: Any, what: str) -> Any:
        """Send one of `pika.spec`'s methods and return the broker's answer to it.

        `what` names the request in errors. Raises Refused where the broker said no, and a
        PreflightError where it said nothing.
        """
        connection = self._open()
        connection.send_method(request)
        return self._await(connection, f"{request.NAME}Ok", what)

    def exists(self, request: Any, what: str) -> Any | None:
        """The answer to a passive question; None where there is no such thing."""
        request.passive = True
        try:
            return self.ask(request, what)
        except Refused as refused:
            if refused.code == NOT_FOUND:
                return None
            raise

    def publish(self, routing_key: str, *, immediate: bool) -> None:
        """Send an empty message to the default exchange; only what is asked next tells how that
        was received."""
        connection = self._open()
        channel = connection.framing.channel
        method = pika.spec.Basic.Publish(routing_key=routing_key, immediate=immediate)
        header = header_frame(channel, 0, pika.spec.BasicProperties())
        connection.send(method_frame(channel, method) + header)

    def leave_channel(self) -> None:
        """What is asked next is asked on another channel: modes of a channel exclude each other."""
        connection = self._connection
        if connection is not None and connection.is_open and connection.is_channel_open:
            connection.close_channel()
            self._loop.run_until(
                lambda: not (connection.is_open and connection.is_channel_open),
                self._patience_seconds,
            )

    def _open(self) -> AmqpConnection:
        connection = self.connection
        if not connection.is_channel_open:
            self._channel_end = None
            connection.open_channel()
            self._loop.run_until(
                lambda: connection.is_channel_open or self._channel_end is not None,
                self._protocol.access.timeout_seconds,
            )
            if not connection.is_channel_open:
                raise self._protocol.refusal(connection, self._channel_end, "channel.open")
        return connection

    def _await(self, connection: AmqpConnection, name: str, what: str) -> Any:
        answer: Any = None
        while answer is None or name != answer.NAME:
            self._loop.run_until(
                lambda: self._answers or self._channel_end is not None, self._patience_seconds
            )
            if not self._answers:
                self._refuse(connection, what)
            answer = self._answers.pop(0)
        return answer

    def _refuse(self, connection: AmqpConnection, what: str) -> None:
        failure, waited_seconds = self._channel_end, self._patience_seconds
        error = self._protocol.refusal(connection, failure, what, waited_seconds)
        answer = broker_answer(connection, failure)
        if answer is None:
            raise error
        raise Refused(answer[0], error)

    def _on_channel_end(self, reason: Exception) -> None:
        self._channel_end = reason


NO_QUEUE = "bench-spark-no-such-queue"
"""A routing key of the default exchange that leads nowhere."""


CLIENT_LIBRARY = f"pika {pika.__version__}"
"""For the result: pika encodes and decodes what is not a message."""


def probe(access: AmqpAccess, amqp: Amqp) -> BrokerFacts:
    """What the broker is and can do; raises where it cannot do what the scenario asks."""
    with ControlConnection(access) as control:
        facts = replace(_facts(control), client_library=CLIENT_LIBRARY)
        if amqp.immediate:
            _try_immediate(control, facts)
    if amqp.confirms and "confirms" not in facts.capabilities:
        raise BrokerRefused(
            f"{access.address}: amqp.confirms: {facts.product} {facts.version} has no publisher "
            "confirms"
        )
    if "transactions" not in facts.capabilities:
        for key in ("producer_transaction", "consumer_transaction"):
            if getattr(amqp, key):
                raise BrokerRefused(
                    f"{access.address}: amqp.{key}: {facts.product} {facts.version} has no "
                    "transactions"
                )
    if amqp.policy and "policies" not in facts.capabilities:
        raise BrokerRefused(
            f"{access.address}: amqp.policy: {facts.product} {facts.version} has no policies; they "
            "are RabbitMQ's"
        )
    extensions = sorted(key for key in amqp.queue.arguments if key.startswith("x-"))
    if extensions and "queue_arguments" not in facts.capabilities:
        raise BrokerRefused(
            f"{access.address}: amqp.queue.arguments: {facts.product} {facts.version} refuses "
            f"{', '.join(extensions)} (542 NOT_IMPLEMENTED)"
        )
    return facts


def _facts(control: ControlConnection) -> BrokerFacts:
    properties = control.connection.server_properties
    product = _text(properties.get("product", "unknown"))
    capabilities = set()
    if (properties.get("capabilities") or {}).get("connection.blocked"):
        capabilities.add("blocked_notification")
    # Qpid Broker-J takes an argument it does not know for a protocol error.
    if "qpid" not in product.lower():
        capabilities.add("queue_arguments")
    if product == "RabbitMQ":
        capabilities.add("policies")
    if _is_granted(control, pika.spec.Confirm.Select(), "confirm.select"):
        capabilities.add("confirms")
    if _is_granted(control, pika.spec.Tx.Select(), "tx.select"):
        capabilities.add("transactions")
    return BrokerFacts(
        product=product,
        version=_text(properties.get("version", "unknown")),
        platform=_text(properties.get("platform", "")),
        capabilities=frozenset(capabilities),
    )


def _try_immediate(control: ControlConnection, facts: BrokerFacts) -> None:
    """Publish a message that no queue will get. A broker without `immediate` closes the connection
    for it, which is this one and not yet one of a lane."""
    control.leave_channel()
    control.publish(NO_QUEUE, immediate=True)
    try:
        # Answered behind the message: who has got this far has taken that.
        control.ask(pika.spec.Basic.Qos(prefetch_count=1), "basic.publish with immediate")
    except Refused as refused:
        raise BrokerRefused(
            f"amqp.immediate: not supported by {facts.product} {facts.version}, which answered: "
            f"{refused.error}. RabbitMQ has had no immediate since 3.0; Qpid Broker-J has it"
        ) from refused


def _is_granted(control: ControlConnection, request: Any, what: str) -> bool:
    # Asking is the only way to know: Qpid Broker-J has confirms without saying so.
    control.leave_channel()
    try:
        control.ask(request, what)
    except Refused:
        return False
    return True


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
