"""Which record a message is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_spark.config.sections import RecordOrder
from bench_spark.data.ordering import RecordOrdering


def numbers(ordering: RecordOrdering, messages: int) -> list[int]:
    """Of the first so many messages of all producers together."""
    stream = np.arange(messages, dtype=np.uint64)
    producer = (stream % ordering.producers).astype(np.uint32)
    found: list[int] = ordering.numbers(producer, stream // ordering.producers).tolist()
    return found


def test_in_sequence_producers_take_records_in_turn_and_begin_again() -> None:
    ordering = RecordOrdering(records=5, producers=2)
    assert numbers(ordering, 12) == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1]
    second = ordering.numbers(np.ones(4, np.uint32), np.arange(4, dtype=np.uint64))
    assert second.tolist() == [1, 3, 0, 2]


@given(st.integers(1, 300), st.integers(1, 7), st.integers(0, 2**63 - 1))
def test_shuffled_each_lap_has_every_record_once(records: int, producers: int, seed: int) -> None:
    ordering = RecordOrdering(records, producers, "shuffled", seed)
    drawn = numbers(ordering, 3 * records)
    for lap in range(3):
        assert sorted(drawn[lap * records : (lap + 1) * records]) == list(range(records))


@given(st.integers(1, 1000), st.integers(0, 2**63 - 1), st.integers(0, 2**62))
def test_sampled_records_exist(records: int, seed: int, first: int) -> None:
    sequence = np.arange(first, first + 50, dtype=np.uint64)
    drawn = RecordOrdering(records, 1, "sampled", seed).numbers(np.zeros(50, np.uint32), sequence)
    assert drawn.min() >= 0
    assert drawn.max() < records


@pytest.mark.parametrize("order", ["shuffled", "sampled"])
def test_random_orders_depend_on_the_seed_and_on_nothing_else(order: RecordOrder) -> None:
    first, again = (numbers(RecordOrdering(1000, 3, order, 7), 1000) for _ in range(2))
    other = numbers(RecordOrdering(1000, 3, order, 8), 1000)
    assert first == again
    assert first != other
    assert first != sorted(first)


def test_shuffled_laps_differ_and_sampled_records_repeat() -> None:
    shuffled = numbers(RecordOrdering(100, 1, "shuffled"), 200)
    assert shuffled[:100] != shuffled[100:]
    assert len(set(numbers(RecordOrdering(100, 1, "sampled"), 100))) < 100
