"""Messages of one size, one behind the other in memory, for protocols whose messages are a
constant beginning, an envelope and padding. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench_spark.core.envelope import (
    ENVELOPE_BYTES,
    empty_envelopes,
    envelope_words,
)
from bench_spark.core.kernels import inlined, kernel, warm_up
from bench_spark.transports.batches import I64, U8, U16

Int = Any
"""Of Python or numpy: kernels run compiled and uncompiled."""

NO_IDENTIFIERS: U16 = np.zeros(0, np.uint16)
NO_TAILS: U8 = np.zeros((0, 0), np.uint8)
"""Where messages have no tails of their own."""


@inlined
def copy_bytes(target: U8, at: Int, source: U8, first: Int, count: Int) -> None:
    """Copy bytes. Through views, as only then the compiler copies many at once."""
    to, of = target[at : at + count], source[first : first + count]
    for place in range(count):
        to[place] = of[place]


@kernel
def write_messages(
    template: U8,
    heads: I64,
    tails: U8,
    identifiers: U16,
    out: U8,
    filled: Int,
    head_at: Int,
    head_bytes: Int,
    identifier_at: Int,
) -> None:
    """Write a message for each head; the first `filled` are there, and only differ in head, tail
    and identifier."""
    size = len(template)
    tail_at = head_at + head_bytes
    envelopes = heads.view(np.uint8)
    for message in range(len(heads)):
        at = message * size
        if message >= filled:
            copy_bytes(out, at, template, 0, size)
        copy_bytes(out, at + head_at, envelopes[message], 0, head_bytes)
        if len(tails):
            copy_bytes(out, at + tail_at, tails[message], 0, size - tail_at)
        if len(identifiers):
            identifier = np.int64(identifiers[message])
            out[at + identifier_at] = identifier >> 8
            out[at + identifier_at + 1] = identifier & 255


@kernel
def write_mixed(templates: U8, places: I64, heads: I64, tails: U8, out: U8, head_bytes: Int) -> Int:
    """Write a message for each head from a template of its own. `places`: where that begins, its
    size, where in it head and identifier are, and the identifier or 0. Returns where they end."""
    at, envelopes = np.int64(0), heads.view(np.uint8)
    for message in range(len(heads)):
        place = places[message]
        size, head_at, identifier_at, identifier = place[1], place[2], place[3], place[4]
        copy_bytes(out, at, templates, place[0], size)
        copy_bytes(out, at + head_at, envelopes[message], 0, head_bytes)
        tail_at = head_at + head_bytes
        if len(tails):
            copy_bytes(out, at + tail_at, tails[message], 0, size - tail_at)
        if identifier:
            out[at + identifier_at] = identifier >> 8
            out[at + identifier_at + 1] = identifier & 255
        at += size
    return at


@dataclass(frozen=True, eq=False)
class Template:
    """A message without its envelope."""

    data: U8
    head_at: int
    head_bytes: int
    identifier_at: int = 0

    @classmethod
    def of(cls, start: bytes, head_bytes: int, tail: bytes, identifier_at: int = 0) -> Template:
        data = np.frombuffer(bytearray(start + bytes(head_bytes) + tail), np.uint8)
        return cls(data, len(start), head_bytes, identifier_at)


class Templates:
    """Templates side by side, for messages that go to several destinations."""

    def __init__(self, templates: Sequence[Template]) -> None:
        self.data: U8 = np.concatenate([one.data for one in templates])
        self.head_bytes = templates[0].head_bytes
        sizes = [len(one.data) for one in templates]
        firsts = [0, *itertools.accumulate(sizes)]
        self.places: I64 = np.array(
            [
                (first, size, one.head_at, one.identifier_at, 0)
                for first, size, one in zip(firsts, sizes, templates, strict=False)
            ],
            np.int64,
        )
        """By template; see `write_mixed`."""


class MessageBlock:
    """Memory that messages are written into before they go to a socket; lanes share it.

    Messages that are there already, of the same template, are stamped and not copied again.
    """

    def __init__(self) -> None:
        self._out: U8 = np.zeros(0, np.uint8)
        self._view = self._out.data
        self._template: Template | None = None
        self._filled = 0
        self._has_own_tails = False

    def messages(
        self,
        template: Template,
        heads: I64,
        tails: U8 = NO_TAILS,
        identifiers: U16 = NO_IDENTIFIERS,
    ) -> memoryview:
        """A message for each head, given as words, with a tail of its own where there are `tails`;
        good until the next call."""
        count, has_own_tails = len(heads), tails is not NO_TAILS
        if template is not self._template or (self._has_own_tails and not has_own_tails):
            self._template, self._filled = template, 0
        self._has_own_tails = has_own_tails
        needed = count * len(template.data)
        self._make_room(needed)
        write_messages(
            template.data,
            heads,
            _of_one_type(tails) if has_own_tails else tails,
            identifiers,
            self._out,
            self._filled,
            template.head_at,
            template.head_bytes,
            template.identifier_at,
        )
        if count > self._filled:
            self._filled = count
        return self._view[:needed]

    def mixed(
        self, templates: Templates, routes: U16, heads: I64, tails: U8, identifiers: U16
    ) -> memoryview:
        """The same, each by the template of its route."""
        self._template = None
        places = templates.places[routes]
        if len(identifiers):
            places[:, 4] = identifiers
        self._make_room(int(places[:, 1].sum()))
        own_tails = _of_one_type(tails)
        head_bytes = templates.head_bytes
        end = write_mixed(templates.data, places, heads, own_tails, self._out, head_bytes)
        return self._view[:end]

    def _make_room(self, needed: int) -> None:
        if needed > len(self._out):
            self._out = np.zeros(1 << (needed - 1).bit_length(), np.uint8)
            self._view = self._out.data
            self._filled = 0


def _of_one_type(rows: U8) -> U8:
    """Kernels are compiled for writable arrays in one piece."""
    if rows.flags.c_contiguous and rows.flags.writeable:
        return rows
    return rows.copy()


@warm_up
def _compile() -> None:
    block, template = MessageBlock(), Template.of(b"", ENVELOPE_BYTES, b"")
    heads = envelope_words(empty_envelopes(1))
    block.messages(template, heads)
    block.mixed(Templates([template]), np.zeros(1, np.uint16), heads, NO_TAILS, NO_IDENTIFIERS)
