"""Decoding what a consumer is sent: alike messages together, any other one by one. Pure.

After two messages that agree in everything but delivery tag, redelivered, routing key, their number
in a stream and body, the next are expected to agree too: they then have the same length, and every
byte but those five is known.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

import numpy as np

from bench_spark.core.envelope import ENVELOPE_BYTES, Envelopes, empty_envelopes, envelope_bytes
from bench_spark.transports.amqp.frames import (
    BODY,
    DELIVER,
    END_MARK,
    FRAME_END,
    FRAME_EXTRA_BYTES,
    FRAME_START_BYTES,
    HEADER,
    METHOD,
    frame_start,
)
from bench_spark.transports.amqp.message_headers import read_headers
from bench_spark.transports.amqp.parsing import NOT_UNDERSTOOD, PROPERTIES_AT, BadFrame, Content
from bench_spark.transports.base import U8, Headers, Received
from bench_spark.transports.sockets.arrivals import NO_HEADERS, Arrivals
from bench_spark.transports.sockets.runs import AlikeMessages, Constant, ReadBuffer, RowShape

LONGEST_ALIKE_BYTES = 64 * 1024
"""Longer messages are decoded one by one: copying their bytes costs more than that."""

_TAG_AND_REDELIVERED = struct.Struct(">QB")
_HEADER_START = struct.Struct(">BHIIQ")
"""Of a header's frame: kind, channel, size; class and weight; the size of the body."""
_BASIC = 60 << 16
"""The class of messages, and the only weight that there is."""
_TO_PROPERTIES = _HEADER_START.size
_CONSUMER_TAG_AT = 5
"""In a deliver's content: behind class, method and the tag's length."""

_STREAM_OFFSET = b"\x0fx-stream-offsetl"
"""RabbitMQ's header of a message from a stream: name and type; 64 bits follow."""
_STREAM_OFFSET_BYTES = 8

_Likeness = tuple[bytes, bytes, int, bytes, bytes, tuple[int, ...]]


