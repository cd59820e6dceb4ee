"""Rows of a batch put together by lane. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bench_spark.transports.batches import I64, U32


@dataclass(frozen=True)
class LaneGroups:
    order: I64
    """Places in the batch, lane by lane; within a lane as they were."""
    lanes: list[int]
    bounds: list[int]
    """The rows of lanes[i] are order[bounds[i] : bounds[i + 1]]."""

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """Lane, and where in `order` its rows begin and end."""
        return zip(self.lanes, self.bounds[:-1], self.bounds[1:], strict=True)


def is_of_one_lane(lane: U32) -> bool:
    """Of at least one row."""
    return len(lane) == 1 or (lane[0] == lane[-1] and not np.count_nonzero(lane != lane[0]))


def by_lane(lane: U32) -> LaneGroups:
    """Of at least one row."""
    order = np.argsort(lane, kind="stable")
    lanes = lane[order]
    firsts = np.concatenate(([0], np.flatnonzero(lanes[1:] != lanes[:-1]) + 1))
    return LaneGroups(order, lanes[firsts].tolist(), [*firsts.tolist(), len(lane)])
