"""What sockets are read into, and the rows that decoders write. Pure.

A kernel gets rows as words of eight bytes: numba takes 30 ns to pass an array of integers and 85 to
pass one of a structured type, and decoding one message takes less than that. Only `put_received`
and `put_outcome` know where the fields of RECEIVED_DTYPE and OUTCOME_DTYPE are in them.

A broker counts deliveries from 1 on every channel. What was received before a lane was lost must
not be acknowledged on its next channel, where the same numbers mean other messages; so the upper
bits of a tag hold the generation of the lane, as long as it is inside this program.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bench_spark.config.sections import LARGEST_BODY_BYTES
from bench_spark.core.envelope import ENVELOPE_BYTES, ENVELOPE_WORDS, leading_envelopes
from bench_spark.core.kernels import inlined
from bench_spark.transports.batches import (
    I64,
    OUTCOME_DTYPE,
    RECEIVED_DTYPE,
    U8,
    U32,
    Headers,
    Outcomes,
    Part,
    Received,
    Rows,
    no_outcomes,
    nothing_received,
)

Int = Any
"""Of Python or numpy: kernels run compiled and uncompiled."""

_U1, _U2, _U3, _U4, _U5, _U6, _U7 = map(np.uint64, range(1, 8))


@inlined
def copy_bytes(target: U8, source: U8) -> None:
    """Copy all of `source`. Given views, the compiler copies many bytes at once."""
    for place in range(len(source)):
        target[place] = source[place]


@inlined
def be16(data: U8, at: Int) -> Int:
    """The big-endian number in two bytes."""
    i = np.uint64(at)  # so that no index is looked at for being counted from the end
    return np.int64(data[i]) << 8 | np.int64(data[i + _U1])


@inlined
def be32(data: U8, at: Int) -> Int:
    """The big-endian number in four bytes."""
    i = np.uint64(at)
    return (
        np.int64(data[i]) << 24
        | np.int64(data[i + _U1]) << 16
        | np.int64(data[i + _U2]) << 8
        | np.int64(data[i + _U3])
    )


@inlined
def be64(data: U8, at: Int) -> Int:
    """The big-endian number in eight bytes; from 2**63 on it comes out negative."""
    return be32(data, at) << 32 | be32(data, at + 4)


@inlined
def le64(data: U8, at: Int) -> Int:
    """The little-endian number in eight bytes. A view would take as long as ten of these."""
    i = np.uint64(at)
    return (
        np.int64(data[i])
        | np.int64(data[i + _U1]) << 8
        | np.int64(data[i + _U2]) << 16
        | np.int64(data[i + _U3]) << 24
        | np.int64(data[i + _U4]) << 32
        | np.int64(data[i + _U5]) << 40
        | np.int64(data[i + _U6]) << 48
        | np.int64(data[i + _U7]) << 56
    )


Row = tuple[int, int, int, int, int, int, bytes, Headers]
"""When, lane, route, delivery tag, redelivered (a bit), size, body, headers."""
NO_HEADERS: Headers = {}
MOST_BYTES = 2 * LARGEST_BODY_BYTES + 64 * 1024
"""The largest body that any run takes."""
_FIRST_ROWS = 4096


class Unreadable(Exception):
    """The bytes that arrived are not of the protocol; the text says what they are instead."""


def too_large(size: int, most_bytes: int) -> str:
    """Why a connection ends on which a larger body was announced."""
    return (
        f"a message announced with {size} bytes, where the largest that can arrive in this run has "
        f"{most_bytes} (twice its largest body and 64 KiB)"
    )


class ReadBuffer:
    """Memory that sockets are read into: as bytes to be searched, and as an array."""

    def __init__(self, capacity_bytes: int) -> None:
        self.raw = bytearray(capacity_bytes)
        self.view = memoryview(self.raw)
        self.array: U8 = np.frombuffer(self.raw, np.uint8)


@inlined
def take_envelope(data: U8, at: Int, size: Int, state: I64, envelope_at: Int) -> None:
    """Copy the beginning of a body of that size, which is at least as long as an envelope or all
    there, as four words; what it lacks is zeros."""
    if size >= ENVELOPE_BYTES:
        for place in range(ENVELOPE_WORDS):
            state[envelope_at + place] = le64(data, at + 8 * place)
        return
    for place in range(ENVELOPE_WORDS):
        state[envelope_at + place] = 0
    for place in range(size):
        state[envelope_at + place // 8] |= np.int64(data[at + place]) << 8 * (place % 8)


@inlined
def put_received(
    words: I64,
    row: Int,
    at_ns: Int,
    tag: Int,
    envelope: I64,
    envelope_at: Int,
    lane: Int,
    size: Int,
    route: Int,
    redelivered: Int,
) -> None:
    """Write a row of RECEIVED_DTYPE, whose envelope is four words from `envelope_at` on."""
    words[row, 0] = at_ns
    words[row, 1] = tag
    for place in range(ENVELOPE_WORDS):
        words[row, 2 + place] = envelope[envelope_at + place]
    words[row, 6] = lane | size << 32
    words[row, 7] = route << 32 | redelivered << 48


@inlined
def put_outcome(
    words: I64, row: Int, at_ns: Int, kind: Int, lane: Int, envelope: I64, envelope_at: Int
) -> None:
    """Write a row of OUTCOME_DTYPE, whose envelope is four words from `envelope_at` on."""
    words[row, 0] = at_ns
    for place in range(ENVELOPE_WORDS):
        words[row, 1 + place] = envelope[envelope_at + place]
    words[row, 5] = lane | kind << 32


@inlined
def put_envelope(envelopes: I64, number: Int, words: I64, at: Int) -> None:
    """Write an envelope as the words from `at` on."""
    for place in range(ENVELOPE_WORDS):
        words[at + place] = envelopes[number, place]


class RowBuffer:
    """Rows of one type, twice: those that were taken last stay as they are until the next time.

    A kernel writes `words[count:]` in place, and the caller moves `count` on.
    """

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.count = 0
        self.rows: Rows = np.zeros(_FIRST_ROWS, dtype)
        self.words = _as_words(self.rows)
        self._spare_rows: Rows = np.zeros(_FIRST_ROWS, dtype)
        self._spare_words = _as_words(self._spare_rows)

    def __bool__(self) -> bool:
        return self.count > 0

    def make_room(self, rows: int) -> None:
        """Let at least so many more rows fit. `rows` and `words` may be others afterwards."""
        wanted = self.count + rows
        if wanted > len(self.rows):
            larger = np.zeros(max(wanted, 2 * len(self.rows)), self.rows.dtype)
            larger[: self.count] = self.rows[: self.count]
            self.rows, self.words = larger, _as_words(larger)

    def add(self, rows: Rows) -> None:
        self.make_room(len(rows))
        self.rows[self.count : self.count + len(rows)] = rows
        self.count += len(rows)

    def _take_rows(self) -> Rows:
        """What was collected; written over after the next call."""
        taken = self.rows[: self.count]
        self.rows, self._spare_rows = self._spare_rows, self.rows
        self.words, self._spare_words = self._spare_words, self.words
        self.count = 0
        return taken


def _as_words(rows: Rows) -> I64:
    return rows.view(np.int64).reshape(len(rows), -1)


class OutcomeRows(RowBuffer):
    """Outcomes that decoders write. Shared by the lanes of one agent."""

    def __init__(self) -> None:
        super().__init__(OUTCOME_DTYPE)
        self._nothing = no_outcomes()

    def take(self) -> Outcomes:
        """What was collected; its rows are written over after the next call."""
        return Outcomes(self._take_rows()) if self.count else self._nothing


class Arrivals(RowBuffer):
    """Messages that decoders write. Shared by the lanes of one agent: a thousand lanes with a
    message each make one batch.

    Where bodies or headers are wanted, one is appended to `bodies` or `headers` for every row.
    """

    def __init__(self, want: frozenset[Part], most_bytes: int = MOST_BYTES) -> None:
        """`most_bytes`: of a body. Whoever announces a larger one is no peer of this run, and its
        connection ends before any of it is collected."""
        super().__init__(RECEIVED_DTYPE)
        self.most_bytes = most_bytes
        self.wants_bodies = Part.BODY in want
        self.wants_headers = Part.HEADERS in want
        self.bodies: list[bytes] = []
        self.headers: list[Headers] = []
        self._wants_more = self.wants_bodies or self.wants_headers
        self._nothing = nothing_received()

    def add_row(self, row: Row) -> None:
        """One message, in the order of `Row`; of its body at least the envelope."""
        at_ns, lane, route, tag, redelivered, size, body, headers = row
        self.make_room(1)
        envelope = leading_envelopes((body,))[0]
        self.rows[self.count] = (at_ns, tag, envelope, lane, size, 0, route, redelivered, False)
        self.count += 1
        if self.wants_bodies:
            self.bodies.append(body)
        if self.wants_headers:
            self.headers.append(headers)

    def add_run(self, run: Received) -> None:
        self.add(run.rows)
        self.bodies += run.bodies or ()
        self.headers += run.headers or ()

    def take(self) -> Received:
        """What was collected; its rows are written over after the next call."""
        if not self.count:
            return self._nothing
        if not self._wants_more:
            return Received(self._take_rows())
        bodies, headers = self.bodies, self.headers
        self.bodies, self.headers = [], []
        return Received(
            self._take_rows(),
            bodies=bodies if self.wants_bodies else None,
            headers=headers if self.wants_headers else None,
        )


U64 = npt.NDArray[np.uint64]

GENERATION_AT = 48
"""In a tag: the bit from which on the generation is."""
TAG_BITS = (1 << GENERATION_AT) - 1


def generation_mark(generation: int) -> int:
    """To be added to the tags of that generation; 0 for the first."""
    return generation << GENERATION_AT


def own_tags(tags: U64, generation: int) -> U64:
    """Those that are of this generation, as the broker knows them."""
    if not generation:
        return tags  # there were no others yet
    is_own = tags >> np.uint64(GENERATION_AT) == np.uint64(generation)
    own: U64 = tags[is_own] & np.uint64(TAG_BITS)
    return own


@dataclass(frozen=True)
class LaneGroups:
    order: I64
    """Places in the batch, lane by lane; within a lane as they were."""
    lanes: list[int]
    bounds: list[int]
    """The rows of lanes[i] are order[bounds[i] : bounds[i + 1]]."""

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """Lane, and where in `order` its rows begin and end."""
        return zip(self.lanes, self.bounds[:-1], self.bounds[1:], strict=True)


def is_of_one_lane(lane: U32) -> bool:
    """Of at least one row."""
    return len(lane) == 1 or (lane[0] == lane[-1] and not np.count_nonzero(lane != lane[0]))


def by_lane(lane: U32) -> LaneGroups:
    """Of at least one row."""
    order = np.argsort(lane, kind="stable")
    lanes = lane[order]
    firsts = np.concatenate(([0], np.flatnonzero(lanes[1:] != lanes[:-1]) + 1))
    return LaneGroups(order, lanes[firsts].tolist(), [*firsts.tolist(), len(lane)])
