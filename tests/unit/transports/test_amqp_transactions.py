"""Acknowledgements are committed in the order they came, a transaction at a time."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bench_spark.transports.amqp.consumers import AckTransactions


def tags(first: int, count: int) -> np.typing.NDArray[np.uint64]:
    return np.arange(first, first + count, dtype=np.uint64)


def test_nothing_is_committed_before_a_transaction_is_full() -> None:
    transactions = AckTransactions(10, ack_every=1)
    transactions.add(tags(1, 9), 0)
    assert len(transactions.begin()) == 0
    transactions.add(tags(10, 1), 0)
    assert transactions.begin().tolist() == list(range(1, 11))
    assert transactions.is_committing


def test_what_comes_while_the_broker_commits_waits() -> None:
    transactions = AckTransactions(2, ack_every=1)
    transactions.add(tags(1, 5), 0)
    assert transactions.begin().tolist() == [1, 2]
    assert len(transactions.begin()) == len(transactions.begin(is_partial=True)) == 0
    assert transactions.committed() == 2
    assert transactions.begin().tolist() == [3, 4]
    assert transactions.committed() == 2
    assert len(transactions.begin()) == 0
    assert transactions.begin(is_partial=True).tolist() == [5]
    assert transactions.committed() == 1


def test_groups_are_acknowledged_by_their_last_message_and_so_is_a_rest() -> None:
    transactions = AckTransactions(6, ack_every=3)
    transactions.add(tags(1, 10), 0)
    assert transactions.begin().tolist() == [3, 6]
    transactions.committed()
    assert transactions.begin(is_partial=True).tolist() == [9, 10]


@given(
    st.integers(1, 5),
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(1, 20), st.booleans(), st.booleans()), max_size=30),
)
def test_every_message_is_acknowledged_exactly_once(
    groups: int, ack_every: int, steps: list[tuple[int, bool, bool]]
) -> None:
    transactions = AckTransactions(groups * ack_every, ack_every)
    added, acknowledged, last_tag = 0, 0, 0
    for count, is_answered, is_partial in steps:
        transactions.add(tags(added + 1, count), 0)
        added += count
        found = transactions.begin(is_partial)
        if len(found):
            assert int(found[0]) > last_tag
            last_tag = int(found[-1])
        if is_answered and transactions.is_committing:
            acknowledged += transactions.committed()
            assert acknowledged == last_tag
    while transactions.is_committing or transactions.waiting:
        transactions.begin(is_partial=True)
        acknowledged += transactions.committed()
    assert acknowledged == added
