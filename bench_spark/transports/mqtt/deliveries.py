"""Decoding what a consumer is sent: alike messages together, any other one by one. Pure.

After two messages that agree in everything but packet identifier and payload, the next are expected
to agree too: they then have the same length, and every byte but those is known.

At QoS 2 a message that comes again before its identifier was released is one that was received
already: it is acknowledged again and not given on.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bench_spark.core.envelope import ENVELOPE_BYTES
from bench_spark.transports.base import U8, U16, Bool, Headers, Received
from bench_spark.transports.mqtt.acks import AckRuns, identifiers_at, identifiers_in
from bench_spark.transports.mqtt.alike import Alike, Likeness, likeness_of
from bench_spark.transports.mqtt.packets import PUBREL, BadPacket, read_user_properties
from bench_spark.transports.mqtt.parsing import LONGEST_WHOLE_BYTES, Message
from bench_spark.transports.mqtt.tokens import token
from bench_spark.transports.sockets.arrivals import NO_HEADERS, Arrivals
from bench_spark.transports.sockets.runs import AlikeMessages, ReadBuffer

_NO_IDENTIFIERS: U16 = np.zeros(0, np.uint16)
_NO_IDENTIFIER = "a message with packet identifier 0"
_EXACTLY_ONCE = 2


class Unreleased:
    """Identifiers of QoS 2 messages that were received and that the broker has not released.

    It outlives a connection where the broker's session does.
    """

    def __init__(self) -> None:
        self._is_unreleased: Bool | None = None

    def add(self, identifiers: U16) -> Bool | None:
        """Of each, in the order in which they came, whether it is new; None where all are."""
        if self._is_unreleased is None:
            self._is_unreleased = np.zeros(1 << 16, np.bool_)
        known = self._is_unreleased[identifiers]
        self._is_unreleased[identifiers] = True
        if len(identifiers) > 1:
            # What comes twice in one read is a repeat as well.
            is_repeated = np.ones(len(identifiers), np.bool_)
            is_repeated[np.unique(identifiers, return_index=True)[1]] = False
            known |= is_repeated
        return ~known if known.any() else None

    def release(self, identifiers: U16) -> None:
        if self._is_unreleased is not None:
            self._is_unreleased[identifiers] = False


class Deliveries(AlikeMessages[Alike]):
    """The receiver of one consumer lane."""

    def __init__(
        self,
        lane: int,
        route_of: Callable[[bytes], int | None],
        arrivals: Arrivals,
        unreleased: Unreleased,
        on_released: Callable[[U16], None],
        on_repeated: Callable[[U16], None],
        token_mark: int = 0,
        on_likeness: Callable[[Likeness, int], None] = lambda likeness, route: None,
    ) -> None:
        """`route_of` a topic. `on_released` is told of identifiers to be answered (PUBCOMP),
        `on_repeated` of messages that were received before (PUBREC). `token_mark` is added to every
        token; see generations.py. `on_likeness` is told what others may be like, and their
        route."""
        super().__init__()
        self._lane = lane
        self._route_of = route_of
        self._arrivals = arrivals
        self._unreleased = unreleased
        self._on_released = on_released
        self._on_repeated = on_repeated
        self._token_mark = token_mark
        self._on_likeness = on_likeness
        self._last_likeness: Likeness | None = None
        self._ack_runs = AckRuns()
        self._released: list[int] = []
        self.decoded_together = 0
        """Messages that were decoded in runs."""

    # -- alike packets -----------------------------------------------------------------------------

    def take_run(self, buffer: ReadBuffer, start: int, end: int, at_ns: int) -> int:
        at = start + self._take_releases(buffer, start, end)
        return at - start + self._take_alike(buffer, at, end, at_ns)

    def _take_releases(self, buffer: ReadBuffer, start: int, end: int) -> int:
        at = start
        while (run := self._ack_runs.at(buffer, at, end)) is not None and run[0] == PUBREL:
            _, _, rows = run
            # In the order in which they came, as the standard wants it.
            self._answer_collected()
            self._answer_releases(identifiers_in(rows))
            at += rows.size
        return at - start

    def _add_one(self, alike: Alike, buffer: ReadBuffer, start: int, at_ns: int) -> None:
        identifier = 0
        if alike.qos:
            at = start + alike.identifier_at
            identifier = int.from_bytes(buffer.raw[at : at + 2])
            if not identifier:
                raise BadPacket(_NO_IDENTIFIER)
            if not self._is_new(alike.qos, identifier):
                return
        first, end = start + alike.payload_at, start + alike.shape.row_bytes
        if not self._arrivals.wants_bodies:
            end = min(end, first + ENVELOPE_BYTES)
        self._add_row(
            at_ns,
            alike.route,
            token(identifier, alike.qos),
            False,
            alike.payload_bytes,
            bytes(buffer.raw[first:end]),
            alike.headers,
        )

    def _add_many(self, alike: Alike, rows: U8, at_ns: int) -> None:
        self.decoded_together += len(rows)
        identifiers = _NO_IDENTIFIERS
        if alike.qos:
            identifiers = identifiers_at(rows, alike.identifier_at)
            if not identifiers.all():
                raise BadPacket(_NO_IDENTIFIER)
        if alike.qos == _EXACTLY_ONCE:
            self._answer_collected()
            is_new = self._unreleased.add(identifiers)
            if is_new is not None:
                self._on_repeated(identifiers[~is_new])
                rows, identifiers = rows[is_new], identifiers[is_new]
        count = len(rows)
        if not count:
            return
        tokens = np.full(count, self._token_mark, np.uint64)
        if alike.qos:
            tokens += identifiers.astype(np.uint64) + np.uint64(token(0, alike.qos))
        wants_bodies = self._arrivals.wants_bodies
        self._arrivals.add_run(
            Received.of_columns(
                received_ns=np.full(count, at_ns, np.int64),
                lane=np.full(count, self._lane, np.uint32),
                route=np.full(count, alike.route, np.uint16),
                head=alike.heads(rows),
                size=np.full(count, alike.payload_bytes, np.uint32),
                redelivered=np.zeros(count, np.bool_),
                bodies=[row[alike.payload_at :].tobytes() for row in rows]
                if wants_bodies
                else None,
                headers=[alike.headers] * count if self._arrivals.wants_headers else None,
                tag=tokens,
            )
        )

    # -- any other packet --------------------------------------------------------------------------

    def on_message(self, message: Message, at_ns: int) -> None:
        route = self._route_of(message.topic)
        if route is None:
            raise BadPacket("a message of a topic that was not subscribed to")
        qos = message.qos
        headers = self._headers_of(message)
        if self._is_new(qos, message.identifier):
            self._add_row(
                at_ns,
                route,
                token(message.identifier, qos),
                message.is_duplicate,
                message.size,
                message.body,
                headers,
            )
        # One that is marked as a duplicate is an exception: the next will not be like it.
        if message.is_duplicate:
            return
        likeness = likeness_of(message)
        self._on_likeness(likeness, route)
        if likeness == self._last_likeness:
            alike = Alike(likeness, route, headers)
            if alike.shape.row_bytes <= LONGEST_WHOLE_BYTES:
                self._alike = alike
        self._last_likeness = likeness

    def on_ack(self, kind: int, identifier: int, code: int, at_ns: int) -> None:
        # Nothing is published here, so there is nothing else that could be acknowledged.
        if kind == PUBREL:
            self._released.append(identifier)

    def on_read_end(self, at_ns: int) -> None:
        self._answer_collected()

    def _answer_collected(self) -> None:
        if self._released:
            released, self._released = self._released, []
            self._answer_releases(np.array(released, np.uint16))

    def _answer_releases(self, identifiers: U16) -> None:
        self._unreleased.release(identifiers)
        self._on_released(identifiers)

    def _is_new(self, qos: int, identifier: int) -> bool:
        """Whether a message is to be given on; one that is not is acknowledged here."""
        if qos != _EXACTLY_ONCE:
            return True
        # It may have been released in this very read.
        self._answer_collected()
        identifiers = np.array([identifier], np.uint16)
        if self._unreleased.add(identifiers) is None:
            return True
        self._on_repeated(identifiers)
        return False

    def _headers_of(self, message: Message) -> Headers:
        if not self._arrivals.wants_headers or not message.properties:
            return NO_HEADERS
        return read_user_properties(message.properties)

    def _add_row(
        self,
        at_ns: int,
        route: int,
        token: int,
        is_duplicate: bool,
        size: int,
        body: bytes,
        headers: Headers,
    ) -> None:
        self._arrivals.add_row(
            (
                at_ns,
                self._lane,
                route,
                token + self._token_mark,
                int(is_duplicate),
                size,
                body,
                headers,
            )
        )
