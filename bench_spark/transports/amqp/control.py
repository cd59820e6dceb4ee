"""Requests that wait for their answer: probe, declare, bind, count, delete.

A `Control` is one short-lived connection. AMQP answers most refusals by closing the channel, Qpid
Broker-J some by closing the connection; the next request then gets a new one, so that looking for
something that does not exist is an ordinary question here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pika

from bench_spark.errors import BenchError, BrokerRefused, PreflightError
from bench_spark.scenario.models import Amqp
from bench_spark.transports.amqp import naming
from bench_spark.transports.amqp.connection import AmqpConnection
from bench_spark.transports.amqp.loop import Loop
from bench_spark.transports.amqp.opening import (
    Access,
    broker_answer,
    open_channels,
    open_connections,
    refusal,
)
from bench_spark.transports.base import BrokerFacts, Destination

NOT_FOUND = 404
PRECONDITION_FAILED = 406
_CLOSE_SECONDS = 2.0


class Refused(Exception):
    """The broker's no to one request; `error` is what to raise if nobody expected it."""

    def __init__(self, code: int, error: BenchError) -> None:
        super().__init__(str(error))
        self.code = code
        self.error = error


class Control:
    """One connection for questions; a context manager."""

    def __init__(self, access: Access) -> None:
        self._access = access
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
            self._connection = open_connections(self._access, 1, self._loop)[0]
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
        self._loop.run_until(lambda: answers or not channel.is_open, self._access.timeout_seconds)
        if answers:
            return answers[0].method
        error = refusal(self._access, connection, self._channel_end, what)
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

    def _open(self) -> Any:
        connection = self.connection
        if self._channel is None or not self._channel.is_open:
            self._channel_end = None
            [self._channel] = open_channels(self._access, [connection], self._loop)
            self._channel.add_on_close_callback(self._on_channel_end)
        return self._channel

    def _on_channel_end(self, _channel: Any, reason: Exception) -> None:
        self._channel_end = reason


def close_gracefully(loop: Loop, connections: Sequence[AmqpConnection]) -> None:
    """Say goodbye on all of them side by side; a broker that does not answer is hung up on."""
    for connection in connections:
        if connection.is_open:
            connection.close()
    loop.run_until(lambda: all(one.failure is not None for one in connections), _CLOSE_SECONDS)
    for connection in connections:
        connection.abort("the broker did not answer the goodbye")


def probe(access: Access, amqp: Amqp) -> BrokerFacts:
    """What the broker is and can do; raises where it cannot do what the scenario asks."""
    with Control(access) as control:
        facts = _facts(control)
    if amqp.confirms and "confirms" not in facts.capabilities:
        raise BrokerRefused(
            f"{access.address}: amqp.confirms: {facts.product} {facts.version} has no publisher "
            "confirms"
        )
    extensions = sorted(key for key in amqp.queue.arguments if key.startswith("x-"))
    if extensions and "queue_arguments" not in facts.capabilities:
        raise BrokerRefused(
            f"{access.address}: amqp.queue.arguments: {facts.product} {facts.version} refuses "
            f"{', '.join(extensions)} (542 NOT_IMPLEMENTED)"
        )
    return facts


def _facts(control: Control) -> BrokerFacts:
    connection = control.connection
    properties = connection.server_properties or {}
    product = _text(properties.get("product", "unknown"))
    capabilities = set()
    if connection.advertised_capabilities.get("connection.blocked"):
        capabilities.add("blocked_notification")
    # Qpid Broker-J takes an argument it does not know for a protocol error.
    if "qpid" not in product.lower():
        capabilities.add("queue_arguments")
    try:
        control.ask("confirm_delivery", "confirm.select", ack_nack_callback=_ignore)
        capabilities.add("confirms")
    except Refused:
        pass  # the answer to the question was no
    return BrokerFacts(
        product=product,
        version=_text(properties.get("version", "unknown")),
        platform=_text(properties.get("platform", "")),
        capabilities=frozenset(capabilities),
        client_library=f"pika {pika.__version__}",
    )


def _ignore(_frame: Any) -> None:
    """The probe publishes nothing, so nothing is ever confirmed to it."""


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


