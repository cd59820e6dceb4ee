"""What a broker is and can do. AMQP brokers differ, so they are asked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pika
import pika.spec

from bench_spark.config.protocols import Amqp
from bench_spark.errors import BrokerRefused
from bench_spark.transports.amqp.connection import Access
from bench_spark.transports.amqp.control import Control, Refused
from bench_spark.transports.base import BrokerFacts

NO_QUEUE = "bench-spark-no-such-queue"
"""A routing key of the default exchange that leads nowhere."""


CLIENT_LIBRARY = f"pika {pika.__version__}"
"""For the result: pika encodes and decodes what is not a message."""


def probe(access: Access, amqp: Amqp) -> BrokerFacts:
    """What the broker is and can do; raises where it cannot do what the scenario asks."""
    with Control(access) as control:
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


def _facts(control: Control) -> BrokerFacts:
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


def _try_immediate(control: Control, facts: BrokerFacts) -> None:
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


def _is_granted(control: Control, request: Any, what: str) -> bool:
    # Asking is the only way to know: Qpid Broker-J has confirms without saying so.
    control.leave_channel()
    try:
        control.ask(request, what)
    except Refused:
        return False
    return True


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
