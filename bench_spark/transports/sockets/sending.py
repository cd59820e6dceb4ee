"""Batches divided among lanes. A lane takes whole messages only. What its socket does not take at
once is kept, at most one write's worth, and until that has gone the lane takes no more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from bench_spark.measure.envelope import Envelopes, envelope_bytes
from bench_spark.transports.base import I64, U8, U16, Batch
from bench_spark.transports.sockets.grouping import by_lane, is_of_one_lane
from bench_spark.transports.sockets.lanes import Lanes, LaneT
from bench_spark.transports.sockets.line import DialogueT, OpenedT

WRITE_BYTES = 256 * 1024
"""Messages written to a lane at once, and the most that may wait there for its socket."""


@dataclass(frozen=True)
class Load:
    """A batch in the order in which it is written."""

    heads: Envelopes
    rows: U8
    """The same heads as bytes."""
    routes: U16
    tails: bytes | Sequence[bytes]
    head_bytes: int

    @classmethod
    def of(cls, batch: Batch, order: I64 | None = None) -> Load:
        heads, routes, tails = batch.head, batch.route, batch.tail
        if order is not None:
            heads, routes = heads[order], routes[order]
            tails = tails if isinstance(tails, bytes) else [tails[place] for place in order]
        rows = envelope_bytes(np.ascontiguousarray(heads))
        return cls(heads, rows, routes, tails, batch.head_bytes)

    def part(self, start: int, end: int) -> Load:
        """Some of these messages (views, no copies of heads)."""
        return Load(
            self.heads[start:end],
            self.rows[start:end],
            self.routes[start:end],
            self.tails if isinstance(self.tails, bytes) else self.tails[start:end],
            self.head_bytes,
        )


class SendingLanes(Lanes[LaneT, DialogueT, OpenedT]):
    # -- what a protocol adds ----------------------------------------------------------------------

    def _allowed(self, lane: LaneT) -> int:
        """How many messages the broker lets the lane send now, whatever its socket takes."""
        raise NotImplementedError

    def _write(self, lane: LaneT, load: Load) -> None:
        """Hand these messages to the lane's socket."""
        raise NotImplementedError

    # -- for the agent -----------------------------------------------------------------------------

    def send(self, batch: Batch) -> int:
        if self._is_closing or not len(batch):
            return 0
        if is_of_one_lane(batch.lane):
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
        load = Load.of(batch)
        most = _messages_per_write(batch)
        accepted = 0
        while room > 0 and accepted < len(batch):
            end = min(len(batch), accepted + min(most, room))
            self._write(lane, load.part(accepted, end))
            accepted = end
            room = self._room(lane)
        return accepted

    def _send_by_lane(self, batch: Batch) -> int:
        """Accepted is a prefix of the batch: it ends where the first lane has no more room."""
        if self._room(self._opened[batch.lane[0]]) <= 0:
            return 0  # before the work of grouping: full lanes are tried again and again
        groups = by_lane(batch.lane)
        most = _messages_per_write(batch)
        accepted = len(batch)
        for number, start, end in groups:
            room = max(0, min(most, self._room(self._opened[number])))
            if end - start > room:
                accepted = min(accepted, int(groups.order[start + room]))
        if not accepted:
            return 0
        load = Load.of(batch, groups.order)
        for number, start, end in groups:
            if accepted < len(batch):
                end = start + int(groups.order[start:end].searchsorted(accepted))
            if end > start:
                self._write(self._opened[number], load.part(start, end))
        return accepted


def _messages_per_write(batch: Batch) -> int:
    tail_bytes = len(batch.tail) if isinstance(batch.tail, bytes) else max(map(len, batch.tail))
    return max(1, WRITE_BYTES // (batch.head_bytes + tail_bytes))
