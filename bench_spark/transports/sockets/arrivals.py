"""Messages received, collected in rows. Pure."""

from __future__ import annotations

import numpy as np

from bench_spark.config.sections import LARGEST_BODY_BYTES
from bench_spark.core.envelope import leading_envelopes
from bench_spark.transports.base import (
    RECEIVED_DTYPE,
    Headers,
    Part,
    Received,
    nothing_received,
)
from bench_spark.transports.batches import U8, Rows

Row = tuple[int, int, int, int, int, int, bytes, Headers]
"""When, lane, route, delivery tag, redelivered (a bit), size, body, headers."""
NO_HEADERS: Headers = {}
MOST_BYTES = 2 * LARGEST_BODY_BYTES + 64 * 1024
"""The largest body that any run takes."""
_FIRST_ROWS = 4096


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


class Arrivals:
    """Rows that decoders write into. Shared by the lanes of one agent: a thousand lanes with a
    message each make one batch.

    A kernel writes `rows[count:]` in place and the caller moves `count` on. Where bodies or headers
    are wanted, one is appended to `bodies` or `headers` for every row.
    """

    def __init__(self, want: frozenset[Part], most_bytes: int = MOST_BYTES) -> None:
        """`most_bytes`: of a body. Whoever announces a larger one is no peer of this run, and its
        connection ends before any of it is collected."""
        self.most_bytes = most_bytes
        self.wants_bodies = Part.BODY in want
        self.wants_headers = Part.HEADERS in want
        self.rows: Rows = np.zeros(_FIRST_ROWS, RECEIVED_DTYPE)
        self.count = 0
        self.bodies: list[bytes] = []
        self.headers: list[Headers] = []
        self._spare: Rows = np.zeros(_FIRST_ROWS, RECEIVED_DTYPE)
        self._nothing = nothing_received()

    def __bool__(self) -> bool:
        return self.count > 0

    def make_room(self, rows: int) -> None:
        """Let at least so many more rows fit. `rows` may be another array afterwards."""
        wanted = self.count + rows
        if wanted > len(self.rows):
            larger = np.zeros(max(wanted, 2 * len(self.rows)), RECEIVED_DTYPE)
            larger[: self.count] = self.rows[: self.count]
            self.rows = larger

    def add_row(self, row: Row) -> None:
        """One message, in the order of `Row`; of its body at least the envelope."""
        at_ns, lane, route, tag, redelivered, size, body, headers = row
        self.make_room(1)
        head = leading_envelopes((body,))[0]
        self.rows[self.count] = (at_ns, tag, head, lane, size, 0, route, redelivered, False)
        self.count += 1
        if self.wants_bodies:
            self.bodies.append(body)
        if self.wants_headers:
            self.headers.append(headers)

    def add_run(self, run: Received) -> None:
        self.make_room(len(run))
        self.rows[self.count : self.count + len(run)] = run.rows
        self.count += len(run)
        self.bodies += run.bodies or ()
        self.headers += run.headers or ()

    def take(self) -> Received:
        """What was collected; its rows are written over after the next call."""
        if not self.count:
            return self._nothing
        received = Received(
            self.rows[: self.count],
            bodies=self.bodies if self.wants_bodies else None,
            headers=self.headers if self.wants_headers else None,
        )
        self.rows, self._spare, self.count = self._spare, self.rows, 0
        if self.wants_bodies:
            self.bodies = []
        if self.wants_headers:
            self.headers = []
        return received