class Topology:
    """Queues, and the exchange before them, as the scenario asks; remembers what it made.

    An exchange of ours is declared auto-delete: it goes with the last queue bound to it, whichever
    agent's that is. Queues and exchanges that were there before are used and left alone.
    """

    def __init__(self, access: Access, amqp: Amqp, run_id: str) -> None:
        self._access = access
        self._amqp = amqp
        self._run_id = run_id
        self._made_exchange = False

    def declare(self, destinations: Sequence[Destination]) -> tuple[Destination, ...]:
        declared: list[Destination] = []
        with Control(self._access) as control:
            try:
                self._declare_exchange(control)
                for destination in destinations:
                    declared.append(self._declare_queue(control, destination))
                    self._bind(control, declared[-1])
            except Refused as refused:
                self._delete(control, declared)
                raise refused.error from refused
        return tuple(declared)

    def depths(self, destinations: Sequence[Destination]) -> tuple[int | None, ...]:
        try:
            with Control(self._access) as control:
                return tuple(_depth(control, destination) for destination in destinations)
        except PreflightError:
            # A broker that is gone has taken the answer with it.
            return tuple(None for _ in destinations)

    def delete(self, destinations: Sequence[Destination]) -> None:
        with Control(self._access) as control:
            try:
                self._delete(control, destinations)
            except Refused as refused:
                raise refused.error from refused

    def _declare_exchange(self, control: Control) -> None:
        exchange = self._amqp.exchange
        if not exchange.name:
            return
        what = f"exchange.declare {exchange.name!r}"
        # Qpid Broker-J compares the type even when only asked whether the exchange exists.
        kind = {"exchange": exchange.name, "exchange_type": exchange.type}
        if control.exists("exchange_declare", what, **kind) is None:
            control.ask(
                "exchange_declare", what, durable=exchange.durable, auto_delete=True, **kind
            )
            self._made_exchange = True
        elif not exchange.name.startswith("amq."):
            self._check_exchange(control, what, durable=exchange.durable, **kind)

    def _check_exchange(self, control: Control, what: str, **settings: Any) -> None:
        """Declaring again what exists is AMQP's way to ask whether it is what we think."""
        try:
            control.ask("exchange_declare", what, auto_delete=True, **settings)
        except Refused as refused:
            if refused.code != PRECONDITION_FAILED:
                raise
            control.ask("exchange_declare", what, auto_delete=False, **settings)

    def _declare_queue(self, control: Control, destination: Destination) -> Destination:
        queue = self._amqp.queue
        name = naming.queue_name(self._amqp, self._run_id, destination.index)
        what = f"queue.declare {name!r}"
        existed = queue.name is not None and (
            control.exists("queue_declare", what, queue=name) is not None
        )
        answer = control.ask(
            "queue_declare",
            what,
            queue=name,
            durable=queue.durable,
            auto_delete=queue.auto_delete,
            arguments=dict(queue.arguments),
        )
        return replace(destination, name=answer.queue, declared=not existed)

    def _bind(self, control: Control, destination: Destination) -> None:
        if self._amqp.exchange.name:
            control.ask(
                "queue_bind", f"queue.bind {destination.name!r}", **self._binding(destination)
            )

    def _binding(self, destination: Destination) -> dict[str, Any]:
        name = destination.name or ""
        return {
            "queue": name,
            "exchange": self._amqp.exchange.name,
            "routing_key": naming.routing_key(self._amqp, destination.index, name),
        }

    def _delete(self, control: Control, destinations: Sequence[Destination]) -> None:
        for destination in destinations:
            what = f"{destination.name!r}"
            if destination.declared:
                _tolerate_missing(control, "queue_delete", what, queue=destination.name)
            elif self._made_exchange:
                _tolerate_missing(control, "queue_unbind", what, **self._binding(destination))
        if self._made_exchange:
            self._delete_exchange(control)
            self._made_exchange = False

    def _delete_exchange(self, control: Control) -> None:
        """For brokers that keep an auto-delete exchange, and for one that nothing was bound to."""
        name = self._amqp.exchange.name
        try:
            control.ask(
                "exchange_delete", f"exchange.delete {name!r}", exchange=name, if_unused=True
            )
        except Refused as refused:
            # Gone already; or another agent's queue is still bound to it, and it goes with that.
            if refused.code not in (NOT_FOUND, PRECONDITION_FAILED):
                raise


def _depth(control: Control, destination: Destination) -> int | None:
    if not destination.name:
        return None
    try:
        answer = control.exists(
            "queue_declare", f"depth of {destination.name!r}", queue=destination.name
        )
    except Refused:
        return None  # locked or forbidden: unknown
    return None if answer is None else int(answer.message_count)


def _tolerate_missing(control: Control, method: str, what: str, **arguments: Any) -> None:
    try:
        control.ask(method, f"{method.replace('_', '.')} {what}", **arguments)
    except Refused as refused:
        if refused.code != NOT_FOUND:
            raise
