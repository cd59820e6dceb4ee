"""Messages as bytes on a stream: behind their size, or before a line feed. Pure."""

from __future__ import annotations

import itertools
from typing import Protocol

import numpy as np

from bench_spark.errors import ConfigurationError
from bench_spark.scenario.tcp_section import Tcp
from bench_spark.transports.sockets.sending import Load

LINE_END = b"\n"


class Framing(Protocol):
    def data(self, load: Load) -> bytes | memoryview:
        """The bytes of these messages. Raises ConfigurationError for one that cannot be sent."""


def framing_of(tcp: Tcp) -> Framing:
    return LengthFraming(tcp) if tcp.framing == "length" else LineFraming()


def size_limit(tcp: Tcp) -> int | None:
    """The largest body that can be framed; None where there is no limit."""
    return 256**tcp.length_bytes - 1 if tcp.framing == "length" else None


class LengthFraming:
    def __init__(self, tcp: Tcp) -> None:
        self._width = tcp.length_bytes
        self._order = tcp.byte_order
        self._most_bytes = 256**tcp.length_bytes - 1

    def length(self, size: int) -> bytes:
        if size > self._most_bytes:
            raise ConfigurationError(
                f"tcp.length_bytes: {self._width} is too few for a message of {size} bytes; the "
                f"most that it can say is {self._most_bytes}"
            )
        return size.to_bytes(self._width, self._order)

    def data(self, load: Load) -> bytes | memoryview:
        if load.is_of_one_kind:
            return self._of_one_size(load)
        bodies = load.bodies()
        lengths = map(self.length, map(len, bodies))
        return b"".join(itertools.chain.from_iterable(zip(lengths, bodies, strict=True)))

    def _of_one_size(self, load: Load) -> memoryview:
        tail = load.shared_tail
        length = self.length(load.head_bytes + len(tail))
        message = np.frombuffer(length + bytes(load.head_bytes) + tail, np.uint8)
        rows = np.tile(message, (len(load.rows), 1))
        head_end = self._width + load.head_bytes
        rows[:, self._width : head_end] = load.rows[:, : load.head_bytes]
        if load.own_tails is not None:
            rows[:, head_end:] = load.own_tails
        return rows.reshape(-1).data


class LineFraming:
    def data(self, load: Load) -> bytes:
        bodies = load.bodies()
        data = LINE_END.join(bodies) + LINE_END
        # Counted once for all: looking into each would take longer than putting them together.
        if data.count(LINE_END) != len(bodies):
            self._refuse(load, bodies)
        return data

    @staticmethod
    def _refuse(load: Load, bodies: list[bytes]) -> None:
        for head, body in zip(load.heads, bodies, strict=True):
            if LINE_END in body:
                raise ConfigurationError(
                    f"tcp.framing: line: message {head['sequence']} of producer "
                    f"{head['producer']} has a line feed at byte {body.index(LINE_END)}, which "
                    "would end it there; use framing: length"
                )
