"""IDs that the system gives in its answers: which message each of them is.

A message may come out before the answer to it has come in. It is then set aside, with the time at
which it was received, until the answer says which one it is, or for some seconds at most.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bench_spark.core.clock import NANOSECONDS, NowNs
from bench_spark.core.envelope import Envelopes, empty_envelopes, envelopes_from_bytes
from bench_spark.transports.base import Outcomes, Received, joined, nothing_received

MOST_IDS = 1 << 18
LONGEST_WAIT_NS = 5 * NANOSECONDS


class GivenIds:
    def __init__(self, now_ns: NowNs, most_ids: int = MOST_IDS) -> None:
        self._now_ns = now_ns
        self._most_ids = most_ids
        self._head_of: OrderedDict[bytes, bytes] = OrderedDict()
        """The envelope of each message by the ID it was given, the oldest first."""
        self._aside: Received = nothing_received()
        self._texts_aside: list[bytes] = []

    def learn(self, outcomes: Outcomes) -> None:
        if outcomes.answers is None:
            return
        for answer, head in zip(outcomes.answers, outcomes.head, strict=True):
            if answer:
                self._head_of[bytes(answer)] = head.tobytes()
        while len(self._head_of) > self._most_ids:
            self._head_of.popitem(last=False)

    def recognise(self, received: Received, texts: Sequence[bytes]) -> tuple[Received, Envelopes]:
        """Messages that are known now, or that have waited for too long, with their heads; those
        without an ID, or whose ID nobody has given, have a head of zeros."""
        received = replace(received, bodies=None, keys=None, headers=None)
        waiting = [part for part in (self._aside, received) if len(part)]
        everything = joined(waiting)
        names = [*self._texts_aside, *texts]
        heads = [self._head_of.get(name) for name in names]
        latest_ns = self._now_ns() - LONGEST_WAIT_NS
        stays = np.array(
            [head is None and bool(name) for head, name in zip(heads, names, strict=True)], np.bool_
        )
        stays &= everything.received_ns > latest_ns
        self._texts_aside = [name for name, stay in zip(names, stays, strict=True) if stay]
        self._aside = everything.at(np.flatnonzero(stays))
        known = [head for head, stay in zip(heads, stays, strict=True) if not stay]
        return everything.at(np.flatnonzero(~stays)), _envelopes(known)


def _envelopes(heads: Sequence[bytes | None]) -> Envelopes:
    if not heads:
        return empty_envelopes(0)
    nothing = bytes(empty_envelopes(1).nbytes)
    rows = np.frombuffer(b"".join([head or nothing for head in heads]), np.uint8)
    return envelopes_from_bytes(rows.reshape(len(heads), len(nothing)).copy())
