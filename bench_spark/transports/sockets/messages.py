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
    empty_envelopes,
    envelope_bytes,
    envelope_words,
)
from bench_spark.core.kernels import inlined, kernel, warm_up
from bench_spark.transports.batches import I64, U8, U16, Batch, Tails, each_tail
from bench_spark.transports.sockets.buffers import Int, copy_bytes, le64

WRITE_BYTES = 256 * 1024
"""Messages written to a lane at once, and the most that may wait there for its socket."""
MOST_TEMPLATES = 4096
"""That are kept, by destination, size of the body, and how much of a head is in it."""

NO_IDENTIFIERS: U16 = np.zeros(0, np.uint16)
NO_TAILS: U8 = np.zeros((0, 0), np.uint8)
"""Where messages have no tails of their own."""


def is_alike(batch: Batch) -> bool:
    """Whether all have heads, are of one size, and have no headers of their own."""
    tails = type(batch.tail)
    return batch.headers is None and batch.head_bytes > 0 and (tails is bytes or tails is _ARRAY)


_ARRAY = np.ndarray


def shared_and_own_tails(tails: Tails) -> tuple[bytes, U8]:
    """Of messages that are alike: the tail of all, or zeros that their own are written over; and a
    row for each, where they differ."""
    if isinstance(tails, bytes):
        return tails, NO_TAILS
    assert isinstance(tails, np.ndarray)
    # Kernels are compiled for writable arrays in one piece.
    is_usual = tails.flags.c_contiguous and tails.flags.writeable
    return _zeros(tails.shape[1]), tails if is_usual else tails.copy()


@lru_cache(maxsize=4)
def _zeros(size: int) -> bytes:
    """The same object for every batch, so that its template is found again at once."""
    return bytes(size)


def bodies_of(batch: Batch) -> list[bytes]:
    tails = each_tail(batch.tail)
    if not batch.head_bytes:
        return [tail for tail, _ in zip(tails, batch.head, strict=False)]
    heads = envelope_bytes(batch.head)[:, : batch.head_bytes]
    # A tail that all share has no end, so the heads decide.
    return [head.tobytes() + tail for head, tail in zip(heads, tails, strict=False)]


def runs_by_route(batch: Batch) -> Iterator[tuple[int, int, int]]:
    """Route, and where messages that follow each other on it begin and end."""
    routes = batch.route
    bounds = [0, *(np.flatnonzero(np.diff(routes)) + 1).tolist(), len(routes)]
    return zip(routes[bounds[:-1]].tolist(), bounds[:-1], bounds[1:], strict=True)


# Words at the beginning of a block, by their place in bytes: where in a message its head is, and
# how many bytes of one; the body is in pieces of at most so many bytes, with so many between them;
# where its identifier is; how long it is; and how many messages follow, of which the first is
# always there. They are read as bytes: a view of the block would take longer than all the rest.
_HEAD_AT, _HEAD_BYTES, _PIECE_BYTES, _GAP_BYTES, _IDENTIFIER_AT, _MESSAGE_BYTES, _FILLED = range(
    0, 56, 8
)
MESSAGES_AT = 56
"""Where in a block its messages begin."""
_ONE_PIECE = 1 << 62


@inlined
def has_room(block: U8, heads: I64) -> bool:
    """Whether so many messages fit."""
    return bool(MESSAGES_AT + len(heads) * le64(block, _MESSAGE_BYTES) <= len(block))


@inlined
def put_messages(block: U8, heads: I64, tails: U8) -> Int:
    """Write a message for each head, with the tail that is its own where there are any; where they
    end."""
    head_at, head_bytes = le64(block, _HEAD_AT), le64(block, _HEAD_BYTES)
    piece_bytes, gap_bytes = le64(block, _PIECE_BYTES), le64(block, _GAP_BYTES)
    message_bytes, filled = le64(block, _MESSAGE_BYTES), le64(block, _FILLED)
    envelopes, tail_bytes, at = heads.view(np.uint8), tails.shape[1], MESSAGES_AT
    for number in range(len(heads)):
        if number >= filled:
            copy_bytes(block[at:], block[MESSAGES_AT : MESSAGES_AT + message_bytes])
        copy_bytes(block[at + head_at :], envelopes[number][:head_bytes])
        done = 0
        while done < tail_bytes:
            piece = (head_bytes + done) // piece_bytes
            first = at + head_at + head_bytes + done + piece * gap_bytes
            count = min(tail_bytes - done, (piece + 1) * piece_bytes - head_bytes - done)
            copy_bytes(block[first:], tails[number][done : done + count])
            done += count
        at += message_bytes
    if len(heads) > filled:
        for place in range(8):
            block[_FILLED + place] = len(heads) >> 8 * place & 255
    return at


