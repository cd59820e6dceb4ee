"""Brokers and what is spoken to them: `NAME`, or `NAME DIALECT`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from contract import mqtt_version

AMQP = ("rabbitmq", "qpid")
KAFKA = ("kafka",)
MOSQUITTO = ("mosquitto mqtt 3.1.1", "mosquitto mqtt 5")


@contextmanager
def dialect(name: str) -> Iterator[None]:
    """A version of MQTT; empty: the default one."""
    if name:
        with mqtt_version(name.removeprefix("mqtt ")):
            yield
    else:
        yield
