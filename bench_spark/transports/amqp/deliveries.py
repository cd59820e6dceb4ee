"""Decodes the deliveries that a consumer is sent, into the rows of `Arrivals`. Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from bench_spark.core.envelope import ENVELOPE_BYTES
from bench_spark.core.kernels import kernel, warm_up
from bench_spark.transports.amqp.frames import (
    BODY,
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
    Framing,
    Int,
    be32,
    be64,
    copy_bytes,
    put_envelope,
)
from bench_spark.transports.amqp.message_headers import read_headers
from bench_spark.transports.amqp.parsing import (
    BASIC_CLASS,
    BODY_SIZE_AT,
    NOT_UNDERSTOOD,
    PROPERTIES_AT,
    BadFrame,
    Content,
    not_understood,
)
from bench_spark.transports.base import HEAD_ONLY, U8
from bench_spark.transports.batches import Rows
from bench_spark.transports.sockets.arrivals import Arrivals, ReadBuffer

MOST_PIECES = 1024
"""Frames of headers and bodies that are noted at once, where these are wanted."""

_CONSUMER_TAG_AT = 5
"""In a deliver: behind class, method and the tag's length."""
_TAG_AND_REDELIVERED = struct.Struct(">QB")
_DIGIT_ZERO = ord("0")
_NOTHING, _A_HEADER, _A_BODY = 0, 1, 2
"""What is missing of a delivery that has begun."""

_STATE = np.dtype(
    [
        ("channel", "i8"),
        ("content_max", "i8"),
        ("most_bytes", "i8"),
        ("lane", "i8"),
        ("tag_mark", "i8"),
        ("routes", "i8"),
        ("expects", "i8"),
        ("route", "i8"),
        ("tag", "i8"),
        ("redelivered", "i8"),
        ("size", "i8"),
        ("missing", "i8"),
        ("head", "u1", (ENVELOPE_BYTES,)),
    ]
)
"""Of a decoder: what never changes, and the delivery that has begun and is not complete."""

_PIECE = np.dtype([("start", "i8"), ("stop", "i8"), ("kind", "i8"), ("is_last", "i8")])
"""Where in the buffer the content of a header or body frame is; the last one of a message."""


class ConsumerTags(NamedTuple):
    """What consumers are called on their connection: a prefix, and the route in digits."""

    prefix: bytes
    routes: int

    def of(self, route: int) -> str:
        return f"{self.prefix.decode()}{route}"


@kernel
def _route_of(data: U8, first: Int, stop: Int, prefix: U8, routes: Int) -> Int:
    """The route in a consumer tag; -1 where the tag is none of ours."""
    digits_at = first + len(prefix)
    if digits_at >= stop:
        return -1
    for place in range(len(prefix)):
        if data[first + place] != prefix[place]:
            return -1
    if data[digits_at] == _DIGIT_ZERO and stop - digits_at > 1:
        return -1
    route = np.int64(0)
    for at in range(digits_at, stop):
        digit = np.int64(data[at]) - _DIGIT_ZERO
        route = 10 * route + digit
        if digit < 0 or digit > 9 or route >= routes:
            return -1
    return route


@kernel
def _begin_delivery(data: U8, first: Int, stop: Int, state: Rows, prefix: U8) -> bool:
    """Note the deliver between `first` and `stop`; False where it is not as it should be."""
    now = state[0]
    if now["expects"] != _NOTHING or stop - first < _CONSUMER_TAG_AT:
        return False
    tag_at = first + _CONSUMER_TAG_AT + np.int64(data[first + _CONSUMER_TAG_AT - 1])
    if tag_at + 9 >= stop:  # the tag, the bit, and the length of the exchange's name
        return False
    route = _route_of(data, first + _CONSUMER_TAG_AT, tag_at, prefix, now["routes"])
    if route < 0:
        return False
    now["expects"] = _A_HEADER
    now["route"] = route
    now["tag"] = be64(data, tag_at)
    now["redelivered"] = np.int64(data[tag_at + 8]) & 1
    return True


@kernel
def _take_header(data: U8, first: Int, stop: Int, state: Rows) -> bool:
    """Note the size of a delivery's body; False where the header is not as it should be."""
    now = state[0]
    if now["expects"] != _A_HEADER or stop - first <= PROPERTIES_AT:
        return False
    size = be64(data, first + BODY_SIZE_AT)
    if be32(data, first) >> 16 != BASIC_CLASS or size < 0 or size > now["most_bytes"]:
        return False
    now["expects"] = _A_BODY
    now["size"] = size
    now["missing"] = size
    return True


