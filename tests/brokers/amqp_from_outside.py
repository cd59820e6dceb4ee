"""An AMQP broker seen from outside, by pika alone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pika

from bench_spark.config.broker import Broker


@contextmanager
def plain_pika(broker: Broker) -> Iterator[Any]:
    """A channel of pika's own, to look at the broker from outside."""
    connection = pika.BlockingConnection(pika.URLParameters(f"{broker.uri}%2F"))
    try:
        yield connection.channel()
    finally:
        connection.close()


def unique(name: str) -> str:
    return f"{name}-{time.time_ns()}"
