"""What became of requests, from the answers to them. Pure.

Answers come in the order of requests, so what is open is a queue.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from bench_spark.core.envelope import Envelopes, empty_envelopes, joined_envelopes
from bench_spark.scenario.http_section import Http
from bench_spark.transports.base import OutcomeKind, Outcomes
from bench_spark.transports.http.heads import ResponseHead

LONGEST_ANSWER_BYTES = 64 * 1024
"""Of the body of an answer: nobody's ID is longer."""


@dataclass
class Answered:
    """What the lanes of one agent share."""

    http: Http
    outcomes: list[Outcomes] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    """How often each came."""

    @property
    def kept_bytes(self) -> int:
        return LONGEST_ANSWER_BYTES if self.http.answer == "body" else 0

    def answer_of(self, head: ResponseHead, body: bytes) -> bytes | None:
        """The part of an answer that is given on; None where none is wanted."""
        if self.http.answer == "body":
            return body
        if self.http.answer == "header":
            found: bytes = head.fields.get(self.http.answer_header or "", b"")
            return found
        return None


class Unanswered:
    """Requests of one lane."""

    def __init__(self, lane: int, shared: Answered) -> None:
        self._lane = lane
        self._shared = shared
        self._limit = shared.http.in_flight
        self._heads: Envelopes = empty_envelopes(0)
        self._kinds: list[int] = []
        """Of those that were answered and not told yet: the first of `_heads`."""
        self._times: list[int] = []
        self._answers: list[bytes] = []

    def __len__(self) -> int:
        return len(self._heads) - len(self._kinds)

    @property
    def room(self) -> int:
        return self._limit - len(self)

    def sent(self, heads: Envelopes) -> None:
        self._tell()
        self._heads = joined_envelopes([self._heads, heads]) if len(self._heads) else heads.copy()

    def answered(self, head: ResponseHead, body: bytes, at_ns: int) -> bool:
        """Whether there was a request for this answer."""
        if not len(self):
            return False
        self._shared.statuses[head.status] += 1
        is_taken = 200 <= head.status < 300
        self._kinds.append(OutcomeKind.CONFIRMED if is_taken else OutcomeKind.REFUSED)
        self._times.append(at_ns)
        answer = self._shared.answer_of(head, body)
        if answer is not None:
            self._answers.append(answer)
        return True

    def read_ended(self) -> None:
        """All that one read brought has been decoded."""
        self._tell()

    def abandon(self, at_ns: int) -> None:
        """The connection is gone: nobody knows whether the rest was taken."""
        self._tell()
        if len(self._heads):
            self._kinds = [OutcomeKind.UNKNOWN] * len(self._heads)
            self._times = [at_ns] * len(self._heads)
            if self._shared.http.answer != "none":
                self._answers = [b""] * len(self._heads)
            self._tell()

    def _tell(self) -> None:
        count = len(self._kinds)
        if not count:
            return
        self._shared.outcomes.append(
            Outcomes.of_columns(
                at_ns=np.array(self._times, np.int64),
                lane=np.full(count, self._lane, np.uint32),
                kind=np.array(self._kinds, np.uint8),
                head=self._heads[:count],
                answers=self._answers or None,
            )
        )
        self._heads = self._heads[count:]
        self._kinds, self._times, self._answers = [], [], []
