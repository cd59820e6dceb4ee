"""Senders that wait for their own messages, and keep a schedule together. Pure: time is the
caller's.

Every sender has one message on its way at most. Whatever is due next goes to the sender that has
been free longest; when all wait, the messages become late, and their lateness is the system's. A
message that never arrives would hold its sender for ever, so that after a while it goes on without.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from bench_spark.core.envelope import Envelopes, empty_envelopes

U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

NOTHING = -1


class Requests:
    """A dealer (see `dealing.py`) for a load with a schedule."""

    def __init__(self, members: tuple[int, ...]) -> None:
        """`members`: the producer of each lane, by its number in the whole run."""
        self._member_of_lane = np.array(members, dtype=np.int64)
        self._lane_by_rank = np.argsort(self._member_of_lane)
        self._members = self._member_of_lane[self._lane_by_rank]
        """Rising."""
        self._free = deque(range(len(members)))
        self._is_down = np.zeros(len(members), np.bool_)
        self._awaited = np.full(len(members), NOTHING, dtype=np.int64)
        """By lane: the sequence number of the message that its sender waits for."""
        self._next_sequence = np.zeros(len(members), dtype=np.int64)
        self._heads = empty_envelopes(len(members))
        """By lane: that message."""
        self._dealt = 0
        self.are_all_waiting = False
        """Whether something is due that nobody is free to send."""

    # -- dealing ---------------------------------------------------------------------------------

    def ready(self, due: int) -> int:
        """How many of the first `due` messages of the stream can be dealt now."""
        self.are_all_waiting = due - self._dealt > len(self._free)
        return min(due - self._dealt, len(self._free))

    def deal(self, messages: int) -> tuple[U32, U64]:
        lane = np.array(list(islice(self._free, messages)), dtype=np.uint32)
        return lane, self._next_sequence[lane].astype(np.uint64)

    def numbers(self, lane: U32, sequence: U64) -> I64:
        """Which messages of the whole stream these are, of those dealt last."""
        return np.arange(self._dealt, self._dealt + len(lane), dtype=np.int64)

    def accepted(self, lane: U32) -> None:
        for _ in range(len(lane)):
            self._free.popleft()
        self._awaited[lane] = self._next_sequence[lane]
        self._next_sequence[lane] += 1
        self._dealt += len(lane)

    def sent(self, lane: U32, head: Envelopes) -> None:
        """These are the messages that were accepted."""
        self._heads[lane] = head

    def consumed(self, producer: npt.NDArray[np.uint32]) -> None:
        """It takes a message's number to know that it is the one waited for: see `arrived`."""

    # -- waiting ---------------------------------------------------------------------------------

    def arrived(self, producer: npt.ArrayLike, sequence: npt.ArrayLike) -> tuple[U32, Envelopes]:
        """Lanes whose own message has arrived, and that message. Repeated and late ones free
        nobody."""
        wanted = np.asarray(producer, dtype=np.int64)
        at = self._lanes_of(wanted)
        is_own = self._member_of_lane[at] == wanted
        is_own &= self._awaited[at] == np.asarray(sequence, dtype=np.int64)
        lane = np.unique(at[is_own]).astype(np.uint32)
        self._release(lane)
        return lane, self._heads[lane]

    def are_here(self, producer: npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_]:
        """Which of these producers have a lane here."""
        found: npt.NDArray[np.bool_] = self._member_of_lane[self._lanes_of(producer)] == producer
        return found

    def _lanes_of(self, producer: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
        """The lane of each, if it has one at all."""
        rank = np.minimum(np.searchsorted(self._members, producer), len(self._members) - 1)
        lanes: npt.NDArray[np.intp] = self._lane_by_rank[rank]
        return lanes

    def give_up(self, before_ns: int) -> Envelopes:
        """Free whoever waits for a message that was sent before that moment; those messages."""
        is_late = (self._awaited != NOTHING) & (self._heads["sent_ns"].astype(np.int64) < before_ns)
        lane = np.flatnonzero(is_late).astype(np.uint32)
        self._release(lane)
        return self._heads[lane]

    def _release(self, lane: U32) -> None:
        self._awaited[lane] = NOTHING
        self._free.extend(lane[~self._is_down[lane]].tolist())

    # -- lanes that are down ---------------------------------------------------------------------

    def suspend(self, lane: int) -> None:
        self._is_down[lane] = True
        if lane in self._free:
            self._free.remove(lane)

    def resume(self, lane: int) -> None:
        self._is_down[lane] = False
        if self._awaited[lane] == NOTHING and lane not in self._free:
            self._free.append(lane)
