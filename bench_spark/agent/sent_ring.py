"""When this agent sent the messages that are on their way: what their IDs do not say.

A ring per producer, so that memory does not grow. A message that comes back after so many others
were sent that its place was taken is still counted; only its times are not known here.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bench_spark.core.envelope import Envelopes
from bench_spark.transports.base import I64, U32, Bool

MOST_MESSAGES = 1 << 20
FEWEST_MESSAGES_EACH = 256

_SLOT_DTYPE = np.dtype(
    [("number", "<u8"), ("sent_ns", "<u8"), ("intended_ns", "<u8"), ("content", "<i8")]
)
"""`number` is the sequence plus one: an empty slot is no message."""


class Known(NamedTuple):
    """What is known of messages that came back; times are 0 where nothing is."""

    is_known: Bool
    sent_ns: npt.NDArray[np.uint64]
    intended_ns: npt.NDArray[np.uint64]
    content: I64


class SentRing:
    def __init__(self, members: tuple[int, ...], most_messages: int = MOST_MESSAGES) -> None:
        """`members`: the producers by lane."""
        each = max(FEWEST_MESSAGES_EACH, most_messages // max(1, len(members)))
        self._each = np.uint64(each)
        self._slots = np.zeros((max(1, len(members)), each), _SLOT_DTYPE)
        self._members = np.array(sorted(members), np.int64)
        self._lane_of_member = np.argsort(np.array(members, np.int64))

    def add(self, lane: U32, head: Envelopes, hashes: I64 | None) -> None:
        place = head["sequence"] % self._each
        slots = np.empty(len(head), _SLOT_DTYPE)
        slots["number"] = head["sequence"] + np.uint64(1)
        slots["sent_ns"] = head["sent_ns"]
        slots["intended_ns"] = head["intended_ns"]
        slots["content"] = 0 if hashes is None else hashes
        self._slots[lane, place] = slots

    def find(self, head: Envelopes) -> Known:
        """Of heads with this run's tag; whatever they say, nothing is found that was not sent."""
        if not len(self._members):
            nothing = np.zeros(len(head), np.uint64)
            return Known(np.zeros(len(head), np.bool_), nothing, nothing, nothing.view(np.int64))
        producer = head["producer"].astype(np.int64)
        at = np.minimum(np.searchsorted(self._members, producer), len(self._members) - 1)
        slots = self._slots[self._lane_of_member[at], head["sequence"] % self._each]
        is_known = (self._members[at] == producer) & (
            slots["number"] == head["sequence"] + np.uint64(1)
        )
        sent_ns, intended_ns = slots["sent_ns"] * is_known, slots["intended_ns"] * is_known
        return Known(is_known, sent_ns, intended_ns, slots["content"])