class Deliveries(AlikeMessages["_Alike"]):
    """The receiver of one consumer lane."""

    def __init__(
        self,
        lane: int,
        channel: int,
        routes: Mapping[bytes, int],
        arrivals: Arrivals,
        tag_mark: int = 0,
    ) -> None:
        """`tag_mark` is added to every delivery tag; see generations.py."""
        super().__init__()
        self._lane = lane
        self._tag_mark = tag_mark
        self._channel = channel
        self._routes = routes
        """Route by consumer tag."""
        self._arrivals = arrivals
        self._last_likeness: _Likeness | None = None
        self._last_header = b""
        self._last_headers: Headers = NO_HEADERS
        self._similar: _Similar | None = None
        self.decoded_together = 0
        """Messages that were decoded in runs."""

    # -- alike messages ----------------------------------------------------------------------------

    def take_run(self, buffer: ReadBuffer, start: int, end: int, at_ns: int) -> int:
        at = start + self._take_alike(buffer, start, end, at_ns)
        while (taken := self._take_similar(buffer.raw, at, end, at_ns)) > 0:
            at += taken
            at += self._take_alike(buffer, at, end, at_ns)
        return at - start

    def awaits_rest(self, buffer: ReadBuffer, start: int, end: int) -> bool:
        return self._alike is not None and self._alike.shape.may_begin_at(buffer, start, end)

    def _add_one(self, alike: _Alike, buffer: ReadBuffer, start: int, at_ns: int) -> None:
        tag, bits = _TAG_AND_REDELIVERED.unpack_from(buffer.raw, start + alike.tag_at)
        if self._arrivals.wants_bodies:
            body = alike.body(buffer.raw[start : start + alike.shape.row_bytes])
        else:
            body = bytes(buffer.raw[start + alike.envelope_at : start + alike.envelope_end])
        self._arrivals.add_row(
            (
                at_ns,
                self._lane,
                alike.route,
                tag + self._tag_mark,
                bits & 1,
                alike.body_bytes,
                body,
                alike.headers,
            )
        )

    def _add_many(self, alike: _Alike, rows: U8, at_ns: int) -> None:
        count = len(rows)
        self.decoded_together += count
        tags = np.ascontiguousarray(rows[:, alike.tag_at : alike.tag_at + 8]).view(">u8")
        tags = tags.reshape(count).astype(np.uint64)
        if self._tag_mark:
            tags += np.uint64(self._tag_mark)
        arrivals = self._arrivals
        arrivals.add_run(
            Received.of_columns(
                received_ns=np.full(count, at_ns, np.int64),
                lane=np.full(count, self._lane, np.uint32),
                route=np.full(count, alike.route, np.uint16),
                head=alike.heads(rows),
                size=np.full(count, alike.body_bytes, np.uint32),
                redelivered=(rows[:, alike.tag_at + 8] & 1).astype(np.bool_),
                bodies=[alike.body(row.tobytes()) for row in rows]
                if arrivals.wants_bodies
                else None,
                headers=[alike.headers] * count if arrivals.wants_headers else None,
                tag=tags,
            )
        )

    # -- similar messages --------------------------------------------------------------------------

    def _take_similar(self, raw: bytearray, start: int, end: int, at_ns: int) -> int:
        """One that begins like the last and has other properties or another size: its frames are
        told apart without being taken apart. How many bytes it was; 0 for anything else, which the
        parser then reads frame by frame."""
        similar = self._similar
        if similar is None or not raw.startswith(similar.before, start):
            return 0
        header_at = start + similar.frame_bytes
        properties_at = header_at + _TO_PROPERTIES
        if properties_at > end or raw[header_at - 1] != FRAME_END:
            return 0
        kind, channel, header_bytes, basic, size = _HEADER_START.unpack_from(raw, header_at)
        body_at: int = header_at + FRAME_EXTRA_BYTES + header_bytes
        is_header = kind == HEADER and channel == self._channel and basic == _BASIC
        if not is_header or body_at > end:
            return 0
        stop = body_at + (FRAME_EXTRA_BYTES + size if size else 0)
        if stop > end or raw[body_at - 1] != FRAME_END or raw[stop - 1] != FRAME_END:
            return 0
        first = body_at + FRAME_START_BYTES
        if size and raw[body_at:first] != frame_start(BODY, self._channel, size):
            return 0
        arrivals = self._arrivals
        header = bytes(raw[header_at + FRAME_START_BYTES : body_at - 1])
        if _STREAM_OFFSET in header:
            return 0  # messages of a stream may be alike all the same
        headers = NO_HEADERS
        if arrivals.wants_headers:
            try:
                headers = self._headers_of(header)
            except NOT_UNDERSTOOD:
                return 0  # the parser says so
        tag, bits = _TAG_AND_REDELIVERED.unpack_from(raw, start + similar.tag_at)
        kept = size if arrivals.wants_bodies or size < ENVELOPE_BYTES else ENVELOPE_BYTES
        arrivals.add_row(
            (
                at_ns,
                self._lane,
                similar.route,
                tag + self._tag_mark,
                bits & 1,
                size,
                bytes(raw[first : first + kept]) if size else b"",
                headers,
            )
        )
        if header == self._last_header:
            # It says its size too: the next may be like these two in all but the body.
            method = bytes(raw[start + FRAME_START_BYTES : header_at - 1])
            self._expect(Content.of(method, header, size), similar.route, headers)
        self._last_header = header
        self._last_likeness = None
        return stop - start

    def _headers_of(self, header: bytes) -> Headers:
        if header == self._last_header:
            return self._last_headers
        self._last_headers = read_headers(header[PROPERTIES_AT:])
        return self._last_headers

    # -- any other message -------------------------------------------------------------------------

    def on_content(self, content: Content, at_ns: int) -> None:
        if content.method_id != DELIVER:
            return  # a return: nothing was published here, so nothing of ours came back
        tag_at = _tag_at(content.method)
        tag, bits = _TAG_AND_REDELIVERED.unpack_from(content.method, tag_at)
        route = self._route(content.method)
        headers = self._headers_of(content.header) if self._arrivals.wants_headers else NO_HEADERS
        self._arrivals.add_row(
            (
                at_ns,
                self._lane,
                route,
                tag + self._tag_mark,
                bits & 1,
                content.size,
                content.body,
                headers,
            )
        )
        likeness = _likeness(content, tag_at)
        # Headers that are wanted must be each message's own.
        has_own_headers = self._arrivals.wants_headers and _STREAM_OFFSET in content.header
        if likeness == self._last_likeness and not has_own_headers:
            self._expect(content, route, headers)
        self._last_likeness = likeness
        self._last_header = content.header
        self._similar = _Similar(self._channel, content.method, tag_at, route)

    def _route(self, method: bytes) -> int:
        try:
            return self._routes[method[_CONSUMER_TAG_AT : _tag_at(method)]]
        except KeyError:
            raise BadFrame("a delivery for a consumer that is not ours") from None

    def _expect(self, content: Content, route: int, headers: Headers) -> None:
        alike = _Alike(self._channel, content, route, headers)
        if alike.shape.row_bytes <= LONGEST_ALIKE_BYTES and alike.has_whole_envelope:
            self._alike = alike

    def on_settled(self, tag: int, multiple: bool, is_nack: bool, at_ns: int) -> None:
        """Nothing was published here, so there is nothing to settle."""

    def on_read_end(self, at_ns: int) -> None:
        """Messages are fetched by column, whenever the agent asks."""


