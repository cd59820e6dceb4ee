"""Many sockets with a message each: read one behind the other, and decoded together.

Where a thousand lanes get a copy of every message, each read brings one, and what a single read
costs to decode is what bounds the load. Here all that are ready are read first, side by side in the
buffer that they share; then a decoder is offered the whole of it. What it leaves of a lane's bytes
is decoded by that lane itself, as if it had read them alone: nothing of a lane is ever left out or
overtaken.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from bench_spark.transports.base import I64
from bench_spark.transports.sockets.runs import ReadBuffer

MANY = 32
"""Fewer sockets than these are cheaper one by one, above all where each has much."""
READ_AHEAD_BYTES = 8 * 1024
"""Most that is read of a socket with others. One that has more goes on by itself."""

Event = tuple[int, int]
"""A descriptor, and what it is ready for."""


class CrowdMember(Protocol):
    read_ns: int

    def fileno(self) -> int: ...

    @property
    def may_read_ahead(self) -> bool:
        """Whether what comes next is the beginning of a frame, and nothing is against reading."""

    def receive_into(self, room: memoryview) -> int:
        """Read once; how many bytes, 0 where there was nothing or the connection has ended."""

    def decode_own(self, data: bytes, read_ns: int) -> None:
        """Decode what was read of this socket at that time."""

    def read(self) -> None:
        """Read and decode what is left in the socket."""


@dataclass(frozen=True)
class Reads:
    """What was read in one go, a read per place."""

    lane: I64
    start: I64
    """In the buffer."""
    end: I64
    read_ns: I64


_Read = tuple[CrowdMember, int, int, int, int]
"""Whose, the number of its lane, start and end in the buffer, when."""

DecodeTogether = Callable[[ReadBuffer, Reads], I64]
"""Decode what it can of the front of each read; how far it came in each."""


class Crowd:
    def __init__(self, buffer: ReadBuffer, decode: DecodeTogether) -> None:
        self._buffer = buffer
        self._decode = decode
        self._members: dict[int, tuple[CrowdMember, int]] = {}
        """By descriptor: whose it is, and the number of its lane."""
        self._last_start = len(buffer.raw) - READ_AHEAD_BYTES

    def join(self, member: CrowdMember, lane: int) -> None:
        self._members[member.fileno()] = member, lane

    def leave(self, member: CrowdMember) -> None:
        """To be told before its socket is closed."""
        self._members.pop(member.fileno(), None)

    def serve(self, ready: list[Event]) -> list[Event]:
        """Read and decode those that may be read together; the others."""
        if len(ready) < MANY:
            return ready
        others: list[Event] = []
        read: list[_Read] = []
        at = 0
        members, view = self._members, self._buffer.view
        for event in ready:
            descriptor, events = event
            found = members.get(descriptor)
            if found is None or events != select.EPOLLIN or not found[0].may_read_ahead:
                others.append(event)
                continue
            member, lane = found
            count = member.receive_into(view[at : at + READ_AHEAD_BYTES])
            if count:
                read.append((member, lane, at, at + count, member.read_ns))
                at += count
                if at > self._last_start:
                    self._decode_all(read)
                    read, at = [], 0
        if read:
            self._decode_all(read)
        return others

    def _decode_all(self, read: list[_Read]) -> None:
        members, lanes, starts, ends, read_ns = zip(*read, strict=True)
        reads = Reads(
            lane=np.array(lanes, np.int64),
            start=np.array(starts, np.int64),
            end=np.array(ends, np.int64),
            read_ns=np.array(read_ns, np.int64),
        )
        done = self._decode(self._buffer, reads)
        has_more = reads.end - reads.start == READ_AHEAD_BYTES
        unfinished = np.flatnonzero((done < reads.end) | has_more).tolist()
        # Copied before any of it is decoded: that happens at the front of the same buffer.
        left = [bytes(self._buffer.view[done[place] : ends[place]]) for place in unfinished]
        for place, data in zip(unfinished, left, strict=True):
            if data:
                members[place].decode_own(data, read_ns[place])
            if has_more[place]:
                members[place].read()
