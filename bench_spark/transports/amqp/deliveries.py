"""Decodes the deliveries that a consumer is sent into rows, and writes its acknowledgements. Pure.

With transactions acknowledgements are committed together. A commit is synchronous: what is to be
acknowledged while the broker commits waits its turn.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pika.spec

from bench_spark.core.envelope import ENVELOPE_BYTES, ENVELOPE_WORDS
from bench_spark.core.kernels import inlined, kernel, warm_up
from bench_spark.transports.amqp.frames import (
    BASIC_CLASS,
    BODY,
    BODY_SIZE_AT,
    DELIVER,
    FOREIGN,
    FRAME_END,
    FRAME_EXTRA_BYTES,
    FRAME_START_BYTES,
    FULL,
    HEADER,
    HEARTBEAT,
    METHOD,
    MORE,
    NOT_UNDERSTOOD,
    PROPERTIES_AT,
    BadFrame,
    Content,
    Framing,
    method_frame,
    not_understood,
    read_headers,
)
from bench_spark.transports.batches import HEAD_ONLY, I64, U8
from bench_spark.transports.sockets.buffers import (
    Arrivals,
    Int,
    ReadBuffer,
    be32,
    be64,
    copy_bytes,
    put_received,
    take_head,
)

MOST_PIECES = 1024
"""Frames of headers and bodies that are noted at once, where these are wanted."""

_CONSUMER_TAG_AT = 5
"""In a deliver: behind class, method and the tag's length."""
_TAG_AND_REDELIVERED = struct.Struct(">QB")
_DIGIT_ZERO = ord("0")
_NOTHING, _A_HEADER, _A_BODY = 0, 1, 2
"""What is missing of a delivery that has begun."""

# Words of a decoder's state: what never changes, and the delivery that is not complete yet.
_CHANNEL, _CONTENT_MAX, _MOST_BYTES, _LANE, _TAG_MARK, _ROUTES, _PREFIX_BYTES = range(7)
_EXPECTS, _ROUTE, _TAG, _REDELIVERED, _SIZE, _MISSING, _HEAD = range(7, 14)
_PREFIX = _HEAD + ENVELOPE_WORDS
_STATE_WORDS = _PREFIX + 255
"""A consumer tag has at most 255 bytes, a word each."""

_START, _STOP, _KIND, _IS_LAST = range(4)
"""Of a piece: where in the buffer the content of a header or body frame is; the last one of a
message."""


class ConsumerTags(NamedTuple):
    """What consumers are called on their connection: a prefix, and the route in digits."""

    prefix: bytes
    routes: int

    def of(self, route: int) -> str:
        return f"{self.prefix.decode()}{route}"


@inlined
def _route_of(data: U8, first: Int, stop: Int, state: I64) -> Int:
    """The route in a consumer tag; -1 where the tag is none of ours."""
    prefix_bytes = state[_PREFIX_BYTES]
    digits_at = first + prefix_bytes
    if digits_at >= stop:
        return -1
    for place in range(prefix_bytes):
        if np.int64(data[first + place]) != state[_PREFIX + place]:
            return -1
    if data[digits_at] == _DIGIT_ZERO and stop - digits_at > 1:
        return -1
    route = np.int64(0)
    for at in range(digits_at, stop):
        digit = np.int64(data[at]) - _DIGIT_ZERO
        route = 10 * route + digit
        if digit < 0 or digit > 9 or route >= state[_ROUTES]:
            return -1
    return route


@inlined
def _begin_delivery(data: U8, first: Int, stop: Int, state: I64) -> bool:
    """Note the deliver between `first` and `stop`; False where it is not as it should be."""
    if state[_EXPECTS] != _NOTHING or stop - first < _CONSUMER_TAG_AT:
        return False
    tag_at = first + _CONSUMER_TAG_AT + np.int64(data[first + _CONSUMER_TAG_AT - 1])
    if tag_at + 9 >= stop:  # the tag, the bit, and the length of the exchange's name
        return False
    route = _route_of(data, first + _CONSUMER_TAG_AT, tag_at, state)
    if route < 0:
        return False
    state[_EXPECTS] = _A_HEADER
    state[_ROUTE] = route
    state[_TAG] = be64(data, tag_at)
    state[_REDELIVERED] = np.int64(data[tag_at + 8]) & 1
    return True


