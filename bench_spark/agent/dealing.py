"""How many messages may go out now, and from which producer. Pure: no clock, no socket.

A dealer chooses lanes and knows nothing of time; the loop asks it for the next batch and tells it
how much of the batch was accepted. Sequence numbers are dealt per lane without gaps: a message that
was refused keeps its number for the next try. A lane that is down gets nothing, and the others go
on without it.
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

    def suspend(self, lane: int) -> None:
        """The lane is down."""

    def resume(self, lane: int) -> None:
        """The lane is back."""


class Stream(Dealer, Protocol):
    """A dealer of a load with a schedule: message k of the stream is due at a time of its own."""

    def ready(self, due: int) -> int:
        """How many of the first `due` messages of the stream can be dealt now; no others are."""

    def numbers(self, lane: U32, sequence: U64) -> I64:
        """Which messages of the whole stream these are, of those dealt last."""


class RoundRobin:
    """Message k goes to lane k modulo the number of lanes.

    With `owes`, a lane that was down is owed the messages that were its turn meanwhile: it catches
    up beside the others, which stay in time. Without, its turns are forgone.
    """

    def __init__(self, lanes: int, owes: bool = False) -> None:
        self._lanes = lanes
        self._owes = owes
        self._dealt = 0
        self._only_lane = np.zeros(0, np.uint32)
        """While all lanes are in step: the number of the next message."""
        self._next: I64 | None = None
        """While they are not: the number of the next message of each lane."""
        self._is_down = np.zeros(lanes, np.bool_)
        self._is_late = np.zeros(lanes, np.bool_)
        """Lanes that are back and catch up."""
        self._due: int | None = None
        self._forgone = np.zeros(lanes, np.int64)
        """Turns of each lane in which it was down and is owed nothing."""

    def numbers(self, lane: U32, sequence: U64) -> I64:
        """Which messages of the whole stream these are, of those dealt last."""
        if self._next is None:
            return np.arange(self._dealt, self._dealt + len(lane), dtype=np.int64)
        rounds = sequence.astype(np.int64) + self._forgone[lane]
        numbers: I64 = rounds * self._lanes + lane
        return numbers

    def ready(self, due: int) -> int:
        """How many of the first `due` messages of the stream can be dealt now; no others are."""
        self._due = due
        if self._next is None:
            return due - self._dealt
        return int(self._counts(self._next[~self._is_down], due).sum())

    def suspend(self, lane: int) -> None:
        if self._next is None:
            lanes = np.arange(self._lanes, dtype=np.int64)
            self._next = self._dealt + (lanes - self._dealt) % self._lanes
        self._is_down[lane] = True
        self._is_late[lane] = False

    def resume(self, lane: int) -> None:
        if self._next is None:
            return
        self._is_down[lane] = False
        self._is_late[lane] = self._owes
        if not self._owes:
            others = self._next[~self._is_down]
            missed = (int(others.max()) - int(self._next[lane])) // self._lanes
            self._forgone[lane] += missed
            self._next[lane] += missed * self._lanes
        self._fall_in_step()

    def deal(self, messages: int) -> tuple[U32, U64]:
        if self._next is not None:
            return self._deal_out_of_step(self._next, messages)
        number = np.arange(self._dealt, self._dealt + messages, dtype=np.uint64)
        if self._lanes == 1:
            if len(self._only_lane) < messages:
                self._only_lane = np.zeros(messages, np.uint32)
            return self._only_lane[:messages], number
        sequence, lane = np.divmod(number, np.uint64(self._lanes))
        if self._forgone.any():
            sequence -= self._forgone[lane].astype(np.uint64)
        return lane.astype(np.uint32), sequence

    def accepted(self, lane: U32) -> None:
        if self._next is None:
            self._dealt += len(lane)
        else:
            self._next += np.bincount(lane, minlength=self._lanes) * self._lanes
            self._fall_in_step()

    def consumed(self, producer: npt.NDArray[np.uint32]) -> None:
        """An open loop does not wait for its messages."""

    def _deal_out_of_step(self, following: I64, messages: int) -> tuple[U32, U64]:
        """First what the lanes in time may send, then what others have to catch up with."""
        in_time = self._lowest(following[~(self._is_down | self._is_late)], messages)
        late = self._lowest(following[self._is_late], messages - len(in_time))
        number = np.concatenate((in_time, late))
        lane = number % self._lanes
        sequence = number // self._lanes - self._forgone[lane]
        return lane.astype(np.uint32), sequence.astype(np.uint64)

    def _lowest(self, following: I64, messages: int) -> I64:
        """At most so many numbers, the lowest ones, of lanes whose next numbers are these."""
        lowest = 0
        highest = int(following.max(initial=0)) + (messages + 1) * self._lanes
        if self._due is not None:
            highest = min(highest, self._due)
        if int(self._counts(following, highest).sum()) <= messages:
            lowest = highest  # as nearly always on a schedule: whatever is due can be dealt
        while lowest < highest:
            middle = (lowest + highest + 1) // 2
            if int(self._counts(following, middle).sum()) <= messages:
                lowest = middle
            else:
                highest = middle - 1
        counts = self._counts(following, lowest)
        first = np.repeat(following, counts)
        within = np.arange(len(first)) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.sort(first + within * self._lanes)

    def _counts(self, following: I64, end: int) -> I64:
        """How many messages of each lane come before this number."""
        counts: I64 = np.maximum(0, -(-(end - following) // self._lanes))
        return counts

    def _fall_in_step(self) -> None:
        assert self._next is not None
        first = int(self._next.min())
        if not self._is_down.any() and int(self._next.max()) - first < self._lanes:
            self._dealt, self._next = first, None
            self._is_late[:] = False


class Windows:
    """Closed loop: every lane keeps a fixed number of its messages in flight.

    When a connection is lost, nobody knows which messages went down with it. A lane concerned
    therefore sends nothing more until those that survived have arrived, which the loop takes for
    granted when none has come for a while; then `reclaim` gives back the credit of the others.
    """

    def __init__(self, members: tuple[int, ...], in_flight: int) -> None:
        self._in_flight = in_flight
        self._has_held_back = False
        """Whether any lane is down or settles."""
        self._is_down = np.zeros(len(members), np.bool_)
        self._is_settling = np.zeros(len(members), np.bool_)
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
        if self._has_held_back:
            share = np.where((self._is_down | self._is_settling)[lanes], 0, share)
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
        # A message that comes twice, or after its credit was reclaimed, is worth nothing.
        np.minimum(self._credit, self._in_flight, out=self._credit)
        self.progress += int(np.count_nonzero(known))

    def suspend(self, lane: int) -> None:
        self._is_down[lane] = True
        self._has_held_back = True

    def resume(self, lane: int) -> None:
        self._is_down[lane] = False
        self._is_settling[lane] = True

    def settle_all(self) -> None:
        """A consumer was lost: messages of any lane may have gone down with it."""
        self._is_settling[:] = True
        self._has_held_back = True

    @property
    def is_settling(self) -> bool:
        return bool(self._is_settling.any())

    @property
    def settling_credit(self) -> int:
        """Grows as long as messages of the lanes that settle arrive."""
        return int(self._credit[self._is_settling].sum())

    def reclaim(self) -> None:
        """What has not arrived by now will not arrive any more."""
        self._credit[self._is_settling] = self._in_flight
        self._is_settling[:] = False
        self._has_held_back = bool(self._is_down.any())

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
