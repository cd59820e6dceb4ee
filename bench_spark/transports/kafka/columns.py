"""From confluent-kafka's messages to columns, with as little Python per message as there can be.

`map` over unbound C methods runs a loop in C. Equal or not, sizes are counted in one pass; only
bodies shorter than an envelope, or none at all (a tombstone in somebody's topic), take the slow
path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
from confluent_kafka import Message

from bench_spark.core.envelope import (
    ENVELOPE_BYTES,
    ENVELOPE_DTYPE,
    Envelopes,
    leading_envelopes,
)
from bench_spark.transports.base import U16, U32, Bool, Headers, Part

_Read = Callable[[Message], Any]
_VALUE: _Read = Message.value
_KEY: _Read = Message.key
_HEADERS: _Read = Message.headers
_TOPIC: _Read = Message.topic
_PARTITION: _Read = Message.partition
_HEAD = itemgetter(slice(0, ENVELOPE_BYTES))

Position = tuple[str, int]
"""A topic and the number of one of its topic partitions."""


@dataclass
class Columns:
    """What a list of messages without errors holds."""

    route: U16
    head: Envelopes
    size: U32
    next_offsets: dict[Position, int]
    """Where reading goes on after these messages."""
    bodies: list[bytes] | None = None
    keys: list[bytes | None] | None = None
    headers: list[Headers] | None = None
    redelivered: Bool | None = None
    """None: nothing was."""


def heads_of(bodies: Sequence[bytes], shortest_bytes: int) -> Envelopes:
    """The first 32 bytes of each body as envelopes, zeros where a body ends before."""
    if shortest_bytes < ENVELOPE_BYTES:
        return leading_envelopes(bodies)
    return np.frombuffer(b"".join(map(_HEAD, bodies)), dtype=ENVELOPE_DTYPE)


def bodies_of(messages: Sequence[Message]) -> tuple[list[bytes], U32]:
    """The bodies and their sizes; a message without a body counts as an empty one."""
    values = list(map(_VALUE, messages))
    if None in values:
        values = [b"" if value is None else value for value in values]
    return values, np.fromiter(map(len, values), dtype=np.uint32, count=len(values))


def columns_of(
    messages: Sequence[Message], route_of_topic: Mapping[str, int], want: frozenset[Part]
) -> Columns:
    """Decode messages of one lane; `messages` is not empty and holds no errors."""
    bodies, size = bodies_of(messages)
    count = len(messages)
    if len(route_of_topic) == 1:
        route = np.zeros(count, dtype=np.uint16)
    else:
        routes = map(route_of_topic.__getitem__, map(_TOPIC, messages))
        route = np.fromiter(routes, dtype=np.uint16, count=count)
    return Columns(
        route=route,
        head=heads_of(bodies, int(size.min())),
        size=size,
        next_offsets=_next_offsets(messages, route),
        bodies=bodies if Part.BODY in want else None,
        keys=list(map(_KEY, messages)) if Part.KEY in want else None,
        headers=[dict(map(_filled, each or ())) for each in map(_HEADERS, messages)]
        if Part.HEADERS in want
        else None,
    )


def _filled(header: tuple[str, bytes | None]) -> tuple[str, bytes]:
    """Kafka has headers without a value."""
    name, value = header
    return name, value or b""


def _next_offsets(messages: Sequence[Message], route: U16) -> dict[Position, int]:
    """The offset behind the last message of each topic partition, for few look-ups per batch."""
    count = len(messages)
    place = np.fromiter(map(_PARTITION, messages), dtype=np.int64, count=count)
    place += route.astype(np.int64) << 32
    if place.min() == place.max():
        lasts = [messages[-1]]
    else:
        _, from_the_end = np.unique(place[::-1], return_index=True)
        lasts = [messages[index] for index in (count - 1 - from_the_end).tolist()]
    return {(str(m.topic()), int(m.partition() or 0)): int(m.offset() or 0) + 1 for m in lasts}