@kernel
def _take_body(data: U8, first: Int, stop: Int, state: Rows) -> bool:
    """Keep what a frame has of the envelope; False where the frame is not as it should be."""
    now = state[0]
    if now["expects"] != _A_BODY or stop - first > now["missing"]:
        return False
    have = now["size"] - now["missing"]
    if have < ENVELOPE_BYTES:
        count = min(stop - first, ENVELOPE_BYTES - have)
        copy_bytes(now["head"][have:], data[first : first + count])
    now["missing"] -= stop - first
    return True


@kernel
def _end_delivery(row: Rows, state: Rows, at_ns: int) -> None:
    """Write a complete delivery as a row."""
    now = state[0]
    for place in range(min(now["size"], ENVELOPE_BYTES), ENVELOPE_BYTES):
        now["head"][place] = 0
    row["received_ns"] = at_ns
    row["tag"] = now["tag"] | now["tag_mark"]
    put_envelope(row["head"], now["head"])
    row["lane"] = now["lane"]
    row["size"] = now["size"]
    row["subscription"] = 0
    row["route"] = now["route"]
    row["redelivered"] = now["redelivered"]
    row["corrupted"] = False
    now["expects"] = _NOTHING


@kernel
def decode_deliveries(
    data: U8,
    at: int,
    end: int,
    at_ns: int,
    count: int,
    state: Rows,
    prefix: U8,
    rows: Rows,
    pieces: Rows,
) -> tuple[int, int, int, int]:
    """Decode from `at` to `end` into rows[count:]; where decoding stopped, the rows and the pieces
    then (none where the array for them is empty), and why."""
    now = state[0]
    found = 0
    while end - at >= FRAME_EXTRA_BYTES:
        kind, first = np.int64(data[at]), at + FRAME_START_BYTES
        stop = first + int(be32(data, at + 3))
        is_known = kind in (METHOD, HEADER, BODY, HEARTBEAT)
        if not is_known or stop - first > now["content_max"]:
            return at, count, found, FOREIGN
        if stop >= end:
            return at, count, found, MORE
        if data[stop] != FRAME_END:
            return at, count, found, FOREIGN
        if kind != HEARTBEAT:
            if np.int64(data[at + 1]) << 8 | np.int64(data[at + 2]) != now["channel"]:
                return at, count, found, FOREIGN
            if kind == METHOD:
                is_deliver = stop - first >= 4 and be32(data, first) == DELIVER
                if not is_deliver or not _begin_delivery(data, first, stop, state, prefix):
                    return at, count, found, FOREIGN
            else:
                if count == len(rows) or 0 < len(pieces) == found:
                    return at, count, found, FULL
                if kind == HEADER:
                    if not _take_header(data, first, stop, state):
                        return at, count, found, FOREIGN
                elif not _take_body(data, first, stop, state):
                    return at, count, found, FOREIGN
                is_last = now["missing"] == 0
                if len(pieces):
                    pieces[found]["start"] = first
                    pieces[found]["stop"] = stop
                    pieces[found]["kind"] = kind
                    pieces[found]["is_last"] = is_last
                    found += 1
                if is_last:
                    _end_delivery(rows[count], state, at_ns)
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
        """`tag_mark` is added to every delivery tag; see generations.py."""
        self._arrivals = arrivals
        self._prefix: U8 = np.frombuffer(bytearray(consumers.prefix), np.uint8)
        self._state: Rows = np.zeros(1, _STATE)
        self._state["channel"] = framing.channel
        self._state["content_max"] = framing.content_max
        self._state["most_bytes"] = arrivals.most_bytes
        self._state["lane"] = lane
        self._state["tag_mark"] = tag_mark
        self._state["routes"] = consumers.routes
        wants_pieces = arrivals.wants_bodies or arrivals.wants_headers
        self._pieces: Rows = np.zeros(MOST_PIECES if wants_pieces else 0, _PIECE)
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
                self._prefix,
                arrivals.rows,
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
        return bool(self._state["expects"][0] != _NOTHING)

    @property
    def missing_bytes(self) -> int | None:
        """Of the body of a delivery whose header has come."""
        return int(self._state["missing"][0]) if self._state["expects"][0] == _A_BODY else None

    def break_off(self) -> None:
        self._state["expects"] = _NOTHING
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
