"""Batches divided among lanes. A lane takes whole messages only. What its socket does not take at
once is kept, at most one write's worth, and until that has gone the lane takes no more."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from bench_spark.core.envelope import envelope_bytes
from bench_spark.transports.base import Producers
from bench_spark.transports.batches import I64, U8, Batch, Tails, common_tail_bytes, each_tail
from bench_spark.transports.sockets.grouping import by_lane, is_of_one_lane
from bench_spark.transports.sockets.lanes import Lanes, LaneT
from bench_spark.transports.sockets.line import DialogueT, OpenedT
from bench_spark.transports.sockets.message_block import NO_TAILS

WRITE_BYTES = 256 * 1024
"""Messages written to a lane at once, and the most that may wait there for its socket."""


def is_alike(batch: Batch) -> bool:
    """Whether all have heads, are of one size, and have no headers of their own."""
    tails = type(batch.tail)
    return batch.headers is None and batch.head_bytes > 0 and (tails is bytes or tails is _ARRAY)


def shared_and_own_tails(tails: Tails) -> tuple[bytes, U8]:
    """Of messages that are alike: the tail of all, or zeros that their own are written over; and a
    row for each, where they differ."""
    if isinstance(tails, bytes):
        return tails, NO_TAILS
    assert isinstance(tails, np.ndarray)
    return _zeros(tails.shape[1]), tails


def bodies_of(batch: Batch) -> list[bytes]:
    tails = each_tail(batch.tail)
    if not batch.head_bytes:
        return [tail for tail, _ in zip(tails, batch.head, strict=False)]
    heads = envelope_bytes(batch.head)[:, : batch.head_bytes]
    # A tail that all share has no end, so the heads decide.
    return [head.tobytes() + tail for head, tail in zip(heads, tails, strict=False)]


_ARRAY = np.ndarray


@lru_cache(maxsize=4)
def _zeros(size: int) -> bytes:
    """The same object for every batch: whoever caches frames knows it again at once."""
    return bytes(size)


class SendingLanes(Lanes[LaneT, DialogueT, OpenedT], Producers):
    # -- what a protocol adds ----------------------------------------------------------------------

    def _allowed(self, lane: LaneT) -> int:
        """How many messages the broker lets the lane send now, whatever its socket takes."""
        raise NotImplementedError

    def _write(self, lane: LaneT, batch: Batch) -> None:
        """Hand these messages to the lane's socket."""
        raise NotImplementedError

    # -- for the agent -----------------------------------------------------------------------------

    def send(self, batch: Batch) -> int:
        if self._is_closing or not len(batch):
            return 0
        if len(self._opened) == 1 or is_of_one_lane(batch.lane):
            return self._send_on_one_lane(batch)
        return self._send_by_lane(batch)

    def full_among(self, lanes: Iterable[int]) -> set[int]:
        # Without trying to write: a socket that has room again is written to by the loop.
        return {
            number
            for number in lanes
            if self._opened[number].connection.unsent_bytes
            or self._allowed(self._opened[number]) <= 0
        }

    def _room(self, lane: LaneT) -> int:
        """How many messages the lane takes now."""
        if self._allowed(lane) <= 0:
            return 0
        if lane.connection.unsent_bytes and not lane.connection.flush():
            return 0
        return self._allowed(lane)  # again: a write that failed has ended the lane

    def _send_on_one_lane(self, batch: Batch) -> int:
        lane = self._opened[batch.lane[0]]
        room = self._room(lane)
        if room <= 0:
            return 0
        count, portions = len(batch), _Portions(batch)
        if room >= count and portions.end(0, count) == count:
            self._write(lane, batch)
            return count
        accepted = 0
        while room > 0 and accepted < count:
            end = portions.end(accepted, min(count, accepted + room))
            self._write(lane, batch.part(accepted, end))
            accepted = end
            room = 0 if accepted == count else self._room(lane)
        return accepted

    def _send_by_lane(self, batch: Batch) -> int:
        """Accepted is a prefix of the batch: it ends where the first lane has no more room."""
        if self._room(self._opened[batch.lane[0]]) <= 0:
            return 0  # before the work of grouping: full lanes are tried again and again
        groups = by_lane(batch.lane)
        portions = _Portions(batch, groups.order)
        accepted = len(batch)
        for number, start, end in groups:
            room = max(0, min(portions.end(start, end) - start, self._room(self._opened[number])))
            if end - start > room:
                accepted = min(accepted, int(groups.order[start + room]))
        if not accepted:
            return 0
        ordered = batch.at(groups.order)
        for number, start, end in groups:
            if accepted < len(batch):
                end = start + int(groups.order[start:end].searchsorted(accepted))
            if end > start:
                self._write(self._opened[number], ordered.part(start, end))
        return accepted


class _Portions:
    """How many messages go into one write: of a size as many as fit, and always one."""

    def __init__(self, batch: Batch, order: I64 | None = None) -> None:
        """`order` in which the batch is written."""
        tail_bytes = common_tail_bytes(batch.tail)
        self._most = 0
        self._ends: I64 | None = None
        if tail_bytes is not None:
            self._most = max(1, WRITE_BYTES // max(1, batch.head_bytes + tail_bytes))
        else:
            lengths = map(len, batch.tail)
            sizes = np.fromiter(lengths, np.int64, len(batch.tail)) + batch.head_bytes
            self._ends = np.cumsum(sizes if order is None else sizes[order])

    def end(self, start: int, limit: int) -> int:
        """Where the write that begins with this message ends, at most at `limit`."""
        if self._ends is None:
            return min(limit, start + self._most)
        before = int(self._ends[start - 1]) if start else 0
        end = int(self._ends.searchsorted(before + WRITE_BYTES, side="right"))
        return min(limit, max(start + 1, end))
