"""Which lane sends next: no gaps in a lane's numbers, and never more in flight than allowed."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.flows import NO_HEADS, deal, round_robin

from bench_spark.agent.flow import Flow, WindowFlow

Sent = dict[int, list[int]]
"""Per lane the sequence numbers that went out, in order."""


def producers(*numbers: int) -> np.typing.NDArray[np.uint32]:
    return np.array(numbers, dtype=np.uint32)


def send(flow: Flow, messages: int, accepted: int, sent: Sent) -> int:
    """Ask for messages and have only the first `accepted` taken."""
    lane, sequence = deal(flow, messages)
    assert len(lane) == len(sequence) <= messages
    assert (lane.dtype, sequence.dtype) == (np.uint32, np.uint64)
    taken = min(accepted, len(lane))
    for one_lane, number in zip(lane[:taken].tolist(), sequence[:taken].tolist(), strict=True):
        sent[one_lane].append(number)
    if taken:
        flow.accepted(lane[:taken], NO_HEADS)
    return taken


attempts = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 40)), max_size=30)


@given(st.integers(1, 9), attempts)
def test_round_robin_numbers_each_lane_without_gaps_whatever_is_accepted(
    lanes: int, tries: list[tuple[int, int]]
) -> None:
    flow, sent = round_robin(lanes), defaultdict[int, list[int]](list)
    for messages, accepted in tries:
        send(flow, messages, accepted, sent)
    for numbers in sent.values():
        assert numbers == list(range(len(numbers)))
    lengths = [len(sent[lane]) for lane in range(lanes)]
    assert max(lengths) - min(lengths) <= 1


def test_round_robin_deals_a_refused_message_again() -> None:
    flow = round_robin(3)
    first = deal(flow, 5)
    assert first[0].tolist() == [0, 1, 2, 0, 1]
    assert first[1].tolist() == [0, 0, 0, 1, 1]
    flow.accepted(first[0][:2], NO_HEADS)
    lane, sequence = deal(flow, 2)
    assert (lane.tolist(), sequence.tolist()) == ([2, 0], [0, 1])


@given(
    st.integers(1, 6),
    st.lists(
        st.tuples(
            st.integers(0, 12),
            st.integers(0, 25),
            st.sampled_from(["", "down", "up"]),
            st.integers(0, 5),
        ),
        max_size=40,
    ),
)
def test_a_schedule_stays_complete_and_in_order_while_lanes_come_and_go(
    lanes: int, steps: list[tuple[int, int, str, int]]
) -> None:
    flow, sent = round_robin(lanes, owes=True), defaultdict[int, list[int]](list)
    down: set[int] = set()
    due = 0
    for newly_due, accepted, event, lane in steps:
        lane %= lanes
        if event == "down" and lane not in down:
            down.add(lane)
            flow.suspend(lane)
        elif event == "up" and lane in down:
            down.discard(lane)
            flow.resume(lane)
        due += newly_due
        owed = [
            number
            for number in range(due)
            if number % lanes not in down and number // lanes >= len(sent[number % lanes])
        ]
        assert flow.ready(due) == len(owed)
        if not owed:
            continue
        dealt_lane, sequence = deal(flow, len(owed))
        assert sorted(flow.numbers(dealt_lane, sequence).tolist()) == owed
        send(flow, len(owed), accepted, sent)
    for one in down:
        flow.resume(one)
    while flow.ready(due):
        send(flow, flow.ready(due), 7, sent)
    for lane in range(lanes):
        assert sent[lane] == list(range(len(sent[lane])))
    assert sum(map(len, sent.values())) == due


def test_a_lane_that_catches_up_does_not_hold_up_the_others() -> None:
    flow = round_robin(2, owes=True)
    flow.suspend(0)
    assert flow.ready(100) == 50
    flow.accepted(deal(flow, 50)[0], NO_HEADS)
    flow.resume(0)
    assert flow.ready(104) == 54
    lane, sequence = deal(flow, 54)
    assert lane.tolist() == [1, 1] + [0] * 52
    assert sequence.tolist() == [50, 51, *range(52)]
    assert flow.numbers(lane, sequence).tolist() == [101, 103, *range(0, 104, 2)]


def test_without_a_schedule_turns_are_forgone_and_numbers_have_no_gaps() -> None:
    flow, sent = round_robin(3), defaultdict[int, list[int]](list)
    send(flow, 7, 7, sent)
    flow.suspend(1)
    send(flow, 100, 100, sent)
    flow.resume(1)
    before = {lane: len(numbers) for lane, numbers in sent.items()}
    send(flow, 30, 30, sent)
    assert {lane: len(numbers) - before[lane] for lane, numbers in sent.items()} == {
        0: 10,
        1: 10,
        2: 10,
    }
    for numbers in sent.values():
        assert numbers == list(range(len(numbers)))


def test_with_all_lanes_down_nothing_is_dealt() -> None:
    for flow in (round_robin(2), round_robin(2, owes=True), WindowFlow((0, 1), 5)):
        flow.suspend(0)
        flow.suspend(1)
        assert len(deal(flow, 10)[0]) == 0


def test_a_window_that_lost_its_connection_waits_for_the_survivors_and_reclaims_the_rest() -> None:
    windows = WindowFlow((0, 1), in_flight=10)
    lane, _ = deal(windows, 20)
    windows.accepted(lane, NO_HEADS)
    windows.suspend(0)
    windows.consumed(producers(1, 1))
    assert set(deal(windows, 20)[0].tolist()) == {1}
    windows.resume(0)
    assert windows.is_settling
    windows.consumed(producers(0, 0, 0))
    assert set(deal(windows, 20)[0].tolist()) == {1}
    assert windows.settling_credit == 3
    windows.reclaim()
    assert not windows.is_settling
    assert Counter(deal(windows, 20)[0].tolist()) == {0: 10, 1: 2}
    # Late or repeated messages make no window wider than it was asked to be.
    windows.consumed(producers(0, 0, 0, 1))
    assert Counter(deal(windows, 20)[0].tolist()) == {0: 10, 1: 3}


def test_after_the_loss_of_a_consumer_all_windows_settle() -> None:
    windows = WindowFlow((0, 1), in_flight=2)
    windows.accepted(deal(windows, 3)[0], NO_HEADS)
    windows.settle_all()
    assert len(deal(windows, 10)[0]) == 0
    windows.reclaim()
    assert windows.credit == 4


def test_round_robin_is_an_open_loop() -> None:
    flow = round_robin(1)
    flow.consumed(producers(0, 0, 0))
    lane, sequence = deal(flow, 4)
    assert (lane.tolist(), sequence.tolist()) == ([0] * 4, [0, 1, 2, 3])


window_steps = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 60), st.lists(st.integers(0, 30), max_size=20)),
    max_size=25,
)


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=7, unique=True),
    st.integers(1, 12),
    window_steps,
)
def test_windows_keep_each_lane_within_its_window_and_without_gaps(
    members: list[int], in_flight: int, steps: list[tuple[int, int, list[int]]]
) -> None:
    windows, sent = WindowFlow(tuple(members), in_flight), defaultdict[int, list[int]](list)
    flying: Counter[int] = Counter()
    for messages, accepted, arrivals in steps:
        before = {lane: len(numbers) for lane, numbers in sent.items()}
        send(windows, messages, accepted, sent)
        for lane, numbers in sent.items():
            flying[members[lane]] += len(numbers) - before.get(lane, 0)
        assert all(count <= in_flight for count in flying.values())
        assert windows.credit == in_flight * len(members) - flying.total()
        arrived = [member for member in arrivals if member not in members or flying[member] > 0]
        arrived = [
            member
            for place, member in enumerate(arrived)
            if member not in members or arrived[: place + 1].count(member) <= flying[member]
        ]
        windows.consumed(producers(*arrived))
        flying.subtract(Counter(member for member in arrived if member in members))
    for numbers in sent.values():
        assert numbers == list(range(len(numbers)))


def test_a_message_consumed_frees_the_window_of_its_own_producer() -> None:
    windows = WindowFlow((7, 3, 5), in_flight=2)
    lane, _ = deal(windows, 100)
    windows.accepted(lane, NO_HEADS)
    assert len(deal(windows, 100)[0]) == 0
    windows.consumed(producers(3, 5, 5))
    lane, sequence = deal(windows, 100)
    found = sorted(zip(lane.tolist(), sequence.tolist(), strict=True))
    assert found == [(1, 2), (2, 2), (2, 3)]
    assert windows.progress == 3


def test_messages_of_other_producers_free_nothing() -> None:
    windows = WindowFlow((4, 2), in_flight=1)
    lane, _ = deal(windows, 2)
    windows.accepted(lane, NO_HEADS)
    windows.consumed(producers(0, 1, 3, 5, 2**32 - 1))
    assert windows.credit == 0
    assert windows.progress == 0


@pytest.mark.parametrize("batch", [1, 2, 3, 5, 8, 100])
def test_no_lane_starves_while_others_are_served_as_fast_as_they_send(batch: int) -> None:
    members = tuple(range(5))
    windows, sent = WindowFlow(members, in_flight=3), defaultdict[int, list[int]](list)
    for _ in range(60):
        before = {lane: len(sent[lane]) for lane in members}
        send(windows, batch, batch, sent)
        arrived = [lane for lane in members for _ in range(len(sent[lane]) - before[lane])]
        windows.consumed(producers(*arrived))
    lengths = [len(sent[lane]) for lane in members]
    assert min(lengths) >= 0.8 * max(lengths) > 0


def test_a_short_deal_is_cut_at_one_level_for_all_lanes() -> None:
    windows = WindowFlow((0, 1, 2), in_flight=100)
    lane, _ = deal(windows, 9)
    assert Counter(lane.tolist()) == {0: 3, 1: 3, 2: 3}
