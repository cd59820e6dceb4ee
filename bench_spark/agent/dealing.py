"""How many messages may go out now, and from which producer. Pure: no clock, no socket.

A dealer chooses lanes and knows nothing of time; the loop asks it for the next batch and tells it
how much of the batch was accepted. Sequence numbers are dealt per lane without gaps: a message that
was refused keeps its number for the next try.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]


class Dealer(Protocol):
    def deal(self, messages: int) -> tuple[U32, U64]:
        """Lane and sequence number of at most that many messages."""

    def accepted(self, lane: U32) -> None:
        """These messages, the front of what was dealt last, are out."""

    def consumed(self, producer: npt.NDArray[np.uint32]) -> None:
        """Messages of these producers have been received."""


class RoundRobin:
    """Message k goes to lane k modulo the number of lanes."""

    def __init__(self, lanes: int) -> None:
        self._lanes = lanes
        self._dealt = 0
        self._only_lane = np.zeros(0, np.uint32)

    def deal(self, messages: int) -> tuple[U32, U64]:
        number = np.arange(self._dealt, self._dealt + messages, dtype=np.uint64)
        if self._lanes == 1:
            if len(self._only_lane) < messages:
                self._only_lane = np.zeros(messages, np.uint32)
            return self._only_lane[:messages], number
        sequence, lane = np.divmod(number, np.uint64(self._lanes))
        return lane.astype(np.uint32), sequence

    def accepted(self, lane: U32) -> None:
        self._dealt += len(lane)

    def consumed(self, producer: npt.NDArray[np.uint32]) -> None:
        """An open loop does not wait for its messages."""


class Windows:
    """Closed loop: every lane keeps a fixed number of its messages in flight."""

    def __init__(self, members: tuple[int, ...], in_flight: int) -> None:
        self._credit = np.full(len(members), in_flight, dtype=np.int64)
        self._next_sequence = np.zeros(len(members), dtype=np.int64)
        self._members = np.array(sorted(members), dtype=np.int64)
        self._lane_of_member = np.argsort(np.array(members))
        self._first_lane = 0
        self.progress = 0

    def deal(self, messages: int) -> tuple[U32, U64]:
        # In turn: a deal too small for all lanes begins where the one before ended.
        lanes = np.roll(np.arange(len(self._credit)), -self._first_lane)
        share = self._credit[lanes]
        if int(share.sum()) > messages:
            share = _fair_shares(share, messages)
        lane = np.repeat(lanes, share)
        starts = np.repeat(np.cumsum(share) - share, share)
        within = np.arange(len(lane)) - starts
        return lane.astype(np.uint32), (self._next_sequence[lane] + within).astype(np.uint64)

    def accepted(self, lane: U32) -> None:
        counts = np.bincount(lane, minlength=len(self._credit))
        self._credit -= counts
        self._next_sequence += counts
        self._first_lane = (int(lane[-1]) + 1) % len(self._credit)

    def consumed(self, producer: npt.NDArray[np.uint32]) -> None:
        at = np.searchsorted(self._members, producer)
        at = np.minimum(at, len(self._members) - 1)
        known = self._members[at] == producer
        self._credit += np.bincount(
            self._lane_of_member[at[known]], minlength=len(self._credit)
        ).astype(np.int64)
        self.progress += int(np.count_nonzero(known))

    @property
    def credit(self) -> int:
        return int(self._credit.sum())


def _fair_shares(credit: I64, messages: int) -> I64:
    """Cut every lane's credit at one level, so that none starves the others."""
    level = max(1, messages // max(1, int(np.count_nonzero(credit))))
    share = np.minimum(credit, level)
    before = np.cumsum(share) - share
    cut: I64 = np.clip(messages - before, 0, share)
    return cut