@kernel
def write_messages(block: U8, heads: I64, tails: U8, identifiers: U16) -> Int:
    """Write messages, with their identifiers where there are any; where they end, and 0 with
    nothing done where the block is too small."""
    if not has_room(block, heads):
        return 0
    at, message_bytes = MESSAGES_AT + le64(block, _IDENTIFIER_AT), le64(block, _MESSAGE_BYTES)
    end = put_messages(block, heads, tails)
    for number in range(len(identifiers)):
        identifier = np.int64(identifiers[number])
        block[at] = identifier >> 8
        block[at + 1] = identifier & 255
        at += message_bytes
    return end


class Template:
    """A message whose head, tail and identifier are still to be filled in."""

    def __init__(
        self,
        message: bytes,
        head_at: int,
        head_bytes: int,
        *,
        identifier_at: int = 0,
        piece_bytes: int = _ONE_PIECE,
        gap_bytes: int = 0,
    ) -> None:
        self.message_bytes = len(message)
        words = [head_at, head_bytes, piece_bytes, gap_bytes, identifier_at, len(message), 1]
        block = np.array(words, np.int64).tobytes() + message
        self.block: U8 = np.frombuffer(block, np.uint8)
        """With which a block of messages begins."""


SourceT = TypeVar("SourceT", bound=Hashable)


class Templates(Generic[SourceT]):
    """Templates that were made before, mostly one for the messages of a destination."""

    def __init__(self, make: Callable[[SourceT, bytes, int], Template]) -> None:
        """`make` for a tail and a number of bytes of a head."""
        self._make = make
        self._made: dict[tuple[SourceT, int, int], tuple[bytes, Template]] = {}

    def of(self, source: SourceT, tail: bytes, head_bytes: int) -> Template:
        key = (source, len(tail), head_bytes)
        found = self._made.get(key)
        # An agent sends the same tail again and again: usually it is the very same object.
        if found is None or (found[0] is not tail and found[0] != tail):
            if len(self._made) >= MOST_TEMPLATES:
                self._made.clear()
            found = self._made[key] = tail, self._make(source, tail, head_bytes)
        return found[1]


class TemplateBlock:
    """Memory that messages are written into before they go to a socket; lanes share it."""

    def __init__(self) -> None:
        self.data: U8 = np.zeros(2 * WRITE_BYTES, np.uint8)
        self.view = self.data.data
        self._template: Template | None = None
        self._has_own_tails = False

    def begin(self, template: Template, messages: int) -> None:
        """Make room for so many messages that are made from this template, and put the first one
        there."""
        needed = MESSAGES_AT + messages * template.message_bytes
        if needed > len(self.data):
            self.data = np.zeros(2 * needed, np.uint8)
            self.view = self.data.data
        self.data[: len(template.block)] = template.block

    def messages(
        self, template: Template, heads: I64, tails: U8, identifiers: U16 = NO_IDENTIFIERS
    ) -> memoryview:
        """A message for each head, given as words, with a tail of its own where there are `tails`;
        good until the next call."""
        has_own_tails = tails is not NO_TAILS
        if template is not self._template or (self._has_own_tails and not has_own_tails):
            self.begin(template, len(heads))
        self._template, self._has_own_tails = template, has_own_tails
        end = write_messages(self.data, heads, tails, identifiers)
        if not end:
            self.begin(template, len(heads))
            end = write_messages(self.data, heads, tails, identifiers)
        return self.view[MESSAGES_AT:end]


@warm_up
def _compile() -> None:
    template = Template(bytes(ENVELOPE_BYTES), 0, ENVELOPE_BYTES)
    TemplateBlock().messages(template, envelope_words(empty_envelopes(1)), NO_TAILS)
