"""Messages as bytes on a stream, behind their size or before a line feed: written and read. Pure.

Of a body only what is wanted is kept: its first 32 bytes, or all of it.
"""

from __future__ import annotations

import itertools
from typing import Final

import numpy as np

from bench_spark.config.protocols import Tcp
from bench_spark.core.envelope import ENVELOPE_BYTES, ENVELOPE_WORDS, leading_envelopes
from bench_spark.core.kernels import kernel, warm_up
from bench_spark.errors import ConfigurationError
from bench_spark.transports.batches import ENVELOPE_ONLY, I64, U8, Batch, Received
from bench_spark.transports.sockets.buffers import (
    NO_HEADERS,
    Arrivals,
    Int,
    ReadBuffer,
    Unreadable,
    put_received,
    take_envelope,
    too_large,
)
from bench_spark.transports.sockets.messages import (
    Template,
    TemplateBlock,
    Templates,
    bodies_of,
    is_alike,
    shared_and_own_payloads,
)

LINE_END = b"\n"
LONGEST_REST_BYTES = 64 * 1024
"""Most of a line that is left for the next read; longer ones are collected."""

# Why the decoder stopped.
MORE: Final = 0
"""The rest is the beginning of a message."""
FULL: Final = 1
"""No room for another row."""
MALFORMED: Final = 3
"""A length that is larger than any message may be."""
PAYLOAD: Final = 4
"""A piece of a body was consumed, where whoever decodes wants bodies."""

_LONGEST_LENGTH: Final = 1 << 48
"""No length is read further, however many bytes it has."""

_LANE, _MOST_BYTES, _LENGTH_BYTES, _IS_LITTLE_ENDIAN, _WANTS_BODIES = range(5)
_IS_INSIDE, _SIZE, _MISSING_BYTES, _PIECE_AT, _HEAD = range(5, 10)
_STATE_WORDS: Final = _HEAD + ENVELOPE_WORDS
"""What a decoder knows from one read to the next: what never changes, and the message whose body
comes."""


# -- the way out -----------------------------------------------------------------------------------


def framing_of(tcp: Tcp) -> LengthFraming | LineFraming:
    return LengthFraming(tcp) if tcp.framing == "length" else LineFraming()


def size_limit(tcp: Tcp) -> int | None:
    """The largest body that can be framed; None where there is no limit."""
    return 256**tcp.length_bytes - 1 if tcp.framing == "length" else None


class LengthFraming:
    def __init__(self, tcp: Tcp) -> None:
        self._width = tcp.length_bytes
        self._order = tcp.byte_order
        self._most_bytes = 256**tcp.length_bytes - 1
        self._block = TemplateBlock()
        self._templates = Templates(LengthFraming._template)

    def length(self, size: int) -> bytes:
        if size > self._most_bytes:
            raise ConfigurationError(
                f"tcp.length_bytes: {self._width} is too few for a message of {size} bytes; the "
                f"most that it can say is {self._most_bytes}"
            )
        return size.to_bytes(self._width, self._order)

    def data(self, batch: Batch) -> bytes | memoryview:
        """The bytes of these messages, good until the next call. Raises ConfigurationError for one
        that cannot be sent."""
        if is_alike(batch):
            payload, payloads = shared_and_own_payloads(batch.payload)
            template = self._templates.of(self, payload, batch.envelope_bytes)
            return self._block.messages(template, batch.envelope_words, payloads)
        bodies = bodies_of(batch)
        lengths = map(self.length, map(len, bodies))
        return b"".join(itertools.chain.from_iterable(zip(lengths, bodies, strict=True)))

    def _template(self, payload: bytes, envelope_bytes: int) -> Template:
        start = self.length(envelope_bytes + len(payload))
        return Template(start + bytes(envelope_bytes) + payload, len(start), envelope_bytes)


class LineFraming:
    def data(self, batch: Batch) -> bytes:
        bodies = bodies_of(batch)
        data = LINE_END.join(bodies) + LINE_END
        # Counted once for all: looking into each would take longer than putting them together.
        if data.count(LINE_END) != len(bodies):
            self._refuse(batch, bodies)
        return data

    @staticmethod
    def _refuse(batch: Batch, bodies: list[bytes]) -> None:
        for envelope, body in zip(batch.envelope, bodies, strict=True):
            if LINE_END in body:
                raise ConfigurationError(
                    f"tcp.framing: line: message {envelope['sequence']} of producer "
                    f"{envelope['producer']} has a line feed at byte {body.index(LINE_END)}, which "
                    "would end it there; use framing: length"
                )


# -- the way in ------------------------------------------------------------------------------------


