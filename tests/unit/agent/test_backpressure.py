"""Lanes that are full: who waits for them, and who does not."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from unit.flows import NO_HEADS, deal, round_robin

from bench_spark.agent.connections import LOOK_NS, Backpressure
from bench_spark.agent.flow import RoundRobinFlow


class Crowd:
    def __init__(self, *full: int) -> None:
        self.full = set(full)

    def full_among(self, lanes: Iterable[int]) -> set[int]:
        return self.full & set(lanes)


def dealt(flow: RoundRobinFlow, due: int) -> list[int]:
    """The lanes of all that can be dealt, and the flow takes it for sent."""
    lane, _ = deal(flow, flow.ready(due))
    flow.accepted(lane, NO_HEADS)
    return lane.tolist()


def refused(*lanes: int) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    return np.array(lanes, np.uint32)


def test_the_others_go_on_and_the_full_lane_catches_up_when_it_has_room() -> None:
    flow, crowd = round_robin(3, owes=True), Crowd(1)
    backpressure = Backpressure(crowd.full_among, flow)
    assert backpressure.put(refused(1, 2, 0), now_ns=0)
    assert dealt(flow, 6) == [0, 2, 0, 2]
    crowd.full.clear()
    backpressure.take_back(now_ns=LOOK_NS - 1)
    assert dealt(flow, 6) == [], "nobody looks all the time"
    backpressure.take_back(now_ns=LOOK_NS)
    assert dealt(flow, 9) == [0, 2, 1, 1, 1], "late messages after those in time"
    assert dealt(flow, 12) == [0, 1, 2]


def test_a_lane_that_has_room_after_all_is_not_set_aside() -> None:
    flow = round_robin(2, owes=True)
    assert not Backpressure(Crowd().full_among, flow).put(refused(0, 1), now_ns=0)
    assert dealt(flow, 4) == [0, 1, 0, 1]


def test_a_lane_that_is_down_is_not_taken_back() -> None:
    flow, crowd = round_robin(2, owes=True), Crowd(0)
    backpressure = Backpressure(crowd.full_among, flow)
    backpressure.put(refused(0), now_ns=0)
    backpressure.forget(0)
    flow.suspend(0)
    crowd.full.clear()
    backpressure.take_back(now_ns=LOOK_NS)
    assert dealt(flow, 4) == [1, 1]


def test_when_all_are_full_nothing_is_dealt_until_one_has_room() -> None:
    flow, crowd = round_robin(2, owes=True), Crowd(0, 1)
    backpressure = Backpressure(crowd.full_among, flow)
    backpressure.put(refused(0, 1), now_ns=0)
    assert dealt(flow, 4) == []
    crowd.full = {0}
    backpressure.take_back(now_ns=LOOK_NS)
    assert dealt(flow, 4) == [1, 1]
