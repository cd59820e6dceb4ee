"""Lanes that are full are set aside, so that the others keep to the schedule without them.

A transport accepts a batch from its front, up to the first message whose lane has no room: a full
socket, or a window of confirms. Without this, one slow lane would make a thousand others late, and
their lateness would be blamed on the broker.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bench_spark.agent.flow import RoundRobinFlow
from bench_spark.transports.base import Skippable

LOOK_NS = 5_000_000
"""How often to look whether lanes have room again."""


class SetAside:
    def __init__(self, producers: Skippable, flow: RoundRobinFlow) -> None:
        self._producers = producers
        self._flow = flow
        self._lanes: set[int] = set()
        self._next_look_ns = 0

    def put(self, refused: npt.NDArray[np.uint32], now_ns: int) -> bool:
        """Set aside those that are full of the lanes of refused messages; whether there were any.

        A lane that has room after all, since a moment, is simply tried again.
        """
        full = self._producers.full_among(np.unique(refused).tolist())
        for lane in full:
            self._flow.suspend(lane)
        if full and not self._lanes:
            self._next_look_ns = now_ns + LOOK_NS
        self._lanes |= full
        return bool(full)

    def take_back(self, now_ns: int) -> None:
        """Deal again for lanes that have room."""
        if not self._lanes or now_ns < self._next_look_ns:
            return
        self._next_look_ns = now_ns + LOOK_NS
        still_full = self._producers.full_among(self._lanes)
        for lane in self._lanes - still_full:
            self._flow.resume(lane)
        self._lanes = still_full

    def forget(self, lane: int) -> None:
        """The lane is down: whoever opens it again says when it is back."""
        self._lanes.discard(lane)
