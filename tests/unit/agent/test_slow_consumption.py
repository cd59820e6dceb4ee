"""When slow consumers take and acknowledge what has arrived."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_spark.agent.consumer import NEVER_NS, SlowConsumption
from bench_spark.config.sections import Consumer
from bench_spark.core.envelope import empty_envelopes
from bench_spark.transports.batches import Received

MS = 1_000_000


def arrivals(arrived_ns: Sequence[int], lanes: Sequence[int], first: int = 0) -> Received:
    count = len(arrived_ns)
    envelope = empty_envelopes(count)
    envelope["sequence"] = np.arange(first, first + count)
    return Received.of_columns(
        received_ns=np.array(arrived_ns, np.int64),
        lane=np.array(lanes, np.uint32),
        route=np.zeros(count, np.uint16),
        envelope=envelope,
        size=np.full(count, 100, np.uint32),
        redelivered=np.zeros(count, np.bool_),
        tag=np.arange(first, first + count, dtype=np.uint64),
    )


def tokens_of(received: Received) -> list[int]:
    return received.tag.tolist() if len(received) else []


def slow_consumption(lanes: int = 1, **keys: Any) -> SlowConsumption:
    return SlowConsumption(Consumer.model_validate(keys), lanes)


def test_messages_are_taken_no_faster_than_the_rate() -> None:
    slow = slow_consumption(rate_per_second=1000)
    slow.arrived(arrivals([0, 0, 0], [0, 0, 0]))
    assert slow.consumed(0).received_ns.tolist() == [0]
    assert slow.wake_ns == 0, "what was taken can be acknowledged at once"
    assert slow.processed(0).tag.tolist() == [0]
    assert slow.wake_ns == MS
    assert slow.busy_lanes == {0}
    assert slow.consumed(MS - 1).received_ns.tolist() == []
    taken = slow.consumed(5 * MS)
    assert taken.received_ns.tolist() == [MS, 2 * MS], "each at its own moment, seen late or not"
    assert slow.busy_lanes == frozenset()
    assert slow.processed(5 * MS).tag.tolist() == [1, 2]
    assert slow.wake_ns == NEVER_NS


def test_a_message_is_acknowledged_when_it_has_been_processed() -> None:
    slow = slow_consumption(processing_us=2000)
    slow.arrived(arrivals([0, 0], [0, 0]))
    slow.consumed(0)
    assert len(slow.processed(2 * MS - 1)) == 0
    assert slow.processed(2 * MS).tag.tolist() == [0]
    assert slow.consumed(2 * MS).received_ns.tolist() == [2 * MS]


def test_an_idle_consumer_takes_a_message_as_it_arrives() -> None:
    slow = slow_consumption(rate_per_second=1000)
    slow.arrived(arrivals([0], [0]))
    slow.arrived(arrivals([7 * MS], [0], first=1))
    assert slow.consumed(10 * MS).received_ns.tolist() == [0, 7 * MS], "no turns are saved up"


def test_lanes_do_not_wait_for_each_other() -> None:
    slow = slow_consumption(lanes=2, rate_per_second=1000)
    slow.arrived(arrivals([0, 0, 0, 0], [0, 1, 0, 1]))
    first = slow.consumed(0)
    assert sorted(first.lane.tolist()) == [0, 1]
    assert slow.busy_lanes == {0, 1}


def test_at_the_end_the_rest_is_taken_at_once() -> None:
    slow = slow_consumption(rate_per_second=1, processing_us=10)
    slow.arrived(arrivals([0, 0, 0], [0, 0, 0]))
    slow.consumed(0)
    assert slow.consume_rest(MS).received_ns.tolist() == [MS, MS]
    assert slow.processed(NEVER_NS).tag.tolist() == [0, 1, 2]
    assert slow.busy_lanes == frozenset()


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.lists(st.integers(0, 2), min_size=1, max_size=20)),
        min_size=1,
        max_size=10,
    ),
    st.sampled_from([{"rate_per_second": 500.0}, {"processing_us": 3000}]),
    st.integers(1, 7),
)
def test_turns_are_those_of_one_consumer_after_the_other(
    batches: list[tuple[int, list[int]]], keys: dict[str, Any], look_every_ms: int
) -> None:
    slow = slow_consumption(lanes=3, **keys)
    interval = slow.interval_ns
    now, number = 0, 0
    free = [0, 0, 0]
    expected: dict[int, int] = {}
    seen: dict[int, int] = {}
    acknowledged: dict[int, list[int]] = {0: [], 1: [], 2: []}

    def look(at_ns: int) -> None:
        taken = slow.consumed(at_ns)
        assert all(taken.received_ns <= at_ns)
        seen.update(zip(tokens_of(taken), taken.received_ns.tolist(), strict=True))
        done = slow.processed(at_ns)
        for lane, token in zip(done.lane.tolist(), tokens_of(done), strict=True):
            acknowledged[lane].append(token)

    for pause_ms, lanes in batches:
        for _ in range(0, pause_ms, look_every_ms):
            look(now)
        now += pause_ms * MS
        slow.arrived(arrivals([now] * len(lanes), lanes, first=number))
        for lane in lanes:
            expected[number] = max(now, free[lane])
            free[lane] = expected[number] + interval
            number += 1
    at = 0
    while slow.wake_ns < NEVER_NS:
        at = max(at + look_every_ms * MS, slow.wake_ns)
        look(at)
    assert seen == expected
    assert sorted(token for tokens in acknowledged.values() for token in tokens) == list(
        range(number)
    )
    assert all(tokens == sorted(tokens) for tokens in acknowledged.values()), "in order by lane"


@pytest.mark.parametrize("keys", [{}, {"rate_per_second": None, "processing_us": 0}])
def test_consumers_are_not_slow_unless_asked(keys: dict[str, Any]) -> None:
    assert not Consumer.model_validate(keys).is_slow