def parser_of(tcp: Tcp, lane: int, arrivals: Arrivals) -> StreamParser:
    if tcp.framing == "line":
        return LineParser(lane, arrivals)
    return LengthParser(tcp, lane, arrivals)


@kernel
def read_size(data: U8, at: Int, width: Int, is_little_endian: Int) -> Int:
    """A length of so many bytes; nothing is added to one that is too large already."""
    size = np.int64(0)
    for place in range(width):
        if size < _LONGEST_LENGTH:
            nearer = width - 1 - place if is_little_endian else place
            size = size << 8 | np.int64(data[at + nearer])
    return size


@kernel
def decode_frames(
    data: U8, at: Int, end: Int, at_ns: Int, state: I64, words: I64, count: Int
) -> tuple[Int, Int, Int]:
    """Decode messages into the rows from `count` on. Returns where it stopped, `count` and why."""
    while True:
        if count >= len(words):
            return at, count, FULL
        if state[_IS_INSIDE]:
            if state[_MISSING_BYTES] and at >= end:
                return at, count, MORE
            taken = min(state[_MISSING_BYTES], end - at)
            state[_PIECE_AT] = at
            state[_MISSING_BYTES] -= taken
            at += taken
            if not state[_MISSING_BYTES]:
                state[_IS_INSIDE] = 0
                put_received(words, count, at_ns, 0, state, _HEAD, state[_LANE], state[_SIZE], 0, 0)
                count += 1
            if state[_WANTS_BODIES]:
                return at, count, PAYLOAD
            continue
        body_at = at + state[_LENGTH_BYTES]
        if body_at > end:
            return at, count, MORE
        size = read_size(data, at, state[_LENGTH_BYTES], state[_IS_LITTLE_ENDIAN])
        if size > state[_MOST_BYTES]:
            return at, count, MALFORMED
        head_end = body_at + min(size, ENVELOPE_BYTES)
        if head_end > end:
            return at, count, MORE
        state[_SIZE] = size
        take_envelope(data, body_at, size, state, _HEAD)
        state[_MISSING_BYTES], state[_IS_INSIDE] = size, 1
        at = body_at


class LengthParser:
    """For one connection."""

    def __init__(self, tcp: Tcp, lane: int, arrivals: Arrivals) -> None:
        self._arrivals = arrivals
        self._tcp = tcp
        self._pieces: list[bytes] = []
        self._state: I64 = np.zeros(_STATE_WORDS, np.int64)
        self._state[_LANE] = lane
        self._state[_MOST_BYTES] = arrivals.most_bytes
        self._state[_LENGTH_BYTES] = tcp.length_bytes
        self._state[_IS_LITTLE_ENDIAN] = tcp.byte_order == "little"
        self._state[_WANTS_BODIES] = arrivals.wants_bodies or arrivals.wants_headers

    def parse(self, buffer: ReadBuffer, end: int, at_ns: int) -> int:
        """Decode what the buffer holds up to `end`; how many bytes are done with.

        The rest is the beginning of something: it must come first in the next call's buffer.
        """
        at = 0
        arrivals = self._arrivals
        while True:
            before = arrivals.count
            at, arrivals.count, why = decode_frames(
                buffer.array, at, end, at_ns, self._state, arrivals.words, before
            )
            if why == MORE:
                return int(at)
            if why == FULL:
                arrivals.make_room(1)
            elif why == PAYLOAD:
                self._keep_piece(buffer.raw, at, is_complete=arrivals.count > before)
            else:
                length = bytes(buffer.raw[at : at + self._tcp.length_bytes])
                size = int.from_bytes(length, self._tcp.byte_order)
                raise Unreadable(too_large(size, arrivals.most_bytes))

    def _keep_piece(self, raw: bytearray, at: int, is_complete: bool) -> None:
        arrivals = self._arrivals
        if arrivals.wants_bodies:
            self._pieces.append(bytes(raw[self._state[_PIECE_AT] : at]))
        if is_complete:
            body = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
            self._pieces = []
            if arrivals.wants_bodies:
                arrivals.bodies.append(body)
            if arrivals.wants_headers:
                arrivals.headers.append(NO_HEADERS)


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
        if self._pieces or len(rest) > LONGEST_REST_BYTES:
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
                envelope=leading_envelopes(lines),
                size=np.fromiter(map(len, lines), np.uint32, count),
                redelivered=np.zeros(count, np.bool_),
                bodies=lines if self._arrivals.wants_bodies else None,
                headers=[NO_HEADERS] * count if self._arrivals.wants_headers else None,
                tag=np.zeros(count, np.uint64),
            )
        )


StreamParser = LengthParser | LineParser


@warm_up
def _compile() -> None:
    LengthParser(Tcp(), 0, Arrivals(ENVELOPE_ONLY)).parse(ReadBuffer(1), 0, 0)
