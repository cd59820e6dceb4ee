"""Senders that wait for their own messages."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from unit.flows import deal

from bench_spark.agent.flow import RequestFlow
from bench_spark.core.envelope import empty_envelopes


def send(requests: RequestFlow, messages: int, at_ns: int = 0) -> list[tuple[int, int]]:
    """Deal so many, as if all were accepted; lane and sequence of each."""
    lane, sequence = deal(requests, messages)
    envelope = empty_envelopes(len(lane))
    envelope["sent_ns"] = at_ns
    requests.accepted(lane, envelope)
    return list(zip(lane.tolist(), sequence.tolist(), strict=True))


def test_what_is_due_goes_to_whoever_has_been_free_longest() -> None:
    requests = RequestFlow((4, 7, 9))
    assert send(requests, 2) == [(0, 0), (1, 0)]
    requests.arrived([7], [0])
    assert send(requests, 5) == [(2, 0), (1, 1)]
    requests.arrived([9, 4], [0, 0])
    assert sorted(send(requests, 5)) == [(0, 1), (2, 1)]


def test_producers_need_not_be_in_order() -> None:
    """Several destinations: the producers of each are together."""
    requests = RequestFlow((0, 2, 4, 1, 3))
    send(requests, 5)
    lane, _ = requests.arrived([3, 1, 5], [0, 0, 0])
    assert lane.tolist() == [3, 4]
    assert requests.are_here(np.array([4, 5, 1], np.uint32)).tolist() == [True, False, True]


def test_when_all_wait_nothing_is_ready_until_one_is_free() -> None:
    requests = RequestFlow((0, 1))
    assert requests.ready(3) == 2
    assert requests.are_all_waiting
    send(requests, 2)
    assert requests.ready(3) == 0
    assert requests.are_all_waiting
    requests.arrived([1], [0])
    assert requests.ready(3) == 1
    assert not requests.are_all_waiting


def test_messages_keep_their_place_in_the_stream_whoever_sends_them() -> None:
    requests = RequestFlow((0, 1))
    lane, sequence = deal(requests, 2)
    assert requests.numbers(lane, sequence).tolist() == [0, 1]
    send(requests, 2)
    requests.arrived([1], [0])
    lane, sequence = deal(requests, 2)
    assert (lane.tolist(), sequence.tolist()) == ([1], [1])
    assert requests.numbers(lane, sequence).tolist() == [2]


def test_only_the_message_waited_for_frees_its_sender() -> None:
    requests = RequestFlow((0, 1))
    send(requests, 2, at_ns=5)
    requests.arrived([0], [0])
    send(requests, 1, at_ns=6)
    lane, _ = requests.arrived([0, 0, 3], [0, 2, 0])  # repeated, not sent yet, another agent's
    assert len(lane) == 0
    lane, envelope = requests.arrived([0, 0, 1], [1, 1, 0])  # the second is a duplicate
    assert lane.tolist() == [0, 1]
    assert envelope["sent_ns"].tolist() == [6, 5]
    assert requests.ready(10) == 2


def test_a_sender_goes_on_without_a_message_that_does_not_come() -> None:
    requests = RequestFlow((0, 1))
    send(requests, 1, at_ns=100)
    send(requests, 1, at_ns=200)
    assert requests.give_up(before_ns=100)["sent_ns"].tolist() == []
    assert requests.give_up(before_ns=101)["sent_ns"].tolist() == [100]
    assert send(requests, 2, at_ns=300) == [(0, 1)]
    requests.arrived([0], [0])  # too late to matter
    assert requests.ready(10) == 0


def test_a_lane_that_is_down_gets_nothing_until_it_is_back() -> None:
    requests = RequestFlow((0, 1, 2))
    send(requests, 1)
    requests.suspend(0)
    requests.suspend(1)
    assert send(requests, 3) == [(2, 0)]
    requests.arrived([0], [0])
    assert requests.ready(10) == 0
    requests.resume(0)
    requests.resume(1)
    assert sorted(send(requests, 3)) == [(0, 1), (1, 0)]


def test_a_sender_that_waits_when_its_lane_comes_back_goes_on_waiting() -> None:
    requests = RequestFlow((0, 1))
    send(requests, 1)
    requests.suspend(0)
    requests.resume(0)
    assert send(requests, 2) == [(1, 0)]
    requests.arrived([0], [0])
    assert send(requests, 2) == [(0, 1)]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=40))
def test_a_sender_has_one_message_on_its_way_and_skips_no_number(
    turns: list[tuple[int, int]],
) -> None:
    requests = RequestFlow((0, 1, 2, 3))
    out: dict[int, int] = {}
    following = dict.fromkeys(range(4), 0)
    for messages, arriving in turns:
        for lane, sequence in send(requests, messages):
            assert lane not in out
            assert sequence == following[lane]
            out[lane] = sequence
            following[lane] += 1
        arrived = dict(list(out.items())[:arriving])
        requests.arrived(
            np.array(list(arrived), np.uint32), np.array(list(arrived.values()), np.uint64)
        )
        for lane in arrived:
            del out[lane]
        assert requests.ready(10_000) == 4 - len(out)