@inlined
def _take_header(data: U8, first: Int, stop: Int, state: I64) -> bool:
    """Note the size of a delivery's body; False where the header is not as it should be."""
    if state[_EXPECTS] != _A_HEADER or stop - first <= PROPERTIES_AT:
        return False
    size = be64(data, first + BODY_SIZE_AT)
    if be32(data, first) >> 16 != BASIC_CLASS or size < 0 or size > state[_MOST_BYTES]:
        return False
    state[_EXPECTS] = _A_BODY
    state[_SIZE] = size
    state[_MISSING] = size
    return True


@inlined
def _take_body(data: U8, first: Int, stop: Int, state: I64) -> bool:
    """Keep what a frame has of the envelope; False where the frame is not as it should be."""
    if state[_EXPECTS] != _A_BODY or stop - first > state[_MISSING]:
        return False
    have = state[_SIZE] - state[_MISSING]
    if have == 0 and stop - first >= ENVELOPE_BYTES:
        take_head(data, first, ENVELOPE_BYTES, state, _HEAD)
    elif have < ENVELOPE_BYTES:
        if have == 0:
            for place in range(ENVELOPE_WORDS):
                state[_HEAD + place] = 0
        for place in range(min(stop - first, ENVELOPE_BYTES - have)):
            byte = np.int64(data[first + place]) << 8 * ((have + place) % 8)
            state[_HEAD + (have + place) // 8] |= byte
    state[_MISSING] -= stop - first
    return True


@inlined
def _end_delivery(state: I64, words: I64, count: Int, at_ns: Int) -> None:
    """Write a complete delivery as a row."""
    if not state[_SIZE]:
        for place in range(ENVELOPE_WORDS):
            state[_HEAD + place] = 0
    put_received(
        words,
        count,
        at_ns,
        state[_TAG] | state[_TAG_MARK],
        state,
        _HEAD,
        state[_LANE],
        state[_SIZE],
        state[_ROUTE],
        state[_REDELIVERED],
    )
    state[_EXPECTS] = _NOTHING


@kernel
def decode_deliveries(
    data: U8, at: Int, end: Int, at_ns: Int, count: Int, state: I64, words: I64, pieces: I64
) -> tuple[Int, Int, Int, Int]:
    """Decode from `at` to `end` into the rows from `count` on; where decoding stopped, the rows and
    the pieces then (none where the array for them is empty), and why."""
    found = 0
    while end - at >= FRAME_EXTRA_BYTES:
        kind, first = np.int64(data[at]), at + FRAME_START_BYTES
        stop = first + be32(data, at + 3)
        is_known = kind in (METHOD, HEADER, BODY, HEARTBEAT)
        if not is_known or stop - first > state[_CONTENT_MAX]:
            return at, count, found, FOREIGN
        if stop >= end:
            return at, count, found, MORE
        if data[stop] != FRAME_END:
            return at, count, found, FOREIGN
        if kind != HEARTBEAT:
            if np.int64(data[at + 1]) << 8 | np.int64(data[at + 2]) != state[_CHANNEL]:
                return at, count, found, FOREIGN
            if kind == METHOD:
                is_deliver = stop - first >= 4 and be32(data, first) == DELIVER
                if not is_deliver or not _begin_delivery(data, first, stop, state):
                    return at, count, found, FOREIGN
            else:
                if count == len(words) or 0 < len(pieces) == found:
                    return at, count, found, FULL
                if kind == HEADER:
                    if not _take_header(data, first, stop, state):
                        return at, count, found, FOREIGN
                elif not _take_body(data, first, stop, state):
                    return at, count, found, FOREIGN
                is_last = state[_MISSING] == 0
                if len(pieces):
                    pieces[found, _START] = first
                    pieces[found, _STOP] = stop
                    pieces[found, _KIND] = kind
                    pieces[found, _IS_LAST] = is_last
                    found += 1
                if is_last:
                    _end_delivery(state, words, count, at_ns)
                    count += 1
        at = stop + 1
    return at, count, found, MORE


class Deliveries:
    """The receiver of one consumer lane."""

    def __init__(
        self,
        lane: int,
        framing: Framing,
        consumers: ConsumerTags,
        arrivals: Arrivals,
        tag_mark: int = 0,
    ) -> None:
        """`tag_mark` is added to every delivery tag; see `generation_mark`."""
        self._arrivals = arrivals
        self._state: I64 = np.zeros(_STATE_WORDS, np.int64)
        self._state[_CHANNEL] = framing.channel
        self._state[_CONTENT_MAX] = framing.content_max
        self._state[_MOST_BYTES] = arrivals.most_bytes
        self._state[_LANE] = lane
        self._state[_TAG_MARK] = tag_mark
        self._state[_ROUTES] = consumers.routes
        self._state[_PREFIX_BYTES] = len(consumers.prefix)
        self._state[_PREFIX : _PREFIX + len(consumers.prefix)] = list(consumers.prefix)
        wants_pieces = arrivals.wants_bodies or arrivals.wants_headers
        self._pieces: I64 = np.zeros((MOST_PIECES if wants_pieces else 0, 4), np.int64)
        self._header = b""
        self._body: list[bytes] = []

    def decode(self, buffer: ReadBuffer, at: int, end: int, at_ns: int) -> tuple[int, int]:
        arrivals = self._arrivals
        while True:
            before = arrivals.count
            at, arrivals.count, found, why = decode_deliveries(
                buffer.array,
                at,
                end,
                at_ns,
                before,
                self._state,
                arrivals.words,
                self._pieces,
            )
            if found:
                self._collect(buffer, self._pieces[:found].tolist(), before)
            if why != FULL:
                return at, why
            arrivals.make_room(1)

    def _collect(
        self, buffer: ReadBuffer, pieces: Iterable[tuple[int, int, int, int]], complete: int
    ) -> None:
        """Take bodies and headers out of the buffer; so many rows had theirs before."""
        arrivals = self._arrivals
        for start, stop, kind, is_last in pieces:
            if kind == HEADER:
                self._header = bytes(buffer.view[start:stop])
            elif arrivals.wants_bodies:
                self._body.append(bytes(buffer.view[start:stop]))
            if not is_last:
                continue
            if arrivals.wants_headers:
                try:
                    arrivals.headers.append(read_headers(self._header[PROPERTIES_AT:]))
                except NOT_UNDERSTOOD as error:
                    arrivals.count = complete
                    raise not_understood(error) from error
            if arrivals.wants_bodies:
                body = self._body
                arrivals.bodies.append(body[0] if len(body) == 1 else b"".join(body))
                body.clear()
            complete += 1

    # -- what the decoder leaves to the parser -----------------------------------------------------

    @property
    def is_within_message(self) -> bool:
        return bool(self._state[_EXPECTS] != _NOTHING)

    @property
    def missing_bytes(self) -> int | None:
        """Of the body of a delivery whose header has come."""
        return int(self._state[_MISSING]) if self._state[_EXPECTS] == _A_BODY else None

    def break_off(self) -> None:
        self._state[_EXPECTS] = _NOTHING
        self._body.clear()

    def begin_content(self, method_id: int, method: bytes) -> Content:
        if method_id == DELIVER:
            tag_at = _CONSUMER_TAG_AT + method[_CONSUMER_TAG_AT - 1]
            _TAG_AND_REDELIVERED.unpack_from(method, tag_at)
            method[tag_at + _TAG_AND_REDELIVERED.size]  # raises what is told as not understood
            raise BadFrame("a delivery for a consumer that is not ours")
        return Content(method_id)

    def on_content(self, content: Content, at_ns: int) -> None:
        """A return: nothing was published here, so nothing of ours came back."""


@warm_up
def _compile() -> None:
    receiver = Deliveries(0, Framing(1, 4096), ConsumerTags(b"", 1), Arrivals(HEAD_ONLY))
    receiver.decode(ReadBuffer(1), 0, 0, 0)


U64 = npt.NDArray[np.uint64]

_TAG_AT = 11
"""In the frame of an ack: behind the frame's start, class and method."""


@kernel
def write_acks(out: U8, frame: U8, tags: U64, first: Int, step: Int) -> Int:
    """Write the frame of an ack for every `step`th tag from `first` on; how many bytes."""
    at = np.int64(0)
    for number in range(first, len(tags), step):
        copy_bytes(out[at:], frame)
        tag, digits = tags[number], out[at + _TAG_AT : at + _TAG_AT + 8]
        for place in range(8):
            digits[place] = tag >> np.uint64(56 - 8 * place) & np.uint64(0xFF)
        at += len(frame)
    return at


class AckFrames:
    """Acks to be written, all `multiple` or all single."""

    def __init__(self, channel: int, multiple: bool) -> None:
        ack = method_frame(channel, pika.spec.Basic.Ack(0, multiple))
        self._frame: U8 = np.frombuffer(bytearray(ack), np.uint8)
        self._out: U8 = np.zeros(len(ack), np.uint8)
        self._view = self._out.data

    def of(self, tags: U64, first: int = 0, step: int = 1) -> memoryview:
        """One ack for each of tags[first::step]; good until the next call."""
        wanted = len(tags) * len(self._frame)
        if wanted > len(self._out):
            self._out = np.zeros(2 * wanted, np.uint8)
            self._view = self._out.data
        tags = np.ascontiguousarray(tags)
        return self._view[: write_acks(self._out, self._frame, tags, first, step)]


@warm_up
def _acks_compile() -> None:
    AckFrames(1, multiple=False).of(np.zeros(1, np.uint64))


_TRANSACTIONS_NOTHING: U64 = np.zeros(0, np.uint64)


class AckTransactions:
    """Of one lane."""

    def __init__(self, messages: int, ack_every: int) -> None:
        """`messages` make a transaction, in which every `ack_every` are acknowledged at once."""
        self._messages = messages
        self._ack_every = ack_every
        self._waiting: U64 = _TRANSACTIONS_NOTHING
        self._committing = 0
        self.added_seconds = 0.0

    @property
    def is_committing(self) -> bool:
        return self._committing > 0

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def add(self, tags: U64, now_seconds: float) -> None:
        """These messages, in the order of their tags, may be acknowledged. Tags are copied: they
        are the transport's own until the next receive."""
        self._waiting = np.concatenate((self._waiting, tags))
        self.added_seconds = now_seconds

    def begin(self, is_partial: bool = False) -> U64:
        """The tags to acknowledge, and then to commit, now; none while there is no reason to."""
        if self.is_committing or not (is_partial or self.waiting >= self._messages):
            return _TRANSACTIONS_NOTHING
        tags, self._waiting = self._waiting[: self._messages], self._waiting[self._messages :]
        self._committing = len(tags)
        places = np.arange(1, len(tags) + 1)
        is_last_of_group = places % self._ack_every == 0
        if len(tags):
            is_last_of_group[-1] = True
        chosen: U64 = tags[is_last_of_group]
        return chosen

    def committed(self) -> int:
        """The broker has done it; how many messages are acknowledged by that."""
        messages, self._committing = self._committing, 0
        return messages
