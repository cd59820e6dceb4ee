"""Messages out of a stream of bytes: many of one size together, any other one by one. Pure.

A message that is longer than `LONGEST_WHOLE_BYTES` is not collected before it is read: its body is
taken as it comes, and only what is needed of it is kept.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from bench_spark.core.envelope import (
    ENVELOPE_BYTES,
    empty_envelopes,
    envelope_bytes,
    leading_envelopes,
)
from bench_spark.scenario.tcp_section import Tcp
from bench_spark.transports.base import U8, Received
from bench_spark.transports.sockets.arrivals import NO_HEADERS, Arrivals, too_large
from bench_spark.transports.sockets.runs import AlikeMessages, ReadBuffer, RowShape
from bench_spark.transports.sockets.wire import Unreadable
from bench_spark.transports.tcp.framing import LINE_END

LONGEST_WHOLE_BYTES = 64 * 1024


class Parser(Protocol):
    def parse(self, buffer: ReadBuffer, end: int, at_ns: int) -> int:
        """Decode what the buffer holds up to `end`; how many bytes are done with.

        The rest is the beginning of something: it must come first in the next call's buffer.
        """


def parser_of(tcp: Tcp, lane: int, arrivals: Arrivals) -> Parser:
    if tcp.framing == "line":
        return LineParser(lane, arrivals)
    return LengthParser(tcp, lane, arrivals)


class _LongBody:
    """A message that comes in pieces; of its body only what is wanted is kept."""

    def __init__(self, size: int, keeps_all: bool) -> None:
        self.size = size
        self.missing_bytes = size
        self._most_kept = size if keeps_all else ENVELOPE_BYTES
        self._pieces: list[bytes] = []

    def take(self, raw: bytearray, start: int, end: int) -> int:
        count = min(self.missing_bytes, end - start)
        have = self.size - self.missing_bytes
        if have < self._most_kept:
            self._pieces.append(bytes(raw[start : start + min(count, self._most_kept - have)]))
        self.missing_bytes -= count
        return count

    @property
    def body(self) -> bytes:
        return b"".join(self._pieces)


class _Alike:
    """Messages of one size."""

    def __init__(self, length: bytes, size: int) -> None:
        self.size = size
        self.body_at = len(length)
        self.shape = RowShape(len(length) + size, [(0, length)])


class LengthParser(AlikeMessages[_Alike]):
    """For one connection."""

    def __init__(self, tcp: Tcp, lane: int, arrivals: Arrivals) -> None:
        super().__init__()
        self._width = tcp.length_bytes
        self._order = tcp.byte_order
        self._lane = lane
        self._arrivals = arrivals
        self._long: _LongBody | None = None
        self._last_size = -1

    def parse(self, buffer: ReadBuffer, end: int, at_ns: int) -> int:
        at = 0
        while at < end:
            if self._long is not None:
                at += self._take_long(self._long, buffer.raw, at, end, at_ns)
                continue
            at += self._take_alike(buffer, at, end, at_ns)
            taken = self._take_one(buffer.raw, at, end, at_ns)
            if not taken:
                break
            at += taken
        return at

    def _take_one(self, raw: bytearray, start: int, end: int, at_ns: int) -> int:
        body_at = start + self._width
        if body_at > end:
            return 0
        length = bytes(raw[start:body_at])
        size = int.from_bytes(length, self._order)
        if size > self._arrivals.most_bytes:
            raise Unreadable(too_large(size, self._arrivals.most_bytes))
        if size > LONGEST_WHOLE_BYTES:
            self._long = _LongBody(size, self._arrivals.wants_bodies)
            return self._width
        stop = body_at + size
        if stop > end:
            return 0
        self._add_row(bytes(raw[body_at : self._kept_end(body_at, stop)]), size, at_ns)
        if size == self._last_size:
            self._alike = _Alike(length, size)
        self._last_size = size
        return stop - start

    def _take_long(self, long: _LongBody, raw: bytearray, start: int, end: int, at_ns: int) -> int:
        taken = long.take(raw, start, end)
        if not long.missing_bytes:
            self._long = None
            self._add_row(long.body, long.size, at_ns)
        return taken

    def _kept_end(self, start: int, stop: int) -> int:
        return stop if self._arrivals.wants_bodies else min(stop, start + ENVELOPE_BYTES)

    def _add_row(self, body: bytes, size: int, at_ns: int) -> None:
        self._arrivals.add_row((at_ns, self._lane, 0, 0, 0, size, body, NO_HEADERS))

    def _add_one(self, alike: _Alike, buffer: ReadBuffer, start: int, at_ns: int) -> None:
        body_at = start + alike.body_at
        end = self._kept_end(body_at, body_at + alike.size)
        self._add_row(bytes(buffer.raw[body_at:end]), alike.size, at_ns)

    def _add_many(self, alike: _Alike, rows: U8, at_ns: int) -> None:
        count = len(rows)
        heads = empty_envelopes(count)
        columns = rows[:, alike.body_at : alike.body_at + ENVELOPE_BYTES]
        envelope_bytes(heads)[:, : columns.shape[1]] = columns
        wants_bodies = self._arrivals.wants_bodies
        self._arrivals.add_run(
            Received.of_columns(
                received_ns=np.full(count, at_ns, np.int64),
                lane=np.full(count, self._lane, np.uint32),
                route=np.zeros(count, np.uint16),
                head=heads,
                size=np.full(count, alike.size, np.uint32),
                redelivered=np.zeros(count, np.bool_),
                bodies=[row[alike.body_at :].tobytes() for row in rows] if wants_bodies else None,
                headers=[NO_HEADERS] * count if self._arrivals.wants_headers else None,
                tag=np.zeros(count, np.uint64),
            )
        )


class LineParser:
    """For one connection."""

    def __init__(self, lane: int, arrivals: Arrivals) -> None:
        self._lane = lane
        self._arrivals = arrivals
        self._pieces: list[bytes] = []
        """Of a long line whose end has not come yet."""
        self._piece_bytes = 0

    def parse(self, buffer: ReadBuffer, end: int, at_ns: int) -> int:
        lines = bytes(buffer.view[:end]).split(LINE_END)
        rest = lines.pop()
        if lines:
            if self._pieces:
                lines[0] = b"".join((*self._pieces, lines[0]))
                self._pieces, self._piece_bytes = [], 0
            self._add(lines, at_ns)
        if self._pieces or len(rest) > LONGEST_WHOLE_BYTES:
            self._pieces.append(rest)
            self._piece_bytes += len(rest)
            if self._piece_bytes > self._arrivals.most_bytes:
                raise Unreadable(too_large(self._piece_bytes, self._arrivals.most_bytes))
            return end
        return end - len(rest)

    def _add(self, lines: list[bytes], at_ns: int) -> None:
        count = len(lines)
        self._arrivals.add_run(
            Received.of_columns(
                received_ns=np.full(count, at_ns, np.int64),
                lane=np.full(count, self._lane, np.uint32),
                route=np.zeros(count, np.uint16),
                head=leading_envelopes(lines),
                size=np.fromiter(map(len, lines), np.uint32, count),
                redelivered=np.zeros(count, np.bool_),
                bodies=lines if self._arrivals.wants_bodies else None,
                headers=[NO_HEADERS] * count if self._arrivals.wants_headers else None,
                tag=np.zeros(count, np.uint64),
            )
        )
