"""The heads of a batch, in one buffer that every batch uses again.

A paced agent sends some thousand small batches a second: what does not change from one to the next
is written once.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bench_spark.core.envelope import Envelopes, empty_envelopes

U16 = npt.NDArray[np.uint16]
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]


class HeadBuffer:
    def __init__(self, run_tag: int, members: tuple[int, ...], most: int) -> None:
        """`members`: the producers by lane; `most`: messages in the largest batch."""
        self._heads = empty_envelopes(most)
        self._heads["run_tag"] = run_tag
        self._member_of_lane = np.array(members, dtype=np.uint32)
        if len(members) == 1:
            self._heads["producer"] = members[0]
        # The only destination of every producer, for as many messages as needed.
        self._routes = np.zeros(most, np.uint16)

    def numbered(self, lane: U32, sequence: U64) -> Envelopes:
        """Heads of these messages, still without times; valid until the next call."""
        heads = self._heads[: len(lane)]
        heads["sequence"] = sequence
        if len(self._member_of_lane) > 1:
            heads["producer"] = self._member_of_lane[lane]
        return heads

    def routes(self, messages: int) -> U16:
        return self._routes[:messages]
