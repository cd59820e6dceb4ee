"""Acknowledgements that are committed together. Pure.

A transaction is synchronous: what is to be acknowledged while the broker commits waits its turn.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]

_NOTHING: U64 = np.zeros(0, np.uint64)


class AckTransactions:
    """Of one lane."""

    def __init__(self, messages: int, ack_every: int) -> None:
        """`messages` make a transaction, in which every `ack_every` are acknowledged at once."""
        self._messages = messages
        self._ack_every = ack_every
        self._waiting: U64 = _NOTHING
        self._committing = 0
        self.added_seconds = 0.0

    @property
    def is_committing(self) -> bool:
        return self._committing > 0

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def add(self, tags: U64, now_seconds: float) -> None:
        """These messages, in the order of their tags, may be acknowledged. Tags are copied: they
        are the transport's own until the next receive."""
        self._waiting = np.concatenate((self._waiting, tags))
        self.added_seconds = now_seconds

    def begin(self, is_partial: bool = False) -> U64:
        """The tags to acknowledge, and then to commit, now; none while there is no reason to."""
        if self.is_committing or not (is_partial or self.waiting >= self._messages):
            return _NOTHING
        tags, self._waiting = self._waiting[: self._messages], self._waiting[self._messages :]
        self._committing = len(tags)
        places = np.arange(1, len(tags) + 1)
        is_last_of_group = places % self._ack_every == 0
        if len(tags):
            is_last_of_group[-1] = True
        chosen: U64 = tags[is_last_of_group]
        return chosen

    def committed(self) -> int:
        """The broker has done it; how many messages are acknowledged by that."""
        messages, self._committing = self._committing, 0
        return messages
