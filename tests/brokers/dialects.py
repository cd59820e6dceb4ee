"""Brokers and what is spoken to them: `NAME`, or `NAME DIALECT`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from contract import (
    PLANES,
    data_plane,
    mqtt_version,
)

AMQP = tuple(f"{name} {plane}" for name in ("rabbitmq", "qpid") for plane in PLANES)
KAFKA = ("kafka",)
MOSQUITTO = ("mosquitto mqtt 3.1.1", "mosquitto mqtt 5")


@contextmanager
def dialect(name: str) -> Iterator[None]:
    """A data plane of AMQP, or a version of MQTT; empty: the default one."""
    if name.startswith("mqtt "):
        with mqtt_version(name.removeprefix("mqtt ")):
            yield
    else:
        with data_plane(name or PLANES[0]):
            yield