class _Similar:
    """What messages for one consumer begin with: all of a deliver but its tag and what follows."""

    def __init__(self, channel: int, method: bytes, tag_at: int, route: int) -> None:
        self.route = route
        self.before = frame_start(METHOD, channel, len(method)) + method[:tag_at]
        self.tag_at = len(self.before)
        self.frame_bytes = FRAME_EXTRA_BYTES + len(method)


class _Alike:
    """What messages have in common, and where in their frames they differ."""

    def __init__(self, channel: int, content: Content, route: int, headers: Headers) -> None:
        self.route = route
        self.headers = headers
        self.body_bytes = content.size
        method, header = content.method, content.header
        tag_at = _tag_at(method)
        exchange_at, key_at = tag_at + _TAG_AND_REDELIVERED.size, _key_at(method)
        before = frame_start(METHOD, channel, len(method)) + method[:tag_at]
        header_start = END_MARK + frame_start(HEADER, channel, len(header))
        known, offset_end = _around_stream_offset(header)
        self.tag_at = len(before)
        constants: list[Constant] = [
            (0, before),
            (FRAME_START_BYTES + exchange_at, method[exchange_at:key_at]),
        ]
        at = FRAME_START_BYTES + len(method)
        constants.append((at, header_start + header[:known]))
        at, after = at + len(header_start) + offset_end, header[offset_end:] + END_MARK
        self._pieces: list[tuple[int, int]] = []
        for size in content.piece_sizes:
            after += frame_start(BODY, channel, size)
            constants.append((at, after))
            first = at + len(after)
            self._pieces.append((first, first + size))
            at, after = first + size, END_MARK
        constants.append((at, after))
        first, end = self._pieces[0] if self._pieces else (0, 0)
        self.envelope_at, self.envelope_end = first, min(end, first + ENVELOPE_BYTES)
        self.shape = RowShape(at + len(after), constants)

    @property
    def has_whole_envelope(self) -> bool:
        """Whether the first piece of the body holds all of it."""
        return self.envelope_end - self.envelope_at == min(self.body_bytes, ENVELOPE_BYTES)

    def heads(self, rows: U8) -> Envelopes:
        heads = empty_envelopes(len(rows))
        columns = rows[:, self.envelope_at : self.envelope_end]
        envelope_bytes(heads)[:, : columns.shape[1]] = columns
        return heads

    def body(self, row: bytes | bytearray) -> bytes:
        return b"".join(row[first:end] for first, end in self._pieces)


def _around_stream_offset(header: bytes) -> tuple[int, int]:
    """Where a message's number in its stream begins and ends; without one, the header's end."""
    name_at = header.find(_STREAM_OFFSET)
    if name_at < 0:
        return len(header), len(header)
    begin = name_at + len(_STREAM_OFFSET)
    return begin, begin + _STREAM_OFFSET_BYTES


def _tag_at(method: bytes) -> int:
    """Where a deliver's delivery tag is: behind the consumer tag."""
    return _CONSUMER_TAG_AT + method[_CONSUMER_TAG_AT - 1]


def _key_at(method: bytes) -> int:
    """Where a deliver's routing key is: at its end, behind the exchange's name."""
    length_at = _tag_at(method) + _TAG_AND_REDELIVERED.size
    return length_at + 1 + method[length_at] + 1


def _likeness(content: Content, tag_at: int) -> _Likeness:
    method, header = content.method, content.header
    known, offset_end = _around_stream_offset(header)
    return (
        method[:tag_at],
        method[tag_at + _TAG_AND_REDELIVERED.size : _key_at(method)],
        len(method),
        header[:known],
        header[offset_end:],
        tuple(content.piece_sizes),
    )
