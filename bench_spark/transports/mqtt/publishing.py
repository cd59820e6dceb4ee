"""Messages to publish: whole ones, and blocks of equal ones to be stamped. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from bench_spark.transports.base import U8, U16, Headers
from bench_spark.transports.mqtt.packets import publish_start, user_properties
from bench_spark.transports.sockets.sending import Load

MOST_BLOCKS = 4096
MOST_STARTS = 4096
"""Beginnings of messages that are kept, by the size of the payload."""


class PublishPackets:
    """Messages for one topic."""

    def __init__(
        self, version: str, topic: str, qos: int, retain: bool, headers: Headers | None = None
    ) -> None:
        """`headers`: those that all have; one of a message's own of that name wins."""
        self._version = version
        self._topic = topic
        self._qos = qos
        self._retain = retain
        self._headers = headers or {}
        self._properties = user_properties(self._headers)
        self._starts: dict[int, tuple[bytes, int]] = {}

    def start(self, payload_bytes: int, properties: bytes | None = None) -> tuple[bytes, int]:
        """All before the payload, and where in it the packet identifier is."""
        own = self._properties if properties is None else properties
        return publish_start(
            self._version, self._topic, self._qos, self._retain, payload_bytes, own
        )

    def message(self, payload: bytes, identifier: int = 0) -> bytes:
        return b"".join(self.pieces(payload, identifier))

    def pieces(
        self, payload: bytes, identifier: int = 0, headers: Headers | None = None
    ) -> tuple[bytes, bytes]:
        """A message, to be joined with others."""
        if headers:
            own = user_properties({**self._headers, **headers})
            start, identifier_at = self.start(len(payload), own)
        else:
            start, identifier_at = self._start_of(len(payload))
        if self._qos:
            number = identifier.to_bytes(2)
            start = start[:identifier_at] + number + start[identifier_at + 2 :]
        return start, payload

    def _start_of(self, payload_bytes: int) -> tuple[bytes, int]:
        found = self._starts.get(payload_bytes)
        if found is None:
            if len(self._starts) >= MOST_STARTS:
                self._starts.clear()
            found = self._starts[payload_bytes] = self.start(payload_bytes)
        return found


class MessageBlock:
    """Messages of one size, one behind the other in memory.

    The packets are built once. Every batch writes its heads and identifiers into the rows it needs,
    and its tails where they differ; the bytes of those rows go to the socket as they lie there.
    """

    def __init__(self, packets: PublishPackets, tail: bytes, head_bytes: int) -> None:
        """`tail`: of all messages that are not given one of their own."""
        self.tail = tail
        start, self._identifier_at = packets.start(head_bytes + len(tail))
        self._head_at, self._head_end = len(start), len(start) + head_bytes
        self._message = np.frombuffer(start + bytes(head_bytes) + tail, np.uint8)
        self.message_bytes = len(self._message)
        self._has_own_tails = False
        self._make_rows(1)

    def stamped(
        self, heads: U8, identifiers: U16 | None = None, tails: U8 | None = None
    ) -> memoryview:
        """As many messages as there are heads; good until the next call."""
        count = len(heads)
        if count > len(self._rows):
            self._make_rows(1 << (count - 1).bit_length())
        if tails is None and self._has_own_tails:
            self._has_own_tails = False
            self._make_rows(len(self._rows))
        self._head_columns[:count] = heads[:, : self._head_end - self._head_at]
        if tails is not None:
            self._has_own_tails = True
            self._rows[:count, self._head_end :] = tails
        if identifiers is not None:
            pairs = identifiers.astype(">u2").view(np.uint8).reshape(-1, 2)
            self._rows[:count, self._identifier_at : self._identifier_at + 2] = pairs
        return self._bytes[: count * self.message_bytes]

    def _make_rows(self, count: int) -> None:
        # By need, not by the largest batch: a thousand lanes may have a block each.
        self._rows = np.tile(self._message, (count, 1))
        self._head_columns = self._rows[:, self._head_at : self._head_end]
        self._bytes = self._rows.reshape(-1).data


class Blocks:
    """Blocks of messages; lanes that publish to the same topic share them."""

    def __init__(self) -> None:
        self._made: dict[tuple[PublishPackets, int, int], MessageBlock] = {}

    def data(
        self, packets: Sequence[PublishPackets], load: Load, identifiers: U16 | None
    ) -> bytes | memoryview:
        """The bytes of these messages; `packets` by route. Good until the next call."""
        routes = load.routes
        if not load.is_of_one_kind:
            return _one_by_one(packets, load, identifiers)
        if len(packets) == 1 or not np.count_nonzero(routes != routes[0]):
            block = self._of(packets[routes[0]], load.shared_tail, load.head_bytes)
            return block.stamped(load.rows, identifiers, load.own_tails)
        return self._interleaved(packets, load, identifiers)

    def _of(self, packets: PublishPackets, tail: bytes, head_bytes: int) -> MessageBlock:
        key = (packets, len(tail), head_bytes)
        block = self._made.get(key)
        # An agent sends the same tail again and again: usually it is the very same object.
        if block is None or (block.tail is not tail and block.tail != tail):
            if len(self._made) >= MOST_BLOCKS:
                self._made.clear()
            block = self._made[key] = MessageBlock(packets, tail, head_bytes)
        return block

    def _interleaved(
        self,
        packets: Sequence[PublishPackets],
        load: Load,
        identifiers: U16 | None,
    ) -> bytes:
        """Messages of one lane for several destinations, in the order they were dealt."""
        pieces: list[bytes | memoryview] = [b""] * len(load.rows)
        for route in np.unique(load.routes).tolist():
            places = np.flatnonzero(load.routes == route)
            own = None if identifiers is None else identifiers[places]
            tails = None if load.own_tails is None else load.own_tails[places]
            block = self._of(packets[route], load.shared_tail, load.head_bytes)
            stamped, size = block.stamped(load.rows[places], own, tails), block.message_bytes
            for number, place in enumerate(places.tolist()):
                pieces[place] = stamped[number * size : (number + 1) * size]
        return b"".join(pieces)


def _one_by_one(packets: Sequence[PublishPackets], load: Load, identifiers: U16 | None) -> bytes:
    """Messages that differ in more than their heads."""
    numbers = itertools.repeat(0) if identifiers is None else identifiers.tolist()
    headers = itertools.repeat(None) if load.headers is None else load.headers
    # Two columns may have no end, so the shortest one decides.
    return b"".join(
        itertools.chain.from_iterable(
            packets[route].pieces(body, number, own)
            for body, route, number, own in zip(
                load.bodies(), load.routes.tolist(), numbers, headers, strict=False
            )
        )
    )
