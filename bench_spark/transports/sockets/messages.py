"""Messages as bytes, one behind the other. Pure.

Those that are alike differ only in envelope, padding and number: they are made from a `Template`,
and where the last batch was like this one they lie there already, and are only stamped anew. All
others are put together by their protocol, one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from functools import lru_cache
from typing import Generic, TypeVar

import numpy as np

from bench_spark.core.envelope import (
    ENVELOPE_BYTES,
    byte_rows_of,
    empty_envelopes,
    word_rows_of,
)
from bench_spark.core.kernels import inlined, kernel, warm_up
from bench_spark.transports.batches import I64, U8, U16, Batch, Payloads, each_payload
from bench_spark.transports.sockets.buffers import Int, copy_bytes, le64

WRITE_BYTES = 256 * 1024
"""Messages written to a lane at once, and the most that may wait there for its socket."""
MOST_TEMPLATES = 4096
"""That are kept, by destination, size of the body, and how much of an envelope is in it."""

NO_IDENTIFIERS: U16 = np.zeros(0, np.uint16)
NO_PAYLOADS: U8 = np.zeros((0, 0), np.uint8)
"""Where messages have no payloads of their own."""


def is_alike(batch: Batch) -> bool:
    """Whether all have envelopes, are of one size, and have no headers of their own."""
    payloads = type(batch.payload)
    return (
        batch.headers is None
        and batch.envelope_bytes > 0
        and (payloads is bytes or payloads is _ARRAY)
    )


_ARRAY = np.ndarray


def shared_and_own_payloads(payloads: Payloads) -> tuple[bytes, U8]:
    """Of messages that are alike: the payload of all, or zeros that their own are written over; and
    a row for each, where they differ."""
    if isinstance(payloads, bytes):
        return payloads, NO_PAYLOADS
    assert isinstance(payloads, np.ndarray)
    # Kernels are compiled for writable arrays in one piece.
    is_usual = payloads.flags.c_contiguous and payloads.flags.writeable
    return _zeros(payloads.shape[1]), payloads if is_usual else payloads.copy()


@lru_cache(maxsize=4)
def _zeros(size: int) -> bytes:
    """The same object for every batch, so that its template is found again at once."""
    return bytes(size)


def bodies_of(batch: Batch) -> list[bytes]:
    payloads = each_payload(batch.payload)
    if not batch.envelope_bytes:
        return [payload for payload, _ in zip(payloads, batch.envelope, strict=False)]
    envelopes = byte_rows_of(batch.envelope)[:, : batch.envelope_bytes]
    # A payload that all share has no end, so the envelopes decide.
    return [
        envelope.tobytes() + payload for envelope, payload in zip(envelopes, payloads, strict=False)
    ]


def runs_by_route(batch: Batch) -> Iterator[tuple[int, int, int]]:
    """Route, and where messages that follow each other on it begin and end."""
    routes = batch.route
    bounds = [0, *(np.flatnonzero(np.diff(routes)) + 1).tolist(), len(routes)]
    return zip(routes[bounds[:-1]].tolist(), bounds[:-1], bounds[1:], strict=True)


# Words at the beginning of a block, by their place in bytes: where in a message its envelope is,
# and how many bytes of one; the body is in pieces of at most so many bytes, with so many between
# them; where its identifier is; how long it is; and how many messages follow, of which the first is
# always there. They are read as bytes: a view of the block would take longer than all the rest.
_HEAD_AT, _HEAD_BYTES, _PIECE_BYTES, _GAP_BYTES, _IDENTIFIER_AT, _MESSAGE_BYTES, _FILLED = range(
    0, 56, 8
)
MESSAGES_AT = 56
"""Where in a block its messages begin."""
_ONE_PIECE = 1 << 62


@inlined
def has_room(block: U8, envelopes: I64) -> bool:
    """Whether so many messages fit."""
    return bool(MESSAGES_AT + len(envelopes) * le64(block, _MESSAGE_BYTES) <= len(block))


@inlined
def put_messages(block: U8, envelopes: I64, payloads: U8) -> Int:
    """Write a message for each envelope, with the payload that is its own where there are any;
    where they end."""
    envelope_at, envelope_bytes = le64(block, _HEAD_AT), le64(block, _HEAD_BYTES)
    piece_bytes, gap_bytes = le64(block, _PIECE_BYTES), le64(block, _GAP_BYTES)
    message_bytes, filled = le64(block, _MESSAGE_BYTES), le64(block, _FILLED)
    envelopes, payload_bytes, at = envelopes.view(np.uint8), payloads.shape[1], MESSAGES_AT
    for number in range(len(envelopes)):
        if number >= filled:
            copy_bytes(block[at:], block[MESSAGES_AT : MESSAGES_AT + message_bytes])
        copy_bytes(block[at + envelope_at :], envelopes[number][:envelope_bytes])
        done = 0
        while done < payload_bytes:
            piece = (envelope_bytes + done) // piece_bytes
            first = at + envelope_at + envelope_bytes + done + piece * gap_bytes
            count = min(payload_bytes - done, (piece + 1) * piece_bytes - envelope_bytes - done)
            copy_bytes(block[first:], payloads[number][done : done + count])
            done += count
        at += message_bytes
    if len(envelopes) > filled:
        for place in range(8):
            block[_FILLED + place] = len(envelopes) >> 8 * place & 255
    return at


@kernel
def write_messages(block: U8, envelopes: I64, payloads: U8, identifiers: U16) -> Int:
    """Write messages, with their identifiers where there are any; where they end, and 0 with
    nothing done where the block is too small."""
    if not has_room(block, envelopes):
        return 0
    at, message_bytes = MESSAGES_AT + le64(block, _IDENTIFIER_AT), le64(block, _MESSAGE_BYTES)
    end = put_messages(block, envelopes, payloads)
    for number in range(len(identifiers)):
        identifier = np.int64(identifiers[number])
        block[at] = identifier >> 8
        block[at + 1] = identifier & 255
        at += message_bytes
    return end


class Template:
    """A message whose envelope, payload and identifier are still to be filled in."""

    def __init__(
        self,
        message: bytes,
        envelope_at: int,
        envelope_bytes: int,
        *,
        identifier_at: int = 0,
        piece_bytes: int = _ONE_PIECE,
        gap_bytes: int = 0,
    ) -> None:
        self.message_bytes = len(message)
        words = [
            envelope_at,
            envelope_bytes,
            piece_bytes,
            gap_bytes,
            identifier_at,
            len(message),
            1,
        ]
        block = np.array(words, np.int64).tobytes() + message
        self.block: U8 = np.frombuffer(block, np.uint8)
        """With which a block of messages begins."""


SourceT = TypeVar("SourceT", bound=Hashable)


class Templates(Generic[SourceT]):
    """Templates that were made before, mostly one for the messages of a destination."""

    def __init__(self, make: Callable[[SourceT, bytes, int], Template]) -> None:
        """`make` for a payload and a number of bytes of an envelope."""
        self._make = make
        self._made: dict[tuple[SourceT, int, int], tuple[bytes, Template]] = {}

    def of(self, source: SourceT, payload: bytes, envelope_bytes: int) -> Template:
        key = (source, len(payload), envelope_bytes)
        found = self._made.get(key)
        # An agent sends the same payload again and again: usually it is the very same object.
        if found is None or (found[0] is not payload and found[0] != payload):
            if len(self._made) >= MOST_TEMPLATES:
                self._made.clear()
            found = self._made[key] = payload, self._make(source, payload, envelope_bytes)
        return found[1]


class TemplateBlock:
    """Memory that messages are written into before they go to a socket; lanes share it."""

    def __init__(self) -> None:
        self.data: U8 = np.zeros(2 * WRITE_BYTES, np.uint8)
        self.view = self.data.data
        self._template: Template | None = None
        self._has_own_payloads = False

    def begin(self, template: Template, messages: int) -> None:
        """Make room for so many messages that are made from this template, and put the first one
        there."""
        needed = MESSAGES_AT + messages * template.message_bytes
        if needed > len(self.data):
            self.data = np.zeros(2 * needed, np.uint8)
            self.view = self.data.data
        self.data[: len(template.block)] = template.block

    def messages(
        self, template: Template, envelopes: I64, payloads: U8, identifiers: U16 = NO_IDENTIFIERS
    ) -> memoryview:
        """A message for each envelope, given as words, with a payload of its own where there are
        `payloads`; good until the next call."""
        has_own_payloads = payloads is not NO_PAYLOADS
        if template is not self._template or (self._has_own_payloads and not has_own_payloads):
            self.begin(template, len(envelopes))
        self._template, self._has_own_payloads = template, has_own_payloads
        end = write_messages(self.data, envelopes, payloads, identifiers)
        if not end:
            self.begin(template, len(envelopes))
            end = write_messages(self.data, envelopes, payloads, identifiers)
        return self.view[MESSAGES_AT:end]


@warm_up
def _compile() -> None:
    template = Template(bytes(ENVELOPE_BYTES), 0, ENVELOPE_BYTES)
    TemplateBlock().messages(template, word_rows_of(empty_envelopes(1)), NO_PAYLOADS)
